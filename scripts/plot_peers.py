#!/usr/bin/env python3
"""Draws docs/peers.svg: GPMStore beside GPHash and HierarchicalKV.

    scripts/plot_peers.py [--check]

GPMStore's figures come from bench/results/h200/workloads.json. Those of the others come from the
report beside it that has them ("published"; bench/published.cc says where they are from). --check writes nothing and fails
when docs/peers.svg is not what would be drawn. Needs nothing beyond Python.
"""

import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "h200"
TARGET = ROOT / "docs" / "peers.svg"

BATCHES = ((4096, "batches of 4096"), (1048576, "batches of 2^20"))
WORKLOADS = (("c", "YCSB C"), ("b", "YCSB B"), ("a", "YCSB A"), ("find", "uniform finds"),
             ("find-missing", "finds of absent keys"), ("insert", "inserts"))
SYSTEMS = (("GPMStore", "#1f6fb4"), ("GPHash", "#d1612b"), ("HierarchicalKV, 20% of values", "#6a6a6a"))

LOWEST, HIGHEST = 1.0, 20000.0
LEFT, PANEL, GAP, TOP, ROW = 150, 330, 40, 78, 40


def figures():
    """(system, workload, batch) -> million operations a second."""
    found = {}
    for row in json.loads((RESULTS / "workloads.json").read_text())["rows"]:
        if row["configuration"] == "default":
            found["GPMStore", row["workload"], row["batch"]] = row["mops"]
    for path in sorted(RESULTS.glob("*.json")):
        published = json.loads(path.read_text()).get("published", {"figures": []})
        for row in published["figures"]:
            found[row["system"], row["workload"], row["batch"]] = row["mops"]
    return found


def spell(system, mops):
    return f"{mops:.0f}" if system == "GPMStore" else f"{mops:g}"  # published ones as they are


def draw(found):
    width = LEFT + 2 * PANEL + GAP + 40
    height = TOP + ROW * len(WORKLOADS) + 66
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]

    def text(x, y, words, anchor="start", color="#222222", size=12):
        lines.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" '
                     f'font-size="{size}">{words}</text>')

    x = LEFT
    for name, color in SYSTEMS:
        lines.append(f'<circle cx="{x}" cy="18" r="5" fill="{color}"/>')
        text(x + 10, 22, name)
        x += 40 + 7 * len(name)
    bottom = TOP + ROW * len(WORKLOADS)
    for panel, (batch, title) in enumerate(BATCHES):
        start = LEFT + panel * (PANEL + GAP)

        def place(mops):
            return start + PANEL * math.log(mops / LOWEST) / math.log(HIGHEST / LOWEST)

        text(start + PANEL / 2, TOP - 22, title, "middle", size=13)
        for tick in (1, 10, 100, 1000, 10000):
            at = place(tick)
            lines.append(f'<line x1="{at:.1f}" y1="{TOP - 8}" x2="{at:.1f}" y2="{bottom}" '
                         f'stroke="#dddddd"/>')
            text(at, bottom + 16, f"{tick:,}", "middle", "#555555", 11)
        for k, (workload, _) in enumerate(WORKLOADS):
            y = TOP + ROW * (k + 0.5)
            lines.append(f'<line x1="{start}" y1="{y:.1f}" x2="{start + PANEL}" y2="{y:.1f}" '
                         f'stroke="#eeeeee"/>')
            labels = []
            for system, color in SYSTEMS:
                mops = found.get((system, workload, batch))
                if mops is None:
                    continue
                at = place(mops)
                lines.append(f'<circle cx="{at:.1f}" cy="{y:.1f}" r="5" fill="{color}"/>')
                labels.append((at, color, spell(system, mops)))
            # Labels stand above their points, and below where the one before is near.
            above, near = True, -math.inf
            for at, color, words in sorted(labels):
                above = not above if at - near < 34 else True
                near = at
                text(at, y - 8 if above else y + 16, words, "middle", color, 10)
    for k, (_, name) in enumerate(WORKLOADS):
        text(LEFT - 14, TOP + ROW * (k + 0.5) + 4, name, "end")
    text(LEFT + PANEL + GAP / 2, bottom + 36, "million operations a second, logarithmic", "middle")
    text(LEFT + PANEL + GAP / 2, bottom + 54,
         "8-byte keys, 128-byte values, 16 M items, one H200; HierarchicalKV is volatile", "middle",
         "#555555", 11)
    lines.append("</svg>\n")
    return "\n".join(lines)


def main():
    drawing = draw(figures())
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != drawing:
            sys.exit(f"plot_peers.py: {TARGET} is not what scripts/plot_peers.py draws")
        return
    TARGET.write_text(drawing)


if __name__ == "__main__":
    main()
