"""Updates of what a query matches, in one pool and over several."""

import os
import threading

import numpy as np
import pytest

import gpmstore
from conftest import EXECUTOR

N = 40000  # more than are changed at a time
FIELDS = np.dtype([("session", np.uint64), ("rest", np.uint64)])


@pytest.fixture(params=[None, 1, 3])
def shards(request):
    return request.param


@pytest.fixture
def rows(rng):
    rows = np.zeros(N, FIELDS)
    rows["session"] = rng.integers(0, 5, N)
    rows["rest"] = np.arange(N)
    return rows


@pytest.fixture
def store(folder, shards, rows):
    with gpmstore.create(os.path.join(folder, "store"), value_size=16, shards=shards,
                         executor=EXECUTOR, attributes={"session": (0, 8)}) as store:
        store.insert(np.arange(N), rows)
        yield store


def contents(store):
    values, found = store.find(np.arange(N))
    assert found.all()
    return values.view(FIELDS).reshape(-1)


def test_one_value(store, rows):
    wanted = rows["session"] == 3
    value = np.array([(9, 7)], FIELDS)
    assert store.update_where(session=3, values=value) == wanted.sum()
    rows[wanted] = value[0]
    assert (contents(store) == rows).all()
    assert store.update_where("session = 9", values=bytes(16)) == wanted.sum()
    assert store.update_where("session = 9", values=bytes(16)) == 0
    rows[wanted] = 0
    assert (contents(store) == rows).all()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_function(store, rows, in_place):
    wanted = rows["session"] <= 2
    seen = []

    def add(keys, values):
        assert keys.dtype == np.uint64 and values.shape == (len(keys), 16)
        seen.extend(keys.tolist())
        fields = values.view(FIELDS).reshape(-1)
        assert (fields == rows[keys.astype(int)]).all()
        if in_place:
            fields["rest"] += keys
            return None
        changed = fields.copy()
        changed["rest"] += keys
        return changed

    assert store.update_where(session=(None, 2), values=add) == wanted.sum()
    assert sorted(seen) == np.flatnonzero(wanted).tolist()
    rows["rest"][wanted] *= np.uint64(2)
    assert (contents(store) == rows).all()


def test_what_is_kept_is_a_copy(store, rows):
    kept = []
    store.update_where({}, values=lambda keys, values: kept.append((keys, values)))
    values = np.concatenate([values for _, values in kept])
    keys = np.concatenate([keys for keys, _ in kept])
    assert len(kept) > 1 and (values.view(FIELDS).reshape(-1) == rows[keys.astype(int)]).all()
    values[:] = 0
    assert (contents(store) == rows).all()


def test_what_is_raised(store, rows):
    calls = []

    def change(keys, values):
        calls.append(keys)
        values[:] = 0
        if len(calls) == 2:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        store.update_where({}, values=change)
    assert len(calls) == 2
    rows[calls[0].astype(int)] = 0
    assert (contents(store) == rows).all()


def test_the_store_is_not_called_meanwhile(store, rows):
    def change(keys, values):
        for call in (lambda: store.find(keys), lambda: store.update_where({}, values=bytes(16)),
                     store.close, lambda: store.count(session=1)):
            with pytest.raises(gpmstore.BusyError, match="update_where"):
                call()

    ticket = store.find_async(np.arange(N))
    assert store.update_where({}, values=change) == N
    assert ticket.wait().count == N
    assert (contents(store) == rows).all()
    with store.export(page=10) as export:
        next(export)
        with pytest.raises(gpmstore.BusyError):
            store.update_where({}, values=bytes(16))


def test_beside_batches(store, rows):
    """Others' batches are excluded from an item between the look and the change."""
    stop = threading.Event()
    changed = np.full(N, 0)

    def write():
        while not stop.is_set():
            half = np.arange(0, N, 2)
            store.accumulate(half, np.tile(np.array([0, 1], np.uint64), (len(half), 1)))
            changed[half] += 1

    def add(keys, values):
        values.view(np.uint64)[:, 1] += np.uint64(1000)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(5):
        assert store.update_where({}, values=add) == N
    stop.set()
    thread.join()
    rows["rest"] += (changed + 5000).astype(np.uint64)
    assert (contents(store) == rows).all()


def test_what_is_wrong(store, rows):
    n = len(store)
    for error, values in [
        (gpmstore.InvalidArgumentError, bytes(15)),
        (TypeError, None),
        (TypeError, "text"),
        (gpmstore.InvalidArgumentError, lambda keys, values: values[:-1]),
        (gpmstore.InvalidArgumentError, lambda keys, values: values[:, ::2]),
        (gpmstore.InvalidArgumentError, lambda keys, values: values.T),
        (TypeError, lambda keys, values: 7),
        (TypeError, lambda keys: None),
    ]:
        with pytest.raises(error):
            store.update_where({}, values=values)
    with pytest.raises(TypeError, match="no condition"):
        store.update_where(values=bytes(16))
    with pytest.raises(TypeError):
        store.update_where({})
    with pytest.raises(gpmstore.InvalidArgumentError, match="age"):
        store.update_where(age=1, values=bytes(16))
    assert len(store) == n and (contents(store) == rows).all()


def test_long_keys(folder, shards):
    with gpmstore.create(os.path.join(folder, "long"), key_size=20, value_size=8, shards=shards,
                         executor=EXECUTOR, attributes={"n": (0, 4)}) as store:
        keys = np.random.default_rng(3).integers(0, 256, (50, 20), np.uint8)
        store.insert(keys, np.arange(50, dtype=np.uint64))
        shapes = set()

        def change(some, values):
            shapes.add(some.shape[1:])
            return values.view(np.uint64) + np.uint64(1 << 32)

        assert store.update_where(n=(10, 19), values=change) == 10
        assert shapes == {(20,)}
        expected = np.arange(50, dtype=np.uint64)
        expected[10:20] += np.uint64(1 << 32)
        assert (store.find(keys, dtype=np.uint64).values == expected).all()
