#!/usr/bin/env python3
"""Tests the planting of bugs, and the runner with scripts in place of the test binaries."""

import io
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True

import plant  # noqa: E402
import run  # noqa: E402
from bugs import BUGS, Edit, bug  # noqa: E402

SEEN = bug("seen", "a mistake", layer="unit", filter="A.*")
THREADS = bug("threads", "a mistake", layer="unit", filter="A.*", swarm=False)


class Planting(unittest.TestCase):
    def fails(self, text, edit, message):
        with self.assertRaisesRegex(plant.Failed, message):
            plant.plant(text, 3, SEEN, edit)

    def test_is_switched_by_its_number(self):
        edit = Edit("x.cc", "add(1)", "add(PLANTED ? 2 : 1)")
        self.assertEqual(plant.plant("  add(1);", 3, SEEN, edit),
                         "  add(::fabric::planted(3) ? 2 : 1);")

    def test_fails_where_the_code_has_moved_on(self):
        edit = Edit("x.cc", "add(1)", "add(PLANTED ? 2 : 1)")
        self.fails("add(2);", edit, "move the planted bug seen: .* 0 times in src/x.cc")
        self.fails("add(1); add(1);", edit, "move the planted bug seen: .* 2 times in src/x.cc")

    def test_fails_without_a_switch(self):
        self.fails("add(1);", Edit("x.cc", "add(1)", "add(2)"), "seen has no switch")

    def test_has_no_name_twice(self):
        self.assertEqual(len({bug.name for bug in BUGS}), len(BUGS))


class Runner(unittest.TestCase):
    """With scripts in place of the binaries."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name)
        self.swarm_does('echo "$seed ok"')
        self.unit_does("echo '[ RUN      ] A.B'")

    def script(self, name, text):
        path = self.build / name
        path.write_text("#!/bin/sh\n" + text + "\n", encoding="utf-8")
        path.chmod(0o755)

    def swarm_does(self, each):
        self.script("planted_swarm", f'for seed in $(seq "$1" "$2"); do {each}; done')

    def unit_does(self, text):
        self.script("planted_unit", text)

    def test_reports_a_bug_that_is_not_found(self):
        self.assertEqual(run.find(self.build, SEEN), ("", ""))
        with mock.patch.object(run, "BUGS", (SEEN,)), redirect_stdout(io.StringIO()) as output:
            with mock.patch.object(sys, "argv", ["run.py", "seen", "--build", str(self.build)]):
                self.assertEqual(run.main(), 1)
        self.assertIn("NOT caught", output.getvalue())

    def test_counts_the_worlds_that_find_it(self):
        self.swarm_does('[ $((seed % 20)) = 7 ] && outcome="violated a promise" || outcome=ok;'
                        ' echo "$seed $outcome"')
        self.assertEqual(run.find(self.build, SEEN)[1], f"world 7 of {run.WORLDS}")
        hinted = bug("hinted", "a mistake", world=27)
        self.assertEqual(run.find(self.build, hinted), ("the swarm: a promise", "world 27"))
        moved = bug("moved", "a mistake", world=28)
        self.assertEqual(run.find(self.build, moved)[1], f"world 7 of {run.WORLDS}")
        found_by, worlds = run.find(self.build, SEEN, run.COUNTED)
        self.assertEqual(found_by, "the swarm: a promise")
        self.assertEqual(worlds, f"world 7 of {run.WORLDS} (3 of the first 50 worlds)")

    def test_calls_a_crash_a_crash(self):
        self.swarm_does('echo "$seed crashed Aborted"')
        self.assertEqual(run.find(self.build, SEEN)[0], "the swarm: crashed Aborted")
        self.unit_does("echo '[ RUN      ] A.B'; kill -ABRT $$")
        self.assertEqual(run.find(self.build, THREADS)[0], "the unit tests: A.B, which crashes")

    def test_calls_a_hang_a_hang(self):
        self.unit_does("echo '[ RUN      ] A.B'; exec sleep 100")
        with mock.patch.object(run, "SECONDS_MAX", 0.5):
            self.assertEqual(run.find(self.build, THREADS)[0], "the unit tests: A.B, which hangs")

    def test_names_the_test_that_fails(self):
        self.unit_does("echo '[ RUN      ] A.B'; echo '[  FAILED  ] A.B (1 ms)'; exit 1")
        self.assertEqual(run.find(self.build, SEEN)[0], "the unit tests: A.B")

    def test_does_not_take_silence_for_success(self):
        self.unit_does("exit 0")
        with self.assertRaisesRegex(RuntimeError, "no test of unit is called"):
            run.find(self.build, THREADS)
        self.script("planted_swarm", "exit 64")
        with self.assertRaisesRegex(RuntimeError, "ran only 0 worlds"):
            run.find(self.build, SEEN)

    def test_notices_what_is_found_without_a_bug(self):
        with mock.patch.object(run, "BUGS", (SEEN,)):
            self.assertEqual(run.find_without_bug(self.build), "")
            self.unit_does("echo '[ RUN      ] A.B'; echo '[  FAILED  ] A.B (1 ms)'; exit 1")
            self.assertEqual(run.find_without_bug(self.build), "the unit tests: A.B")
            self.swarm_does('echo "$seed hangs"')
            self.assertEqual(run.find_without_bug(self.build), "the swarm, in world 1: hangs")
            self.script("planted_swarm", "exit 64")
            self.assertIn("only 0 worlds", run.find_without_bug(self.build))


if __name__ == "__main__":
    unittest.main()
