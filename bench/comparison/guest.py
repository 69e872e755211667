"""The cases that need a kernel of their own: one boot of the tests' guest, in which inside.py runs
the rounds. The samples come back on the guest's console."""

import json
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from comparison.contenders import Failed
from comparison.rounds import RunSamples, Sample
from comparison.verbs import AT_HOST_B

SKIPPED = 77  # exit code of boot.py: no guest can run here
PREFIX = "compare: "
# For booting, and for the measurement that is running when the time is over.
MARGIN_SECONDS = 60


def pack(folder):
    """Packs this package into one program: the guest does not see all folders of the host."""
    program = folder / "compare_inside"
    with open(program, "wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w") as archive:
            for file in sorted(Path(__file__).parent.glob("*.py")):
                archive.write(file, f"comparison/{file.name}")
            archive.writestr("__main__.py", "import sys\nfrom comparison.inside import main\n"
                             "sys.exit(main())\n")
    program.chmod(0o755)


def command(chosen, rounds, duration, budget):
    """A command line for boot.py, which copies the programs that it names into the guest."""
    game = {"cases": {case.name: [one.contender for one in case.baselines] for case in chosen},
            "rounds": rounds, "duration": duration, "budget": budget}
    return (f"{int(budget) + MARGIN_SECONDS} compare_inside /tmp/bin/fabric "
            f"{shlex.quote(json.dumps(game))} {AT_HOST_B}")


def take(line, run_samples, log):
    """Reads a line of the guest's console. True: it came from inside.py."""
    if not line.startswith(PREFIX):
        return False
    word = json.loads(line.removeprefix(PREFIX))
    if "progress" in word:
        log(f"guest: {word['progress']}")
    else:
        run_samples.samples.setdefault(word["case"], []).append(Sample(0.0, word["values"]))
        for contender, reason in word["failures"].items():
            run_samples.failures[word["case"], contender] = reason
    return True


def measure(chosen, root, build, log, **game):
    """The RunSamples of the cases. Raises Failed if no guest can run, or if it measured nothing."""
    run_samples = RunSamples()
    run_samples.probes.append(0.0)
    unknown = []
    log("guest: booting")
    with tempfile.TemporaryDirectory() as folder:
        pack(Path(folder))
        words = [sys.executable, root / "tests" / "guest" / "boot.py", "--bin", folder,
                 "--bin", build, "--bin", build / "bench", "-c", command(chosen, **game)]
        with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True,
                              stdin=subprocess.DEVNULL) as boot:
            for line in boot.stdout:
                try:
                    if not take(line.rstrip(), run_samples, log):
                        unknown.append(line.strip())
                except (ValueError, KeyError):
                    log(f"guest: invalid line: {line.strip()}")
    if boot.returncode == 0 and run_samples.samples:
        return run_samples
    why = unknown[-1] if unknown else f"the guest exited with {boot.returncode}"
    if boot.returncode != SKIPPED:
        why = f"the guest exited with {boot.returncode}: {why}"
    raise Failed(why)
