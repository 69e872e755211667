"""Interleaved rounds: each runs ours and the peers of every case once, one right after the other,
so that a machine that slows down slows down all of them. The ratio of a case is the median of the
ratios of its rounds."""

import statistics
import time
from dataclasses import dataclass, field, replace

from comparison import all_contenders as known
from comparison.cases import Workload
from comparison.contenders import Failed

# The hypervisor may move the two cores apart, where a cache line takes three times as long: a round
# whose probe takes twice as long as that of the best quarter of the run is not comparable. Not the
# minimum: one lucky probe would exclude all others.
APART = 2.0
REPEATS_MAX = 2
PROBE_SECONDS = 0.02


@dataclass
class Sample:
    """One case in one round."""

    probe_ns: float
    values: dict  # contender -> value; without those that failed


@dataclass
class RunSamples:
    """All samples of a run, and the reasons of failures."""

    samples: dict = field(default_factory=dict)  # case name -> [Sample]
    failures: dict = field(default_factory=dict)  # (case name, contender) -> reason
    probes: list = field(default_factory=list)

    def cores_were_near(self, probe_ns):
        return probe_ns <= APART * sorted(self.probes)[(len(self.probes) - 1) // 4]

    def good(self, case):
        """The samples taken while the cores were near; all samples if there are none."""
        every = self.samples.get(case.name, [])
        near = [sample for sample in every if self.cores_were_near(sample.probe_ns)]
        return (near, True) if near else (every, False)


@dataclass(frozen=True)
class Row:
    """The result of a case against one peer."""

    case: str
    unit: str
    ours: float | None
    peer: str
    peer_value: float | None
    ratio: float | None
    floor: float | None
    holds: bool | None
    spread: tuple | None  # least and greatest ratio of a round
    rounds: int
    note: str


def row_of(case, baseline, run_samples):
    samples, near = run_samples.good(case)
    both = [sample.values for sample in samples
            if case.ours in sample.values and baseline.contender in sample.values]
    notes = [baseline.note] if baseline.note else []
    ratios = [case.ratio(values[case.ours], values[baseline.contender]) for values in both]
    ratio = statistics.median(ratios) if ratios else None
    ours = [sample.values[case.ours] for sample in samples if case.ours in sample.values]
    theirs = [values[baseline.contender] for values in both]
    if not theirs:
        theirs = [sample.values[baseline.contender] for sample in samples
                  if baseline.contender in sample.values]
    for contender, values in ((case.ours, ours), (baseline.contender, theirs)):
        reason = run_samples.failures.get((case.name, contender))
        if reason and not values:
            notes.append(f"{known.ALL[contender].title} is absent: {reason}")
        elif reason:
            notes.append(f"{known.ALL[contender].title} failed at times: {reason}")
    if not near and samples and case.between_cores:
        notes.append("the cores were apart or busy in every round")
    holds = None
    if baseline.floor is not None and theirs:
        # Without our value the floor is not reached; without the peer's it is unknown.
        holds = ratio is not None and ratio >= baseline.floor
    return Row(case.name, case.unit, statistics.median(ours) if ours else None,
               known.ALL[baseline.contender].title,
               statistics.median(theirs) if theirs else None, ratio, baseline.floor, holds,
               (min(ratios), max(ratios)) if ratios else None, len(ratios), "; ".join(notes))


def rows_of(cases, run_samples):
    return [row_of(case, baseline, run_samples) for case in cases for baseline in case.baselines]


class Rounds:
    def __init__(self, cases, settings, absent, progress, available=None):
        self.cases = cases
        self.settings = settings
        self.absent = absent  # contender -> why it is not measured
        self.progress = progress
        self.available = available or known.ALL
        self.run_samples = RunSamples()
        self.late = lambda: False  # whether the time of the whole run is over

    def run(self, rounds, budget, clock=time.monotonic):
        """Runs at most `rounds`; starts none that would not end within `budget` seconds."""
        begin = clock()
        longest = 0.0
        self.late = lambda: clock() - begin > budget
        for number in range(rounds):
            start = clock()
            if number and start - begin + longest > budget:
                self.progress(f"{number} rounds: the time is over")
                break
            not_again = 0.0
            for case in self.cases:
                if case.once and number:
                    continue
                self.progress(f"round {number + 1} of {rounds}: {case.name}")
                case_start = clock() if case.once else 0.0
                self.run_case(case, number)
                if case.once:
                    not_again += clock() - case_start
            longest = max(longest, clock() - start - not_again)
        return self.run_samples

    def probe(self):
        settings = replace(self.settings, duration=PROBE_SECONDS)
        value = self.available["line"].measure(Workload("latency"), settings)
        self.run_samples.probes.append(value)
        return value

    def run_case(self, case, number):
        for attempt in range(REPEATS_MAX + 1):
            probe_ns = self.probe()
            values = self.measure_all(case, number)
            probe_ns = max(probe_ns, self.probe())
            self.run_samples.samples.setdefault(case.name, []).append(Sample(probe_ns, values))
            if case.once or not case.between_cores or self.run_samples.cores_were_near(probe_ns):
                return
            if self.late():
                return
            if attempt < REPEATS_MAX:
                self.progress(f"{case.name} again: the cores are apart or busy ({probe_ns:.0f} ns)")

    def measure_all(self, case, number):
        """In another order in each round, so that no contender always follows the same one."""
        names = [case.ours, *(baseline.contender for baseline in case.baselines)]
        turn = number % len(names)
        values = {}
        for name in names[turn:] + names[:turn]:
            reason = self.absent.get(name)
            if reason is None:
                try:
                    values[name] = self.available[name].measure(case.workload, self.settings)
                    continue
                except Failed as failure:
                    reason = str(failure)
            self.run_samples.failures[case.name, name] = reason
        return values
