"""Metrics in Prometheus's text format."""

import pytest

import gpmstore
from conftest import make_keys, make_values

prometheus_client = pytest.importorskip("prometheus_client",
                                        reason="prometheus-client is not installed")


def test_metrics(path):
    from gpmstore import metrics
    from prometheus_client import parser

    registry = prometheus_client.CollectorRegistry()
    stores = [gpmstore.create(path + name, executor="cpu") for name in "ab"]
    for store, name in zip(stores, "ab"):
        metrics.register(store, name, registry)
    with pytest.raises(ValueError, match="'a'"):
        metrics.register(stores[1], "a", registry)
    keys, values = make_keys(10), make_values(10)
    stores[0].insert(keys, values)
    stores[0].find(make_keys(20))
    stores[0].apply(make_values(10, 1)[:, 0] % 5, keys, values)
    stores[0].find_or_insert(make_keys(15), gpmstore.Constant(bytes(128)))
    stores[0].accumulate(keys, values.view("float32"))
    stores[0].snapshot(path + ".snapshot")
    stores[1].bulk_load(keys, values)
    stores[1].find_async(keys).wait()
    text = metrics.text(registry)
    for line in ('gpmstore_operations_total{op="find",store="a"} 20.0',
                 'gpmstore_operations_total{op="find",store="b"} 10.0',
                 'gpmstore_items{store="b"} 10.0',
                 'gpmstore_finds_found_total{store="b"} 10.0',
                 'gpmstore_mixed_operations_total{store="a"} 10.0',
                 'gpmstore_operations_total{op="find_or_insert",store="a"} 15.0',
                 'gpmstore_operations_total{op="accumulate",store="a"} 10.0',
                 'gpmstore_batch_seconds_count{op="find_or_insert",store="a"} 1.0',
                 'gpmstore_snapshots_total{store="a"} 1.0',
                 'gpmstore_cache_found_total{store="a"} 0.0',
                 'gpmstore_batch_seconds_count{op="insert",store="a"} 1.0',
                 'gpmstore_batch_seconds_count{op="mixed",store="a"} 1.0',
                 'gpmstore_batch_seconds_count{op="bulk_load",store="b"} 1.0',
                 'gpmstore_batch_seconds_bucket{le="5e-06",op="find",store="b"}',
                 'gpmstore_batch_seconds_bucket{le="+Inf",op="find",store="b"} 1.0'):
        assert line in text, line
    assert text.count("# TYPE gpmstore_items gauge") == 1
    parsed = list(parser.text_string_to_metric_families(text))
    assert len(parsed) == len({family.name for family in parsed})
    stores[0].close()
    text = metrics.text(registry)
    assert 'gpmstore_items{store="a"}' not in text
    assert 'gpmstore_batch_seconds_count{op="insert",store="a"} 1.0' in text
    stores[1].close()


def test_several_registries(path):
    from gpmstore import metrics

    registries = [prometheus_client.CollectorRegistry() for _ in range(2)]
    with gpmstore.create(path, executor="cpu") as store:
        for registry, name in [(registries[0], "x"), (registries[1], "y"), (registries[0], "z"),
                               (registries[0], "x")]:  # which is there already
            metrics.register(store, name, registry)
        store.insert(make_keys(10), make_values(10))
        for registry, name in [(registries[0], "x"), (registries[1], "y"), (registries[0], "z")]:
            line = f'gpmstore_batch_seconds_count{{op="insert",store="{name}"}} 1.0'
            assert line in metrics.text(registry), line
