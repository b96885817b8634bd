#!/usr/bin/env python3
"""Makes the tables of docs/EVALUATION.md from the reports of scripts/paper.sh, each behind a line
`<!-- table: NAME -->`, so that what is written there is what was measured.

    evaluation_tables.py            says which tables differ from the reports, and fails if any does
    evaluation_tables.py --write    writes them anew
"""

import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "EVALUATION.md"
RESULTS = ROOT / "bench" / "results" / "h200" / "paper"

SMALL, MIDDLE, LARGE = 4096, 65536, 1048576
CARRIED = ["dash-carried", "libcuckoo-carried"]
ON_PM = ["gpmstore", "gphash", "slabhash-gpm", "clevel-gpm"]
KINDS = ["insert", "find", "find-missing", "update", "erase", "a", "b", "c", "d", "f"]


def short(value):
    """Two digits, or all of a larger number."""
    if value is None:
        return ""
    if value >= 9.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"


def precise(value):
    """Three digits, or one behind the point."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def read(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


class Report:
    """The rows of a report, found by what they are of."""

    def __init__(self, name):
        self.rows = read(name)["rows"]

    def get(self, figure="mops", **of):
        """The figure of the first row that is of all this; None: there is none."""
        for row in self.rows:
            if all(row.get(key) == value for key, value in of.items()):
                return row[figure]
        return None


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def named(names):
    return [f"`{name}`" for name in names]


def joined(values, form=short):
    return " / ".join(form(value) for value in values)


def peers(batch):
    report = Report("peers")
    names = ON_PM + CARRIED + ["gpmstore-cpu-carried", "warpdrive-4", "dyhash", "ghsh", "hashgraph-v1", "hashgraph-v2"]
    columns = {"insert": "insert", "find": "find", "not found": "find-missing", "C": "c", "A": "a", "update": "update"}
    rows = [[f"`{name}`", *(precise(report.get(contestant=name, workload=kind, batch=batch)) for kind in columns.values())]
            for name in names]
    power = batch.bit_length() - 1
    return table([f"batch 2^{power}", *columns], rows)


def throughput(figure, names, batches):
    report = Report(figure)
    rows = [[kind, *(joined([report.get(contestant=name, workload=kind, batch=batch) for batch in batches])
                     for name in names)] for kind in KINDS]
    powers = joined([batch.bit_length() - 1 for batch in batches], lambda power: f"2^{power}")
    return table([f"batch {powers}", *named(names)], rows)


def latency(figure, names):
    report = Report(figure)

    def median(name, kind, batch):
        return report.get("latency_us_p50", contestant=name, workload=kind, batch=batch)
    rows = [[kind, *(f"{short(median(name, kind, SMALL))} / {short(median(name, kind, LARGE) / 1e3)}" for name in names)]
            for kind in KINDS]
    return table(["median latency of a batch: 2^12, us / 2^20, ms", *named(names)], rows)


def factors():
    report = Report("figure9")
    steps = {
        "gphash-threads": "GPHash: a thread an operation, keys apart, no cache",
        "gphash-apart": "+ warps that cooperate",
        "gphash-uncached": "+ keys in place",
        "gphash": "+ BktCache, which is `gphash`",
        "no accelerators": "the store, no accelerators",
        **{step: step for step in ["+ directory", "+ hot values", "+ ordering", "+ combining"]},
    }
    kinds = ["insert", "a", "b", "c", "d", "f"]
    rows = [[text, *(short(report.get(configuration=step, workload=kind)) for kind in kinds)]
            for step, text in steps.items()]
    return table(["", *(kind if kind == "insert" else kind.upper() for kind in kinds)], rows)


def applications():
    report = Report("figure10")
    names = ON_PM + CARRIED
    ranks = [f"{report.get('find_mops', application='pagerank', series=name):.1f}, "
             f"{report.get('write_mops', application='pagerank', series=name):.1f}" for name in names]
    looks = [f"{report.get('find_mops', application='dlrm', series=name):.1f}" for name in names]
    return table(["", *named(names)], [["PageRank: finds, writes, M/s", *ranks], ["DLRM: finds, M/s", *looks]])


def keys_and_skew():
    report = Report("figure12")
    names = ON_PM + CARRIED

    def series(name, of, key, values):
        found = [report.get(contestant=name, series=of, **{key: value}) for value in values]
        return ", ".join(short(value) for value in found if value is not None)
    sizes, skews = [8, 32, 128], [0.5, 0.7, 0.9, 0.99]
    return table(["", *named(names)],
                 [["keys of 8, 32, 128 bytes", *(series(name, "key size", "key_size", sizes) for name in names)],
                  ["theta 0.5, 0.7, 0.9, 0.99", *(series(name, "skew", "theta", skews) for name in names)]])


def opening():
    report = Report("figure14")
    sizes = [1_000_000, 4_000_000, 16_000_000]

    def both(what, items):
        all_of_it, mapping = (report.get(f, what=what, items=items) for f in ("seconds", "mapping_seconds"))
        return f"{short(1e3 * all_of_it)} ({short(1e3 * mapping)})"
    whats = ["open, closed in order", "open, after a crash", "resize"]
    return table(["items", *(f"{items // 1_000_000} M" for items in sizes)],
                 [[f"{what}, ms", *(both(what, items) for items in sizes)] for what in whats])


def value_sizes():
    report = Report("figurevalues")
    sizes = [8 << i for i in range(8)]
    return table(["bytes of a value", *map(str, sizes)],
                 [[kind, *(short(report.get(workload=kind, value_size=size)) for size in sizes)]
                  for kind in ["find", "insert", "update", "c"]])


def streams():
    report = Report("figurestreams")
    counts = [1, 2, 4, 8]
    return table(["streams", *map(str, counts)],
                 [[kind, *(short(report.get(workload=kind, streams=count)) for count in counts)]
                  for kind in ["find", "c", "insert", "a", "update"]])


def warpdrive():
    report = Report("warpdrive_fills")
    groups = [1, 2, 4, 8, 16, 32]
    kinds = {"insert": "insert", "find": "find", "find, Zipf": "c", "find-missing": "find-missing", "update": "update"}
    rows = [[f"{text}, {fill} full",
             *(short(report.get(contestant=f"warpdrive-pairs-{group}", workload=kind, fill=fill)) for group in groups)]
            for text, kind in kinds.items() for fill in [0.5, 0.7, 0.8, 0.9, 0.95]]
    return table(["threads of a group", *map(str, groups)], rows)


def large_warpdrive():
    report = Report("warpdrive_27")
    groups = [1, 2, 4, 8, 16, 32]
    rows = [[f"{kind}, {fill} full",
             *(short(report.get(contestant=f"warpdrive-pairs-{group}", workload=kind, fill=fill)) for group in groups)]
            for kind in ["insert", "find"] for fill in [0.5, 0.8, 0.95]]
    return table(["2^27 pairs, threads of a group", *map(str, groups)], rows)


HASHGRAPHS = ["v1", "v2", "ordered", "ellpack", "sliced"]


def hashgraph():
    batches = Report("hashgraph")

    def row(text, kind, *sizes):
        return [text, *(", ".join(short(batches.get(contestant=f"hashgraph-{name}", workload=kind, batch=size))
                                  for size in sizes) for name in HASHGRAPHS)]
    return table(["16 M items of 8 + 128 bytes", *named("-" + name for name in HASHGRAPHS)],
                 [row("build, one batch", "insert", LARGE),
                  row("find, 2^12 and 2^20", "find", SMALL, LARGE),
                  row("find-missing", "find-missing", SMALL, LARGE),
                  row("C", "c", SMALL, LARGE)])


def sizes_of_hashgraph():
    powers = (22, 24, 26)
    reports = {power: Report(f"hashgraph_{power}") for power in powers}

    def milliseconds(name, kind, power):
        return (1 << power) / 1e3 / reports[power].get(contestant=f"hashgraph-{name}", workload=kind)
    rows = [[f"{text}, ms", *(joined([milliseconds(name, kind, power) for power in powers]) for name in HASHGRAPHS)]
            for text, kind in {"build": "insert", "find": "find", "find-missing": "find-missing"}.items()]
    return table(["2^22 / 2^24 / 2^26 pairs of 8 + 16 bytes, one batch", *named("-" + name for name in HASHGRAPHS)], rows)


def dyhash():
    def row(text, name):
        steps = read(name)["steps"]
        fills = [step["load_factor"] for step in steps[1:-1]]
        operations = sum(step[f"{kind}_count"] for step in steps for kind in ("insert", "find", "erase"))
        seconds = sum(step[f"{kind}_count"] / step[f"{kind}_mops"] / 1e6 for step in steps
                      for kind in ("insert", "find", "erase") if step[f"{kind}_count"] > 0)
        return [text, f"{min(fills):.2f} to {max(fills):.2f}", f"{max(step['slots'] for step in steps) / 1e6:.1f} M",
                f"{1e3 * seconds:.0f}", f"{operations / seconds / 1e6:.0f}", short(max(step["slowest_ms"] for step in steps))]
    rows = [row("**alpha 0.40, beta 0.90, 0.4 erases, batches of 1 M**", "dyhash"),
            *(row(f"alpha {alpha:.2f}", f"dyhash_alpha_{alpha}") for alpha in [0.25, 0.3, 0.35, 0.45]),
            *(row(f"beta {beta:.2f}", f"dyhash_beta_{beta}") for beta in [0.75, 0.8, 0.85, 0.95]),
            *(row(f"{erases} erases", f"dyhash_erases_{erases}") for erases in [0.1, 0.2, 0.3, 0.5]),
            *(row(f"batches of {batch / 1e6:.2g} M", f"dyhash_batch_{batch}") for batch in [250000, 500000, 2000000])]
    return table(["", "load factor between the first step and the last", "most slots", "all operations, ms",
                  "M operations/s", "slowest batch, ms"], rows)


COUNTED = {"no directory": "`gpmstore`, no directory", "cold": "`gpmstore`, cold", "warm": "`gpmstore`, warm",
           "gphash": "`gphash`", "slabhash-gpm": "`slabhash-gpm`", "clevel-gpm": "`clevel-gpm`"}


def counts():
    report = Report("figure8_cuda")

    def cell(name, kind):
        pm = report.get("pm", contestant=name, workload=kind)

        def total(access, what):
            return sum(pm[place][access][what] for place in ("slots", "values", "log"))
        text = f"{total('read', 'bytes'):.0f}, {total('written', 'bytes'):.0f}"
        fences = short(pm["fences"]) if pm["fences"] >= 0.995 else f"{pm['fences']:.2g}"
        return text if kind.startswith("find") else f"{text} ({total('swapped', 'count'):.0f}, {fences})"
    kinds = {"find": "find", "not found": "find-missing", "insert": "insert", "update": "update", "erase": "erase"}
    return table(["", *kinds], [[text, *(cell(name, kind) for kind in kinds.values())] for name, text in COUNTED.items()])


def phases():
    report = Report("figure8_cuda")
    said = {"search": "search", "read values": "values read", "write values": "values", "write slots": "slots",
            "log": "log", "persist": "persist", "transfer": "transfer"}

    def cell(name, kind):
        shares = report.get("phases", contestant=name, workload=kind)
        return ", ".join(f"{share['share']:.2f} {said[share['phase']]}" for share in shares
                         if share["phase"] in said and share["share"] >= 0.015)
    kinds = ["find", "insert", "update", "erase"]
    names = {**COUNTED, **{name: f"`{name}`" for name in CARRIED}}
    return table(["", *kinds], [[text, *(cell(name, kind) for kind in kinds)] for name, text in names.items()])


def policies():
    report = Report("figure11")
    fractions = [0.05, 0.1, 0.2, 0.4]

    def row(text, figure, form, policy, kind):
        return [text, *(form(report.get(figure, policy=policy, fraction=fraction, workload=kind)) for fraction in fractions)]
    names = ["lfu", "tinylfu", "lru", "random"]
    return table(["share of the buckets", "5%", "10%", "20%", "40%"],
                 [*(row(f"C, `{name}`", "mops", short, name, "c") for name in names),
                  *(row(f"A, `{name}`", "mops", short, name, "a") for name in names),
                  *(row(f"hit rate of C, `{name}`", "hit_rate", lambda rate: f"{rate:.2f}", name, "c") for name in names),
                  row("the best fixed choice", "best_static", lambda rate: f"{rate:.2f}", "lfu", "c")])


def geometries():
    report = Report("figure13")
    names = ["1L-1H-32S", "2L-1H-16S", "1L-2H-16S", "1L-4H-8S", "2L-2H-8S", "2L-4H-4S"]
    return table(["", *names],
                 [["maximum load factor", *(f"{report.get('maximum_load_factor', series=name):.2f}" for name in names)],
                  *([kind if kind == "insert" else kind.upper(),
                     *(short(report.get(series=name, workload=kind)) for name in names)] for kind in ["insert", "c"])])


def loading():
    report = Report("figure15")
    fractions = [0.05, 0.1, 0.2, 0.4]

    def row(text, mode, form):
        return [text, *(form(*(report.get(figure, mode=mode, fraction=fraction)
                               for figure in ("load_seconds", "lowest_of_steady", "steady_mops", "after_mops")))
                        for fraction in fractions)]
    return table(["share of the buckets", "5%", "10%", "20%", "40%"],
                 [row("loading beside batches, ms", "beside", lambda seconds, *_: short(1e3 * seconds)),
                  row("the slowest window, of the rate before", "beside", lambda _, lowest, *__: f"{lowest:.2f}"),
                  row("rates before and after", "beside", lambda _, __, before, after: f"{short(before)}, {short(after)}"),
                  row("loading between batches, ms", "between", lambda seconds, *_: short(1e3 * seconds)),
                  row("the slowest window, of the rate before", "between", lambda _, lowest, *__: f"{lowest:.2f}")])


def ghsh():
    whole = [Report(f"ghsh_{power}") for power in (20, 22, 24)]
    batches = Report("ghsh_batches")

    def row(name):
        return [f"`{name}`",
                *(joined([report.get(contestant=name, workload=kind) for report in whole])
                  for kind in ["insert", "find", "find-missing"]),
                joined([batches.get(contestant=name, workload="insert", batch=1 << power) for power in (15, 16, 17)])]
    return table(["M operations/s", "insert, one batch of 2^20 / 2^22 / 2^24", "find", "find-missing",
                  "insert, 2^24 in batches of 2^15 / 2^16 / 2^17"],
                 [row("ghsh-words"), row("warpdrive-pairs-4"),
                  ["the paper, RTX 2080 Ti, harmonic means", "", "838", "732", ""]])


TABLES = {
    "peers, 2^12": lambda: peers(SMALL),
    "peers, 2^20": lambda: peers(LARGE),
    "figure 5": lambda: throughput("figure5", ON_PM + CARRIED, [SMALL, MIDDLE, LARGE]),
    "figure 5, latency": lambda: latency("figure5", ON_PM + CARRIED),
    "figure 6": lambda: throughput("figure6", ON_PM + CARRIED[1:], [SMALL, LARGE]),
    "figure 6, latency": lambda: latency("figure6", ON_PM + CARRIED[1:]),
    "figure 9": factors,
    "figure 10": applications,
    "figure 12": keys_and_skew,
    "figure 14": opening,
    "values": value_sizes,
    "streams": streams,
    "figure 8, counts": counts,
    "figure 8, time": phases,
    "figure 11": policies,
    "figure 13": geometries,
    "figure 15": loading,
    "warpdrive": warpdrive,
    "warpdrive, 2^27": large_warpdrive,
    "dyhash": dyhash,
    "hashgraph": hashgraph,
    "hashgraph, sizes": sizes_of_hashgraph,
    "ghsh": ghsh,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    text = PAGE.read_text()
    differing = []
    for name, make in TABLES.items():
        mark = re.compile(rf"(<!-- table: {re.escape(name)} -->\n)((?:\|.*\n)*)")
        found = mark.search(text)
        if found is None:
            sys.exit(f"{PAGE.name}: there is no table {name}")
        made = "\n".join(make()) + "\n"
        if made != found.group(2):
            differing.append(name)
        text = text[:found.start(2)] + made + text[found.end(2):]
    unknown = set(re.findall(r"<!-- table: (.*) -->", text)) - set(TABLES)
    if unknown:
        sys.exit(f"{PAGE.name}: nobody makes the table {unknown.pop()}")
    if write:
        PAGE.write_text(text)
    elif differing:
        sys.exit(f"{PAGE.name}: not what the reports say: {', '.join(differing)}")


if __name__ == "__main__":
    main()
