#!/usr/bin/env python3
"""The house rules that a compiler cannot check: who includes whom, banned calls, limits, words.

    tidy.py [--root FOLDER]

Prints `file:line: rule: advice` for every finding and ends with 1 when there was one. The rules
are explained in CONTRIBUTING.md. tests/tidy/tidy_test.py plants one violation of each.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import words

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800

CODE = {".h", ".cc"}
SCRIPTS = {".py", ".cmake", ".sh"}
SCRIPT_NAMES = {"CMakeLists.txt", "Makefile"}  # and what starts with #!
TEXT = CODE | SCRIPTS | {".md", ".txt", ".json", ".yml", ".in", ".map", ".cfg", ".toml", ".pml"}
SKIPPED_FOLDERS = {"build", ".git", ".cache", "__pycache__", "corpus"}
# They hold the very words and samples that the rules look for.
SKIPPED_FILES = {"scripts/tidy.py", "scripts/words.py", "tests/tidy/tidy_test.py"}

# Public headers that the umbrella leaves out, and why.
NOT_IN_UMBRELLA = {
    "fabric.h": "the umbrella itself",
    "export.h": "comes with every header that needs it",
    "provider.h": "for those who add a network",
    "sim.h": "for those who test on the simulator",
    "layout.h": "arithmetic of the workloads",
    "kv_layout.h": "for those who move KV caches",
    "kv_plan.h": "for those who move KV caches",
    "kv_directory.h": "a workload: for those who use it",
    "kv_etcd.h": "an optional component",
    "kv_router.h": "a workload: for those who use it",
    "kv.h": "for those who move KV caches",
}


@dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    rule: str
    advice: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.advice}"


@dataclass(frozen=True)
class Layer:
    """What the files below a folder may include. The first layer that matches a path counts."""

    folder: str
    quoted: tuple  # folders below src/, their own included
    public: tuple = ("*",)  # names of <fabric/...> headers
    vendors: bool = False  # <infiniband/...> and the like


LAYERS = (
    Layer("src/base/", ("base/",), ("result.h", "types.h", "log.h", "export.h")),
    Layer("src/topology/", ("base/", "topology/")),
    Layer("src/control/", ("base/", "control/")),
    Layer("src/device/", ("base/", "device/"), vendors=True),
    # The composition root: the only file that names all providers.
    Layer("src/providers/registry.", ("base/", "control/", "core/", "providers/", "topology/")),
    Layer("src/providers/", ("base/", "topology/", "control/", "device/", "{house}"), vendors=True),
    Layer("src/core/", ("base/", "topology/", "control/", "device/", "core/")),
    Layer("src/runtime/", ("base/", "core/", "runtime/")),
    Layer("src/swarm/", ("base/", "swarm/")),
    Layer("src/workloads/", ("base/", "workloads/")),
    Layer("tools/", ("swarm/", "topology/")),
    Layer("examples/", ()),
    Layer("bench/copy_speed.", ("providers/shm/",)),
    Layer("bench/instruction_cases.", ("core/",)),
    Layer("bench/verbs_rail_pair.", ("providers/verbs/",)),
    Layer("bench/fake_verbs/", (), vendors=True),
    Layer("bench/micro/", ("core/", "bench/")),
    # What we are measured against, on its own interface.
    Layer("bench/peers/", (), vendors=True),
    Layer("bench/", ()),
    Layer("python/", ()),
    Layer("include/fabric/", ()),
)
VENDOR_HEADER = re.compile(r"(infiniband|rdma|cuda|hip|nccl)\b")

# Where the outside world comes in, and the tests of those places.
REAL_TIME = ("src/base/", "src/runtime/", "tests/threads/",
             # A client of a real server; never part of a simulated world.
             "src/workloads/kv_etcd/", "tests/kv_etcd/", "tests/process/", "tests/guest/",
             "tests/hw/", "tests/unit/base/", "tests/unit/runtime/",
             # Parks a real thread: only the clock tells a lost wake-up from a late one.
             "tests/unit/core/counter_interleaving_test.cc")


@dataclass(frozen=True)
class Ban:
    pattern: str
    advice: str
    where: tuple = ("src/", "include/", "tests/")
    but: tuple = REAL_TIME


BANS = (
    Ban(r"\b(?:steady|system|high_resolution)_clock::now\b|\bclock_gettime\s*\(",
        "takes the time behind the simulator's back: use Driver::now_ns(), in tests World::now()"),
    Ban(r"\brandom_device\b|\bs?rand\s*\(|\bgetrandom\s*\(",
        "cannot be replayed: use Driver::entropy() or a seeded Rng (base/rng.h)"),
    Ban(r"\bstd::\w+_distribution\b",
        "differs between standard libraries: use Rng (base/rng.h)", but=("src/base/",)),
    Ban(r"\bstd::(?:ranges::)?(?:shuffle|sample)\b",
        "differs between standard libraries: use Rng (base/rng.h)", but=("src/base/",)),
    Ban(r"\bsleep_(?:for|until)\b|(?<![\w.>])(?:u|nano)?sleep\s*\(",
        "guesses how long something takes: wait on a bounded number of turns (Driver::drive())"),
    Ban(r"\bstd::(?:thread|jthread|async)\b|\bpthread_create\b",
        "starts a thread that no runtime knows: use Driver::attach() or Driver::offload()"),
    # Memory that has run out is the one thing thrown, as operator new does; open() turns it into a
    # Result.
    Ban(r"\bthrow\b(?!\s+std::bad_alloc\b)", "no exception leaves the library: return a Result",
        ("src/", "include/"), ()),
    Ban(r"\bstd::(?:abort|exit|terminate|quick_exit)\b|(?<![\w:.>])(?:abort\s*\(\s*\)|_?exit\s*\()",
        "a library does not end its process: FABRIC_CHECK for broken invariants, Result otherwise",
        ("src/", "include/"), ("src/base/check.",)),
    Ban(r"(?<!static_)\bassert\s*\(", "gone in release: use FABRIC_CHECK or FABRIC_DCHECK",
        ("src/", "include/"), ()),
    Ban(r"\bstd::(?:cout|cerr|clog)\b|(?<![\w.>])(?:std::)?f?(?:printf|puts)\s*\(",
        "the application owns its output: use FABRIC_LOG", ("src/", "include/"),
        ("src/base/check.", "src/base/log.")),
    Ban(r"\b(?:strcpy|strcat|sprintf|vsprintf|strtok|atoi|atol|gets)\s*\(",
        "knows no bounds: use std::string, std::span or std::from_chars", but=()),
    Ban(r"\bstd::(?:regex|locale|stringstream|ostringstream|istringstream)\b",
        "slow, and depends on the locale: use fmt and std::from_chars", ("src/", "include/"), ()),
)


def blank_comments_and_strings(text):
    """The same text with comments and literals as blanks, so that columns and lines stay."""
    pattern = re.compile(
        r"//(?:\\\n|[^\n])*"
        r"|/\*.*?\*/"
        r'|R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"'
        r'|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
        re.DOTALL,
    )
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def is_script(path):
    if path.suffix:
        return False
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def backticked(text):
    """A document with everything but its `code` as blanks."""
    parts = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    return "".join(part if i % 2 else re.sub(r"[^\n]", " ", part) for i, part in enumerate(parts))


def line_at(text, offset):
    return text.count("\n", 0, offset) + 1


def functions(text):
    """(first line, last line) of every function body at namespace or class level.

    `text` has no comments and literals. A brace that touches its name (`depth_{8}`) initialises;
    every other brace at that level after a parameter list opens a body, as clang-format writes it.
    """
    text = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: re.sub(r"[^\n]", " ", m.group()), text,
                  flags=re.MULTILINE)
    stack = []  # (kind, first line)
    head = 0  # where the present declaration began
    for match in re.finditer(r"[{};]", text):
        at = match.start()
        inside = any(kind in ("function", "value") for kind, _ in stack)
        if match.group() == "{":
            words = text[head:at]
            value = at > 0 and (text[at - 1].isalnum() or text[at - 1] in "_>)")
            value = value or re.search(r"(?:[=,(]|\breturn)\s*$", words) is not None
            if inside or (value and not words.rstrip().endswith(")")):
                kind = "value" if not inside else "block"
            elif re.search(r"\b(?:namespace|class|struct|union|enum)\b[^()]*$", words):
                kind = "scope"
            elif "(" in words:
                kind = "function"
            else:
                kind = "scope"
            begin = head + len(words) - len(words.lstrip())
            stack.append((kind, line_at(text, begin)))
            if kind != "value":
                head = match.end()
        elif match.group() == "}" and stack:
            kind, first = stack.pop()
            if kind == "function":
                yield first, line_at(text, at)
            if kind != "value":
                head = match.end()
        elif not inside:
            head = match.end()


def unordered_names(text):
    """Names of variables and members of an unordered container type."""
    for match in re.finditer(r"\bstd::unordered_(?:multi)?(?:map|set)\s*<", text):
        depth, at = 1, match.end()
        while at < len(text) and depth > 0:
            depth += {"<": 1, ">": -1}.get(text[at], 0)
            at += 1
        name = re.match(r"\s*&?\s*(\w+)", text[at:])
        if name:
            yield name.group(1)


class Tidy:
    def __init__(self, root):
        self.root = root
        self.findings = []
        self.defined = {}  # types that may be defined once: name -> [(path, line)]
        self.files = sorted(
            p for p in root.rglob("*")
            if p.is_file() and not SKIPPED_FOLDERS & set(p.relative_to(root).parts[:-1]))

    def add(self, path, line, rule, advice):
        self.findings.append(Finding(self.name(path), line, rule, advice))

    def name(self, path):
        return path.relative_to(self.root).as_posix()

    def run(self):
        for path in self.files:
            name = self.name(path)
            self.check_file_name(path)
            script = path.suffix in SCRIPTS or path.name in SCRIPT_NAMES or is_script(path)
            if name in SKIPPED_FILES or not (script or path.suffix in TEXT):
                continue
            text = path.read_text(encoding="utf-8")
            self.check_paths(path, text)
            self.check_words(path, text)
            if script or path.suffix in CODE:
                self.check_text(path, text)
            if path.suffix in CODE:
                bare = blank_comments_and_strings(text)
                self.check_names(path, bare)
                self.check_includes(path, text)
                self.check_bans(path, bare)
                self.check_unordered(path, bare)
                self.check_functions(path, bare)
                self.check_header(path, bare)
            elif path.suffix == ".md":
                self.check_names(path, backticked(text))
        self.check_once()
        self.check_reachable()
        self.check_umbrella()
        return sorted(set(self.findings))

    def check_paths(self, path, text):
        for match in re.finditer(r"(?<![\w.}$])/(?:work|home|root|Users)/\w", text):
            self.add(path, line_at(text, match.start()), "machine-path",
                     "a path of one machine: make it relative, or take it from an option")

    def check_file_name(self, path):
        name = self.name(path)
        for token in words.TOKEN.findall(name):
            for out in words.BY_WORD.get(token.lower(), ()):
                if out.holds(name):
                    self.add(path, 1, "word", f"file name: not {token}, but {out.instead}")

    def check_words(self, path, text):
        """Parts of identifiers, and words and phrases of prose, wherever they occur in the file."""
        name = self.name(path)
        hits = {}
        for token in set(words.TOKEN.findall(text)):
            for out in words.BY_WORD.get(token.lower(), ()):
                if out.holds(name):
                    hits[token] = out
        if hits:
            for match in words.TOKEN.finditer(text):
                if match.group() in hits and not words.is_system_call(text, match.start()):
                    self.add_word(path, text, match, hits[match.group()])
        for out in words.PHRASES:
            if out.holds(name):
                for match in re.finditer(out.words, text):
                    self.add_word(path, text, match, out)

    def check_names(self, path, bare):
        """Identifiers that give an ordinary word a private sense, and types of one name."""
        name = self.name(path)
        for out in words.NAMES:
            if out.holds(name):
                for match in re.finditer(rf"\b(?:{out.words})\b", bare):
                    self.add_word(path, bare, match, out)
        if path.suffix in CODE and name.startswith(words.ONCE_WHERE):
            for match in re.finditer(words.DEFINITION, bare):
                line = line_at(bare, match.start())
                self.defined.setdefault(match.group(1), []).append((path, line))

    def check_once(self):
        for name, places in self.defined.items():
            if len(places) > 1:
                others = ", ".join(sorted({self.name(path) for path, _ in places}))
                for path, line in places:
                    self.add(path, line, "word", f"{name} means several things ({others}): one "
                             "name, one meaning")

    def add_word(self, path, text, match, out):
        shown = " ".join(match.group().split())
        self.add(path, line_at(text, match.start()), "word", f"not {shown}, but {out.instead}")

    def check_text(self, path, text):
        lines = text.split("\n")
        if lines[-1] != "":
            self.add(path, len(lines), "newline", "end the file with a line break")
        if len(lines) - 1 > FILE_LINES_MAX:
            self.add(path, FILE_LINES_MAX + 1, "file-length",
                     f"{len(lines) - 1} lines, the limit is {FILE_LINES_MAX}: cut it by subject")
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS_MAX:
                self.add(path, number, "columns",
                         f"{len(line)} columns, the limit is {COLUMNS_MAX}: break the line")
            if line != line.rstrip():
                self.add(path, number, "blanks", "remove the blanks at the end")
            if "\t" in line and path.name != "Makefile":
                self.add(path, number, "tabs", "use blanks")
            marker = re.search(r"\b(?:FIXME|TODO|XXX|HACK)\b", line)
            if marker:
                self.add(path, number, "marker",
                         f"{marker.group()}: do it now, or open an issue and say what holds today")

    def check_includes(self, path, text):
        name = self.name(path)
        layer = next((f for f in LAYERS if name.startswith(f.folder)), None)
        for match in re.finditer(r'^[ \t]*#\s*include\s*([<"])([^>"]+)[>"]', text, re.MULTILINE):
            line = line_at(text, match.start())
            target = match.group(2)
            if "../" in target:
                self.add(path, line, "include", f'"{target}": write it relative to src/')
            elif match.group(1) == '"':
                self.check_quoted(path, line, target, layer)
            elif layer is not None:
                self.check_angled(path, line, target, layer)

    def check_quoted(self, path, line, target, layer):
        name = self.name(path)
        if target.startswith("fabric/"):
            self.add(path, line, "include", f"a public header: write <{target}>")
            return
        if layer is None:
            return
        house = "/".join(name.split("/")[1:3]) + "/"
        allowed = [folder.format(house=house) for folder in layer.quoted]
        beside = "/" not in target and name.startswith(("tools/", "examples/", "bench/", "python/"))
        if not beside and not target.startswith(tuple(allowed)):
            may = ", ".join(allowed) or "only public headers"
            self.add(path, line, "layer",
                     f'{layer.folder} may not include "{target}"; it may: {may}')

    def check_angled(self, path, line, target, layer):
        if target.startswith("fabric/"):
            if "*" not in layer.public and target[len("fabric/"):] not in layer.public:
                self.add(path, line, "layer", f"{layer.folder} may not include <{target}>; of the "
                         f"public headers it may: {', '.join(layer.public)}")
        elif VENDOR_HEADER.match(target) and not layer.vendors:
            self.add(path, line, "layer",
                     f"<{target}> belongs to a provider: reach it through <fabric/provider.h>")
        elif layer.folder == "include/fabric/" and re.search(r"[./]", target):
            self.add(path, line, "layer",
                     f"public headers need only the standard library, not <{target}>")

    def check_bans(self, path, bare):
        name = self.name(path)
        for ban in BANS:
            if not name.startswith(ban.where) or (ban.but and name.startswith(ban.but)):
                continue
            for match in re.finditer(ban.pattern, bare):
                self.add(path, line_at(bare, match.start()), "banned",
                         f"{match.group().strip(' (')}: {ban.advice}")

    def check_unordered(self, path, bare):
        name = self.name(path)
        if not name.startswith(("src/", "include/")) or name.startswith(REAL_TIME):
            return
        names = set(unordered_names(bare))
        header = path.with_suffix(".h")
        if path.suffix == ".cc" and header.exists():
            names |= set(unordered_names(blank_comments_and_strings(header.read_text())))
        for container in names:
            each = (rf"for\s*\([^;()]*:\s*(?:[\w.]|->)*\b{container}\s*\)"
                    rf"|\b{container}\.c?begin\s*\(")
            for match in re.finditer(each, bare):
                self.add(path, line_at(bare, match.start()), "unordered",
                         f"the order of {container} differs from run to run: use std::map, or keep "
                         "a sorted list beside it")

    def check_functions(self, path, bare):
        for first, last in functions(bare):
            if last - first + 1 > FUNCTION_LINES_MAX:
                self.add(path, first, "function-length",
                         f"{last - first + 1} lines, the limit is {FUNCTION_LINES_MAX}: name a "
                         "step of it and take it out")

    def check_header(self, path, bare):
        if path.suffix != ".h":
            return
        if not bare.lstrip().startswith("#pragma once"):
            self.add(path, 1, "pragma-once", "start the header with #pragma once")
        for match in re.finditer(r"^\s*using\s+namespace\b(?!\s+std::(?:chrono_)?literals\b)", bare, re.MULTILINE):
            self.add(path, line_at(bare, match.start()), "using-namespace",
                     "every file that includes this would get it: name what you need")

    def check_reachable(self):
        """Every .cc file is matched by a glob, or named, in a CMake file."""
        built = set()
        for path in self.files:
            if path.name != "CMakeLists.txt" and path.suffix != ".cmake":
                continue
            # What lies in cmake/ is included by the top and sees its folder.
            here = self.root if path.parent.name == "cmake" else path.parent
            text = re.sub(r"#[^\n]*", "", path.read_text(encoding="utf-8"))
            text = re.sub(r"\$\{CMAKE_CURRENT_(?:SOURCE|LIST)_DIR\}/", "", text)
            globs = r"file\s*\(\s*(GLOB(?:_RECURSE)?)\s+\w+([^)]*)\)"
            for call in re.finditer(globs, text):
                for pattern in re.findall(r"\S+\.cc\b", call.group(2)):
                    built |= self.matches(here, pattern, call.group(1) == "GLOB_RECURSE")
            for source in re.findall(r"\S+\.cc\b", re.sub(globs, "", text)):
                built |= self.matches(here, source, False)
        for path in self.files:
            if path.suffix == ".cc" and path.resolve() not in built:
                self.add(path, 1, "unreachable", "no CMake file builds this: move it into a folder "
                         "that is globbed, or fix its name (x_test.cc, x_fuzz.cc)")

    def matches(self, here, pattern, recursive):
        if pattern.startswith("${PROJECT_SOURCE_DIR}/"):
            here, pattern = self.root, pattern.split("/", 1)[1]
        if not re.fullmatch(r"[\w*][\w*./-]*", pattern):
            return set()
        folder, _, leaf = pattern.rpartition("/")
        found = (here / folder).rglob(leaf) if recursive else here.glob(pattern)
        return {p.resolve() for p in found}

    def check_umbrella(self):
        folder = self.root / "include" / "fabric"
        umbrella = folder / "fabric.h"
        if not umbrella.exists():
            return
        listed = set(re.findall(r"#include <fabric/([\w.]+)>", umbrella.read_text()))
        for header in sorted(folder.glob("*.h")):
            if header.name not in listed and header.name not in NOT_IN_UMBRELLA:
                self.add(umbrella, 1, "umbrella", f"list <fabric/{header.name}>, or name it in "
                         "NOT_IN_UMBRELLA of scripts/tidy.py with the reason")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()
    tidy = Tidy(root)
    findings = tidy.run()
    for finding in findings:
        print(finding)
    print(f"tidy: {len(tidy.files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
