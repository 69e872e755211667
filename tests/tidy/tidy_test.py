#!/usr/bin/env python3
"""Plants a violation of each rule, and of each entry of words.py, and wants tidy to find it."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import tidy as rules  # noqa: E402 (found beside the script)
import words  # noqa: E402

# What makes an otherwise empty project clean.
CMAKE = "file(GLOB_RECURSE sources CONFIGURE_DEPENDS src/*.cc)\n"


def write(folder, files):
    for name, text in {"CMakeLists.txt": CMAKE, **files}.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def findings(files):
    """The findings for a project of these files. In this process: an interpreter per case is slow."""
    with tempfile.TemporaryDirectory() as folder:
        write(folder, files)
        return rules.Tidy(Path(folder).resolve()).run()


def tidy(files):
    return [(f"{found.path}:{found.line}", found.rule) for found in findings(files)]


def body(lines):
    return "int f() {\n" + "  g();\n" * (lines - 2) + "}\n"


def file_in(where, suffix):
    """A file whose path starts with `where`: a folder, the start of a file's name, or a file."""
    if where == "":
        return "src/core/a" + suffix
    if where.endswith("/"):
        return where + "a" + suffix
    return where if Path(where).suffix else where + "_a" + suffix


def alternatives(pattern):
    """The parts of a regular expression between the `|` outside of its groups."""
    parts, depth = [""], 0
    for char in pattern:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


class Findings(unittest.TestCase):
    def finds(self, rule, name, text, line=1):
        self.assertEqual(tidy({name: text}), [(f"{name}:{line}", rule)])

    def accepts(self, name, text):
        self.assertEqual(tidy({name: text}), [])

    def word(self, name, text, found, instead, line=1):
        """One finding of the word rule, which names what it found and what to write instead."""
        all_of_it = findings({name: text})
        self.assertEqual([(f.path, f.line, f.rule) for f in all_of_it], [(name, line, "word")])
        self.assertIn(f"not {found}, but ", all_of_it[0].advice)
        self.assertIn(instead, all_of_it[0].advice)

    def test_the_script_prints_findings_and_a_status(self):
        for text, status in (("int x;\n", 0), ("int x; \n", 1)):
            with self.subTest(text=text), tempfile.TemporaryDirectory() as folder:
                write(folder, {"src/core/a.cc": text})
                run = subprocess.run([sys.executable, SCRIPTS / "tidy.py", "--root", folder],
                                     capture_output=True, text=True, check=False)
                self.assertEqual(run.returncode, status, run.stdout + run.stderr)
                *lines, summary = run.stdout.splitlines()
                self.assertEqual(summary, f"tidy: 2 files, {status} findings")
                if status:
                    self.assertEqual(lines[0].split(": ")[:2], ["src/core/a.cc:1", "blanks"])

    def test_layers(self):
        up = {
            "src/base/a.cc": ['"control/x.h"', '"core/x.h"', "<fabric/engine.h>"],
            "src/control/a.cc": ['"core/x.h"', '"providers/sim/x.h"', '"runtime/x.h"'],
            "src/core/a.cc": ['"providers/sim/x.h"', '"runtime/x.h"', "<infiniband/verbs.h>"],
            "src/runtime/a.cc": ['"providers/sim/x.h"', '"control/x.h"'],
            "src/providers/tcp/a.cc": ['"core/x.h"', '"providers/shm/x.h"', '"runtime/x.h"'],
            "src/workloads/kv/a.cc": ['"core/x.h"', '"control/x.h"'],
            "src/swarm/a.cc": ['"core/x.h"'],
            "src/topology/a.cc": ['"core/x.h"', '"control/x.h"', '"providers/verbs/x.h"'],
        }
        for name, targets in up.items():
            for target in targets:
                with self.subTest(name=name, target=target):
                    self.finds("layer", name, f"#include <vector>\n#include {target}\n", line=2)

    def test_layers_let_through_what_lies_below(self):
        down = {
            "src/base/a.cc": ["<fabric/result.h>", "<sys/eventfd.h>", '"base/x.h"'],
            "src/control/a.cc": ["<fabric/engine.h>", '"base/x.h"', '"control/x.h"'],
            "src/core/a.cc": ["<fabric/provider.h>", '"control/x.h"', '"core/x.h"'],
            "src/runtime/a.cc": ['"base/x.h"', '"core/x.h"'],
            "src/providers/tcp/a.cc": ['"base/x.h"', '"control/x.h"', '"providers/tcp/x.h"'],
            "src/providers/verbs/a.cc": ["<infiniband/verbs.h>"],
            "src/providers/registry.cc": ['"core/x.h"', '"providers/tcp/x.h"'],
            "src/topology/a.cc": ["<fabric/result.h>", '"base/x.h"', '"topology/x.h"'],
        }
        for name, targets in down.items():
            for target in targets:
                with self.subTest(name=name, target=target):
                    self.accepts(name, f"#include {target}\n")

    def test_public_headers_need_only_the_standard_library(self):
        for target in ("<infiniband/verbs.h>", "<fmt/format.h>", "<unistd.h>"):
            with self.subTest(target=target):
                self.finds("layer", "include/fabric/a.h", f"#pragma once\n#include {target}\n", 2)
        self.accepts("include/fabric/a.h", "#pragma once\n#include <chrono>\n")

    def test_spelling_of_includes(self):
        self.finds("include", "src/core/a.cc", '#include "../base/x.h"\n')
        self.finds("include", "src/core/a.cc", '#include "fabric/engine.h"\n')

    def test_banned_calls(self):
        for call in ("std::chrono::steady_clock::now()", "std::random_device d",
                     "std::uniform_int_distribution<int> d", "std::shuffle(a, b, c)",
                     "std::this_thread::sleep_for(t)", "usleep(3)", "std::thread t(f)",
                     "std::jthread t(f)", "std::async(f)",
                     "throw 3", "std::abort()", "abort()", "exit(1)", "assert(x)",
                     "std::cerr << x", "printf(x)", "std::fprintf(stderr, x)", "sprintf(a, b)",
                     "std::stringstream s", "rand()"):
            with self.subTest(call=call):
                self.finds("banned", "src/core/a.cc", f"void f() {{\n  {call};\n}}\n", line=2)

    def test_banned_calls_in_tests(self):
        self.assertEqual(tidy({"CMakeLists.txt": "file(GLOB a tests/scenario/*.cc)\n",
                               "tests/scenario/a.cc": "void f() {\n  sleep_for(t);\n}\n"}),
                         [("tests/scenario/a.cc:2", "banned")])

    def test_where_the_calls_belong(self):
        self.accepts("src/runtime/a.cc", "void f() { std::thread t(g); sleep_for(x); }\n")
        self.accepts("src/base/clock.cc", "auto f() { return std::chrono::steady_clock::now(); }\n")
        self.accepts("src/base/check.cc", "void f() { std::fprintf(stderr, x); std::abort(); }\n")
        self.accepts("src/core/a.cc", "void f() { if (!p) throw std::bad_alloc(); }\n")

    def test_names_in_comments_and_strings_are_no_calls(self):
        self.accepts("src/core/a.cc", '// throw\n/* assert(x)\n std::thread */\n'
                     'auto a = "exit(1)";\nauto b = R"(std::cerr)";\n'
                     'void abort(int key);\nstatic_assert(1\'000 > 1);\n')

    def test_unordered_iteration(self):
        map_of = "std::unordered_map<int, std::vector<int>> peers_;\n"
        self.finds("unordered", "src/core/a.cc",
                   map_of + "void f() {\n  for (auto& p : peers_) g(p);\n}\n", line=3)
        self.finds("unordered", "src/core/a.cc",
                   map_of + "auto f() { return peers_.begin(); }\n", line=2)
        self.assertEqual(
            tidy({"src/core/a.h": "#pragma once\n" + map_of,
                  "src/core/a.cc": "void f() {\n  for (auto& p : this->peers_) g(p);\n}\n"}),
            [("src/core/a.cc:2", "unordered")])
        self.accepts("src/core/a.cc", map_of + "bool f() { return peers_.contains(1); }\n")

    def test_columns(self):
        self.finds("columns", "src/core/a.cc", "// " + "x" * 98 + "\n")
        self.accepts("src/core/a.cc", "// " + "x" * 97 + "\n")
        self.accepts("src/core/a.cc", "// " + "\u00b5" * 97 + "\n")  # characters, not bytes

    def test_function_length(self):
        self.finds("function-length", "src/core/a.cc", "int x;\n" + body(71), line=2)
        self.accepts("src/core/a.cc", body(70) + body(70))

    def test_function_length_of_members_and_constructors(self):
        inside = "namespace n {\nclass A {\n" + body(71) + "};\n}  // namespace n\n"
        self.finds("function-length", "src/core/a.cc", inside, line=3)
        constructor = "A::A(int x)\n    : a_{x}, b_{x} {\n" + "  g();\n" * 70 + "}\n"
        self.finds("function-length", "src/core/a.cc", constructor, line=1)

    def test_long_classes_tables_and_namespaces_are_no_functions(self):
        self.accepts("src/core/a.cc", "namespace n {\n" + "class A {\n" + "  int f();\n" * 80 +
                     "};\n" + "const int t[] = {\n" + "    1,\n" * 80 + "};\n}\n")

    def test_file_length(self):
        self.finds("file-length", "src/core/a.cc", "int x;\n" * 801, line=801)
        self.accepts("src/core/a.cc", "int x;\n" * 800)

    def test_markers(self):
        for marker in ("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"):
            with self.subTest(marker=marker):
                self.finds("marker", "src/core/a.cc", f"int x;\n// {marker}: later\n", line=2)

    def test_unreachable_sources(self):
        self.finds("unreachable", "tests/unit/core/a.cc", "int x;\n")
        self.assertEqual(
            tidy({"tests/CMakeLists.txt": "file(GLOB_RECURSE a CONFIGURE_DEPENDS unit/*_test.cc)\n",
                  "tests/unit/core/a_test.cc": "int x;\n", "tests/unit/core/b.cc": "int x;\n"}),
            [("tests/unit/core/b.cc:1", "unreachable")])

    def test_umbrella(self):
        self.assertEqual(
            tidy({"include/fabric/fabric.h": "#pragma once\n#include <fabric/a.h>\n",
                  "include/fabric/a.h": "#pragma once\n", "include/fabric/b.h": "#pragma once\n",
                  "include/fabric/sim.h": "#pragma once\n"}),
            [("include/fabric/fabric.h:1", "umbrella")])

    def test_machine_paths(self):
        for path in ("/ho" + "me/me/x", "/wo" + "rk/main", "/ro" + "ot/x"):
            with self.subTest(path=path):
                self.finds("machine-path", "docs/a.md", f"see\n`{path}`\n", line=2)
        work = "wo" + "rk"  # whole, it would be what the rule looks for
        self.accepts("docs/a.md", f"see src/{work}/a, ${{stage}}/{work}/b and /usr/include\n")

    def test_headers(self):
        self.finds("pragma-once", "src/core/a.h", "int f();\n")
        self.finds("using-namespace", "src/core/a.h", "#pragma once\nusing namespace std;\n", 2)
        self.accepts("src/core/a.h", "// What it is.\n#pragma once\n")
        self.accepts("src/core/a.h", "#pragma once\nusing namespace std::chrono_literals;\n")

    def test_blanks(self):
        self.finds("blanks", "src/core/a.cc", "int x; \n")
        self.finds("tabs", "src/core/a.cc", "\tint x;\n")
        self.finds("newline", "src/core/a.cc", "int x;")

    def test_words_in_identifiers(self):
        for text, found in (("class TrainPool {};\n", "Train"), ("int first_train = 0;\n", "train"),
                            ("int train_ = 0;\n", "train"), ("int kTrainMax = 0;\n", "Train"),
                            ("#define TRAIN_MAX 8\n", "TRAIN")):
            with self.subTest(text=text):
                self.word("src/core/a.cc", text, found, "PostBatch")
        self.word("src/providers/shm/a.cc", "class NeighbourTable {};\n", "Neighbour", "ShmPeer")
        self.word("src/core/a.cc", "int x;\n// A wreck.\n", "wreck", "BrokenConnection", line=2)
        self.word("src/core/a.cc", 'auto text = "a ledger";\n', "ledger", "WriteAuditor")
        for name in ("tests/planted/bugs.py", "cmake/a.cmake"):
            with self.subTest(name=name):
                self.word(name, "x = 1\ndeeds = 2\n", "deeds", "Action", line=2)

    def test_words_in_file_names(self):
        found = findings({"src/core/train.h": "#pragma once\n"})
        self.assertEqual([(f.path, f.line, f.rule) for f in found],
                         [("src/core/train.h", 1, "word")])
        self.assertIn("file name: not train, but post batch", found[0].advice)
        self.assertEqual(tidy({"tests/card/a.md": "text\n"}), [("tests/card/a.md:1", "word")])

    def test_ordinary_words_in_a_private_sense(self):
        self.word("src/providers/shm/a.cc", "struct Order {};\n", "Order", "PullRequest")
        self.word("src/swarm/a.cc", "int x;\nclass Field {};\n", "Field", "TargetArena", line=2)
        self.word("src/core/a.cc", "class Stage {};\n", "Stage", "Runner")
        self.word("docs/a.md", "see\n`Stage` in the tests\n", "Stage", "Runner", line=2)
        self.accepts("src/core/a.cc", "struct Order {};\n// The first Stage.\n")
        self.accepts("docs/a.md", "The Stage of a pipeline, in Order.\n")

    def test_words_keep_the_sense_of_the_field_where_it_belongs(self):
        self.accepts("src/providers/verbs/a.cc", "void ring_doorbell();  // of the NIC\n")
        self.accepts("src/core/a.cc", "void f() { ::alarm(3); }\n")
        self.word("src/core/a.cc", "void f() { x::alarm(3); }\n", "alarm", "Timer")
        self.accepts("src/core/a.cc", "int training = 0;  // constraint, restrained, wildcard\n")
        self.assertEqual(tidy({"CHANGELOG.md": "`Alarm` is `Timer` now\n"}), [])
        self.word("src/runtime/a.cc", "class Doorbell {};\n", "Doorbell", "Waker")

    def test_one_name_one_meaning(self):
        twice = findings({"src/core/a.cc": "struct Outcome {};\n",
                          "src/swarm/b.cc": "int x;\nclass Outcome final : public A {\n};\n"})
        self.assertEqual([(f.path, f.line, f.rule) for f in twice],
                         [("src/core/a.cc", 1, "word"), ("src/swarm/b.cc", 2, "word")])
        self.assertIn("src/core/a.cc, src/swarm/b.cc", twice[0].advice)
        self.assertEqual(tidy({"src/core/a.cc": "struct Outcome {};\n",
                               "src/swarm/b.cc": "struct Outcome;\nfriend class Outcome;\n"}), [])

    def test_english(self):
        for text, found, instead in (
                ("nobody waits", "nobody", "no thread"), ("Somebody waits", "Somebody", "a thread"),
                ("whoever waits", "whoever", "the thread that"), ("sent anew", "anew", "again"),
                ("the own address", "the own", "its own")):
            for name, comment in (("src/core/a.cc", "// "), ("include/fabric/a.h", "/// "),
                                  ("docs/a.md", ""), ("README.md", ""), ("tools/a.md", "")):
                with self.subTest(name=name, text=text):
                    head = "#pragma once\n" if name.endswith(".h") else "\n"
                    self.word(name, f"{head}{comment}{text}\n", found, instead, line=2)
        self.word("src/core/a.cc", "// takes the\n// own\n", "the // own", "its own")
        # The Unix user.
        self.assertEqual(tidy({"tests/process/a.md": "as nobody\n"}), [])

    def test_every_entry_names_another_word(self):
        self.assertEqual([out.words for table in (words.WORDS, words.NAMES, words.ENGLISH,
                                                  words.PHRASES)
                          for out in table if not out.instead], [])

    def found_by(self, out, name, text):
        """Whether this entry, and not another one, finds something in the file."""
        return any(f.rule == "word" and f.advice.endswith(f", but {out.instead}")
                   for f in findings({name: text}))

    def planted(self, out, text, suffix):
        """An entry finds the text in each of its folders, and in none of its exceptions."""
        for where in out.where:
            name = file_in(where, suffix)
            if out.holds(name):
                self.assertTrue(self.found_by(out, name, text), f"{name}: {text}")
        for where in out.but:
            name = file_in(where, suffix)
            self.assertFalse(self.found_by(out, name, text), f"{name}: {text}")

    def test_every_word_is_found(self):
        for out in words.WORDS + words.ENGLISH:
            for word in out.words.split():
                with self.subTest(word=word):
                    self.assertEqual(words.TOKEN.findall(word), [word])
                    self.planted(out, f"text\nthe {word} of it\n", ".md")
        for out in words.WORDS:
            word = out.words.split()[0]
            with self.subTest(word=word):
                self.planted(out, f"class {word.title()}Pool {{}};\n", ".cc")

    def test_every_name_is_found(self):
        for out in words.NAMES:
            self.assertTrue(out.samples, out.words)
            for name in out.samples:
                with self.subTest(name=name):
                    self.assertRegex(name, rf"^(?:{out.words})$")
                    self.planted(out, f"int f();\nclass {name} {{}};\n", ".cc")
                    self.planted(out, f"text\n`{name}`\n", ".md")
            for alternative in alternatives(out.words):
                with self.subTest(alternative=alternative):
                    self.assertTrue(any(re.fullmatch(alternative, name) for name in out.samples))

    def test_every_phrase_is_found(self):
        for out in words.PHRASES:
            self.assertTrue(out.samples, out.words)
            for text in out.samples:
                with self.subTest(text=text):
                    self.planted(out, f"// {text} again\n", ".cc")
        self.accepts("src/core/a.cc", "// They can be told apart, left nothing behind, told so.\n"
                     "// UCX stands for UCP; the code behind PLANTED.\n")

    def test_every_type_is_defined_once(self):
        for name in words.ONCE:
            for kind in ("struct", "class", "enum class"):
                with self.subTest(name=name, kind=kind):
                    twice = {"src/core/a.cc": f"{kind} {name} {{}};\n",
                             "tests/unit/b_test.cc": f"{kind} {name} {{}};\n"}
                    found = [f.path for f in findings(twice) if "several things" in f.advice]
                    self.assertEqual(found, sorted(twice))


if __name__ == "__main__":
    unittest.main()
