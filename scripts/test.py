#!/usr/bin/env python3
"""test.py PRESET ...: builds the presets, then runs the tests of all of them in one ctest.

The seconds of each build, and of its tests by ctest label, are printed before ctest's own summary,
which stays the last thing printed.
"""

import collections
import json
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


def labels_of(folder):
    """The label of every test, by name; several are joined, so that each test counts once."""
    listed = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"],
                            stdout=subprocess.PIPE, check=True)
    found = {}
    for test in json.loads(listed.stdout)["tests"]:
        labels = [label for each in test.get("properties", []) if each["name"] == "LABELS"
                  for label in each["value"]]
        found[test["name"]] = "+".join(labels) or "no label"
    return found


def table(building, testing):
    """`testing`: seconds by (build, label)."""
    def row(name, cells):
        return f"{name:<16}" + "".join(f"{cell:>12}" for cell in cells) + "\n"

    def seconds(keep):
        return [f"{sum(s for key, s in testing.items() if key[0] == preset and keep(key[1])):.0f} s"
                for preset in building]

    text = row("", building) + row("building", [f"{s:.0f} s" for s in building.values()])
    text += row("its tests", seconds(lambda label: True))
    for label in sorted({label for _, label in testing}):
        text += row("  " + label, seconds(lambda of, label=label: of == label))
    return text


def run(presets, building):
    """Runs ctest over the builds, its output passed through; returns its exit code."""
    folder = ROOT / "build" / "all"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CTestTestfile.cmake").write_text(
        "".join(f'subdirs("../{preset}")\n' for preset in presets))
    try:
        labels = labels_of(folder)
    except subprocess.CalledProcessError as failed:
        return failed.returncode
    testing = collections.Counter()
    ctest = subprocess.Popen(["ctest", "--test-dir", folder, "--output-on-failure"],
                             stdout=subprocess.PIPE, text=True, errors="replace")
    for line in ctest.stdout:
        if result := RESULT.match(line):
            test = result.group(1)
            testing[build_of(test), labels.get(test, "no label")] += float(result.group(2))
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
