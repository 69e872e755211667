#!/usr/bin/env python3
"""Draws the lines of `bench/compare --json`: a bar for each ratio on a logarithmic scale, with its
floor.

    bench/comparison/draw.py < lines.json > results.svg
"""

import json
import math
import sys
from html import escape

LEFT, WIDTH, ROW, TOP, RIGHT = 330, 520, 18, 64, 90
HOLDS, SHORT, PLAIN = "#2f7d4f", "#b3362b", "#8a94a3"


def scale_of(rows):
    """Powers of ten around all ratios and floors, including 1."""
    values = [1.0] + [row[key] for row in rows for key in ("ratio", "floor") if row[key]]
    values += [value for row in rows for value in row["spread"] or ()]
    return (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.0001)))


def draw(rows):
    low, high = scale_of(rows)

    def x(value):
        return LEFT + (math.log10(value) - low) / (high - low) * WIDTH

    groups = []
    for row in rows:
        if not groups or groups[-1][0]["case"] != row["case"]:
            groups.append([])
        groups[-1].append(row)
    height = TOP + sum(len(group) * ROW + 22 for group in groups) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + RIGHT}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="12" y="24" font-size="16">Ratio to the peer (more is better)</text>',
        f'<text x="12" y="44" fill="#555">green: floor (black mark) reached; red: not; '
        f'grey: no floor; thin line: spread over the rounds</text>',
    ]
    for power in range(low, high + 1):
        at = x(10.0 ** power)
        strong = "#333" if power == 0 else "#ddd"
        out.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{height - 24}" '
                   f'stroke="{strong}"/>')
        out.append(f'<text x="{at:.1f}" y="{height - 8}" text-anchor="middle" fill="#333">'
                   f'{10.0 ** power:g} x</text>')
    y = TOP
    for group in groups:
        out.append(f'<text x="12" y="{y + 14}" font-weight="bold">{escape(group[0]["case"])}'
                   '</text>')
        y += 20
        for row in group:
            out += bar(row, x, y)
            y += ROW
        y += 2
    return "\n".join(out + ["</svg>"]) + "\n"


def bar(row, x, y):
    middle = y + ROW / 2
    out = [f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(row["peer"])}</text>']
    if row["ratio"]:
        colour = {True: HOLDS, False: SHORT, None: PLAIN}[row["holds"]]
        begin, end = sorted((x(1.0), x(row["ratio"])))
        out.append(f'<rect x="{begin:.1f}" y="{y + 3}" width="{max(end - begin, 1):.1f}" '
                   f'height="{ROW - 6}" fill="{colour}"/>')
        text_at = max(end, *(x(value) for value in (row["floor"], *(row["spread"] or ()))
                             if value)) + 6
        out.append(f'<text x="{text_at:.1f}" y="{middle + 4}" fill="{colour}">'
                   f'{row["ratio"]:.2f}</text>')
        if row["spread"]:
            least, most = (x(value) for value in row["spread"])
            out.append(f'<line x1="{least:.1f}" y1="{middle}" x2="{most:.1f}" y2="{middle}" '
                       'stroke="#111" stroke-width="1"/>')
    else:
        out.append(f'<text x="{x(1.0) + 6:.1f}" y="{middle + 4}" fill="{PLAIN}">absent</text>')
    if row["floor"]:
        at = x(row["floor"])
        out.append(f'<line x1="{at:.1f}" y1="{y + 1}" x2="{at:.1f}" y2="{y + ROW - 1}" '
                   'stroke="black" stroke-width="2.5"/>')
    return out


if __name__ == "__main__":
    sys.stdout.write(draw([json.loads(line) for line in sys.stdin if line.strip()]))
