"""Helpers of the tests of the fabric command: running it, and waiting for conditions."""

import json
import os
import subprocess
import sys
import time
import unittest

TOOL = os.environ.get("FABRICLIB_TEST_TOOL", "fabric")
# Far beyond what anything here takes, and below what ctest allows.
LONG = 60


def run(*arguments, code=0, **environment):
    """Runs `fabric`, which must exit with `code`. Returns standard output and error."""
    done = subprocess.run([TOOL, *arguments], capture_output=True, text=True, timeout=LONG,
                          env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
    assert done.returncode == code, (
        f"fabric {' '.join(arguments)}: ended with {done.returncode}, not {code}\n"
        f"{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def lines(text):
    """The objects of an output with one a line."""
    return [json.loads(line) for line in text.splitlines()]


def start(*arguments):
    """`fabric` in the background."""
    return subprocess.Popen([TOOL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            stdin=subprocess.DEVNULL, text=True)


def until(what, condition):
    """Polls until `condition` is true, and returns its value."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.005)
    raise AssertionError(f"in {LONG} s not: {what}")


def main():
    """unittest with the path of the tool before its own arguments."""
    global TOOL
    TOOL = os.environ["FABRICLIB_TEST_TOOL"] = os.path.abspath(sys.argv.pop(1))
    unittest.main()
