"""Inside the guest: runs the rounds that guest.py asks for, and prints a line for each sample."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from comparison import cases
from comparison.contenders import RunSettings
from comparison.guest import PREFIX
from comparison.rounds import Rounds


def run_step(word):
    print(PREFIX + json.dumps(word), flush=True)


class ReportedRounds(Rounds):
    """Reports each sample. No probes: the guest cannot see where the host runs its two CPUs."""

    def probe(self):
        return 0.0

    def measure_all(self, case, number):
        values = super().measure_all(case, number)
        failures = {contender: reason
                    for (name, contender), reason in self.run_samples.failures.items()
                    if name == case.name}
        run_step({"case": case.name, "values": values, "failures": failures})
        return values


def main():
    fabric, game = Path(sys.argv[1]), json.loads(sys.argv[2])
    chosen = [replace_baselines(case, game["cases"][case.name]) for case in cases.ALL
              if case.name in game["cases"]]
    settings = RunSettings(fabric.parent, fabric.parent, game["duration"])
    ReportedRounds(chosen, settings, {}, lambda text: run_step({"progress": text})).run(
        game["rounds"], game["budget"])
    return 0


def replace_baselines(case, names):
    return replace(case, baselines=tuple(one for one in case.baselines if one.contender in names))
