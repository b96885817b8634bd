"""Counters and latencies of stores for Prometheus; needs prometheus-client.

    from prometheus_client import start_http_server
    import gpmstore.metrics

    gpmstore.metrics.register(store, store="embeddings")
    start_http_server(9100)      # or: print(gpmstore.metrics.text())
"""

from __future__ import annotations

from typing import Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ._errors import Error
from ._store import Store

# (stats' path, what it is); a path's last word names the metric.
_GAUGES = {
    "items": "Items in the store",
    "capacity_slots": "Slots of the addressable levels",
    "load_factor": "Items for each slot",
    "value_cells": "Value cells in all segments",
    "free_cells": "Value cells in use by no item",
    "pm_bytes": "Bytes of the pool that are mapped",
    "gpu_bytes": "GPU memory that the store allocated",
    "cache.bytes": "Memory of the executor that the cache takes",
}
_COUNTERS = {
    "mixed_operations": "Operations of batches of mixed kinds",
    "finds_found": "Finds that found their key",
    "resizes": "Resizes",
    "resize_seconds": "Time that resizes took",
    "cache.refreshes": "Refreshes of the cache",
    "cache.hits": "Finds that read no persistent memory for the value",
}
_SECONDS = tuple(base * 10.0**exponent for exponent in range(-6, 2) for base in (1, 2, 5))


class Collector:
    """A prometheus_client collector over `Store.stats()` and the times of its batches.

    Times are those of calls on arrays: from the start to the end of `wait`.
    """

    def __init__(self, store: Store, /, **labels: str) -> None:
        self._store = store
        self._labels = labels
        self._batch_seconds = Histogram("gpmstore_batch_seconds", "Time of a batch",
                                        [*labels, "op"], buckets=_SECONDS, registry=None)
        store._observer = self._observe

    def _observe(self, op: str, operations: int, seconds: float) -> None:
        self._batch_seconds.labels(*self._labels.values(), op).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        yield from self._batch_seconds.collect()
        try:
            stats = self._store.stats()
        except Error:
            return  # it is closed
        names, values = list(self._labels), list(self._labels.values())
        operations = CounterMetricFamily("gpmstore_operations", "Operations of batches of one kind",
                                         labels=[*names, "op"])
        for op, count in stats["operations"].items():
            operations.add_metric([*values, op], count)
        yield operations
        for family, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for path, text in metrics.items():
                value = stats
                for part in path.split("."):
                    value = value[part]
                metric = family("gpmstore_" + path.replace(".", "_"), text, labels=names)
                metric.add_metric(values, value)
                yield metric


def register(store: Store, registry: CollectorRegistry = REGISTRY, /, **labels: str) -> Collector:
    """Registers a store, with labels that tell it from others, such as store="embeddings"."""
    collector = Collector(store, **labels)
    registry.register(collector)
    return collector


def text(registry: CollectorRegistry = REGISTRY) -> str:
    """All metrics of a registry in Prometheus's text format."""
    return generate_latest(registry).decode()
