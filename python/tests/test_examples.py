"""The examples run and say what they should; the quick start of docs/python.md is a program."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "python").glob("[0-9]*.py"))


def run(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: pathlib.Path) -> None:
    assert run(str(example)).strip()


def test_there_is_a_twin_of_every_numbered_example() -> None:
    twins = {path.stem for path in EXAMPLES}
    assert {path.stem for path in (ROOT / "examples").glob("[0-9]*.cc")} <= twins


def test_the_quick_start_is_a_program_of_ten_lines() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    found = re.search(r"## Quick start\n.*?```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    code = found.group(1)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    assert run("-c", code) == "hello\n"
