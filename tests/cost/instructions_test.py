#!/usr/bin/env python3
"""bench/instructions charges what it should, and sees a budget that is exceeded."""

import importlib.machinery
import importlib.util
import sys
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "instructions"


def load():
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader("instructions", str(SCRIPT))
    spec = importlib.util.spec_from_loader("instructions", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


# Ten operations. submit() inlines a line of base/ring.h, from where it calls a template of that
# header, and calls memcpy() twice as dearly as the network does. walk() and walk_on() of libc call
# each other. clock_gettime() is the program's stand-in for the vDSO.
DUMP = """\
positions: line
events: Ir

ob=(1) /somewhere/bench/instruction_cases
fl=(1) /somewhere/bench/instruction_cases.cc
fn=(1) measured
10 50
cfi=(2) ../../src/core/submit.cc
cfn=(2) submit
calls=10 1
10 2700
cfi=(3) ../../src/providers/shm/datapath.cc
cfn=(3) post
calls=10 1
* 700

fl=(2)
fn=(2)
20 1000
fi=(4) ../../src/base/ring.h
5 100
cfn=(4) push
calls=10 1
+1 300
fe=(2)
cob=(2) /lib/libc.so.6
cfi=(5) memcpy.S
cfn=(5) memcpy
calls=10 1
30 400
cob=(2)
cfi=(6) walk.c
cfn=(6) walk
calls=10 1
31 700
cfi=(1)
cfn=(7) clock_gettime
calls=10 1
32 200

fl=(3)
fn=(3)
1 500
cob=(2)
cfi=(5)
cfn=(5)
calls=10 1
2 200

fl=(4)
fn=(4)
7 300

fl=(1)
fn=(7)
9 200

ob=(2)
fl=(5)
fn=(5)
1 600

fl=(6)
fn=(6)
1 500
cfn=(8) walk_on
calls=10 1
2 200

fn=(8)
5 200
cfn=(6)
calls=1 1
6 100
"""


# Ten requests over verbs: instructions of the verbs library and of what it calls do not count.
VERBS = """\
positions: line
events: Ir

ob=(1) /somewhere/bench/instruction_cases
fl=(1) /somewhere/bench/instruction_cases.cc
fn=(1) measured
10 50
cfi=(2) ../../src/providers/verbs/datapath.cc
cfn=(2) post
calls=10 1
10 1450
cfn=(5) unmeasured
calls=10 1
* 30

fn=(5)
4 30

fl=(2)
fn=(2)
1 500
cob=(2) /somewhere/bench/fake_verbs/libibverbs.so.1
cfi=(3) /somewhere/bench/fake_verbs/fake_verbs.cc
cfn=(3) post_send
calls=10 1
2 950

ob=(2)
fl=(3)
fn=(3)
1 900
cob=(3) /lib/libc.so.6
cfi=(4) malloc.c
cfn=(4) malloc
calls=10 1
2 50

ob=(3)
fl=(4)
fn=(4)
1 50
"""


class Instructions(unittest.TestCase):
    def setUp(self):
        self.module = load()
        self.profile = self.module.Profile(DUMP)

    def report(self, budget):
        return self.module.report("write", 10, self.profile, {"write": {"budget": budget}})

    def test_every_instruction_is_charged_to_a_file(self):
        self.assertAlmostEqual(sum(self.profile.by_file().values()),
                               sum(self.profile.self_cost.values()))

    def test_what_belongs_to_no_group_is_charged_to_its_callers(self):
        one = self.report(1000)
        # submit 1100, push 300, two thirds of memcpy, walk and walk_on 700, the clock 200.
        self.assertAlmostEqual(one["core"], 270.0)
        self.assertAlmostEqual(one["network"], 70.0)
        self.assertEqual(one["stages"], {"core/submit": 270.0, "shm/datapath": 70.0})
        self.assertAlmostEqual(one["libc"], 150.0)

    def test_sees_a_budget_that_is_exceeded(self):
        self.assertTrue(self.report(270)["holds"])
        self.assertFalse(self.report(269)["holds"])

    def test_a_network_alone_is_counted_up_to_its_driver(self):
        profile = self.module.Profile(VERBS)
        one = self.module.report("post", 10, profile, {"post": {"of": "network", "budget": 50}})
        self.assertEqual((one["instructions"], one["network"], one["core"]), (50.0, 50.0, 0.0))
        self.assertTrue(one["holds"])
        self.assertEqual(one["stages"], {"verbs/datapath": 50.0})

    def test_a_budget_of_both_is_for_core_and_network_together(self):
        budgets = {"write": {"of": "both", "budget": 339}}
        one = self.module.report("write", 10, self.profile, budgets)
        self.assertAlmostEqual(one["instructions"], 340.0)
        self.assertFalse(one["holds"])

    def test_a_workload_counts_with_the_core(self):
        profile = self.module.Profile(DUMP.replace("../../src/core/submit.cc",
                                                   "../../src/workloads/kv/submit.cc"))
        one = self.module.report("write", 10, profile, {"write": {"budget": 270}})
        self.assertEqual(one["stages"], {"workloads/kv/submit": 270.0, "shm/datapath": 70.0})
        self.assertAlmostEqual(one["core"], 270.0)

    def compared(self, counted, limit):
        """The report of an operation that is compared with one of 270 instructions."""
        budgets = {"write": {"budget": 1000},
                   "push": {"budget": 1000, "at_most": {"of": "write", "ratio": limit}}}
        reports = [self.module.report("write", 10, self.profile, budgets),
                   {"op": "push", "instructions": counted, "holds": counted <= 1000}]
        self.module.compare(reports, budgets)
        self.assertTrue(reports[0]["holds"])
        return reports[1]

    def test_sees_a_ratio_that_is_exceeded(self):
        self.assertTrue(self.compared(297.0, 1.1)["holds"])
        self.assertFalse(self.compared(298.0, 1.1)["holds"])
        self.assertFalse(self.compared(1001.0, 10)["holds"])
        self.assertEqual(self.compared(297.0, 1.1)["ratio"],
                         {"of": "write", "is": 1.1, "at_most": 1.1})

    def test_what_an_operation_is_compared_with_is_measured_too(self):
        budgets = {"push": {"at_most": {"of": "write", "ratio": 1.1}}, "write": {}, "other": {}}
        self.assertEqual(self.module.with_references(["push"], budgets), ["push", "write"])
        self.assertEqual(self.module.with_references(["write", "push"], budgets),
                         ["write", "push"])
        self.assertEqual(self.module.with_references([], budgets), [])

    def test_an_operation_without_a_budget_is_refused(self):
        with self.assertRaises(KeyError):
            self.module.report("write", 10, self.profile, {})

    def test_functions_are_listed_with_what_they_call(self):
        listed = {name: (own, inclusive) for own, inclusive, name in self.profile.by_function()}
        self.assertEqual(listed["submit"], (1100, 2700))
        self.assertEqual(listed["post"], (500, 700))


if __name__ == "__main__":
    unittest.main()
