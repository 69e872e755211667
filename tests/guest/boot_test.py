#!/usr/bin/env python3
"""What boot.py says and returns before there is a guest; the suite itself shows the rest."""

import contextlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "planted")]
sys.dont_write_bytecode = True
import boot  # noqa: E402
import bugs  # noqa: E402


class Boot(unittest.TestCase):
    def run_boot(self, *arguments, **environment):
        return subprocess.run([sys.executable, boot.__file__, *arguments], capture_output=True,
                              text=True, env={**os.environ, **environment}, timeout=30)

    def test_without_qemu_nothing_is_run_and_that_is_said(self):
        with tempfile.TemporaryDirectory() as empty:
            done = self.run_boot("-c", "5 true", PATH=empty)
        self.assertEqual(done.returncode, 77)  # as tests.cmake has it
        self.assertIn("skipped, nothing was run: no qemu-system-x86_64", done.stdout)

    def test_a_command_without_a_time_limit_is_refused(self):
        done = self.run_boot("-c", "true")
        self.assertEqual(done.returncode, 2)
        self.assertIn("a time limit in seconds", done.stderr)

    def test_only_programs_that_a_command_names_are_carried_and_the_environment_goes_along(self):
        with tempfile.TemporaryDirectory() as folder:
            here = pathlib.Path(folder)
            for name in ("named", "other"):
                (here / name).write_text("#!/bin/sh\n")
                (here / name).chmod(0o755)
            os.environ["FABRICLIB_TEST_SEED"] = "it's 7"
            boot.prepare(here / "job", ["9 SIZE=1 named --filter='*x*'"], [here])
            self.assertEqual(os.listdir(here / "job/bin"), ["named"])
            script = f". {here}/job/environment; echo $FABRICLIB_TEST_SEED"
            said = subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout
        self.assertEqual(said, "it's 7\n")

    def test_every_bug_that_only_a_guest_can_show_is_spoken_of(self):
        said = (HERE / "planted").read_text()
        for bug in bugs.BUGS:
            if bug.layer == "guest":
                self.assertIn(bug.name, said)

    def fake_guest(self, job, script):
        """A Guest whose QEMU is a shell script: it prints output and writes the verdict."""
        guest = boot.Guest.__new__(boot.Guest)
        guest.job = pathlib.Path(job)
        guest.qemu = subprocess.Popen(["sh", "-c", script], cwd=job, stdout=subprocess.PIPE)
        guest.init()
        return guest

    def finish(self, script, limit=20):
        with tempfile.TemporaryDirectory() as job:
            guest = self.fake_guest(job, script)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                guest.follow(limit, lambda: guest.up)
                verdict = guest.finish(limit)
            guest.end()
            return verdict, printed.getvalue(), guest.explain()

    def test_the_verdict_is_not_part_of_the_output(self):
        # The kernel once printed into the line that held the verdict, and the suite failed by it.
        verdict, printed, _ = self.finish(
            "echo SeaBIOS; echo 'guest: up'; echo 'guest: true'; printf 'no newline[  3.1] sysrq';"
            "echo 3 > verdict")
        self.assertEqual((verdict, printed), (3, "guest: true\n"))

    def test_a_guest_that_powered_off_is_not_waited_for(self):
        begin = time.monotonic()
        verdict, _, explained = self.finish("echo 'guest: up'; echo panic > console; exit 4", 3600)
        self.assertLess(time.monotonic() - begin, 600)
        self.assertIsNone(verdict)
        self.assertIn("panic", explained)
        self.assertIn("QEMU exited with 4", explained)

    def test_a_missing_verdict_is_explained_by_how_the_guest_ended(self):
        self.assertIn("time is up", self.finish("echo 'guest: up'; exec sleep 600", 0.5)[2])
        self.assertIn("QEMU exited with 0", self.finish("echo 'guest: up'; exit 0")[2])

    def test_the_time_limit_of_ctest_is_above_that_of_the_suite(self):
        cmake = (HERE / "tests.cmake").read_text()
        stretch = int(re.search(r"--stretch (\d+)", cmake).group(1))
        suite = sum(int(line.split()[0]) for line in (HERE / "suite").read_text().splitlines()
                    if line[:1].isdigit())
        boots = sum(seconds for _, seconds in boot.accelerators(False))
        limit = int(re.search(r"TIMEOUT (\d+)\)", cmake.split("guest.suite")[-1]).group(1))
        self.assertGreater(limit,
                           suite * stretch + boots + boot.POWER_OFF_SECONDS + 10)

    def test_half_a_verdict_is_none(self):
        self.assertIsNone(self.finish("echo 'guest: up'; printf 7 > verdict")[0])


if __name__ == "__main__":
    unittest.main()
