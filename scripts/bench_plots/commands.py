"""The plots of the commands of gpmstore_bench, but for those of `paper`."""

import matplotlib

from bench_plots.common import (MARKERS, MOPS, batch_name, grouped_bars, grouped_points,
                                label_log_axis, legend_beside, panels_of, plt, title, unique)

# Matplotlib 3.7 places a legend beside the panels; earlier ones, such as Debian 12's, in a corner.
OUTSIDE = matplotlib.__version_info__ >= (3, 7)


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


def contestants_of(axes, rows, x, contestants):
    """A line for each contestant, in the order of x, with the same colour in all panels."""
    for i, name in enumerate(contestants):
        line = sorted((r for r in rows if r["contestant"] == name and r.get(x)),
                      key=lambda r: r["batch"] if x != "fill" else r["fill"])
        if not line:
            continue
        axes.plot([r[x] for r in line], [r["mops"] for r in line], color=f"C{i}",
                  marker=MARKERS[i % len(MARKERS)], markersize=4, label=name)
    axes.grid(True, alpha=0.3)


def plot_contest(report):
    """Of the store and peers, a panel for each workload: throughput over the latency of a batch, or,
    where tables are filled several times, over that."""
    rows = report["rows"]
    contestants = unique(r["contestant"] for r in rows)
    by_fill = len(unique(r.get("fill") for r in rows)) > 1
    shapes = unique((r["workload"], r["batch"] if by_fill else None) for r in rows)
    columns = min(2, len(shapes))
    figure, grid = plt.subplots(-(-len(shapes) // columns), columns, squeeze=False,
                                figsize=(6 * columns, 3 * -(-len(shapes) // columns)),
                                layout="constrained")
    for axes in grid.flat[len(shapes):]:
        axes.set_axis_off()
    for axes, (workload, batch) in zip(grid.flat, shapes):
        of_panel = [r for r in rows if r["workload"] == workload and batch in (None, r["batch"])]
        if by_fill:
            contestants_of(axes, of_panel, "fill", contestants)
            axes.set(xlabel="fill", title=f"{workload}, batches of {batch_name(batch)}")
            axes.set_ylim(bottom=0)
        else:
            contestants_of(axes, of_panel, "latency_us_p50", contestants)
            axes.set(xscale="log", yscale="log", title=workload,
                     xlabel="median latency of a batch, µs")
            label_log_axis(axes.xaxis, [r.get("latency_us_p50") for r in of_panel])
            label_log_axis(axes.yaxis, [r["mops"] for r in of_panel])
        axes.set_ylabel(MOPS)
    handles = {name: handle for axes in grid.flat
               for handle, name in zip(*axes.get_legend_handles_labels())}
    figure.legend([handles[name] for name in contestants if name in handles],
                  [name for name in contestants if name in handles], fontsize=8,
                  loc="outside right upper" if OUTSIDE else "upper right")
    figure.suptitle(title(report))
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
    second = ("slots", 1e-6, "million slots") if "peer" in report else ("pm_bytes", 1e-6, "pool, MB")
    panels = [("load_factor", 1, "load factor"), second,
              ("insert_mops", 1, "inserts, " + MOPS), ("slowest_ms", 1, "slowest batch, ms")]
    if any(row.get("gpu_bytes", 0) for row in report["steps"]):
        panels[2:2] = [("gpu_bytes", 1e-6, "GPU memory, MB")]
        panels += [("find_mops", 1, "finds, " + MOPS)]
    figure, grid = plt.subplots(2, len(panels) // 2, figsize=(5 * len(panels) // 2, 6),
                                sharex=True)
    for axes, (key, unit, label) in zip(grid.flat, panels):
        for growth in unique(row.get("growth") for row in report["steps"]):
            rows = [row for row in report["steps"] if row.get("growth") == growth]
            axes.plot([row["step"] for row in rows], [unit * row[key] for row in rows],
                      marker=".", label=report.get("peer") or f"growth {growth:g}")
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


def plot_scale(report):
    """Throughput over ranks, beside as many stores as there are ranks; where the time of the most
    ranks goes; and what bounds it."""
    rows = report["rows"]
    ranks = unique(row["ranks"] for row in rows)
    works = unique(row["work"] for row in rows)
    most = [row for row in rows if row["ranks"] == max(ranks) and "split_ms" in row]
    figure, (by_ranks, by_phase, bounds) = plt.subplots(1, 3, figsize=(16, 4.2),
                                                        layout="constrained")
    for i, work in enumerate(works):
        line = {row["ranks"]: row["mops"] for row in rows if row["work"] == work}
        through = {n: mops for n, mops in line.items() if n > 0}
        by_ranks.plot(through.keys(), through.values(), marker=MARKERS[i], color=f"C{i}",
                      label=work)
        if 0 in line and through:
            by_ranks.plot([1, max(through)], [line[0], line[0] * max(through)], color=f"C{i}",
                          linewidth=0.8, linestyle="--")
    by_ranks.set(xlabel="ranks (dashed: as many stores)", ylabel=MOPS, ylim=(0, None),
                 xticks=[n for n in ranks if n > 0])
    by_ranks.legend(fontsize=8)
    end = [0.0] * len(most)
    for phase in ("split", "send", "local", "return"):
        times = [row[f"{phase}_ms"] for row in most]
        by_phase.barh(range(len(most)), times, left=end, label=phase)
        end = [a + b for a, b in zip(end, times)]
    by_phase.set_yticks(range(len(most)), [row["work"] for row in most])
    by_phase.set(xlabel="ms of a batch", title=f"{max(ranks)} ranks")
    by_phase.legend(fontsize=8)
    limits = report.get("bounds", [])
    names = ["copy", "multisplit", "to_others", "exchange", "from_host", "to_host"]
    if limits:
        grouped_bars(bounds, [name.replace("_", " ") for name in names],
                     [row["ranks"] for row in limits],
                     lambda name, n: next(row[name.replace(" ", "_") + "_gb_s"] for row in limits
                                          if row["ranks"] == n), "{} ranks".format)
        bounds.tick_params(axis="x", labelsize=8)
        bounds.legend(fontsize=8)
    bounds.set(ylabel="GB/s of each rank")
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
        size = f", {row['fraction']:.0%} of the buckets" if "fraction" in row else ""
        axes.set(ylabel=MOPS, title=f"{row['workload']}, loading {row['mode']} batches of "
                                    f"{batch_name(row['batch'])}{size}")
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


def plot_sweep(report):
    """A panel for each kind of operations: what lies far below its neighbours is a cliff."""
    rows = report["rows"]
    kinds = unique(row["operations"] for row in rows)
    batches = unique(row["batch"] for row in rows)
    figure, panels = panels_of(len(kinds), height=2.2)
    for axes, kind in zip(panels, kinds):
        mops = {(r["batch"], r["keys"]): r["mops"] for r in rows if r["operations"] == kind}
        grouped_points(axes, batches, unique(keys for _, keys in mops),
                       lambda batch, keys: mops.get((batch, keys)))
        axes.set_xticks(range(len(batches)), [batch_name(batch) for batch in batches])
        axes.set(ylabel=MOPS, title=kind)
        legend_beside(axes)
    store = report["store"]
    figure.suptitle(f"{store['key_size']} + {store['value_size']} bytes, {store['executor']}, "
                    f"arrays in {report['memory']} memory")
    return figure


# Of each kind of report its plots, by the beginnings of their names.
PLOTS = {
    "workloads": {"latency": plot_latency, "of_bound": plot_of_bound},
    "user": {"user": plot_user},
    "ablation": {"ablation": plot_ablation},
    "cache": {"cache_sizes": plot_sizes, "cache_theta": plot_theta, "cache_load": plot_load,
              "cache_cost": plot_cost},
    "recovery": {"recovery": plot_recovery},
    "elastic": {"elastic": plot_elastic},
    "scale": {"scale": plot_scale},
    "sweep": {"sweep": plot_sweep},
    "peers": {"peers": plot_contest},
    "roofline": {"roofline": plot_roofline},
    "cpu": {"cpu": plot_cpu},
}
