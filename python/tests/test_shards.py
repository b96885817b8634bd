"""Stores over several pools, in a folder."""

import gc
import os
import threading

import numpy as np
import pytest

import gpmstore
from gpmstore import Op

from conftest import EXECUTOR, applied, make_keys, make_values

VALUE_SIZE = 32


@pytest.fixture(params=[1, 3])
def store(folder, request):
    with gpmstore.create(os.path.join(folder, "shards"), value_size=VALUE_SIZE,
                         shards=request.param, executor=EXECUTOR,
                         attributes={"session": (0, 8)}) as store:
        yield store


def rows_of(numbers, salt=0):
    rows = make_values(len(numbers), VALUE_SIZE, salt)
    rows[:, :8] = np.asarray(numbers, np.uint64)[:, None].view(np.uint8)
    return rows


def contents(store):
    return dict(store.items())


def test_batches_of_each_kind(store):
    n = 5000
    keys, rows = make_keys(n), rows_of(np.arange(n))
    assert store.shards == len(store.shard_stats())
    assert store.insert(keys, rows).failed == 0
    assert store.insert(keys[:7], rows[:7]).failed == 7
    values, found = store.find(keys)
    assert found.all() and (values == rows).all()
    assert store.find(keys + np.uint64(1)).count == 0
    newer = rows_of(np.arange(n), 9)
    assert store.update(keys[: n // 2], newer[: n // 2]).failed == 0
    assert store.upsert(keys[n // 2 :], newer[n // 2 :]).failed == 0
    assert (store.find(keys).values == newer).all()
    assert store.erase(keys[:100]).failed == 0
    assert store.erase(keys[:100]).failed == 100
    assert len(store) == n - 100
    again = store.find_or_insert(keys[:200], rows[:200])
    assert again.inserted.sum() == 100 and again.found.sum() == 100
    assert (again.values == np.concatenate([rows[:100], newer[100:200]])).all()
    assert contents(store) == {int(k): v.tobytes() for k, v in
                               zip(keys, np.concatenate([rows[:100], newer[100:]]))}
    sizes = [stats["items"] for stats in store.shard_stats()]
    assert sum(sizes) == n == store.stats()["items"] and min(sizes) > 0


def test_a_batch_is_sequential_for_each_key(store, rng):
    n = 4000
    ops = rng.integers(0, len(Op), n).astype(np.uint8)
    keys = make_keys(50)[rng.integers(0, 50, n)]
    rows = rng.random((n, VALUE_SIZE // 4), np.float32)
    out = store.apply(ops, keys, rows, element=np.float32, dtype=np.float32)
    model = {}
    results, values = applied(model, ops, keys.tolist(), rows)
    assert out.results.tolist() == results
    assert all(value is None or (value == row).all() for value, row in zip(values, out.values))
    assert contents(store) == {key: row.tobytes() for key, row in model.items()}


def test_sums_and_drawn_values(store):
    keys = make_keys(300)
    drawn = store.find_or_insert(keys, gpmstore.Uniform(-1, 1, seed=3), dtype=np.float32)
    assert drawn.inserted.all() and (abs(drawn.values) <= 1).all() and drawn.values.std() > 0.1
    ones = np.ones((600, VALUE_SIZE // 4), np.float32)
    assert store.accumulate(np.concatenate([keys, keys]), ones).failed == 0
    sums = (drawn.values + np.float32(1)) + np.float32(1)
    assert (store.find(keys, dtype=np.float32).values == sums).all()


def test_tickets(store):
    keys = make_keys(2000)
    rows = rows_of(np.arange(2000))
    parts = [slice(first, first + 400) for first in range(0, 2000, 400)]
    tickets = [store.upsert_async(keys[part], rows[part]) for part in parts]
    assert all(ticket.wait().failed == 0 for ticket in tickets)
    tickets.append(store.find_async(keys))
    assert (tickets[-1].wait().values == rows).all()
    assert all(ticket.done() for ticket in tickets)
    for first in range(0, 100, 25):
        store.erase_async(keys[first : first + 25])  # dropped: it waits
    gc.collect()
    assert len(store) == 1900


def test_single_items_and_visits(store):
    store[7] = bytes(VALUE_SIZE)
    store.put(2**64 - 1, b"\1" * VALUE_SIZE)
    assert store[7] == bytes(VALUE_SIZE) and 8 not in store and store.get(8, "no") == "no"
    assert store.delete(7) and not store.delete(7)
    keys = make_keys(1000)
    store.bulk_load(keys, rows_of(np.arange(1000)))
    pages = []
    assert not store.for_each(lambda k, v: pages.append(len(k)) or False, rows=10)
    assert pages == [10]
    with pytest.raises(ZeroDivisionError):
        store.for_each(lambda k, v: 1 // 0)
    calls = []

    def visit(k, v):
        with pytest.raises(gpmstore.BusyError):
            store.find(keys)
        calls.append(len(k))

    ticket = store.find_async(keys)
    assert store.for_each(visit, rows=300)
    assert sum(calls) == 1001 and ticket.wait().count == 1000
    assert set(store) == {int(k) for k in keys} | {2**64 - 1}


def test_searches_and_exports(store):
    n = 1000
    keys, rows = make_keys(n), rows_of(np.arange(n) % 10)
    store.upsert(keys, rows)
    assert store.attributes == {"session": (0, 8)}
    found = store.search(session=3, values=True)
    assert found.count == store.count("session = 3") == 100
    chosen = np.sort(np.frombuffer(b"".join(int(k).to_bytes(8, "little") for k in keys[3::10]),
                                   "V8"))
    assert found.keys.tobytes() == chosen.tobytes()  # in the order of their bytes
    assert (found.values[:, 0] == 3).all()
    limited = store.search(session=(2, 4), limit=5)
    assert len(limited.keys) == 5 and limited.count == 300 and limited.more
    assert store.erase_where(session=3) == 100 and len(store) == n - 100
    with store.export(page=64) as export:
        first = next(export)
        store.erase(keys)
        with pytest.raises(gpmstore.BusyError):
            store.compact()
        seen = dict(zip(first[0].tolist(), first[1]))
        for page_keys, page_values in export:
            assert len(page_keys) <= 64
            seen.update(zip(page_keys.tolist(), page_values))
    assert len(seen) == n - 100 and len(store) == 0
    for number in range(n):
        assert number % 10 == 3 or (seen[int(keys[number])] == rows[number]).all()
    store.compact()
    store.upsert(keys, rows)
    assert sum(len(k) for k, _ in store.export(where={"session": 4}, with_values=False)) == 100


def test_reopening(folder):
    path = os.path.join(folder, "shards")
    keys, rows = make_keys(3000), rows_of(np.arange(3000))
    with gpmstore.open_or_create(path, value_size=VALUE_SIZE, shards=4,
                                 executor=EXECUTOR) as store:
        assert repr(store).startswith("<gpmstore.Store") and store.shards == 4
        store.upsert(keys, rows)
        with pytest.raises(gpmstore.BusyError):
            gpmstore.open(path)
    with gpmstore.open(path, executor=EXECUTOR) as store:
        assert store.shards == 4 and (store.find(keys).values == rows).all()
        assert store.stats()["recovery"]["was_clean"]
    with gpmstore.open_or_create(path, value_size=VALUE_SIZE, shards=4) as store:
        assert len(store) == 3000
    with pytest.raises(gpmstore.InvalidArgumentError, match="4"):
        gpmstore.open(path, shards=3)
    with pytest.raises(gpmstore.InvalidArgumentError, match="32"):
        gpmstore.open_or_create(path, value_size=2 * VALUE_SIZE, shards=4)
    with pytest.raises(gpmstore.ExistsError):
        gpmstore.create(path, value_size=VALUE_SIZE, shards=4)
    gpmstore.reshard(path, 2)
    with gpmstore.open(path, shards=2, executor=EXECUTOR) as store:
        assert store.shards == 2 and contents(store) == dict(zip(keys.tolist(), map(bytes, rows)))


def test_snapshots(store, folder):
    keys, rows = make_keys(500), rows_of(np.arange(500))
    store.upsert(keys, rows)
    snapshot = os.path.join(folder, "snapshot")
    result = store.snapshot(snapshot)
    assert result["items"] == result["written"] == 500
    store.erase(keys)
    with pytest.raises(gpmstore.UnsupportedError, match="base"):
        store.snapshot(os.path.join(folder, "next"), snapshot)
    with gpmstore.restore(snapshot, os.path.join(folder, "restored"), executor=EXECUTOR) as again:
        assert again.shards == store.shards and (again.find(keys).values == rows).all()


def test_what_shards_do_not_have(store, folder):
    keys, rows = make_keys(10), rows_of(np.arange(10))
    for call in (store.refresh_cache, lambda: store.insert_and_evict(keys, rows),
                 lambda: store.upsert_and_evict(keys, rows)):
        with pytest.raises(gpmstore.UnsupportedError, match="several shards"):
            call()
    with pytest.raises(gpmstore.InvalidArgumentError, match="changed|changes"):
        store.export(changed_since=os.path.join(folder, "none"))
    assert len(store) == 0
    other = os.path.join(folder, "other")
    for refused in ({"capacity": 100}, {"snapshot": os.path.join(folder, "chain")}):
        with pytest.raises(gpmstore.InvalidArgumentError):
            gpmstore.create(other, shards=2, **refused)
        assert not os.path.exists(other)


def test_wrong_paths_and_options(folder):
    path = os.path.join(folder, "shards")
    for shards in (1025, 2**31):
        with pytest.raises(gpmstore.InvalidArgumentError, match="shards"):
            gpmstore.create(path, shards=shards)
    for shards in ("two", -1, 1.5):
        with pytest.raises(TypeError, match="shards"):
            gpmstore.create(path, shards=shards)
    with pytest.raises(gpmstore.InvalidArgumentError, match="devices"):
        gpmstore.create(path, devices=[0])
    with pytest.raises(gpmstore.InvalidArgumentError, match="pinned"):
        gpmstore.create("pinned:", shards=2)
    assert not os.path.exists(path)
    os.mkdir(path)
    for call in (gpmstore.open, lambda path: gpmstore.open(path, shards=2)):
        with pytest.raises(gpmstore.NotFoundError, match="manifest"):
            call(path)
    with pytest.raises(gpmstore.InvalidArgumentError, match="shards"):
        gpmstore.open_or_create(path)
    with pytest.raises(gpmstore.UnsupportedError, match="folder"):
        gpmstore.open(path, read_only=True)
    pool = os.path.join(folder, "pool")
    gpmstore.create(pool, executor="cpu").close()
    with pytest.raises(gpmstore.InvalidArgumentError, match="folder"):
        gpmstore.open(pool, shards=2)
    with pytest.raises(gpmstore.InvalidArgumentError, match="folder"):
        gpmstore.reshard(pool, 2)
    gpmstore.create(path, shards=2, executor="cpu").close()
    for kept in (pool + ".kept", {"path": pool + ".kept"}):
        with pytest.raises(gpmstore.InvalidArgumentError, match="keep no snapshots by a schedule"):
            gpmstore.reshard(path, 3, snapshot=kept)


def test_one_pool_has_no_shards(path):
    with gpmstore.create(path, executor="cpu") as store:
        assert store.shards is None
        assert store.shard_stats() == [store.stats()]


def test_arrays_are_checked_as_for_one_pool(store):
    keys, rows = make_keys(10), rows_of(np.arange(10))
    with pytest.raises(gpmstore.InvalidArgumentError, match="values"):
        store.insert(keys, rows[:, :-1].copy())
    with pytest.raises(gpmstore.InvalidArgumentError, match="out"):
        store.find(keys, out=np.empty((9, VALUE_SIZE), np.uint8))
    with pytest.raises(gpmstore.InvalidArgumentError):
        store.find(keys, out=np.empty((VALUE_SIZE, 10), np.uint8).T)
    with pytest.raises(TypeError):
        store.insert(keys.astype(np.float64), rows)
    out, results = np.zeros((10, VALUE_SIZE), np.uint8), np.zeros(10, np.uint8)
    store.insert(keys, rows)
    found = store.find(keys, out=out, results=results)
    assert found.values is out and found.results is results and (out == rows).all()


def test_closing_ends_what_runs(folder):
    store = gpmstore.create(os.path.join(folder, "shards"), value_size=VALUE_SIZE, shards=2,
                            executor=EXECUTOR)
    keys, rows = make_keys(2000), rows_of(np.arange(2000))
    refused = []

    def work():
        try:
            while True:
                store.upsert(keys, rows)
        except gpmstore.InvalidArgumentError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    ticket = store.upsert_async(keys, rows)
    export = store.export()
    next(export)
    store.close()
    for thread in threads:
        thread.join()
    assert len(refused) == 3 and store.closed and ticket.wait().failed == 0
    with pytest.raises(gpmstore.InvalidArgumentError):
        store.find(keys)
    with gpmstore.open(store.path, executor=EXECUTOR) as again:
        assert len(again) == 2000
        assert again.stats()["recovery"]["was_clean"]


def test_a_log(folder):
    messages = []
    path = os.path.join(folder, "shards")
    with gpmstore.create(path, value_size=VALUE_SIZE, shards=2, executor=EXECUTOR,
                         log=lambda level, message: messages.append(message)) as store:
        store.upsert(make_keys(30000), rows_of(np.arange(30000)))
    assert messages
