"""Stores with a capacity."""

import numpy as np
import pytest

import gpmstore
from conftest import EXECUTOR, make_keys, make_values


def store_of(path, **options):
    return gpmstore.create(path, key_size=options.pop("key_size", 8), value_size=16,
                           executor=EXECUTOR, **options)


@pytest.mark.parametrize("key_size", [8, 32])
def test_what_is_evicted_is_given_out(path, key_size):
    with store_of(path, key_size=key_size, capacity=320, capacity_policy="oldest") as store:
        keys = make_keys(400, key_size)
        values = make_values(400, 16)
        first = store.insert_and_evict(keys[:320], values[:320])
        assert len(first.keys) == 0 and first.failed == 0
        evicted_keys, evicted_values = store.insert_and_evict(keys[320:], values[320:])
        assert len(evicted_keys) == 100
        assert len(store) == 300
        rows = {key.tobytes(): value.tobytes() for key, value in zip(keys, values)}
        for key, value in zip(evicted_keys, evicted_values):
            assert rows[key.tobytes()] == value.tobytes()
        assert not store.contains(evicted_keys).any()
        assert store.contains(keys[320:]).all()
        stats = store.stats()
        assert stats["capacity_items"] == 320
        assert stats["evicted"] == 100 and stats["evictions"] == 1


def test_used_items_stay(path):
    with store_of(path, capacity=100) as store:
        keys = make_keys(150)
        values = make_values(150, 16)
        store.insert(keys[:100], values[:100])
        assert store.contains(keys[:50]).all()
        store.upsert(keys[100:], values[100:])
        assert len(store) <= 100
        # 50 and a 16th of the capacity went: all that were not used, and 6 of those that were.
        assert store.contains(keys[:50]).sum() == 44
        assert not store.contains(keys[50:100]).any()


def test_a_score_in_the_row(path):
    with store_of(path, capacity=64, capacity_policy="score", score_offset=4,
                  score_bytes=4) as store:
        rows = np.zeros((80, 4), np.uint32)
        rows[:, 1] = np.arange(80, 0, -1)
        store.insert(np.arange(64), rows[:64])
        evicted = store.insert_and_evict(np.arange(64, 80), rows[64:], with_values=False)
        assert evicted.values is None
        assert list(evicted.keys) == list(range(63, 43, -1))


def test_too_little_room(path):
    with store_of(path, capacity=10) as store:
        store.insert(make_keys(10), make_values(10, 16))
        with pytest.raises(gpmstore.InvalidArgumentError, match="evicted"):
            store.insert_and_evict(make_keys(5, first=100), make_values(5, 16), 4)
        assert len(store) == 10
        with pytest.raises(gpmstore.InvalidArgumentError, match="capacity"):
            store.upsert_and_evict(make_keys(11, first=100), make_values(11, 16))


def test_a_store_without_a_capacity_evicts_nothing(path):
    with store_of(path) as store:
        assert len(store.insert_and_evict(make_keys(50), make_values(50, 16)).keys) == 0


def test_bytes_of_the_pool(path):
    with store_of(path, capacity_bytes=4 << 20) as store:
        items = store.stats()["capacity_items"]
        assert 10_000 < items < (4 << 20) // 24
        for first in range(0, 2 * items, 1000):
            store.upsert(make_keys(1000, first=first), make_values(1000, 16))
        assert items // 2 < len(store) <= items
        assert store.stats()["pm_bytes"] <= 4 << 20


def test_options(path):
    with pytest.raises(gpmstore.InvalidArgumentError, match="one of the two"):
        store_of(path, capacity=10, capacity_bytes=1 << 20)
    with pytest.raises(gpmstore.InvalidArgumentError, match="no room"):
        store_of(path, capacity_bytes=100)
    with pytest.raises(gpmstore.InvalidArgumentError, match="lru"):
        store_of(path, capacity=10, capacity_policy="fifo")
    with pytest.raises(gpmstore.InvalidArgumentError, match="score"):
        store_of(path, capacity=10, capacity_policy="score", score_offset=12)
