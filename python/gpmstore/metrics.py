"""Counters and latencies of stores for Prometheus; needs prometheus-client.

    from prometheus_client import start_http_server
    import gpmstore.metrics

    gpmstore.metrics.register(store, "embeddings")
    start_http_server(9100)      # or: print(gpmstore.metrics.text())
"""

from __future__ import annotations

import weakref
from typing import Any, Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ._errors import Error
from ._store import Store

# Where it is in the stats, which also names the metric, and what it is.
_GAUGES = {
    "items": "Items in the store",
    "capacity_slots": "Slots of the addressable levels",
    "load_factor": "Items for each slot",
    "value_cells": "Value cells in all segments",
    "free_cells": "Value cells in use by no item",
    "pm_bytes": "Bytes of the medium that the pool takes",
    "gpu_bytes": "GPU memory that the store allocated",
    "gpu_bytes_kept": "GPU memory that it keeps for its next arrays",
    "search_index_bytes": "Memory of the executor that searches keep",
    "search_pairs": "Pairs of attributes that are indexed",
    "cache.bytes": "Memory of the executor that the cache takes",
    "snapshot_pause_seconds": "Time that the last snapshot excluded batches",
    "buckets_to_drain": "Buckets of the oldest level whose items are still to be moved up",
}
_COUNTERS = {
    "mixed_operations": "Operations of batches of mixed kinds",
    "finds_found": "Finds that found their key",
    "read_by_host": "Values that threads of the host read for batches of the GPU",
    "written_by_host": "Values that threads of the host wrote to the pool for batches of the GPU",
    "resizes": "Resizes",
    "composed_resizes": "Resizes that wrote new levels as a whole",
    "resize_seconds": "Time that resizes took",
    "composing_seconds": "Of that, writing new levels as a whole",
    "directory_seconds": "Time that making directory and cache took",
    "evicted": "Items evicted",
    "evictions": "Batches that evicted",
    "eviction_seconds": "Time that evictions took",
    "searches": "Searches",
    "search_scans": "Searches that looked at all items",
    "displaced_items": "Items moved to another slot instead of a growth",
    "pool_growths": "Growths of the pool",
    "pool_growth_waits": "Growths of the pool that waited for the medium",
    "pool_growth_wait_seconds": "Time that growths of the pool waited for the medium",
    "snapshots": "Snapshots taken",
    "snapshot_bytes": "Bytes of snapshots written",
    "snapshot_failures": "Snapshots of the store's own that failed",
    "cache.refreshes": "Refreshes of the cache",
    "cache.found": "Finds that found their key while there was a directory",
    "cache.hits": "Finds that read no persistent memory for the value",
}
_SECONDS = tuple(float(f"{base}e{exponent}") for exponent in range(-6, 2) for base in (1, 2, 5))


class Collector:
    """A prometheus_client collector over `Store.stats()`, and the times of batches of arrays, from
    their start to the end of `wait`. A store that is closed is left out."""

    def __init__(self) -> None:
        self._stores: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
        self._batch_seconds = Histogram("gpmstore_batch_seconds", "Time of a batch",
                                        ["store", "op"], buckets=_SECONDS, registry=None)

    def add(self, store: Store, name: str) -> None:
        """Adds a store, of which the metrics have the label store=`name`."""
        there = self._stores.get(name)
        if there is store:
            return
        if there is not None and not there.closed:
            raise ValueError(f"another store has the name {name!r}")
        self._stores[name] = store
        other = store._observer  # of another registry, or name

        def observe(op: str, operations: int, seconds: float) -> None:
            if other is not None:
                other(op, operations, seconds)
            self._batch_seconds.labels(name, op).observe(seconds)

        store._observer = observe

    def collect(self) -> Iterator[Metric]:
        yield from self._batch_seconds.collect()
        operations = CounterMetricFamily("gpmstore_operations", "Operations of batches of one kind",
                                         labels=["store", "op"])
        families = {path: family("gpmstore_" + path.replace(".", "_"), text, labels=["store"])
                    for family, metrics in ((GaugeMetricFamily, _GAUGES),
                                            (CounterMetricFamily, _COUNTERS))
                    for path, text in metrics.items()}
        for name, store in sorted(self._stores.items()):
            try:
                stats = store.stats()
            except Error:
                continue
            for op, count in stats["operations"].items():
                operations.add_metric([name, op.replace("-", "_")], count)  # as the calls
            for path, family in families.items():
                value: Any = stats
                for part in path.split("."):
                    value = value[part]
                family.add_metric([name], value)
        yield operations
        yield from families.values()


_collectors: weakref.WeakKeyDictionary[CollectorRegistry, Collector] = weakref.WeakKeyDictionary()


def register(store: Store, name: str | None = None,
             registry: CollectorRegistry = REGISTRY) -> None:
    """Adds a store to a registry. Its metrics have the label store=`name`, by default its path.
    A store may be in several registries."""
    collector = _collectors.get(registry)
    if collector is None:
        collector = _collectors[registry] = Collector()
        registry.register(collector)
    collector.add(store, name or store.path)


def text(registry: CollectorRegistry = REGISTRY) -> str:
    """All metrics of a registry in Prometheus's text format."""
    return generate_latest(registry).decode()
