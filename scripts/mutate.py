#!/usr/bin/env python3
"""Breaks src/core in many small ways, one at a time, and reports what the fast tests do not find.

    mutate.py [--seed N] [--count N] [--only FILE]...   runs a sample and prints what survived
    mutate.py --list                                    prints the sample and runs nothing
    mutate.py --again FILE                              runs the survivors of an earlier report

A mutant is one change to one copy of one file: the working tree is never touched. It is compiled
and linked in front of the library, into binaries of its own, and the tests run until the first
failure, those of the mutated file first. What the compiler refuses, or turns into the same code as
before, is not counted and another one is drawn. Every line that can be changed has the same chance;
the same seed draws the same sample from the same sources.

The report is a JSON file that grows with every mutant (--json); a run that was interrupted goes on
where it stopped. tests/mutate/mutate_test.py plants a mutant of each fate.
"""

import argparse
import difflib
import json
import os
import random
import re
import resource
import select
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tidy import blank_comments_and_strings, functions, line_at

# The binaries that find most mutants come first. The self provider and the networks in real time
# find nothing that the simulated networks miss, and take real time.
BINARIES = {"scenario_tests": "*", "conformance_tests": "*sim*", "unit_tests": "*",
            "thread_tests": "*"}
CONFIGURE = ("-DCMAKE_BUILD_TYPE=Debug", "-DFABRIC_CCACHE=OFF", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g0",
             "-DFABRIC_SHARED=OFF", "-DFABRIC_TOOLS=OFF", "-DFABRIC_EXAMPLES=OFF",
             "-DFABRIC_WERROR=OFF")
QUICK_MS = 150  # tests that take longer wait until all the others have passed
MEMORY_BYTES = 8 << 30  # bounds a mutant that allocates in a loop

# Only tables of names, which tests/unit and the compiler's switch warnings cover.
SKIPPED_FILES = {"to_string.cc"}
# Constants of four digits and more are times and sizes: adding one changes nothing.
LITERAL_MAX = 999


# ---- Finding what can be changed ----------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Mutant:
    path: str  # relative to the root
    line: int
    begin: int  # offsets into the file
    end: int
    operator: str
    after: str
    source: str  # the line, with a mark where it begins ...
    nth: int  # ... and which of those with the same: so it is found again when lines have moved

    def identity(self):
        return self.path, self.operator, self.after, self.source, self.nth

    def apply(self, text):
        return text[:self.begin] + self.after + text[self.end:]

    def diff(self, text):
        lines = difflib.unified_diff(text.splitlines(), self.apply(text).splitlines(), self.path,
                                     self.path, n=2, lineterm="")
        return "\n".join(list(lines)[2:])


SWAPS = {
    "comparison": {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"),
                   "==": ("!=",), "!=": ("==",)},
    "logic": {"&&": ("||",), "||": ("&&",)},
    "arithmetic": {"+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "%": ("*",),
                   "+=": ("-=",), "-=": ("+=",), "<<": (">>",), ">>": ("<<",)},
}
# clang-format puts blanks around binary operators and none around those of templates and pointers.
OPERATOR = re.compile(r"(?<= )(<=|>=|==|!=|&&|\|\||\+=|-=|<<|>>|<|>|\+|-|\*|/|%)(?=[ \n])")
STATEMENT = re.compile(r"(?:[;{})]|\belse)\s+(?=[\w(+*-])")
KEYWORDS = {"return", "if", "for", "while", "do", "switch", "case", "default", "break", "continue",
            "noexcept", "requires", "const", "static_assert", "using", "delete", "else", "auto",
            "constexpr", "static", "template", "struct", "class", "public", "private", "goto"}
# A call, an assignment or a step; a declaration has a second word, `&`, `*` or `<` there.
DROPPABLE = re.compile(r"(?:\+\+|--|\*|\()|(?P<word>\w+)(?:::\w+)*"
                       r"(?:\.|->|\(|\[|\s*(?:[-+*/|&^]|<<|>>)?=(?!=))")
UNTOUCHED = re.compile(r"\b(?:FABRIC_LOG|FABRIC_CHECK|FABRIC_DCHECK|static_assert)\s*\("
                       r"|\benum\b[^;{]*\{|^[ \t]*#(?:\\\n|[^\n])*|\btemplate <[^\n]*"
                       r"|\b(?:delete|default);|\)[^;{}()]*= 0;|\bcase\b[^;?]*?:(?!:)"
                       r"|\boperator\S+", re.MULTILINE)
OPEN, CLOSE = "([{", ")]}"


def balanced_end(text, at, stops):
    """The offset of the first of `stops` outside all brackets that open after `at`, or -1."""
    depth = 0
    while at < len(text):
        if depth == 0 and text[at] in stops:
            return at
        if text[at] in OPEN:
            depth += 1
        elif text[at] in CLOSE:
            depth -= 1
            if depth < 0:
                return -1
        at += 1
    return -1


def blanked(text):
    """The code without comments, literals and declarations that generate no code."""
    bare = blank_comments_and_strings(text)
    for match in UNTOUCHED.finditer(bare):
        end = match.end()
        if match.group()[-1] in OPEN:
            end = balanced_end(bare, end, CLOSE)
        bare = bare[:match.start()] + re.sub(r"[^\n]", " ", bare[match.start():end]) + bare[end:]
    return bare


def operators(bare):
    for match in OPERATOR.finditer(bare):
        for kind, swaps in SWAPS.items():
            for after in swaps.get(match.group(), ()):
                yield match.start(), match.end(), kind, after
    for match in re.finditer(r"(\+\+|--)(?=\w)", bare):
        yield match.start(), match.end(), "arithmetic", {"++": "--", "--": "++"}[match.group()]
    for match in re.finditer(r"\bstd::(min|max)(?=[(<])", bare):
        yield match.start(1), match.end(1), "extreme", {"min": "max", "max": "min"}[match.group(1)]


def constants(bare):
    for match in re.finditer(r"\b(true|false)\b", bare):
        yield match.start(), match.end(), "constant", {"true": "false",
                                                       "false": "true"}[match.group()]
    for match in re.finditer(r"(?<![\w.'])(\d+)(?=[uUlL]*(?![\w.']))", bare):
        value = int(match.group())
        if value > LITERAL_MAX or (match.group()[0] == "0" and value > 0):
            continue
        yield match.start(), match.end(), "off by one", str(value + 1)
        if value > 0:
            yield match.start(), match.end(), "off by one", str(value - 1)


def conditions(text, bare):
    for match in re.finditer(r"\b(?:if|while) \(", bare):
        begin, end = match.end(), balanced_end(bare, match.end(), ")")
        first = balanced_end(bare, begin, ";")
        if begin < first < end:
            begin = first + 1
        if not re.search(r"[^=<>!]=[^=]", bare[begin:end]):
            yield begin, end, "negation", f"!({text[begin:end].lstrip()})"
    for match in re.finditer(r" \? ", bare):
        begin, depth, at = match.end(), 1, match.end()
        while depth > 0 and at >= 0:
            at = balanced_end(bare, at, "?:;")
            if at < 0 or bare[at] == ";":
                break
            if bare[at:at + 2] == "::":
                at += 2
                continue
            depth += 1 if bare[at] == "?" else -1
            at += 1
        if depth > 0:
            continue
        end = balanced_end(bare, at, ";,)]}")
        if end > 0:
            one, other = text[begin:at - 1].strip(), text[at:end].strip()
            breaks = "\n" * text.count("\n", begin, end)
            yield begin, end, "ternary", f"{other} : {one}{breaks}"


def statements(bare):
    for match in STATEMENT.finditer(bare):
        begin = match.end()
        jump = re.compile(r"(?:continue|break|return);").match(bare, begin)
        guarded = match.group()[0] == ")" and bare.startswith("return ", begin)
        found = DROPPABLE.match(bare, begin)
        if jump or guarded:
            kind = "dropped jump"
        elif found and found.group("word") not in KEYWORDS:
            kind = "dropped statement"
        else:
            continue
        end = balanced_end(bare, begin, ";")
        if end > 0:
            yield begin, end, kind, "\n" * bare.count("\n", begin, end)


def mutants_of(path, text):
    """All mutants of a file, in the order of the text."""
    bare = blanked(text)
    inside = set()
    for first, last in functions(blank_comments_and_strings(text)):
        inside.update(range(first, last + 1))
    found = set()
    lines = bare.split("\n")
    for source in (operators(bare), constants(bare), conditions(text, bare), statements(bare)):
        for begin, end, operator, after in source:
            line = line_at(text, begin)
            # Outside functions: flags and named constants. A member's 0 is there to be overwritten.
            outside = operator == "constant" or (operator == "off by one" and
                                                 "constexpr" in lines[line - 1])
            if line in inside or outside:
                first = text.rfind("\n", 0, begin) + 1
                source = f"{text[first:begin]}|{text[begin:text.find(chr(10), begin)]}"
                found.add(Mutant(path, line, begin, end, operator, after, source, 0))
    seen = Counter()
    out = []
    for mutant in sorted(found):
        out.append(replace(mutant, nth=seen[mutant.identity()]))
        seen[mutant.identity()] += 1
    return out


def drawn(mutants, seed):
    """All of them in a random order in which every line comes once before any comes twice."""
    rng = random.Random(seed)
    lines = defaultdict(list)
    for mutant in mutants:
        lines[mutant.path, mutant.line].append(mutant)
    ranked = []
    for of_line in lines.values():
        rng.shuffle(of_line)
        ranked += [(turn, rng.random(), mutant) for turn, mutant in enumerate(of_line)]
    return [mutant for _, _, mutant in sorted(ranked)]


# ---- Building and running -----------------------------------------------------------------------


@dataclass(frozen=True)
class TestSubset:
    """Some tests of one binary, run in one process."""

    binary: str
    filter: str


@dataclass(frozen=True)
class Run:
    passed: bool
    timeout: bool
    last: str  # the test that failed first, or that was running
    failed: list
    times: dict  # test: ms


class Build:
    """A build tree of its own, and what it takes to replace a few of its objects."""

    def __init__(self, root, folder, binaries):
        self.root = root
        self.folder = folder
        self.binaries = [b for b in binaries if b.strip()]
        self.commands = {}  # object: its compile command
        self.links = {}  # binary: its link command
        self.users = defaultdict(set)  # file: the objects that depend on it

    def prepare(self, jobs):
        if not (self.folder / "build.ninja").exists():
            options = list(CONFIGURE)
            if shutil.which("ld.lld"):  # a link for every mutant: it is many times faster
                options.append("-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld")
            subprocess.run(["cmake", "-S", self.root, "-B", self.folder, "-G", "Ninja", *options],
                           check=True, stdout=subprocess.DEVNULL)
        self.ninja("-j", str(jobs), *self.binaries)
        for binary in self.binaries:
            for line in self.ninja("-t", "commands", binary).splitlines():
                words = shlex.split(line)
                if "-o" not in words:
                    continue
                output = words[words.index("-o") + 1]
                if "-c" in words:
                    self.commands[output] = words
                elif Path(output).name == binary:
                    # CMake writes `: && link && post build steps`.
                    begin = words.index("&&") + 1 if words[0] == ":" else 0
                    end = words.index("&&", begin) if "&&" in words[begin:] else len(words)
                    self.links[binary] = words[begin:end]
        output = ""
        for line in self.ninja("-t", "deps").splitlines():
            if line.startswith("    "):
                path = os.path.normpath(self.folder / line.strip())
                if path.startswith(str(self.root)) and output in self.commands:
                    self.users[os.path.relpath(path, self.root)].add(output)
            else:
                output = line.split(":")[0]

    def ninja(self, *arguments):
        run = subprocess.run(["ninja", "-C", self.folder, "--quiet", *arguments],
                             capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(f"mutate: ninja {' '.join(arguments)} failed\n{run.stdout}{run.stderr}")
        return run.stdout

    def objects_of(self, path):
        """The objects that a change of the file changes."""
        own = [o for o, words in self.commands.items()
               if Path(words[words.index("-c") + 1]) == self.root / path]
        return own or sorted(self.users[path])

    def compile(self, output, overlay, target):
        """Compiles the object once more, with the files below `overlay` in place of the tree's."""
        words = list(self.commands[output])
        source = Path(words[words.index("-c") + 1])
        copy = overlay / os.path.relpath(source, self.root)
        words[words.index("-c") + 1] = str(copy if copy.exists() else source)
        words[words.index("-o") + 1] = str(target)
        for option in ("-MD", "-Werror"):
            words = [w for w in words if w != option]
        for option in ("-MT", "-MF"):
            if option in words:
                at = words.index(option)
                del words[at:at + 2]
        compiler = next(i for i, w in enumerate(words) if w.startswith("-")) - 1
        words = [*words[compiler:compiler + 1], f"-I{overlay}/src", *words[compiler + 1:], "-w",
                 f"-fmacro-prefix-map={overlay}/="]
        return subprocess.run(words, cwd=self.folder, capture_output=True, check=False)

    def link(self, binary, replaced, target):
        """`replaced`: object of the tree: object to take instead. The library's members come from
        an archive, so that objects before it on the link line replace them."""
        words = [str(replaced.get(word, word)) for word in self.links[binary]]
        front = [str(new) for old, new in replaced.items() if old not in self.links[binary]
                 and "/tests/" not in f"/{old}"]
        words[words.index("-o") + 1] = str(target)
        words[1:1] = front
        subprocess.run(words, cwd=self.folder, check=True)

    def binary_path(self, binary):
        words = self.links[binary]
        return self.folder / words[words.index("-o") + 1]


def limit_child():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Patience:
    """Expires after `limit_s` of processor time, or ten times that of wall time: on a busy machine
    a test waits for a core, and one that sleeps for ever uses none."""

    def __init__(self, pid, limit_s):
        self.pid = pid
        self.limit_s = limit_s
        self.cpu = self.cpu_s()
        self.begin = time.monotonic()

    def cpu_s(self):
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        fields = stat.rpartition(")")[2].split()  # after the name, which may contain anything
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def over(self):
        return (self.cpu_s() - self.cpu > self.limit_s
                or time.monotonic() - self.begin > 10 * self.limit_s)


def run_tests(binary, test_filter, folder, patience_s, expected, fail_fast=True):
    """A test hangs when it takes longer than `patience_s` and than ten times its time without a
    mutant: `expected`, in ms."""
    child = subprocess.Popen([binary, f"--gtest_fail_fast={int(fail_fast)}",
                              f"--gtest_filter={test_filter}"], cwd=folder, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                             preexec_fn=limit_child, start_new_session=True)
    last, failed, times, rest = "", [], {}, b""
    patience = Patience(child.pid, patience_s)
    timeout = False
    while True:
        ready, _, _ = select.select([child.stdout], [], [], 0.2)
        # Checked even when there is output: a test that hangs may write all the time.
        timeout = patience.over()
        if timeout:
            os.killpg(child.pid, 9)
            break
        if not ready:
            continue
        chunk = os.read(child.stdout.fileno(), 1 << 16)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            match = re.match(rb"\[ +(RUN|OK|FAILED) +\] ([\w./]+)(?:.* \((\d+) ms\))?", line)
            if not match:
                continue
            name = match[2].decode()
            if match[1] == b"RUN":
                last = name
                patience = Patience(child.pid, max(patience_s, expected.get(name, 0) / 100))
            elif match[3]:
                times[name] = int(match[3])
                failed += [name] if match[1] == b"FAILED" else []
    child.stdout.close()
    passed = child.wait() == 0 and not timeout
    return Run(passed, timeout, failed[0] if failed else last, failed, times)


class Tests:
    """Which tests run in which order, learned from a run without a mutant."""

    def __init__(self, build, work, patience_s):
        self.build = build
        self.patience_s = patience_s
        self.times = {}
        self.quick, self.slow = [], []
        for binary in build.links:
            wanted = BINARIES.get(binary, "*")
            run = self.learn(binary, wanted, work)
            # ctest runs each test in its own process; a few fail after others in the same process.
            apart = run.failed
            healthy = run.passed or (apart and self.learn(binary, ":".join(apart), work).passed)
            if not healthy:
                sys.exit(f"mutate: {binary} fails without a mutant: {run.last}")
            slow = sorted(n for n, ms in run.times.items() if ms > QUICK_MS and n not in apart)
            others = ":".join(slow + apart)
            self.quick.append(TestSubset(binary, f"{wanted}-{others}" if others else wanted))
            self.slow += [TestSubset(binary, ":".join(names)) for names in (apart, slow) if names]

    def learn(self, binary, wanted, work):
        run = run_tests(self.build.binary_path(binary), wanted, work, 10 * self.patience_s, {},
                        fail_fast=False)
        self.times.update(run.times)
        return run

    def subsets(self, path):
        """The tests of the file itself come first."""
        stem = Path(path).stem
        own = []
        for binary in self.build.links:
            folder = self.build.root / "tests"
            suites = set()
            if binary in ("unit_tests", "scenario_tests"):
                for test in sorted(folder.glob(f"{binary[:-6]}/**/*{stem}*_test.cc")):
                    text = test.read_text(encoding="utf-8")
                    suites |= set(re.findall(r"^TEST(?:_[FP])?\((\w+),", text, re.MULTILINE))
            if suites:
                own.append(TestSubset(binary, ":".join(f"{s}.*:*/{s}.*" for s in sorted(suites))))
        return own + self.quick + self.slow


# ---- The fate of a mutant -----------------------------------------------------------------------


@dataclass(frozen=True)
class Fate:
    fate: str  # killed, timeout, survived; refused, same
    by: str = ""
    seconds: float = 0


COUNTED = ("killed", "timeout", "survived")


class Judge:
    def __init__(self, build, tests, work):
        self.build = build
        self.tests = tests
        self.work = work

    def judge(self, mutant):
        begin = time.monotonic()
        folder = self.work / f"{threading.get_ident()}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            fate, by = self.fate(mutant, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return Fate(fate, by, round(time.monotonic() - begin, 1))

    def fate(self, mutant, folder):
        overlay = folder / "tree"
        copy = overlay / mutant.path
        copy.parent.mkdir(parents=True)
        text = (self.build.root / mutant.path).read_text(encoding="utf-8")
        copy.write_text(mutant.apply(text), encoding="utf-8")
        replaced, same = {}, True
        for number, output in enumerate(self.build.objects_of(mutant.path)):
            target = folder / f"{number}.o"
            if self.build.compile(output, overlay, target).returncode != 0:
                return "refused", ""
            if target.read_bytes() != (self.build.folder / output).read_bytes():
                same = False
                replaced[output] = target
        if same:
            return "same", ""
        linked = {}
        for subset in self.tests.subsets(mutant.path):
            if subset.binary not in linked:
                linked[subset.binary] = folder / subset.binary
                self.build.link(subset.binary, replaced, linked[subset.binary])
            run = self.run(linked[subset.binary], subset.filter, folder)
            # A test that depends on real time may fail on a busy machine: it has to fail twice.
            if not run.passed and self.run(linked[subset.binary], run.last, folder).passed:
                run = self.run(linked[subset.binary], subset.filter, folder)
            if not run.passed:
                return "timeout" if run.timeout else "killed", run.last
        return "survived", ""

    def run(self, binary, test_filter, folder):
        return run_tests(binary, test_filter, folder, self.tests.patience_s, self.tests.times)


class Report:
    """The mutants of a run and their fates, kept in a file."""

    def __init__(self, path, head):
        self.path = path
        self.head = head
        self.fates = {}
        self.lock = threading.Lock()
        if path.exists():
            old = json.loads(path.read_text(encoding="utf-8"))
            if old["head"] == head:
                self.fates = {Mutant(**m["mutant"]): Fate(**m["fate"]) for m in old["mutants"]}

    def add(self, mutant, fate):
        with self.lock:
            self.fates[mutant] = fate
            rows = [{"mutant": asdict(m), "fate": asdict(f)} for m, f in self.fates.items()]
            text = json.dumps({"head": self.head, "mutants": rows}, indent=1)
            part = self.path.with_suffix(".part")
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(self.path)
            print(f"{fate.fate:9} {fate.seconds:6.1f} s  {mutant.path}:{mutant.line} "
                  f"{mutant.operator}  {fate.by}", flush=True)

    def counted(self):
        return {m: f for m, f in self.fates.items() if f.fate in COUNTED}

    def print(self, root):
        counted = self.counted()
        for mutant, fate in sorted(counted.items()):
            if fate.fate == "survived":
                text = (root / mutant.path).read_text(encoding="utf-8")
                print(f"\nsurvived: {mutant.path}:{mutant.line}: {mutant.operator}")
                print(mutant.diff(text))
        for title, key in (("file", lambda m: m.path), ("operator", lambda m: m.operator)):
            table = defaultdict(Counter)
            for mutant, fate in counted.items():
                table[key(mutant)][fate.fate] += 1
                table["all"][fate.fate] += 1
            rows = sorted(table.items(), key=lambda row: (row[0] == "all", row[0]))
            print(f"\n{title:32} mutants   killed  timeout survived")
            for name, fates in rows:
                numbers = (sum(fates.values()), *(fates[f] for f in COUNTED))
                print(f"{name:32}" + "".join(f"{n:8} " for n in numbers))
        seconds = sum(f.seconds for f in self.fates.values())
        print(f"\n{len(self.fates) - len(counted)} more did not compile or compiled to the "
              f"same code; {seconds / max(1, len(counted)):.1f} s a mutant")


def run_sample(judge, report, order, count, jobs):
    """Draws until `count` mutants compiled to other code. The sample does not depend on `jobs`."""
    queue = iter(order)
    lock = threading.Lock()
    sample = []

    def wanted():
        with lock:
            decided = sum(1 for m in sample if m not in report.fates
                          or report.fates[m].fate in COUNTED)
            mutant = next(queue, None) if decided < count else None
            if mutant:
                sample.append(mutant)
            return mutant

    def work():
        while mutant := wanted():
            if mutant not in report.fates:
                report.add(mutant, judge.judge(mutant))

    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(work) for _ in range(jobs)]:
            future.result()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--build", type=Path, help="default: build/mutate")
    parser.add_argument("--tests", default=",".join(BINARIES), help="binaries, in this order")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--patience", type=float, default=10, metavar="SECONDS",
                        help="after which a test hangs, if it should take less than a tenth")
    parser.add_argument("--only", action="append", metavar="FILE", help="of src/core")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=Path, help="default: seed-N.json in the build folder")
    parser.add_argument("--again", type=Path, metavar="FILE", help="the survivors of that report")
    return parser.parse_args()


def all_mutants(root, only):
    found = []
    for path in sorted((root / "src" / "core").iterdir()):
        name = path.relative_to(root).as_posix()
        wanted = only is None or name in only or path.name in only
        if path.suffix in (".h", ".cc") and path.name not in SKIPPED_FILES and wanted:
            found += mutants_of(name, path.read_text(encoding="utf-8"))
    return found


def main():
    options = arguments()
    root = options.root.resolve()
    folder = (options.build or root / "build" / "mutate").resolve()
    everything = all_mutants(root, options.only)
    order = drawn(everything, options.seed)
    if options.list:
        for mutant in order[:options.count]:
            print(f"{mutant.path}:{mutant.line}: {mutant.operator}")
            print(mutant.diff((root / mutant.path).read_text(encoding="utf-8")))
        print(f"mutate: {min(len(order), options.count)} of {len(order)}")
        return 0
    os.nice(5)
    os.environ["CCACHE_DISABLE"] = "1"
    build = Build(root, folder, options.tests.split(","))
    build.prepare(options.jobs)
    if options.again:
        rows = json.loads(options.again.read_text(encoding="utf-8"))["mutants"]
        survivors = [Mutant(**r["mutant"]) for r in rows if r["fate"]["fate"] == "survived"]
        by_identity = {m.identity(): m for m in everything}
        order = [by_identity[m.identity()] for m in survivors if m.identity() in by_identity]
        print(f"mutate: {len(survivors) - len(order)} of {len(survivors)} survivors no longer "
              "exist in the sources")
    path = options.json or folder / f"seed-{options.seed}.json"
    head = {"seed": options.seed, "only": options.only, "again": str(options.again or "")}
    report = Report(path.resolve(), head)
    work = folder / "mutants"
    work.mkdir(exist_ok=True)
    judge = Judge(build, Tests(build, work, options.patience), work)
    run_sample(judge, report, order, options.count, options.jobs)
    report.print(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
