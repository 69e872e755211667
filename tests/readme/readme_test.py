#!/usr/bin/env python3
"""The documents cannot rot: the README's example is a program that is built and run, every link
between documents leads somewhere, and every promise names the conformance tests that show it.

    readme_test.py [--root FOLDER]
"""

import argparse
import re
import sys
from pathlib import Path

EXAMPLE = "examples/01_hello_write.cc"
EXAMPLE_LINES_MAX = 35
SKIPPED_FOLDERS = {"build", ".git", ".cache"}


def code_blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def check_example(root):
    blocks = code_blocks((root / "README.md").read_text(encoding="utf-8"), "cpp")
    if len(blocks) != 1:
        yield f"README.md: {len(blocks)} cpp blocks, there should be one: the example"
        return
    if blocks[0] not in (root / EXAMPLE).read_text(encoding="utf-8"):
        yield f"README.md: its example is not a part of {EXAMPLE}, word for word"
    if blocks[0].count("\n") > EXAMPLE_LINES_MAX:
        yield f"README.md: the example has more than {EXAMPLE_LINES_MAX} lines"


def documents(root):
    for path in sorted(root.rglob("*.md")):
        if not SKIPPED_FOLDERS & set(path.relative_to(root).parts[:-1]):
            yield path


def check_links(root):
    """Links of the form [text](path#part), and paths in backticks that name a folder of ours."""
    folders = "|".join(("src", "include", "tests", "docs", "examples", "scripts", "tools", "cmake"))
    for path in documents(root):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(root).as_posix()
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target or target.startswith("#"):
                continue
            if not (path.parent / target.split("#")[0]).exists():
                yield f"{name}: the link to {target} leads nowhere"
        for target in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
            if not (root / target).exists():
                yield f"{name}: there is no {target}"


def check_promises(root):
    """docs/contracts.md names, below each promise, the files with tests of its number."""
    contracts = (root / "docs/contracts.md").read_text(encoding="utf-8")
    promises = re.split(r"^- \*\*P(\d+)\*\*", contracts, flags=re.MULTILINE)[1:]
    text_of = dict(zip(map(int, promises[0::2]), promises[1::2]))
    tests = [(int(number), path) for path in sorted((root / "tests/conformance").glob("*_test.cc"))
             for number in re.findall(r"TEST_P\(\w+,\s*P(\d\d)", path.read_text(encoding="utf-8"))]
    for number in sorted(text_of.keys() - {number for number, _ in tests}):
        yield f"docs/contracts.md: no conformance test has the number of P{number}"
    for number, path in sorted(set(tests)):
        name = path.relative_to(root).as_posix()
        if name not in text_of.get(number, ""):
            yield f"docs/contracts.md: P{number} does not name {name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    root = parser.parse_args().root.resolve()
    findings = [*check_example(root), *check_links(root), *check_promises(root)]
    for finding in findings:
        print(finding)
    print(f"readme: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
