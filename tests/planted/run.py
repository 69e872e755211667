#!/usr/bin/env python3
"""Switches a planted bug on and reports which test finds it.

    run.py BUG --build FOLDER   the world that bugs.py names, the swarm, then the tests it names
    run.py none --build FOLDER  no bug: no test may fail
    run.py --all --build FOLDER a table of all bugs

Fails when no test finds the bug. A crash, an abort and a hang count as found.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True

import bugs  # noqa: E402

BUGS = bugs.BUGS

FIRST_SEED = 1
WORLDS = 200  # at most, until one finds the bug
COUNTED = 50  # worlds that the table always runs, to count how many find it
HANGS_MAX = 2  # each costs its whole time limit
SECONDS_MAX = 60
SECONDS_MAX_OF_ALL = 240  # without a bug all tests run to their end


def environment(name):
    """Without the caller's FABRICLIB_ variables: they would change the worlds."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FABRICLIB_")}
    if name:
        clean["FABRICLIB_TEST_PLANTED"] = name
    return clean


def worlds_of(build, name, first, last):
    """Runs the worlds of seeds `first` to `last` and yields the outcome of each."""
    command = [build / "planted_swarm", str(first), str(last)]
    with subprocess.Popen(command, env=environment(name), stdout=subprocess.PIPE,
                          text=True) as swarm:
        try:
            for line in swarm.stdout:
                yield line.rstrip("\n").partition(" ")[2]
        finally:
            swarm.terminate()


def run_swarm(build, name, counted):
    """The outcome of the first world that finds the bug, its number, and how many of how many.

    Runs at least `counted` worlds; with 0 it stops at the first that finds the bug."""
    first, where, finds, hangs, run_count = "", 0, 0, 0, 0
    for outcome in worlds_of(build, name, FIRST_SEED, FIRST_SEED + WORLDS - 1):
        run_count += 1
        if outcome != "ok":
            finds += run_count <= max(counted, 1)
            hangs += outcome == "hangs"
            if not first:
                first, where = outcome, run_count
        if first and (run_count >= counted or hangs >= HANGS_MAX):
            break
    if not first and run_count != WORLDS:
        raise RuntimeError(f"the swarm ran only {run_count} worlds")
    return first, where, finds, min(run_count, counted)


def run_tests(build, name, layer, wanted):
    """The first test of a layer that fails, and how; nothing when all pass."""
    command = [build / f"planted_{layer}", f"--gtest_filter={wanted}", "--gtest_fail_fast"]
    limit = SECONDS_MAX_OF_ALL if name == "none" else SECONDS_MAX
    try:
        run = subprocess.run(command, env=environment(name), text=True, timeout=limit,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        output, code = run.stdout, run.returncode
    except subprocess.TimeoutExpired as late:
        output, code = (late.stdout or b"").decode("utf-8", "replace"), None
    begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
    if not begun:
        raise RuntimeError(f"no test of {layer} is called {wanted}:\n{output}")
    if code == 0:
        return ""
    failed = re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", output, re.MULTILINE)
    if failed:
        return failed[0]
    return f"{begun[-1]}, which {'hangs' if code is None else 'crashes'}"


def find(build, bug, counted=0):
    """What finds a bug, and in how many worlds; two empty strings if nothing does."""
    if bug.world and not counted:
        for outcome in worlds_of(build, bug.name, bug.world, bug.world):
            if outcome != "ok":
                return f"the swarm: {outcome.removeprefix('violated ')}", f"world {bug.world}"
    if bug.swarm:
        output, where, finds, counted = run_swarm(build, bug.name, counted)
        if output:
            promise = output.removeprefix("violated ")
            worlds = f"world {where} of {WORLDS}"
            if counted:
                worlds += f" ({finds} of the first {counted} worlds)"
            return f"the swarm: {promise}", worlds
    if bug.layer:
        output = run_tests(build, bug.name, bug.layer, bug.filter)
        if output:
            return f"the {bug.layer} tests: {output}", f"none of {WORLDS}" if bug.swarm else "-"
    return "", ""


def find_without_bug(build):
    """Runs everything that is run for a bug, without one. Empty: nothing failed."""
    run_count = 0
    for outcome in worlds_of(build, "", FIRST_SEED, FIRST_SEED + WORLDS - 1):
        run_count += 1
        if outcome != "ok":
            return f"the swarm, in world {run_count}: {outcome}"
    if run_count != WORLDS:
        return f"the swarm, which ran only {run_count} worlds"
    for layer in sorted({bug.layer for bug in BUGS} - {""}):
        if layer == "fake_verbs" and not (build / "planted_fake_verbs").exists():
            continue  # the verbs network is not built here
        wanted = ":".join(sorted({bug.filter for bug in BUGS if bug.layer == layer}))
        output = run_tests(build, "", layer, wanted)
        if output:
            return f"the {layer} tests: {output}"
    return ""


def table(build):
    missed = 0
    print("| Bug | The mistake | Found by | In world |\n|---|---|---|---|")
    for bug in BUGS:
        found_by, worlds = find(build, bug, COUNTED)
        missed += not found_by
        found = found_by or "**nothing**"
        print(f"| `{bug.name}` | {bug.mistake} | {found} | {worlds} |", flush=True)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bug", nargs="?")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--build", type=Path, required=True)
    options = parser.parse_args()
    if options.all:
        return 1 if table(options.build) else 0
    if options.bug == "none":
        output = find_without_bug(options.build)
        print(f"without a bug there is a failure in {output}" if output else
              f"without a bug nothing is found, in {WORLDS} worlds and in the tests")
        return 1 if output else 0
    chosen = [bug for bug in BUGS if bug.name == options.bug]
    if not chosen:
        parser.error(f"no planted bug is called {options.bug}")
    found_by, worlds = find(options.build, chosen[0])
    print(f"{chosen[0].name}: {chosen[0].mistake}")
    print(f"caught by {found_by}" + (f", {worlds}" if chosen[0].swarm else "") if found_by else
          "NOT caught")
    return 0 if found_by else 1


if __name__ == "__main__":
    sys.exit(main())
