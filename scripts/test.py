#!/usr/bin/env python3
"""test.py PRESET ...: builds the presets, then runs the tests of all of them in one ctest.

The seconds of each build and of its tests are printed before ctest's own summary, which stays the
last thing printed.
"""

import collections
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULT = re.compile(r"\s*\d+/\d+ Test +#\d+: (\S+) .* (\d+\.\d+) sec")
SUMMARY = re.compile(r"\d+% tests passed")
SANITIZED = ("asan", "tsan")  # prefixes of test names; tests of the release build have none


def build(preset):
    """Seconds that configuring and compiling took."""
    begin = time.monotonic()
    subprocess.run(["cmake", "--preset", preset], cwd=ROOT, check=True)
    subprocess.run(["cmake", "--build", "--preset", preset], cwd=ROOT, check=True)
    return time.monotonic() - begin


def build_of(test):
    prefix = test.split(".")[0]
    return prefix if prefix in SANITIZED else "release"


def table(building, testing):
    lines = [f"{'build':<10}{'building':>12}{'its tests':>14}"]
    for preset, seconds in building.items():
        lines.append(f"{preset:<10}{seconds:>10.0f} s{testing[preset]:>12.0f} s")
    return "\n".join(lines) + "\n"


def run(presets, building):
    """Runs ctest over the builds, its output passed through; returns its exit code."""
    folder = ROOT / "build" / "all"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CTestTestfile.cmake").write_text(
        "".join(f'subdirs("../{preset}")\n' for preset in presets))
    testing = collections.Counter()
    ctest = subprocess.Popen(["ctest", "--test-dir", folder, "--output-on-failure"],
                             stdout=subprocess.PIPE, text=True, errors="replace")
    for line in ctest.stdout:
        if result := RESULT.match(line):
            testing[build_of(result.group(1))] += float(result.group(2))
        elif SUMMARY.match(line):
            print(table(building, testing))
        print(line, end="", flush=True)
    return ctest.wait()


def main(presets):
    if not presets:
        sys.exit(__doc__)
    try:
        building = {preset: build(preset) for preset in presets}
    except subprocess.CalledProcessError as failed:
        return failed.returncode
    return run(presets, building)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
