"""The plots of `gpmstore_bench paper`: what figures of GPHash's evaluation show, of our store and of
peers."""

from bench_plots import commands
from bench_plots.common import (MARKERS, MOPS, batch_name, grouped_bars, legend_beside,
                                 panels_of, plt, title, unique)


def lines(axes, rows, x, y, series="series"):
    """A line for each series, in the order of x."""
    for i, name in enumerate(unique(r[series] for r in rows)):
        line = sorted((r for r in rows if r[series] == name), key=lambda r: r[x])
        axes.plot([r[x] for r in line], [r[y] for r in line], marker=MARKERS[i % len(MARKERS)],
                  markersize=4, label=name)
    axes.set_ylim(bottom=0)
    axes.grid(True, alpha=0.3)
    legend_beside(axes)


def records_of(report):
    """A title where rows differ in what title() says."""
    return (f"{report['records'] / 1e6:g} M records, {report['store']['executor']}, "
            f"{report['store']['medium']}")


def one_plot(report, x, y, **labels):
    figure, axes = plt.subplots(figsize=(8, 4.5))
    lines(axes, report["rows"], x, y)
    axes.set(title=title(report), **labels)
    return figure, axes


def plot_load_factors(report):
    figure, axes = one_plot(report, "items", "load_factor", xlabel="items", ylabel="load factor")
    for i, most in enumerate(report["maximum_load_factor"][name]
                             for name in unique(r["series"] for r in report["rows"])):
        axes.axhline(most, color=f"C{i}", linewidth=0.8, linestyle="--")
    return figure


def plot_applications(report):
    applications = unique(r["application"] for r in report["rows"])
    figure, panels = panels_of(2)
    for axes, key, label in zip(panels, ("find_mops", "write_mops"), ("finds", "writes")):
        of = {(r["application"], r["series"]): r.get(key) for r in report["rows"]}
        grouped_bars(axes, applications, unique(r["series"] for r in report["rows"]),
                     lambda application, series: of.get((application, series)))
        axes.set(ylabel=f"{label}, {MOPS}")
        legend_beside(axes)
    figure.suptitle(records_of(report))
    return figure


def plot_streams(report):
    batch = report["rows"][0]["batch"]
    return one_plot(report, "streams", "mops", xlabel="threads, each with a stream",
                    ylabel=f"{MOPS}, batches of {batch_name(batch)}")[0]


def stacked_phases(axes, rows, key):
    bottoms = [0] * len(rows)
    for i, phase in enumerate(unique(p["phase"] for r in rows for p in r["phases"])):
        heights = [next((p[key] for p in r["phases"] if p["phase"] == phase), 0) for r in rows]
        axes.bar(range(len(rows)), heights, 0.8, bottom=bottoms, label=phase, color=f"C{i}")
        bottoms = [a + b for a, b in zip(bottoms, heights)]


def name_phases(panels, rows):
    for axes in panels:
        axes.set_xticks(range(len(rows)), [f"{r['workload']}\n{r['series']}" for r in rows],
                        rotation=60, ha="right", fontsize=7)
        axes.grid(True, axis="y", alpha=0.3)
        legend_beside(axes)


def plot_phases_on_gpu(report):
    """Shares of the time that is spent on persistent memory, by phase, and bytes of it."""
    rows = report["rows"]
    figure, (times, accesses) = panels_of(2, 3.4)
    stacked_phases(times, rows, "share")
    times.set(ylabel="share of the time")
    for shift, kind in ((-0.2, "read"), (0.2, "written")):
        accesses.bar([i + shift for i in range(len(rows))],
                     [sum(r["pm"][place][kind]["bytes"] for place in ("slots", "values", "log"))
                      if "pm" in r else 0 for r in rows], 0.4, label=kind)
    accesses.set(ylabel="bytes an operation")
    name_phases((times, accesses), rows)
    for axes in (times, accesses):
        axes.set_xticks(range(len(rows)), [f"{r['workload']}, {r['series']}" for r in rows],
                        rotation=90, fontsize=7)
    figure.set_size_inches(4 + 0.2 * len(rows), 9)
    figure.suptitle(records_of(report))
    return figure


def plot_phases(report):
    """Time by phase, stacked, and what an operation accesses."""
    rows = report["rows"]
    if any("share" in p for r in rows for p in r["phases"]):
        return plot_phases_on_gpu(report)
    names = [f"{r['workload']}\n{r['series']}" for r in rows]
    figure, (times, accesses, steps) = panels_of(3, 3.4)
    stacked_phases(times, rows, "us")
    times.set(ylabel="µs an operation, counted")
    bytes_of = {"read_bytes": "read", "written_bytes": "written"}
    grouped_bars(accesses, names, list(bytes_of),
                 lambda name, key: rows[names.index(name)]["pm"][key], bytes_of.get)
    accesses.set(ylabel="bytes an operation")
    counts = {"swaps": "compare-and-swaps", "flushes": "flushes", "fences": "fences"}
    grouped_bars(steps, names, list(counts),
                 lambda name, key: rows[names.index(name)]["pm"][key], counts.get)
    steps.set(ylabel="an operation")
    name_phases((times, accesses, steps), rows)
    figure.suptitle(title(report))
    return figure


def plot_sizes_and_skew(report):
    figure, panels = panels_of(2)
    rows = [{"contestant": "gpmstore", **r} for r in report["rows"]]  # once of the store alone
    for axes, series, key, label in zip(panels, ("key size", "skew"), ("key_size", "theta"),
                                        ("bytes of a key", "skew (theta)")):
        lines(axes, [r for r in rows if r["series"] == series], key, "mops", "contestant")
        axes.set(xlabel=label, ylabel=MOPS)
    figure.suptitle(records_of(report))
    return figure


def plot_geometries(report):
    figure, panels = panels_of(2)
    for axes, workload in zip(panels, unique(r["workload"] for r in report["rows"])):
        for row in (r for r in report["rows"] if r["workload"] == workload):
            axes.plot(row["maximum_load_factor"], row["mops"], "o", color="C0")
            axes.annotate(row["geometry"], (row["maximum_load_factor"], row["mops"]), fontsize=7,
                          xytext=(4, 4), textcoords="offset points")
        axes.set(ylabel=MOPS, title=workload)
        axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
    panels[-1].set_xlabel("maximum load factor")
    figure.suptitle(records_of(report))
    return figure


def plot_recovery(report):
    rows = [{**r, "ms": 1e3 * r["seconds"]} for r in report["rows"]]
    figure, axes = one_plot({**report, "rows": rows}, "items", "ms", xlabel="items",
                            ylabel="milliseconds")
    rest = [{**r, "ms": 1e3 * r["recovery_seconds"], "series": r["series"] + ", without mapping"}
            for r in report["rows"]]
    axes.set_prop_cycle(None)
    for name in unique(r["series"] for r in rest):
        line = sorted((r for r in rest if r["series"] == name), key=lambda r: r["items"])
        axes.plot([r["items"] for r in line], [r["ms"] for r in line], ":", label=name)
    legend_beside(axes)
    return figure


def plot_values(report):
    figure, axes = one_plot(report, "value_size", "mops", xlabel="bytes of a value", ylabel=MOPS)
    axes.set_xscale("log", base=2)
    sizes = unique(r["value_size"] for r in report["rows"])
    axes.set_xticks(sizes, sizes)
    axes.set_title(records_of(report))
    return figure


def plot_fill(report):
    batch = report["rows"][0]["batch"]
    return one_plot(report, "load_factor", "mops", xlabel="load factor",
                    ylabel=f"{MOPS}, batches of {batch_name(batch)}")[0]


FIGURES = {
    "5": commands.plot_contest,
    "6": commands.plot_contest,
    "7": plot_load_factors,
    "8": plot_phases,
    "9": commands.plot_ablation,
    "10": plot_applications,
    "11": lambda report: commands.plot_sizes({**report, "sizes": report["rows"]}),
    "12": plot_sizes_and_skew,
    "13": plot_geometries,
    "14": plot_recovery,
    "15": lambda report: commands.plot_load({**report, "load": report["rows"]}),
    "fill": plot_fill,
    "streams": plot_streams,
    "values": plot_values,
}


def plot(report):
    """The figure that a report says it is of."""
    return FIGURES[str(report["figure"])](report)
