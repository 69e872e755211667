#!/usr/bin/env python3
"""What boot.py says and returns before there is a guest; the suite itself shows the rest."""

import os
import pathlib
import subprocess
import sys
import tempfile
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
            os.environ["FABRIC_TEST_SEED"] = "it's 7"
            boot.stage(here / "job", ["9 SIZE=1 named --filter='*x*'"], [here])
            self.assertEqual(os.listdir(here / "job/bin"), ["named"])
            said = subprocess.run(["sh", "-c", f". {here}/job/environment; echo $FABRIC_TEST_SEED"],
                                  capture_output=True, text=True).stdout
        self.assertEqual(said, "it's 7\n")

    def test_every_bug_that_only_a_guest_can_show_is_spoken_of(self):
        said = (HERE / "planted").read_text()
        for bug in bugs.BUGS:
            if bug.layer == "guest":
                self.assertIn(bug.name, said)

    def test_the_verdict_is_the_guests_and_firmware_is_not_heard(self):
        guest = boot.Guest.__new__(boot.Guest)
        guest.up, guest.verdict, guest.unsaid = False, None, []
        for line in ("SeaBIOS", "\x1b[2Jguest: up", "guest: true", "guest: ended with 3", "bye"):
            guest.take(line)
        self.assertEqual((guest.verdict, guest.unsaid), (3, ["SeaBIOS", "bye"]))


if __name__ == "__main__":
    unittest.main()
