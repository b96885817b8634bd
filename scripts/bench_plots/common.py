"""What the plots have in common: axes, legends, and how things are called."""

import math

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import matplotlib.ticker as ticker

MOPS = "million operations/s"
MARKERS = "osD^vP*X<>"


def title(report):
    store = report.get("store")
    if not store and "key_size" in report:  # of peers alone
        amount = (f"{report['records'] / 1e6:g} M records" if "records" in report
                  else f"{report['peer']}, batches of {report['batch']:g}")
        return f"{amount} of {report['key_size']} + {report['value_size']} bytes, {report['executor']}"
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


def save(figure, target):
    figure.savefig(target, bbox_inches="tight", dpi=150)
    plt.close(figure)
