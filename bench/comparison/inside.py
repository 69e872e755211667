"""Inside the guest: plays the rounds that guest.py asks for, and tells each as a line."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from comparison import cases
from comparison.contenders import Stage
from comparison.guest import SAYS
from comparison.rounds import Rounds


def tell(word):
    print(SAYS + json.dumps(word), flush=True)


class Told(Rounds):
    """Where the host has put the guest's two processors shows nowhere in here: no probes."""

    def probe(self):
        return 0.0

    def measure_all(self, case, number):
        values = super().measure_all(case, number)
        failures = {contender: reason for (name, contender), reason in self.ledger.failures.items()
                    if name == case.name}
        tell({"case": case.name, "values": values, "failures": failures})
        return values


def main():
    fabric, game = Path(sys.argv[1]), json.loads(sys.argv[2])
    chosen = [replace_rivals(case, game["cases"][case.name]) for case in cases.ALL
              if case.name in game["cases"]]
    stage = Stage(fabric.parent, fabric.parent, game["duration"])
    Told(chosen, stage, {}, lambda text: tell({"progress": text})).run(
        game["rounds"], game["budget"])
    return 0


def replace_rivals(case, names):
    return replace(case, rivals=tuple(one for one in case.rivals if one.contender in names))
