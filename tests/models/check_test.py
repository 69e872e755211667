#!/usr/bin/env python3
"""The checker rejects bad models: one for everything that it must not let pass."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check  # noqa: E402

BOUNDS = "@small N=1\n@large N=1\n"


class Check(unittest.TestCase):
    def refused(self, header, body, mutant=None):
        """Why the checker refuses the model; an error if it does not."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.pml"
            path.write_text(f"/*\nA model.\n{header}*/\n{body}\n", encoding="utf-8")
            with self.assertRaises(check.Failed) as failed:
                check.check(path, mutant, False, Path(folder) / "build")
        return str(failed.exception)

    def test_an_assertion(self):
        why = self.refused(BOUNDS, "byte x; active proctype p() { x = N; assert(x == 2) }")
        self.assertIn("assert: (x==2)", why)
        self.assertIn("[x = 1]", why, "the trace to the error is missing")

    def test_a_process_that_is_stuck(self):
        self.assertIn("stuck", self.refused(BOUNDS, "byte x; active proctype p() { x == N }"))

    def test_a_run_that_does_not_end(self):
        body = "bit x; active proctype p() { do :: x = 1 - x :: break od }"
        self.assertIn("endless", self.refused(BOUNDS + "@finite\n", body))

    def test_a_claim_that_does_not_hold(self):
        body = "bool x; ltl ends { <> x }\nactive proctype p() { if :: x = true :: skip fi }"
        self.assertIn("claim", self.refused(BOUNDS + "@claim ends\n", body))

    def test_a_statement_that_is_never_reached(self):
        body = "byte x; active proctype p() { if :: x == 0 :: x == N -> x = 7 fi }"
        self.assertIn("x = 7", self.refused(BOUNDS, body))

    def test_an_exception_that_nothing_needs(self):
        body = "byte x; active proctype p() { x = N }"
        self.assertIn("is reached", self.refused(BOUNDS + "@unreached p x = 7\n", body))

    def test_a_search_that_was_cut_short(self):
        deep = check.DEPTH_MAX[False]
        check.DEPTH_MAX[False] = 50
        self.addCleanup(check.DEPTH_MAX.__setitem__, False, deep)
        body = "byte x; active proctype p() { do :: x < 200 -> x++ :: x == 200 -> break od }"
        self.assertIn("not completed", self.refused(BOUNDS, body))

    def test_a_mutant_in_which_nothing_is_found(self):
        header = BOUNDS + "@mutant wrong assert:x\n a mistake that is none\n"
        body = "byte x; active proctype p() { x = N; assert(x == N) }"
        self.assertIn("found nothing", self.refused(header, body, "wrong"))

    def test_a_mutant_that_fails_for_another_reason(self):
        header = BOUNDS + "@mutant wrong stuck\n something else\n"
        body = "byte x; active proctype p() { x = N; assert(x == 2) }"
        self.assertIn("must find stuck", self.refused(header, body, "wrong"))

    def test_headers(self):
        self.assertIn("unknown tag", self.refused(BOUNDS + "@smal N=2\n", ""))
        self.assertIn("needs @small", self.refused("", ""))
        self.assertIn("has no mutant", self.refused(BOUNDS, "", "missing"))


if __name__ == "__main__":
    unittest.main()
