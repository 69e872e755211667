#!/usr/bin/env python3
"""Checks a Promela model exhaustively with spin.

    check.py MODEL [--mutant NAME] [--large] [--build FOLDER]
    check.py --all [--large]
    check.py --list             what ctest runs

A model is a file NAME.pml in this folder. Lines of its header comment say how it is checked:

    @small A=1 B=2      bounds in `make test`        @large A=2 B=3   bounds in `make soak`
    @finite             every run is finite: a cycle in the state space is an error
    @claim NAME         the ltl formula NAME holds in every weakly fair run
    @unreached P TEXT   a statement of process P that is never reached, and should not be
    @mutant NAME FINDS  a bug, compiled in by MUTANT_NAME, that the check must find; the text up to
                        the next @ has the bounds that it needs and a description of the bug
    @gap NAME FINDS     the same, for a bug that the code has today

FINDS: assert:WORD (an assertion that contains WORD), stuck (a deadlock), endless (a cycle) or
claim:NAME.

Fails for an error, for an incomplete search, for a statement that is never reached, and for a
mutant in which nothing, or something else, is found.
"""

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEPTH_MAX = {False: 200_000, True: 5_000_000}
MEMORY_MAX_MIB = {False: 512, True: 4096}


@dataclass(frozen=True)
class Mutant:
    kind: str  # mutant or gap
    name: str
    finds: str
    bounds: tuple
    why: str


@dataclass
class Model:
    name: str
    bounds: dict = field(default_factory=dict)  # large? -> ["A=1", ...]
    finite: bool = False
    claims: list = field(default_factory=list)
    unreached: list = field(default_factory=list)
    mutants: dict = field(default_factory=dict)  # name -> Mutant


@dataclass(frozen=True)
class Run:
    """One search: the error it found ("": none), and its size."""

    found: str
    states: int
    depth: int
    unreached: tuple


class Failed(Exception):
    pass


def read_model(path):
    header = re.match(r"/\*(.*?)\*/", path.read_text(encoding="utf-8"), re.DOTALL)
    if not header:
        raise Failed(f"{path.name}: has no header comment that says how it is checked")
    model = Model(path.stem)
    for entry in re.findall(r"^\s*@(.*?)(?=^\s*@|\Z)", header.group(1), re.DOTALL | re.MULTILINE):
        word, _, rest = entry.strip().partition(" ")
        rest = " ".join(rest.split())
        if word in ("small", "large"):
            model.bounds[word == "large"] = rest.split()
        elif word == "finite":
            model.finite = True
        elif word == "claim":
            model.claims.append(rest)
        elif word == "unreached":
            model.unreached.append(rest)
        elif word in ("mutant", "gap"):
            name, finds, why = rest.split(" ", 2)
            bounds = re.match(r"(?:\w+=\d+ )*", why).group()
            model.mutants[name] = Mutant(word, name, finds, tuple(bounds.split()),
                                         why.removeprefix(bounds))
        else:
            raise Failed(f"{path.name}: unknown tag @{word}")
    if set(model.bounds) != {False, True}:
        raise Failed(f"{path.name}: needs @small and @large")
    return model


def call(command, folder, what):
    if shutil.which(command[0]) is None:
        raise Failed(f"{command[0]} is not installed: scripts/install-deps build test")
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Failed(f"{what} failed:\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def what_was_found(text):
    """The error of a search, in the notation of FINDS."""
    error = re.search(r"^pan:\d+: (.*?)\(at depth", text, re.MULTILINE)
    if not error:
        return ""
    error = error.group(1).strip()
    if "non-progress cycle" in error:
        return "endless"
    if "acceptance cycle" in error:
        return "claim"
    if "invalid end state" in error:
        return "stuck"
    return error.replace("assertion violated", "assert:")


def read_run(text):
    found = what_was_found(text)
    if not found:
        size = re.search(r"depth reached (\d+), errors: (\d+)", text)
        # A search that ended early proves nothing.
        cut = re.search(r"max search depth|out of memory|Search not completed|hash-table is full"
                        r"|memory exhausted|VECTORSZ|too many|aborting", text)
        if not size or size.group(2) != "0" or cut:
            raise Failed(f"the search was not completed: {cut.group() if cut else text}")
    states = re.search(r"(\d+(?:\.\d+e\+\d+)?) states, stored", text)
    depth = re.search(r"depth reached (\d+)", text)
    blocks = re.findall(r"^unreached in (?:proctype )?(\w+)\n(.*?)^\t\(\d+ of", text,
                        re.DOTALL | re.MULTILINE)
    lines = [f"{process}: {re.sub(', state [0-9]+', '', line.strip())}"
             for process, block in blocks if process != "claim" for line in block.splitlines()]
    return Run(found, int(float(states.group(1))) if states else 0,
               int(depth.group(1)) if depth else 0, tuple(lines))


def search(folder, large, kind, claim=None):
    """Compiles and runs one search of the pan.c in `folder`."""
    switches = {"safety": ["-DSAFETY", "-DNOCLAIM"], "finite": ["-DNP", "-DNOCLAIM"],
                "claim": []}[kind]
    if large:
        switches = switches + ["-DCOLLAPSE"]
    # Small searches take less time than the optimiser.
    call(["cc", "-O2" if large else "-O0", "-w", f"-DMEMLIM={MEMORY_MAX_MIB[large]}",
          *switches, "-o", "pan", "pan.c"], folder, "cc")
    options = {"safety": [], "finite": ["-l"], "claim": ["-a", "-f", "-N", claim]}[kind]
    result = subprocess.run(["./pan", f"-m{DEPTH_MAX[large]}", "-w25" if large else "-w20",
                             *options], cwd=folder, capture_output=True, text=True, check=False)
    return read_run(result.stdout + result.stderr)


def cpu_s():
    """CPU time of compilers and searches; on a shared machine wall time says little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def error_trace(folder, source, defines):
    """The trace to the error, statement by statement."""
    text = subprocess.run(["spin", *defines, "-p", "-t", source], cwd=folder, capture_output=True,
                          text=True, check=False).stdout
    lines = text.splitlines()
    return "\n".join(lines if len(lines) < 400 else lines[:200] + ["..."] + lines[-200:])


def searches(model, mutant):
    """The kinds of search to run; a mutant only needs the one that finds it."""
    if mutant is None:
        yield "safety", None
        if model.finite:
            yield "finite", None
        for claim in model.claims:
            yield "claim", claim
    elif mutant.finds.startswith("claim:"):
        yield "claim", mutant.finds.split(":")[1]
    else:
        yield ("finite" if mutant.finds == "endless" else "safety"), None


def matches(finds, found):
    if finds.startswith("assert:"):
        return found.startswith("assert:") and finds.split(":", 1)[1] in found
    return found == finds.split(":")[0]


def check_unreached(model, run, path):
    def allows(allowed, line):
        process, _, text = allowed.partition(" ")
        return line.startswith(process + ":") and text in line

    left = [line for line in run.unreached
            if not any(allows(allowed, line) for allowed in model.unreached)]
    stale = [allowed for allowed in model.unreached
             if not any(allows(allowed, line) for line in run.unreached)]
    if left:
        raise Failed(f"{path.name} never reaches:\n  " + "\n  ".join(left))
    if stale:
        raise Failed(f"{path.name} lists as unreached what is reached: {stale}")


def check(path, mutant_name, large, build):
    model = read_model(path)
    mutant = None
    if mutant_name is not None:
        if mutant_name not in model.mutants:
            raise Failed(f"{path.name} has no mutant {mutant_name}: {', '.join(model.mutants)}")
        mutant = model.mutants[mutant_name]
    label = model.name + (f" with {mutant.name}" if mutant else "")
    bounds = dict(bound.split("=") for bound in model.bounds[large])
    if mutant:
        bounds.update(bound.split("=") for bound in mutant.bounds)
        bounds[f"MUTANT_{mutant.name}"] = "1"
    defines = [f"-D{name}={value}" for name, value in bounds.items()]
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix=model.name + ".") as folder:
        source = path.name
        (Path(folder) / source).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        call(["spin", *defines, "-a", source], folder, "spin")
        for kind, claim in searches(model, mutant):
            start = cpu_s()
            run = search(folder, large, kind, claim)
            took = cpu_s() - start
            name = kind if claim is None else f"claim {claim}"
            print(f"{label}: {name}: {run.states} states, depth {run.depth}, {took:.1f} s of CPU"
                  f"{', found ' + run.found if run.found else ''}", flush=True)
            if mutant is None and run.found:
                raise Failed(f"{label}: {run.found}\n{error_trace(folder, source, defines)}")
            if mutant is None and kind == "safety":
                check_unreached(model, run, path)
            if mutant is not None and not matches(mutant.finds, run.found):
                raise Failed(f"{label}: must find {mutant.finds}, found "
                             f"{run.found or 'nothing'}")


def all_models():
    return sorted(HERE.glob("*.pml"))


def list_tests():
    for path in all_models():
        print(path.stem)
        for mutant in read_model(path).mutants.values():
            print(f"{path.stem}.{mutant.kind}.{mutant.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="its name, without .pml")
    parser.add_argument("--mutant")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--all", action="store_true", help="all models and all their mutants")
    parser.add_argument("--list", action="store_true",
                        help="one MODEL or MODEL.mutant.NAME per line")
    parser.add_argument("--build", type=Path, default=HERE.parent.parent / "build" / "models")
    options = parser.parse_args()
    try:
        if options.list:
            list_tests()
            return 0
        if options.all:
            todo = [(path, mutant) for path in all_models()
                    for mutant in (None, *read_model(path).mutants)]
        elif options.model:
            todo = [(HERE / f"{options.model}.pml", options.mutant)]
        else:
            parser.error("a model, --all or --list")
        for path, mutant in todo:
            # Mutants are found in the small model; the large one would add nothing.
            check(path, mutant, options.large and mutant is None, options.build)
    except (Failed, OSError) as error:
        print(f"check.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
