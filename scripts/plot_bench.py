#!/usr/bin/env python3
"""Plots reports of gpmstore_bench (the --json files of all its commands).

    scripts/plot_bench.py REPORT.json... [--out DIR] [--format svg|png]

Writes into DIR, of each report what it has:
  workloads   latency_NAME     throughput over median latency, a point for each batch size
              of_bound_NAME    achieved / bound for each workload, a bar a batch size
  user        user_NAME        throughput of loading, of a cold start and behind it, beside workloads
  ablation    ablation_NAME    throughput of each step, a panel a batch size, beside published systems
  cache       cache_sizes_NAME, cache_theta_NAME, cache_load_NAME, cache_cost_NAME
  recovery    recovery_NAME    time of opening and resizing beside its bound
  elastic     elastic_NAME     load factor, bytes, throughput and slowest batch, step by step
  scale       scale_NAME       throughput over ranks, where the time goes, and what bounds it
  sweep       sweep_NAME       throughput over batch sizes, a panel a kind of operations
  peers       peers_NAME       the store and peers: throughput over median latency, or over the fill
  roofline    roofline_NAME    accesses a second by kind and order, a panel for each number of them
  cpu         cpu_NAME         the store beside the peer
  paper       paper_NAME       the figure that it is a report of
NAME is the report file's. Bars begin at 0; what stands on a logarithmic axis is a point. Reports of
earlier versions, where ablation was called ladder and roofline limits, are drawn too.
Exit status 2 when a file is not such a report.
Needs matplotlib (Debian: python3-matplotlib).
"""

import argparse
import json
import pathlib
import sys

EARLIER_NAMES = {"ladder": "ablation", "limits": "roofline"}
# Of each kind of report, the sections of which it has one at least, with what their rows have.
SECTIONS = {
    "workloads": {"rows": ("workload", "configuration", "batch", "mops", "latency_us_p50")},
    "user": {"rows": ("workload", "batch", "load_mops", "cold_mops", "mops")},
    "ablation": {"rows": ("workload", "configuration", "batch", "mops")},
    "cache": {
        "sizes": ("workload", "batch", "directory", "policy", "fraction", "mops"),
        "theta_rows": ("theta", "batch", "mops", "mops_no_cache", "hit_rate", "best_static"),
        "load": ("workload", "mode", "batch", "window_ms", "window_mops", "load_begin_ms",
                 "load_end_ms"),
        "cost": ("workload", "batch", "mops", "mops_no_cache"),
    },
    "recovery": {"rows": ("what", "seconds", "bound_seconds")},
    "elastic": {"steps": ("step", "load_factor", "insert_mops", "slowest_ms")},
    "scale": {"rows": ("work", "ranks", "mops")},
    "sweep": {"rows": ("operations", "keys", "batch", "mops")},
    "peers": {"rows": ("contestant", "workload", "batch", "mops")},
    "roofline": {"link": ("kind", "order", "accesses", "mops")},
    "cpu": {"phases": ("phase", "gpmstore_mops")},
    "paper": {"rows": ("series",)},
}


class NotAReport(Exception):
    """Says which file, and what is wrong with it."""


def load_plots():
    """Of each kind of report its plots, and what saves one. They need matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise NotAReport(f"needs matplotlib (Debian: python3-matplotlib): {error}") from error
    from bench_plots import commands, common, paper

    return {**commands.PLOTS, "paper": {"paper": paper.plot}}, common.save


def check_rows(path, section, rows, keys):
    for i, row in enumerate(rows):
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            raise NotAReport(f"{path}: {section}, row {i} has no {', '.join(missing)}")


def read_report(path):
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NotAReport(f"{path}: not readable as JSON: {error}") from error
    kind = report.get("benchmark") if isinstance(report, dict) else None
    kind = EARLIER_NAMES.get(kind, kind) if isinstance(kind, str) else None
    if kind not in SECTIONS:
        raise NotAReport(f"{path}: not a report of gpmstore_bench {', '.join(SECTIONS)}")
    report["benchmark"] = kind
    if kind == "cache":  # 'theta' is the skew of the others where that section was not measured
        report["theta_rows"] = report["theta"] if isinstance(report.get("theta"), list) else []
    there = 0
    for section, keys in SECTIONS[kind].items():
        rows = report.setdefault(section, [])
        if not isinstance(rows, list):
            raise NotAReport(f"{path}: '{section}' is no list of rows")
        check_rows(path, section, rows, keys)
        there += len(rows)
    if kind == "peers":  # of earlier versions
        for row in report["rows"]:
            if "batch_us_median" in row:
                row["latency_us_p50"] = row["batch_us_median"]
    if there == 0:
        raise NotAReport(f"{path}: a report of gpmstore_bench {kind} without rows")
    return report


def draw(path, report, arguments, plots, save, written):
    for name, plot in plots[report["benchmark"]].items():
        target = arguments.out / f"{name}_{path.stem}.{arguments.format}"
        try:
            figure = plot(report)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise NotAReport(f"{path}: not a whole report of gpmstore_bench "
                             f"{report['benchmark']}: {error!r}") from error
        if figure is None:
            continue
        if target in written:
            raise NotAReport(f"{path}: {target} is another report's already; rename one of them")
        written.add(target)
        save(figure, target)
        print(target)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=pathlib.Path, metavar="REPORT.json")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), metavar="DIR")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    arguments = parser.parse_args()
    try:
        reports = [(path, read_report(path)) for path in arguments.reports]
        plots, save = load_plots()
        arguments.out.mkdir(parents=True, exist_ok=True)
        written = set()
        for path, report in reports:
            draw(path, report, arguments, plots, save, written)
    except (NotAReport, OSError) as error:
        print(f"plot_bench.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
