#!/usr/bin/env python3
"""Plots reports of `gpmstore_bench workloads`, `ladder` and `recovery` (their --json files).

    scripts/plot_bench.py REPORT.json... [--out DIR] [--format svg|png]

Writes into DIR, of all reports that have it:
  latency_NAME     throughput over median latency, a point for each batch size, a line a workload
  of_bound_NAME    achieved / bound for each workload, a bar a batch size
  ladder_NAME      throughput of each step, a panel a batch size, beside published systems
  recovery_NAME    seconds of opening and resizing beside their bound
NAME is the report file's. Exit status 2 when a file is not such a report.
Needs matplotlib (Debian: python3-matplotlib).
"""

import argparse
import json
import pathlib
import sys

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("plot_bench.py: needs matplotlib (Debian: python3-matplotlib)")

ROW_KEYS = {
    "workloads": ("workload", "configuration", "batch", "mops", "latency_us_p50"),
    "ladder": ("workload", "configuration", "batch", "mops", "factor"),
    "recovery": ("what", "seconds", "bound_seconds"),
}


class NotAReport(Exception):
    """Says which file, and what is wrong with it."""


def read_report(path):
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NotAReport(f"{path}: not readable as JSON: {error}") from error
    kind = report.get("benchmark") if isinstance(report, dict) else None
    if kind not in ROW_KEYS:
        raise NotAReport(f"{path}: not a report of gpmstore_bench {', '.join(ROW_KEYS)}"
                         f" ('benchmark' is {kind!r})")
    rows = report.get("rows")
    if not isinstance(rows, list) or not rows:
        raise NotAReport(f"{path}: a report of gpmstore_bench {kind} without rows")
    for i, row in enumerate(rows):
        missing = [key for key in ROW_KEYS[kind] if key not in row]
        if missing:
            raise NotAReport(f"{path}: row {i} has no {', '.join(missing)}")
    for key in ("store", "records"):
        if key not in report:
            raise NotAReport(f"{path}: the report has no '{key}'")
    return report


def title(report):
    store = report["store"]
    return (f"{report['records'] / 1e6:g} M records of {store['key_size']} + "
            f"{store['value_size']} bytes, {store['executor']}, {store['medium']}")


def unique(values):
    return list(dict.fromkeys(values))


def batch_name(batch):
    log = batch.bit_length() - 1
    return f"$2^{{{log}}}$" if batch == 1 << log else str(batch)


def plot_latency(report):
    figure, axes = plt.subplots(figsize=(7, 5))
    for workload in unique(row["workload"] for row in report["rows"]):
        rows = sorted((r for r in report["rows"] if r["workload"] == workload),
                      key=lambda r: r["batch"])
        (line,) = axes.plot([r["latency_us_p50"] for r in rows], [r["mops"] for r in rows],
                            marker="o", markersize=3, label=workload)
        for row in (rows[0], rows[-1]):
            axes.annotate(batch_name(row["batch"]), (row["latency_us_p50"], row["mops"]),
                          color=line.get_color(), fontsize=7, xytext=(3, 3),
                          textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="median latency of a batch, µs",
             ylabel="million operations/s", title=title(report))
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    return figure


def grouped_bars(axes, groups, series, height, label=str):
    """Bars of height(group, member) for each group; None leaves a gap."""
    width = 0.8 / len(series)
    for i, member in enumerate(series):
        heights = [height(group, member) for group in groups]
        places = [g + (i - (len(series) - 1) / 2) * width for g in range(len(groups))]
        axes.bar(places, [h or 0 for h in heights], width, label=label(member))
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(True, axis="y", alpha=0.3)


def plot_of_bound(report):
    rows = {(r["workload"], r["batch"]): r.get("of_bound") for r in report["rows"]}
    if not any(rows.values()):
        return None  # measured with --no-limits
    figure, axes = plt.subplots(figsize=(9, 4))
    grouped_bars(axes, unique(w for w, _ in rows), sorted(unique(b for _, b in rows)),
                 lambda workload, batch: rows.get((workload, batch)), batch_name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axhline(0.8, color="black", linewidth=0.5, linestyle=":")
    axes.set(ylabel="achieved / bound", title=title(report))
    axes.legend(title="batch", fontsize=7, ncols=2, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def plot_ladder(report):
    rows = {(r["workload"], r["batch"], r["configuration"]): r["mops"] for r in report["rows"]}
    steps = unique(r["configuration"] for r in report["rows"])
    workloads = unique(r["workload"] for r in report["rows"])
    batches = unique(r["batch"] for r in report["rows"])
    # Other systems' figures hold for what they were measured with alone.
    published = report.get("published", {})
    comparable = (report["store"]["executor"] == "cuda"
                  and report["records"] == published.get("records")
                  and report["store"]["value_size"] == published.get("value_size")
                  and report.get("theta") == published.get("theta")
                  and report.get("distribution") == "zipf")
    systems = []
    if comparable:
        for figure in published["figures"]:
            rows[figure["workload"], figure["batch"], figure["system"]] = figure["mops"]
        systems = unique(figure["system"] for figure in published["figures"])
    figure, panels = plt.subplots(len(batches), 1, figsize=(9, 3 * len(batches)), squeeze=False,
                                  layout="constrained")
    for axes, batch in zip(panels[:, 0], batches):
        grouped_bars(axes, workloads, systems + steps,
                     lambda workload, step, batch=batch: rows.get((workload, batch, step)))
        axes.set(yscale="log", ylabel="million operations/s", title=f"batch {batch_name(batch)}")
    panels[0, 0].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(title(report))
    return figure


def plot_recovery(report):
    figure, axes = plt.subplots(figsize=(7, 4))
    rows = {row["what"]: row for row in report["rows"]}
    series = {"seconds": "in all", "recovery_seconds": "without mapping", "bound_seconds": "bound"}
    grouped_bars(axes, list(rows), list(series), lambda what, key: rows[what].get(key), series.get)
    axes.set(yscale="log", ylabel="seconds", title=title(report))
    axes.legend()
    return figure


PLOTS = {
    "workloads": {"latency": plot_latency, "of_bound": plot_of_bound},
    "ladder": {"ladder": plot_ladder},
    "recovery": {"recovery": plot_recovery},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=pathlib.Path, metavar="REPORT.json")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), metavar="DIR")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    arguments = parser.parse_args()
    try:
        reports = {path: read_report(path) for path in arguments.reports}
        arguments.out.mkdir(parents=True, exist_ok=True)
    except (NotAReport, OSError) as error:
        print(f"plot_bench.py: {error}", file=sys.stderr)
        return 2
    for path, report in reports.items():
        for name, plot in PLOTS[report["benchmark"]].items():
            figure = plot(report)
            if figure is None:
                continue
            target = arguments.out / f"{name}_{path.stem}.{arguments.format}"
            figure.savefig(target, bbox_inches="tight", dpi=150)
            plt.close(figure)
            print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
