"""Iteration over items, and readers."""

import os
import weakref

import numpy as np
import pytest

import gpmstore
from conftest import EXECUTOR, make_keys, make_values


def opened(path, key_size, n, value_size=24):
    store = gpmstore.create(path, key_size, value_size, executor=EXECUTOR)
    keys, values = make_keys(n, key_size), make_values(n, value_size)
    assert store.bulk_load(keys, values).failed == 0
    return store, keys, values, {key.tobytes(): value.tobytes() for key, value in zip(keys, values)}


@pytest.mark.parametrize("key_size", [8, 32, 36])
@pytest.mark.parametrize("reader", [False, True])
def test_iteration(path, key_size, reader):
    n = 1000
    store, keys, values, model = opened(path, key_size, n)
    if reader:
        store.close()
        store = gpmstore.open(path, read_only=True)
    sizes, seen = [], {}
    for page_keys, page_values in store.pages(rows=300):
        assert page_keys.dtype == (np.uint64 if key_size == 8 else np.uint8)
        assert page_values.shape == (len(page_keys), 24)
        sizes.append(len(page_keys))
        seen.update((k.tobytes(), v.tobytes()) for k, v in zip(page_keys, page_values))
    assert sizes == [300, 300, 300, 100] and seen == model
    items = dict(store.items())
    if key_size == 8:
        assert all(isinstance(key, int) for key in items)
        items = {key.to_bytes(8, "little"): value for key, value in items.items()}
    assert items == model and len(store) == n and len(set(store)) == n
    pages = []
    assert store.for_each(lambda k, v: pages.append(len(k)), rows=2 * n) and pages == [n]
    pages.clear()
    assert not store.for_each(lambda k, v: pages.append(len(k)) or False, rows=10)
    assert pages == [10]
    assert store.for_each(lambda k, v: None, rows=500)
    with pytest.raises(ValueError, match="rows"):
        store.for_each(lambda k, v: None, rows=0)
    with pytest.raises(KeyError, match="of the visitor"):
        store.for_each(lambda k, v: {}["of the visitor"], rows=10)
    assert len(store) == n  # it goes on
    store.close()


def test_empty(path):
    with gpmstore.create(path, executor=EXECUTOR) as store:
        assert list(store.items()) == [] and list(store.pages()) == [] and list(store) == []
        assert store.for_each(lambda k, v: False)


def test_iteration_over_keys_keeps_no_values(path, monkeypatch):
    store, keys, _, _ = opened(path, 8, 100)
    visit_all, seen = store.for_each, []

    def for_each(visit, rows=None):
        def see(keys, values):
            seen.append(weakref.ref(values))
            return visit(keys, values)

        return visit_all(see, 30)

    monkeypatch.setattr(store, "for_each", for_each)
    iterator = iter(store)
    first = next(iterator)
    assert len(seen) == 4 and all(values() is None for values in seen)
    assert {first, *iterator} == set(keys.tolist())
    store.close()


def test_visitors_that_call_the_store(path):
    store, keys, values, _ = opened(path, 8, 10)
    ticket = store.find_async(keys)
    calls = [lambda: store.find(keys), store.stats, store.close, ticket.wait,
             lambda: store.for_each(print), lambda: store.get(1)]
    for call in calls:
        with pytest.raises(gpmstore.BusyError, match="wait for itself"):
            store.for_each(lambda k, v: call())
    for key, value in store.items():  # on copies: here it may
        store.delete(key)
    assert len(store) == 0 and ticket.wait().failed == 0
    store.close()


def test_a_visitor_that_drops_a_ticket(path):
    store, _, _, _ = opened(path, 8, 10)
    n = 20_000  # so many lack room at first, and are finished by who waits
    tickets = [store.insert_async(make_keys(n, first=n * i), make_values(n, 24)) for i in (1, 2)]

    def visit(keys, values):
        tickets.clear()
        with pytest.raises(gpmstore.BusyError):  # nor does a visit that is refused wait for them
            store.for_each(print)
    assert store.for_each(visit)
    assert len(store) == 10 + 2 * n
    store.close()
    with gpmstore.Reader(path) as reader:
        assert reader.contains(make_keys(2 * n, first=n)).all()


def test_pages_are_copies(path):
    store, keys, values, model = opened(path, 8, 10)
    (page_keys, page_values), = store.pages()
    page_values[:] = 0
    page_keys[:] = 0
    assert np.array_equal(store.find(keys).values, values)
    store.close()


def test_reader(path):
    store, keys, values, model = opened(path, 16, 50)
    store.close()
    os.chmod(path, 0o444)
    with gpmstore.Reader(path) as reader:
        assert (reader.key_size, reader.value_size, len(reader)) == (16, 24, 50)
        assert reader.get(keys[3].tobytes()) == values[3].tobytes()
        assert reader[keys[4].tobytes()] == values[4].tobytes()
        assert reader.get(bytes(16)) is None and bytes(16) not in reader
        asked = np.concatenate([keys, make_keys(5, 16, first=500)])
        found = reader.find(asked, dtype=np.uint64)
        assert found.count == 50 and found.failed == 5
        assert np.array_equal(found.values[found.found].view(np.uint8), values)
        assert reader.find(keys[:0]).count == 0
        assert reader.contains(asked).tolist() == [True] * 50 + [False] * 5
        assert reader.find(asked, False).values is None
        for bad in (keys.astype(np.float64), keys[:, :8].copy(), [1]):
            with pytest.raises((TypeError, ValueError), match="keys"):
                reader.find(bad)
        with pytest.raises(TypeError):
            reader[b"x" * 16] = b""
        with gpmstore.Reader(path) as second:  # several at once
            assert len(second) == 50
        with pytest.raises(gpmstore.BusyError):
            gpmstore.open(path, executor=EXECUTOR)
        assert reader.stats()["recovery"]["was_clean"]
    reader.close()
    with pytest.raises(gpmstore.InvalidArgumentError, match="closed"):
        reader.get(keys[0].tobytes())
    with pytest.raises(TypeError, match="no option 'threads'"):
        gpmstore.open(path, read_only=True, threads=1)
    with pytest.raises(gpmstore.NotFoundError):
        gpmstore.Reader(path + "none")
