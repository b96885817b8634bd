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
  roofline    roofline_NAME    accesses a second by kind and order, a panel for each number of them
  cpu         cpu_NAME         the store beside the peer
NAME is the report file's. Bars begin at 0; what stands on a logarithmic axis is a point. Reports of
earlier versions, where ablation was called ladder and roofline limits, are drawn too.
Exit status 2 when a file is not such a report.
Needs matplotlib (Debian: python3-matplotlib).
"""

import argparse
import json
import math
import pathlib
import sys

plt = None  # matplotlib's, when it is needed
ticker = None

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
    "elastic": {"steps": ("growth", "step", "load_factor", "pm_bytes", "insert_mops", "slowest_ms")},
    "roofline": {"link": ("kind", "order", "accesses", "mops")},
    "cpu": {"phases": ("phase", "gpmstore_mops")},
}
MOPS = "million operations/s"
MARKERS = "osD^vP*X<>"


class NotAReport(Exception):
    """Says which file, and what is wrong with it."""


def load_matplotlib():
    global plt, ticker
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot
        import matplotlib.ticker
    except ImportError as error:
        raise NotAReport(f"needs matplotlib (Debian: python3-matplotlib): {error}") from error
    plt = matplotlib.pyplot
    ticker = matplotlib.ticker


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
    if there == 0:
        raise NotAReport(f"{path}: a report of gpmstore_bench {kind} without rows")
    return report


def title(report):
    store = report.get("store")
    if not store:
        return f"range of {report['range_bytes'] / 2**20:g} MiB, {report['executor']}, {report['medium']}"
    amount = (f"{report['records'] / 1e6:g} M records" if "records" in report
              else f"batches of {report['batch']:g}")
    return (f"{amount} of {store['key_size']} + "
            f"{store['value_size']} bytes, {store['executor']}, {store['medium']}")


def unique(values):
    return list(dict.fromkeys(values))


def batch_name(batch):
    log = batch.bit_length() - 1
    return f"$2^{{{log}}}$" if batch > 1 and batch == 1 << log else str(batch)


def label_log_axis(axis, values):
    """Ticks with plain numbers, as many as fit the range of the values."""
    values = [value for value in values if value and value > 0]
    decades = math.log10(max(values) / min(values)) if values else 1
    steps = (1, 1.5, 2, 3, 4, 5, 6, 8) if decades < 1 else (1, 2, 5) if decades < 3.5 else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=steps, numticks=30))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def legend_beside(axes, **options):
    """Outside of the axes, where it hides nothing."""
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), **options)


def panels_of(count, height=3.0):
    figure, panels = plt.subplots(count, 1, figsize=(9, height * count), squeeze=False,
                                  layout="constrained")
    return figure, list(panels[:, 0])


def places(groups, series, i):
    width = 0.8 / len(series)
    return [g + (i - (len(series) - 1) / 2) * width for g in range(len(groups))]


def grouped_bars(axes, groups, series, height, label=str):
    """Bars from 0 to height(group, member) for each group; None leaves a gap."""
    for i, member in enumerate(series):
        heights = [height(group, member) or 0 for group in groups]
        axes.bar(places(groups, series, i), heights, 0.8 / len(series), label=label(member))
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(bottom=0)
    axes.grid(True, axis="y", alpha=0.3)


def grouped_points(axes, groups, series, height, label=str):
    """Points at height(group, member) on a logarithmic axis; None, or 0, leaves a gap."""
    values = []
    for i, member in enumerate(series):
        points = [(place, height(group, member))
                  for place, group in zip(places(groups, series, i), groups)]
        points = [(place, value) for place, value in points if value and value > 0]
        values += [value for _, value in points]
        axes.plot([p for p, _ in points], [v for _, v in points], linestyle="none",
                  marker=MARKERS[i % len(MARKERS)], markersize=5, label=label(member))
    axes.set_yscale("log")
    label_log_axis(axes.yaxis, values)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    for g in range(1, len(groups)):
        axes.axvline(g - 0.5, color="black", linewidth=0.4, alpha=0.3)
    axes.grid(True, axis="y", alpha=0.3)


def plot_latency(report):
    figure, axes = plt.subplots(figsize=(8, 5))
    rows = [r for r in report["rows"] if r["mops"] > 0 and r["latency_us_p50"] > 0]
    lines = unique((r["workload"], r["configuration"]) for r in rows)
    several = len(unique(configuration for _, configuration in lines)) > 1
    for i, (workload, configuration) in enumerate(lines):
        of_line = sorted((r for r in rows if (r["workload"], r["configuration"])
                          == (workload, configuration)), key=lambda r: r["batch"])
        (line,) = axes.plot([r["latency_us_p50"] for r in of_line], [r["mops"] for r in of_line],
                            marker=MARKERS[i % len(MARKERS)], markersize=4,
                            label=f"{workload}, {configuration}" if several else workload)
        for row in unique_rows(of_line[0], of_line[-1]):
            axes.annotate(batch_name(row["batch"]), (row["latency_us_p50"], row["mops"]),
                          color=line.get_color(), fontsize=7, xytext=(3, 3),
                          textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="median latency of a batch, µs", ylabel=MOPS,
             title=title(report))
    label_log_axis(axes.xaxis, [r["latency_us_p50"] for r in rows])
    label_log_axis(axes.yaxis, [r["mops"] for r in rows])
    axes.grid(True, alpha=0.3)
    legend_beside(axes)
    return figure


def plot_user(report):
    rows = {f"{r['workload']} {batch_name(r['batch'])}": r for r in report["rows"]}
    series = {"load_mops": "loading", "cold_mops": "cold", "mops": "then",
              "workloads_mops": "workloads"}
    figure, axes = plt.subplots(figsize=(10, 4))
    grouped_points(axes, list(rows), list(series), lambda row, key: rows[row].get(key), series.get)
    axes.tick_params(axis="x", labelrotation=45)
    axes.set(ylabel=MOPS, title=title(report))
    legend_beside(axes)
    return figure


def unique_rows(first, last):
    return [first] if first is last else [first, last]


def plot_of_bound(report):
    rows = {(r["workload"], r["batch"]): r.get("of_bound") for r in report["rows"]}
    if not any(rows.values()):
        return None  # measured without the roofline
    figure, axes = plt.subplots(figsize=(9, 4))
    grouped_bars(axes, unique(w for w, _ in rows), sorted(unique(b for _, b in rows)),
                 lambda workload, batch: rows.get((workload, batch)), batch_name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axhline(0.8, color="black", linewidth=0.5, linestyle=":")
    axes.set(ylabel="achieved / bound", title=title(report))
    legend_beside(axes, title="batch", ncols=2)
    return figure


def plot_ablation(report):
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
    figure, panels = panels_of(len(batches))
    for axes, batch in zip(panels, batches):
        grouped_points(axes, workloads, systems + steps,
                       lambda workload, step, batch=batch: rows.get((workload, batch, step)))
        axes.set(ylabel=MOPS, title=f"batch {batch_name(batch)}")
    legend_beside(panels[0])
    figure.suptitle(title(report))
    return figure


def plot_recovery(report):
    figure, axes = plt.subplots(figsize=(8, 4))
    rows = {row["what"]: row for row in report["rows"]}
    series = {"seconds": "in all", "recovery_seconds": "without mapping", "bound_seconds": "bound"}
    grouped_bars(axes, list(rows), list(series),
                 lambda what, key: 1e3 * rows[what].get(key, 0), series.get)
    axes.set(ylabel="milliseconds", title=title(report))
    legend_beside(axes)
    return figure


def plot_elastic(report):
    panels = [("load_factor", 1, "load factor"), ("pm_bytes", 1e-6, "pool, MB"),
              ("insert_mops", 1, "inserts, " + MOPS), ("slowest_ms", 1, "slowest batch, ms")]
    if any(row.get("gpu_bytes", 0) for row in report["steps"]):
        panels[2:2] = [("gpu_bytes", 1e-6, "GPU memory, MB")]
        panels += [("find_mops", 1, "finds, " + MOPS)]
    figure, grid = plt.subplots(2, len(panels) // 2, figsize=(5 * len(panels) // 2, 6),
                                sharex=True)
    for axes, (key, unit, label) in zip(grid.flat, panels):
        for growth in unique(row["growth"] for row in report["steps"]):
            rows = [row for row in report["steps"] if row["growth"] == growth]
            axes.plot([row["step"] for row in rows], [unit * row[key] for row in rows],
                      marker=".", label=f"growth {growth:g}")
        if key == "insert_mops" and "rebuild" in report:
            axes.axhline(report["rebuild"]["mops"], color="black", linewidth=0.8, linestyle="--",
                         label="a new pool, loaded at once")
            axes.legend()
        axes.set(ylabel=label, ylim=(0, None))
    for axes in grid[1]:
        axes.set_xlabel("step")
    grid[0][0].legend()
    figure.suptitle(title(report))
    return figure


def plot_sizes(report):
    rows = report["sizes"]
    if not rows:
        return None
    shapes = unique((r["workload"], r["batch"]) for r in rows)
    figure, panels = panels_of(len(shapes))
    for axes, (workload, batch) in zip(panels, shapes):
        of_panel = [r for r in rows if (r["workload"], r["batch"]) == (workload, batch)]
        for i, policy in enumerate(unique(r["policy"] for r in of_panel if r["policy"] != "off")):
            line = sorted((r for r in of_panel if r["policy"] == policy),
                          key=lambda r: r["fraction"])
            axes.plot([r["fraction"] for r in line], [r["mops"] for r in line],
                      marker=MARKERS[i % len(MARKERS)], label=f"cache, {policy}")
        for row in (r for r in of_panel if r["policy"] == "off"):
            name = "directory alone" if row["directory"] else "neither"
            axes.axhline(row["mops"], color="black", linewidth=0.8, label=name,
                         linestyle="--" if row["directory"] else ":")
        axes.set(ylabel=MOPS, title=f"{workload}, batch {batch_name(batch)}")
        axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
        legend_beside(axes)
    panels[-1].set_xlabel("share of the buckets of which the values are cached")
    figure.suptitle(title(report))
    return figure


def plot_theta(report):
    if not report["theta_rows"]:
        return None
    figure, (speed, hits) = panels_of(2)
    batches = unique(r["batch"] for r in report["theta_rows"])
    for i, batch in enumerate(batches):
        rows = sorted((r for r in report["theta_rows"] if r["batch"] == batch),
                      key=lambda r: r["theta"])
        for axes, key, name, style in ((speed, "mops", "cache", "-"),
                                       (speed, "mops_no_cache", "no cache", "--"),
                                       (hits, "hit_rate", "hit rate", "-"),
                                       (hits, "best_static", "best static choice", "--")):
            axes.plot([r["theta"] for r in rows], [r[key] for r in rows], style, color=f"C{i}",
                      marker=MARKERS[i % len(MARKERS)], label=f"{name}, batch {batch_name(batch)}")
    speed.set(ylabel=MOPS)
    hits.set(ylabel="share of the finds", xlabel="skew (theta)")
    for axes in (speed, hits):
        axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
        legend_beside(axes)
    figure.suptitle(title(report))
    return figure


def plot_load(report):
    rows = report["load"]
    if not rows:
        return None
    figure, panels = panels_of(len(rows), 2.6)
    for axes, row in zip(panels, rows):
        windows = row["window_mops"]
        times = [(i + 0.5) * row["window_ms"] for i in range(len(windows))]
        axes.plot(times, windows, marker=".", label="throughput")
        axes.axvspan(row["load_begin_ms"], row["load_end_ms"], alpha=0.2, label="loading")
        axes.set(ylabel=MOPS, title=f"{row['workload']}, loading {row['mode']} batches of "
                                    f"{batch_name(row['batch'])}")
        axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
        legend_beside(axes)
    panels[-1].set_xlabel("milliseconds")
    figure.suptitle(title(report))
    return figure


def plot_cost(report):
    rows = {(r["workload"], r["batch"]): r for r in report["cost"]}
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(9, 4))
    series = {"mops": "with a cache", "mops_no_cache": "without"}
    names = {f"{workload}, {batch_name(batch)}": row for (workload, batch), row in rows.items()}
    grouped_bars(axes, list(names), list(series), lambda name, key: names[name][key], series.get)
    axes.set(ylabel=MOPS, xlabel="workload, batch", title=title(report))
    legend_beside(axes)
    return figure


def plot_roofline(report):
    counts = unique(r["accesses"] for r in report["link"])
    memory = report.get("memory") or []
    figure, panels = panels_of(len(counts) + (1 if memory else 0))
    for axes, accesses in zip(panels, counts):
        rows = {(r["kind"], r["order"]): r["mops"] for r in report["link"]
                if r["accesses"] == accesses}
        grouped_points(axes, unique(kind for kind, _ in rows),
                       unique(order for _, order in rows), lambda kind, order: rows.get((kind, order)))
        axes.set(ylabel="million accesses/s", title=f"persistent memory, {accesses} at once")
        legend_beside(axes)
    if memory:
        rates = {f"{r['kind']}, {r['bytes']} bytes": r["mops"] for r in memory}
        grouped_bars(panels[-1], list(rates), ["random"], lambda kind, _: rates[kind])
        panels[-1].set(ylabel="million accesses/s", title="GPU memory")
        legend_beside(panels[-1])
    figure.suptitle(title(report))
    return figure


def plot_cpu(report):
    rows = {row["phase"]: row for row in report["phases"]}
    series = {"gpmstore_mops": "gpmstore", "peer_mops": report.get("peer", "peer")}
    if not any("peer_mops" in row for row in rows.values()):
        del series["peer_mops"]
    figure, axes = plt.subplots(figsize=(9, 4))
    grouped_bars(axes, list(rows), list(series), lambda phase, key: rows[phase].get(key),
                 series.get)
    axes.set(ylabel=MOPS, title=f"{title(report)}, {report['threads']} threads")
    legend_beside(axes)
    return figure


PLOTS = {
    "workloads": {"latency": plot_latency, "of_bound": plot_of_bound},
    "user": {"user": plot_user},
    "ablation": {"ablation": plot_ablation},
    "cache": {"cache_sizes": plot_sizes, "cache_theta": plot_theta, "cache_load": plot_load,
              "cache_cost": plot_cost},
    "recovery": {"recovery": plot_recovery},
    "elastic": {"elastic": plot_elastic},
    "roofline": {"roofline": plot_roofline},
    "cpu": {"cpu": plot_cpu},
}


def draw(path, report, arguments, written):
    for name, plot in PLOTS[report["benchmark"]].items():
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
        figure.savefig(target, bbox_inches="tight", dpi=150)
        plt.close(figure)
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
        load_matplotlib()
        arguments.out.mkdir(parents=True, exist_ok=True)
        written = set()
        for path, report in reports:
            draw(path, report, arguments, written)
    except (NotAReport, OSError) as error:
        print(f"plot_bench.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
