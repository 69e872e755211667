"""The results as JSON lines, as a table, and as the page bench/results.md."""

import json
import os
import platform
import re
import subprocess
from dataclasses import asdict

from comparison.draw import draw
from comparison.rounds import Row

RESULTS = "bench/results.md"
DRAWING = "bench/results.svg"
LINES = "bench/results.json"
SHORTFALLS = "bench/shortfalls.json"


def json_line(row):
    return json.dumps(asdict(row))


def number(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def cells(row):
    spread = "-" if row.spread is None else f"{row.spread[0]:.2f} to {row.spread[1]:.2f}"
    holds = {None: "", True: "yes", False: "NO"}[row.holds]
    return [row.case, row.unit, number(row.ours), row.peer, number(row.peer_value),
            "-" if row.ratio is None else f"{row.ratio:.2f}", spread, str(row.rounds),
            "" if row.floor is None else f"{row.floor:.2f}", holds]


HEAD = ["case", "unit", "ours", "peer", "peer's", "ratio", "spread", "rounds", "floor", "holds"]


def table(rows, colour=False):
    lines = [HEAD] + [cells(row) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    out = []
    for at, line in enumerate(lines):
        text = "  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip()
        row = rows[at - 1] if at else None
        if row is not None and row.note:
            text += f"   ({row.note})"
        if colour and row is not None and row.holds is not None:
            text = f"\033[{32 if row.holds else 31}m{text}\033[0m"
        out.append(text)
    return "\n".join(out)


def output_of(words, root):
    try:
        return subprocess.run(words, cwd=root, capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine(root):
    """The machine and commit, without which a figure means nothing."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    # The results files do not count as changes.
    changed = output_of(["git", "status", "--porcelain", "--", ".", ":!bench/results.*"], root)
    commit = output_of(["git", "rev-parse", "--short=12", "HEAD"], root)
    return {"processor": model, "cores": str(len(os.sched_getaffinity(0))),
            "kernel": platform.release(),
            "compiler": output_of(["g++", "--version"], root).splitlines()[0],
            "commit": commit + (" with changes" if changed else "")}


def shortfalls(root):
    """case -> peer -> why the floor is not reached, written by hand."""
    path = root / SHORTFALLS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def about_line(about):
    return "".join(f"{key}: {value}; " for key, value in about.items()).rstrip("; ") + "."


def markdown(rows, about, reasons, how, left_out=""):
    held = [row.holds for row in rows if row.holds is not None]
    lines = [
        "# Comparison on one host",
        "",
        f"Written by `{how}`; do not edit. {sum(held)} of {len(held)} floors reached.",
        "",
        about if isinstance(about, str) else about_line(about),
        "",
        "Two processes on two cores, inline progress, counted writes, interleaved: each round runs",
        "ours and every peer once, for a fraction of a second. A value is the median of the",
        "rounds, the ratio the median of the ratios of the rounds, with least and greatest. It",
        "is ours over the peer's for speeds and the peer's over ours for times and loads, so that",
        "more is better and a floor is a lower bound.",
        "",
        "The cases of `verbs` ran on SoftRoCE in a guest, usually an emulated one: their values do",
        "not predict a real NIC, but their ratios show the overhead of each library.",
        *([f"This time {left_out}."] if left_out else []),
        "",
        "![ratios against their floors](results.svg)",
        "",
        "| " + " | ".join(HEAD + ["remark"]) + " |",
        "| " + " | ".join(["---"] * (len(HEAD) + 1)) + " |",
    ]
    for row in rows:
        words = cells(row)
        words[-1] = "**no**" if row.holds is False else words[-1]
        lines.append("| " + " | ".join(words + [row.note]) + " |")
    short = [row for row in rows if row.holds is False]
    if short:
        lines += ["", "## Floors that are not reached", ""]
    for row in short:
        why = reasons.get(row.case, {}).get(row.peer, "not explained yet.")
        lines.append(f"- `{row.case}` against {row.peer}, {number(row.ratio)} of "
                     f"{row.floor:.2f}: {why}")
    return "\n".join(lines) + "\n"


def write_results(rows, root, how, left_out=""):
    text = markdown(rows, machine(root), shortfalls(root), how, left_out)
    (root / RESULTS).write_text(text, encoding="utf-8")
    (root / LINES).write_text("".join(json_line(row) + "\n" for row in rows), encoding="utf-8")
    (root / DRAWING).write_text(draw([asdict(row) for row in rows]), encoding="utf-8")


def rewrite_results(root):
    """Writes the documents again from the measured rows, with the present reasons. Time and machine
    of the measurement are kept."""
    rows = [Row(**json.loads(line))
            for line in (root / LINES).read_text(encoding="utf-8").splitlines()]
    old = (root / RESULTS).read_text(encoding="utf-8")
    how = re.search(r"^Written by `(.*)`", old, re.MULTILINE).group(1)
    about = re.search(r"^processor: .*$", old, re.MULTILINE).group(0)
    left_out = re.search(r"^This time (.*)\.$", old, re.MULTILINE)
    text = markdown(rows, about, shortfalls(root), how, left_out.group(1) if left_out else "")
    (root / RESULTS).write_text(text, encoding="utf-8")
    (root / DRAWING).write_text(draw([asdict(row) for row in rows]), encoding="utf-8")
