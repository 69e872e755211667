#!/usr/bin/env python3
"""Writes the sources of the second build: copies that contain every bug of bugs.py, switched off.

    plant.py --list             the names of the bugs
    plant.py --list-plain       the same without those of the verbs network
    plant.py --files            the sources that are touched, below src/
    plant.py --to FOLDER        writes the copies, and the names for planted.cc

Fails when the text that a bug replaces is not in its source exactly once: the code has changed, and
the bug has to follow it.
"""

import argparse
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True

from bugs import BUGS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


class Failed(Exception):
    pass


def touched():
    return sorted({edit.file for bug in BUGS for edit in bug.edits})


def plant(text, number, bug, edit):
    """The text with one edit in it."""
    found = text.count(edit.find)
    if found != 1:
        raise Failed(f"move the planted bug {bug.name}: its text is {found} times in "
                     f"src/{edit.file}, and must be there once:\n{edit.find}")
    replacement, switches = re.subn(r"\bPLANTED\b", f"::fabric::planted({number})", edit.replace)
    if switches == 0:
        raise Failed(f"the planted bug {bug.name} has no switch in src/{edit.file}")
    return text.replace(edit.find, replacement)


def planted_source(file):
    text = (ROOT / "src" / file).read_text(encoding="utf-8")
    for number, bug in enumerate(BUGS):
        for edit in bug.edits:
            if edit.file == file:
                text = plant(text, number, bug, edit)
    return '#include "planted/planted.h"\n' + text


def write_if_other(path, text):
    """Keeps the time of a file that stays the same: it need not be compiled again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true")
    what.add_argument("--list-plain", action="store_true")
    what.add_argument("--files", action="store_true")
    what.add_argument("--to", type=Path)
    options = parser.parse_args()
    if options.list:
        print("\n".join(bug.name for bug in BUGS))
    elif options.list_plain:
        print("\n".join(bug.name for bug in BUGS if bug.layer != "fake_verbs"))
    elif options.files:
        print("\n".join(touched()))
    else:
        for file in touched():
            write_if_other(options.to / file, planted_source(file))
        names = "".join(f'"{bug.name}",\n' for bug in BUGS)
        write_if_other(options.to / "planted_names.inc", names)


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(str(failed))
