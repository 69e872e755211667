#!/usr/bin/env python3
"""Mutates a tiny project and wants every fate: killed, hanging, surviving, and not counted."""

import json
import subprocess
import sys
import tempfile
import unittest
from collections import defaultdict
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import mutate  # noqa: E402

# The library, a program that talks like GoogleTest, and how they are built. At 10 it does not
# matter which branch is taken, so `>=` compiles to the same code; no test covers `spare`.
PROJECT = {
    "src/core/limit.h": "#pragma once\ninline int limit() {\n  return 10;\n}\n",
    "src/core/bound.cc": """#include "core/limit.h"
int bound(int x) {
  if (x > limit()) return limit();
  return x;
}
void step(volatile int& n);
int count_down(volatile int& n) {
  while (n > 0) {
    step(n);
  }
  return n;
}
int spare() {
  return 5;
}
""",
    "tests/unit/bound_test.cc": """#include <cstdio>
int bound(int x);
int count_down(volatile int& n);
void step(volatile int& n) { n = n - 1; }
bool test(const char* name, bool ok) {
  std::printf("%s %s (0 ms)\\n", ok ? "[       OK ]" : "[  FAILED  ]", name);
  return ok;
}
int main() {
  std::puts("[ RUN      ] Bound.Holds");
  if (!test("Bound.Holds", bound(3) == 3 && bound(10) == 10 && bound(12) == 10)) return 1;
  std::puts("[ RUN      ] Bound.Ends");
  std::fflush(stdout);
  volatile int n = 4;
  return test("Bound.Ends", count_down(n) == 0) ? 0 : 1;
}
""",
    "build/build.ninja": """
rule cxx
  command = g++ -Isrc -I../src -std=c++20 -O1 -MD -MF $out.d -o $out -c $in
  deps = gcc
  depfile = $out.d
rule archive
  command = rm -f $out && ar rcs $out $in
rule link
  command = : && g++ $in -o $out && :
build core/bound.o: cxx {root}/src/core/bound.cc
build library.a: archive core/bound.o
build tests/bound_test.o: cxx {root}/tests/unit/bound_test.cc
build tests/unit_tests: link tests/bound_test.o library.a
build unit_tests: phony tests/unit_tests
""",
}


def changes(text):
    """{operator: the texts that it makes of one function body}, without the frame."""
    head, tail = "void f() {\n  ", "\n}\n"
    whole = head + text + tail
    found = defaultdict(set)
    for mutant in mutate.mutants_of("a.cc", whole):
        after = mutant.apply(whole)
        assert after.count("\n") == whole.count("\n"), "lines must stay, for __LINE__"
        found[mutant.operator].add(after[len(head):-len(tail)])
    return found


class Changes(unittest.TestCase):
    def test_each_operator(self):
        self.assertEqual(changes("if (a < b) g();"), {
            "comparison": {"if (a <= b) g();", "if (a >= b) g();"},
            "negation": {"if (!(a < b)) g();"}, "dropped statement": {"if (a < b) ;"}})
        self.assertEqual(changes("if (X* x = g(); x == y) return 5;"), {
            "comparison": {"if (X* x = g(); x != y) return 5;"},
            "negation": {"if (X* x = g();!(x == y)) return 5;"},
            "off by one": {"if (X* x = g(); x == y) return 6;",
                           "if (X* x = g(); x == y) return 4;"},
            "dropped jump": {"if (X* x = g(); x == y) ;"}})
        self.assertEqual(changes("x.y = a && b ? g(1'000) : h(false);"), {
            "logic": {"x.y = a || b ? g(1'000) : h(false);"},
            "ternary": {"x.y = a && b ? h(false) : g(1'000);"},
            "constant": {"x.y = a && b ? g(1'000) : h(true);"}, "dropped statement": {";"}})
        self.assertEqual(changes("const int c = std::min(a + b, *p);"), {
            "arithmetic": {"const int c = std::min(a - b, *p);"},
            "extreme": {"const int c = std::max(a + b, *p);"}})
        self.assertEqual(changes("while (true) {\n    ++n;\n    break;\n  }")["dropped jump"],
                         {"while (true) {\n    ++n;\n    ;\n  }"})
        self.assertEqual(changes("g([&](X&& x) {\n    h();\n  });")["dropped statement"],
                         {"\n\n;", "g([&](X&& x) {\n    ;\n  });"})

    def test_leaves_alone_what_does_nothing(self):
        for text in ("// a < b", 'const char* s = "a < b ? 1 : 2";', "FABRIC_CHECK(a < b, 7);",
                     'FABRIC_LOG(log, "x", {"a", b + 1});', "const Map<int, 4'000> m;",
                     "X* const p;", "enum { kA = 1, kB = 2 };",
                     "static_assert(sizeof(X) == 8);", "switch (x) {\n    case 5:\n  }"):
            with self.subTest(text):
                self.assertEqual(changes(text), {})

    def test_a_seed_draws_every_line_before_it_draws_one_twice(self):
        text = "void f() {\n  a = 1;\n  b = 2;\n  c = 3;\n}\n"
        mutants = mutate.mutants_of("a.cc", text)
        order = mutate.drawn(mutants, 7)
        self.assertEqual(sorted(order), mutants)
        self.assertEqual({m.line for m in order[:3]}, {2, 3, 4})
        self.assertEqual(order, mutate.drawn(mutants, 7))
        self.assertNotEqual(order, mutate.drawn(mutants, 8))

    def test_a_mutant_is_found_again_where_it_has_moved(self):
        text = "void f() {\n  a = 1;\n  a = 1;\n}\n"
        moved = text.replace("f()", "f(int x)").replace("{\n", "{\n  // more\n")
        before, after = mutate.mutants_of("a.cc", text), mutate.mutants_of("a.cc", moved)
        self.assertEqual([m.identity() for m in before], [m.identity() for m in after])
        self.assertEqual([m.line + 1 for m in before], [m.line for m in after])
        self.assertEqual(len({m.identity() for m in before}), len(before))


class Fates(unittest.TestCase):
    def run_script(self, root, *options):
        run = subprocess.run([sys.executable, SCRIPTS / "mutate.py", "--root", root, "--jobs", "2",
                              "--patience", "0.7", "--tests", "unit_tests", *options],
                             capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return run.stdout

    def test_of_planted_mutants(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            for name, text in PROJECT.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text.replace("{root}", str(root)), encoding="utf-8")
            report = root / "report.json"
            options = ("--build", root / "build", "--json", report)
            printed = self.run_script(root, *options, "--count", "100")
            rows = json.loads(report.read_text(encoding="utf-8"))["mutants"]
            fates = {(r["mutant"]["path"][9:], r["mutant"]["line"], r["mutant"]["operator"],
                      r["mutant"]["after"]): (r["fate"]["fate"], r["fate"]["by"]) for r in rows}
            for planted, fate in {
                ("bound.cc", 3, "comparison", ">="): ("same", ""),
                ("bound.cc", 3, "comparison", "<="): ("killed", "Bound.Holds"),
                ("bound.cc", 9, "dropped statement", ""): ("timeout", "Bound.Ends"),
                ("bound.cc", 14, "off by one", "6"): ("survived", ""),
                ("limit.h", 3, "off by one", "11"): ("killed", "Bound.Holds"),
                ("bound.cc", 8, "comparison", ">="): ("killed", "Bound.Ends"),
            }.items():
                self.assertEqual(fates[planted], fate, planted)
            self.assertIn("-  return 5;\n+  return 6;", printed)

            # The second time everything is known; then a test covers `spare`.
            begun = report.stat().st_mtime_ns
            self.assertEqual(self.run_script(root, *options, "--count", "100").count(" s  src"), 0)
            self.assertEqual(report.stat().st_mtime_ns, begun)
            test = root / "tests/unit/bound_test.cc"
            text = test.read_text(encoding="utf-8").replace("int bound(int x);",
                                                            "int bound(int x);\nint spare();")
            test.write_text(text.replace("bound(3) == 3", "spare() == 5"), encoding="utf-8")
            again = self.run_script(root, "--build", root / "build", "--json", root / "again.json",
                                    "--again", report)
            self.assertIn("killed", again)
            self.assertNotIn("return 6", again)
            self.assertRegex(again, r"all +2 +2 +0 +0")
            self.assertEqual((root / "src/core/bound.cc").read_text(encoding="utf-8"),
                             PROJECT["src/core/bound.cc"])


if __name__ == "__main__":
    unittest.main()
