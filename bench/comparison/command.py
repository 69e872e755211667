"""The command line of bench/compare."""

import argparse
import fnmatch
import os
import subprocess
import sys
from pathlib import Path

from comparison import cases, contenders, guest, report
from comparison import all_contenders as known
from comparison.contenders import Failed, RunSettings
from comparison.rounds import Rounds, rows_of
from comparison.verbs import AT_HOST_B

ROOT = Path(__file__).resolve().parent.parent.parent

EXPLAINED = """\
Every line is one case against one peer. `ratio` is ours / peer_value for speeds (GB/s, writes and
pages per second) and peer_value / ours for times and loads (ns, % of a core), so that more is
better and `floor` is a lower bound for every unit. It is the median of the ratios of the rounds;
`spread` has the least and the greatest of them. `holds` is null without a floor or without the
peer. An absent peer has `peer_value` null, and `note` says why.

UCX stands for UCP, the interface that applications use; UCT is its lower interface, the only way
to cma here and the only one that works on SoftRoCE. NIXL and Mooncake are installed as Python
wheels into build/peers-venv, the rest as Debian packages (scripts/install-deps build compare
guest).

Before and after each case a probe bounces a cache line between the two cores. If that takes more
than twice as long as in the best quarter of the run, the cores were apart or busy: the case is
measured again, and such samples count only if a case has no others.

The cases of `verbs` run in one boot of a guest with SoftRoCE devices (tests/guest), usually an
emulated one: their values do not predict a real NIC, but their ratios show the overhead of each
library. --quick leaves them out unless --only names them. Where no guest can run they are left
out, with the reason.

exit code: 0 done; 1 a floor was not reached (with --check), or ours could not be measured;
2 bad usage
"""

# Seconds for all rounds. The documented limits are one and ten minutes: the rest is for installing,
# building, and rounds with repetitions.
QUICK_BUDGET, FULL_BUDGET = 50, 500
# The guest's share for its rounds, without booting and shutting down.
GUEST_QUICK_BUDGET, GUEST_BUDGET = 25, 150
# At least a second: in an emulated guest 1 MiB takes some 20 ms.
GUEST_DURATION = 1.0

# Packages and modules of the Python wheels.
WHEELS = {"nixl": (("nixl-cu12", "numpy"), "nixl_cu12._bindings"),
          "mooncake": (("mooncake-transfer-engine-non-cuda",), "mooncake.engine")}
LIBFABRIC = ["libfabric_shm", "libfabric_tcp"]


def two_cores(text):
    cores = tuple(int(word) for word in text.split(","))
    if len(cores) != 2 or not set(cores) <= os.sched_getaffinity(0):
        raise argparse.ArgumentTypeError("two cores that this process may use, such as 0,1")
    return cores


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="bench/compare",
        description="Compares fabric-lib with other libraries on this host, in interleaved runs.",
        epilog=EXPLAINED, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    usable = sorted(os.sched_getaffinity(0))
    add("--json", action="store_true", help="one object a line instead of the table")
    add("--only", metavar="PATTERN", action="append",
        help="cases that contain it, or match it as a glob: write_imm/65536, 'shm/*/8'; "
        "case:peer selects peers too")
    add("--check", action="store_true",
        help="exit with 1 if a floor is not reached; cases without their peer are ignored")
    add("--quick", action="store_true", help="one minute instead of ten")
    add("--rounds", type=int, metavar="N", help="how many (default 9, with --quick 2)")
    add("--duration", type=float, metavar="SECONDS",
        help="of one measurement (default 0.3, with --quick 0.1)")
    add("--pin", type=two_cores, metavar="A,B", help="cores of the two processes",
        default=(usable[0], usable[min(1, len(usable) - 1)]))
    add("--list", action="store_true", help="print the cases and their floors, measure nothing")
    add("--no-prepare", action="store_true", help="install and build nothing")
    add("--build", type=Path, metavar="FOLDER", default=ROOT / "build" / "release",
        help="with --no-prepare: where our programs are")
    add("--write-results", action="store_true",
        help=f"write {report.RESULTS}, {report.LINES} and {report.DRAWING}")
    add("--rewrite", action="store_true",
        help=f"write {report.RESULTS} and {report.DRAWING} again from {report.LINES} and "
        f"{report.SHORTFALLS}, measure nothing")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 9)
    options.duration = options.duration or (0.1 if options.quick else 0.3)
    if options.rounds < 1 or not 0.01 <= options.duration <= 10:
        parser.error("at least one round, of 0.01 to 10 seconds a measurement")
    if options.write_results and options.only:
        parser.error("--write-results takes all cases")
    if options.build != ROOT / "build" / "release" and not options.no_prepare:
        parser.error("--build goes with --no-prepare: only build/release is built")
    options.cases = selected(cases.ALL, options.only)
    if not options.cases:
        parser.error(f"no case matches {' or '.join(options.only)}; --list prints them")
    return options


def selected(every, patterns):
    """The cases that match, with the peers that the pattern names; all peers if it names none."""
    def matches(text, pattern):
        return pattern in text or fnmatch.fnmatchcase(text, pattern)

    if not patterns:
        return list(every)
    chosen = []
    for case in every:
        baselines = []
        for baseline in case.baselines:
            title = known.ALL[baseline.contender].title
            for pattern in patterns:
                wanted, _, peer = pattern.partition(":")
                if matches(case.name, wanted) and matches(title, peer):
                    baselines.append(baseline)
                    break
        if baselines:
            chosen.append(cases.Case(case.name, case.measure, case.workload, tuple(baselines),
                                     ours=case.ours, once=case.once,
                                     between_cores=case.between_cores))
    return chosen


class Preparation:
    """Installs and builds what the chosen cases need. `absent` has the reasons of failures."""

    def __init__(self, root, needed, in_guest, log):
        self.root = root
        self.needed = needed
        self.in_guest = in_guest
        self.log = log
        self.absent = {}

    def run(self):
        self.packages()
        self.build()
        for name, (wheels, module) in WHEELS.items():
            if name in self.needed:
                self.wheel(name, wheels, module)
        return self.absent

    def run_step(self, words, why):
        """Runs a command; raises Failed with the last line of its output."""
        done = subprocess.run(list(map(str, words)), cwd=self.root, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            last = done.stdout.strip().splitlines() or [f"exited with {done.returncode}"]
            raise Failed(f"{why}: {last[-1]}")

    def packages(self):
        self.log("packages")
        try:
            guests = ["guest"] if self.in_guest else []
            self.run_step(["scripts/install-deps", "build", "compare", *guests], "not installed")
        except Failed as failure:
            # Installed packages may suffice: each missing peer reports itself.
            self.log(str(failure))

    def build(self):
        self.log("build/release")
        self.run_step(["cmake", "--preset", "release"], "cmake")
        build = ["cmake", "--build", "build/release", "--target"]
        helpers = [AT_HOST_B] if self.in_guest else []
        self.run_step(build + ["fabric_tool", "limits", "copy_speed", *helpers], "build")
        if self.needed & set(LIBFABRIC):
            try:
                self.run_step(build + ["libfabric_peer"], "libfabric's program is not built")
            except Failed as failure:
                self.absent.update(dict.fromkeys(LIBFABRIC, str(failure)))

    def wheel(self, name, wheels, module):
        """Installs into a virtual environment of the build, without dependencies."""
        python = self.root / "build" / "peers-venv" / "bin" / "python"
        there = [python, "-c", f"import {module}"]
        try:
            if not python.exists():
                self.run_step([sys.executable, "-m", "venv", python.parent.parent], "no venv")
            try:
                self.run_step(there, "no module")
            except Failed:
                self.log(" ".join(wheels))
                self.run_step([python, "-m", "pip", "install", "-q", "--no-deps",
                           "--disable-pip-version-check", *wheels],
                          "its wheel does not install")
                self.run_step(there, "its wheel does not work")
        except Failed as failure:
            self.absent[name] = str(failure)


def split(options):
    """The cases of this host, and those of the guest."""
    ours = [case for case in options.cases if not case.in_guest]
    guests = [case for case in options.cases if case.in_guest]
    named = any("verbs" in pattern.partition(":")[0] for pattern in options.only or ())
    return ours, guests if named or not options.quick else []


def measure_in_guest(chosen, options, root, log, in_guest):
    """RunSamples and an empty reason; or None, and the reason why nothing was measured."""
    try:
        return in_guest(chosen, root, options.build, log, rounds=options.rounds,
                        duration=options.duration if options.quick else GUEST_DURATION,
                        budget=GUEST_QUICK_BUDGET if options.quick else GUEST_BUDGET), ""
    except Failed as failure:
        return None, f"the cases of verbs are left out: {failure}"


def progress():
    """Prints progress: on a terminal in one line, otherwise as lines."""
    terminal = sys.stderr.isatty()

    def log(text):
        sys.stderr.write(f"\r\033[K{text}" if terminal else f"compare: {text}\n")
        sys.stderr.flush()
    return log


def list_cases(chosen):
    for case in chosen:
        for baseline in case.baselines:
            floor = "" if baseline.floor is None else f"  at least {baseline.floor:.2f}"
            print(f"{case.name}  {known.ALL[baseline.contender].title}{floor}")


def main(arguments=None, root=ROOT, available=None, in_guest=guest.measure):
    options = parse(arguments)
    if options.list:
        list_cases(options.cases)
        return 0
    if options.rewrite:
        report.rewrite_results(root)
        return 0
    log = progress()
    here, there = split(options)
    needed = {baseline.contender for case in options.cases for baseline in case.baselines}
    rows, left_out = [], ""
    try:
        absent = {} if options.no_prepare else Preparation(root, needed, bool(there), log).run()
        settings = RunSettings(root, options.build, options.duration, options.pin,
                      3.0 if options.quick else 10.0)
        if here:
            budget = QUICK_BUDGET if options.quick else FULL_BUDGET - GUEST_BUDGET * bool(there)
            run_samples = Rounds(here, settings, absent, log, available).run(options.rounds, budget)
            rows += rows_of(here, run_samples)
        if there:
            run_samples, left_out = measure_in_guest(there, options, root, log, in_guest)
            rows += rows_of(there, run_samples) if run_samples else []
    except Failed as failure:
        sys.stderr.write(f"\ncompare: {failure}\n")
        return 1
    finally:
        if sys.stderr.isatty():
            log("")
    if options.json:
        for row in rows:
            print(report.json_line(row))
    else:
        print(report.table(rows, sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    if left_out:
        sys.stderr.write(f"compare: {left_out}\n")
    if options.write_results:
        quick = " --quick" if options.quick else ""
        report.write_results(rows, root, f"bench/compare{quick} --write-results", left_out)
    failed = any(row.ours is None for row in rows)
    return int(failed or (options.check and any(row.holds is False for row in rows)))
