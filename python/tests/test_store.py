"""Batches and single items, against what a dict does."""

import array
import ctypes
import os
import pathlib
import types

import numpy as np
import pytest

import gpmstore
from conftest import EXECUTOR, applied, make_keys, make_values
from gpmstore import Op, Result


@pytest.fixture
def store(path):
    with gpmstore.create(path, executor=EXECUTOR, threads=2) as opened:
        yield opened


@pytest.mark.parametrize("key_size", [7, 8, 16, 32, 36, 64, 128, 255])
@pytest.mark.parametrize("value_size", [1, 8, 100, 128])
def test_sizes_round_trip(path, key_size, value_size):
    n = 300
    keys, values = make_keys(n, key_size), make_values(n, value_size)
    with gpmstore.create(path, key_size, value_size, executor=EXECUTOR) as store:
        assert (store.key_size, store.value_size) == (key_size, value_size)
        assert store.insert(keys, values).failed == 0
        assert len(store) == n
    with gpmstore.open(path, executor=EXECUTOR) as store:  # everything is there
        assert store.stats()["recovery"]["was_clean"]
        found = store.find(keys)
        assert found.count == n and found.found.all()
        assert np.array_equal(found.values.reshape(n, -1), values)
        assert store.get(keys[7].tobytes()) == values[7].tobytes()


def test_big_values(path):
    n, size = 20, 64 * 1024
    keys, values = make_keys(n), make_values(n, size)
    with gpmstore.create(path, value_size=size, executor=EXECUTOR) as store:
        assert store.insert(keys, values).failed == 0
        assert np.array_equal(store.find(keys).values, values)


def test_each_kind(store):
    keys, first, second = make_keys(4), make_values(4), make_values(4, salt=1000)
    assert store.update(keys, first).results.tolist() == [Result.NOT_FOUND] * 4
    assert store.insert(keys[:2], first[:2]).failed == 0
    outcome = store.insert(keys, second)
    assert outcome.results.tolist() == [Result.EXISTS, Result.EXISTS, Result.OK, Result.OK]
    assert outcome.failed == 2 and outcome.operations == 4
    assert outcome.ok.tolist() == [False, False, True, True]
    assert store.update(keys[:1], second[:1]).failed == 0
    assert store.upsert(keys[1:3], second[1:3]).failed == 0
    assert np.array_equal(store.find(keys).values, second)
    assert store.erase(keys[1:]).failed == 0
    outcome = store.erase(keys)
    assert outcome.results.tolist() == [Result.OK] + [Result.NOT_FOUND] * 3
    assert not store.contains(keys).any()
    assert "4 operations, 3 failed" in repr(outcome)


def test_find_unpacks(store):
    keys, values = make_keys(3), make_values(3)
    store.insert(keys[:2], values[:2])
    rows, found = store.find(keys)
    assert found.dtype == bool and found.tolist() == [True, True, False]
    assert rows.dtype == np.uint8 and rows.shape == (3, 128)
    assert np.array_equal(rows[found], values[:2])


def test_dtype_and_out(store):
    keys = make_keys(5)
    rows = np.arange(5 * 32, dtype=np.float32).reshape(5, 32)
    store.upsert(keys, rows)
    assert np.array_equal(store.find(keys, dtype=np.float32).values, rows)
    assert np.array_equal(store.find(keys, dtype="float64").values, rows.view(np.float64))
    record = np.dtype([("a", np.float32, 16), ("b", np.uint64, 8)])
    records = store.find(keys, dtype=record).values
    assert records.shape == (5,) and np.array_equal(records["a"], rows[:, :16])
    out, results = np.full((5, 4, 8), -1, np.float32), np.full(5, 9, np.uint8)
    found = store.find(keys, out, results=results)
    assert found.values is out and found.results is results
    assert np.array_equal(out.reshape(5, 32), rows) and not results.any()
    only = store.find(keys, False)
    assert only.values is None and only.count == 5
    with pytest.raises(gpmstore.InvalidArgumentError, match="no whole number"):
        store.find(keys, dtype=np.dtype("S3"))
    with pytest.raises(TypeError, match="that of 'out'"):
        store.find(keys, out, dtype=np.float32)
    with pytest.raises(TypeError, match="dtype: float99, which NumPy does not have"):
        store.find(keys, dtype="float99")


def test_empty_batch(store):
    none = np.empty(0, np.uint64)
    assert store.find(none).values.shape == (0, 128)
    assert store.insert(none, np.empty((0, 128), np.uint8)).failed == 0
    assert store.erase(none).operations == 0
    assert store.bulk_load(none, np.empty((0, 16), "S8")).failed == 0


def test_keys_of_other_types(path, store):
    negative = np.array([-1, -2, 3], np.int64)
    store.insert(negative, make_values(3))
    assert store.contains(negative.astype(np.uint64)).all()
    assert store.contains(negative.view(np.uint8).reshape(3, 8)).all()
    assert -1 in store and 2**64 - 1 in store and np.int64(-2) in store and 4 not in store
    with gpmstore.create(path + "16", key_size=16, value_size=4, executor=EXECUTOR) as wide:
        words = np.array([b"one", b"two", b"three"], "S16")
        assert wide.insert(words, np.arange(3, dtype=np.int32)).failed == 0
        assert wide.find(words, dtype=np.int32).values.tolist() == [0, 1, 2]
        assert wide.contains(words.view(np.uint8).reshape(3, 16)).all()
        assert wide.contains(words.view([("high", "u8"), ("low", "u8")])).all()
        assert b"two".ljust(16, b"\0") in wide


def test_duplicates_take_effect_in_order(store):
    keys = np.full(6, 42, np.uint64)
    values = make_values(6)
    ops = np.array([Op.FIND, Op.INSERT, Op.INSERT, Op.FIND, Op.UPSERT, Op.FIND], np.uint8)
    found = store.apply(ops, keys, values)
    assert found.results.tolist() == [Result.NOT_FOUND, Result.OK, Result.EXISTS, Result.OK,
                                      Result.OK, Result.OK]
    assert np.array_equal(found.values[3], values[1]) and np.array_equal(found.values[5], values[4])
    assert store.upsert(keys, values).failed == 0
    assert store.get(42) == values[5].tobytes()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_ops_of_any_integers(store, dtype):
    ops = np.array([Op.INSERT, Op.FIND, Op.ERASE, Op.UPSERT], dtype)
    results = store.apply(ops, make_keys(4), make_values(4)).results.tolist()
    assert results == [Result.OK, Result.NOT_FOUND, Result.NOT_FOUND, Result.OK]


def test_tickets_that_are_done(store):
    ticket = store.upsert_async(make_keys(10_000), make_values(10_000))
    while not ticket.done():
        pass
    assert ticket.wait().failed == 0 and ticket.done()
    refresh = store.refresh_cache_async()
    while not refresh.done():
        pass
    unfinished = store.insert_async(make_keys(50_000, first=10_000), make_values(50_000))
    store.close()
    assert unfinished.done() and unfinished.wait().failed == 0


def test_apply_invalid(store):
    ops = np.array([Op.INSERT, 77, Op.FIND], np.uint8)
    results = store.apply(ops, make_keys(3)).results.tolist()
    assert results == [Result.INVALID, Result.INVALID, Result.NOT_FOUND]


def test_single_items(store):
    value = bytes(range(128))
    assert store.get(1) is None and store.get(1, b"none") == b"none"
    store.put(1, value)
    store[2] = np.frombuffer(value, np.float64)
    assert store.get(1) == value and store[2] == value and store.get((1).to_bytes(8, "little"))
    assert len(store) == 2 and 2 in store and 3 not in store
    for key in (np.uint8(2), np.array(2), np.array([2, 0], np.int32), np.void(b"\2" + bytes(7)),
                np.array([2]).view("S8")[:1], np.array([2]).view("f4, i4"), array.array("q", [2]),
                array.array("H", [2, 0, 0, 0]), (ctypes.c_int32 * 2)(2, 0), bytearray([2] + [0] * 7),
                memoryview(np.array([2])), memoryview(np.array([2]).view("f4, i4")),
                memoryview(bytes([2] + [0] * 7)).cast("c")):
        assert store[key] == value
    assert store.delete(1) and not store.delete(1)
    del store[2]
    for broken in (lambda: store[2], lambda: store.__delitem__(2)):
        with pytest.raises(KeyError):
            broken()
    assert len(store) == 0 and store  # a store without items is one


@pytest.mark.parametrize("key, error", [(2**64, OverflowError), (-2**63 - 1, OverflowError),
                                        (b"short", gpmstore.InvalidArgumentError),
                                        (1.5, TypeError), ("text", TypeError), (None, TypeError),
                                        (np.float64(3), TypeError), (np.complex64(3), TypeError),
                                        (np.datetime64(3, "s"), TypeError),
                                        (np.timedelta64(3, "s"), TypeError),
                                        (np.str_("ab"), TypeError), (np.bool_(True), TypeError),
                                        (np.array(3.0), TypeError), (np.array("ab"), TypeError),
                                        (np.zeros(2, np.float32), TypeError),
                                        (np.zeros(8, bool), TypeError),
                                        (np.array(3, "M8[s]"), TypeError),
                                        (np.array([3], object), TypeError),
                                        (array.array("d", [3]), TypeError),
                                        (array.array("f", [3, 0]), TypeError),
                                        (array.array("u", "ab"), TypeError),
                                        (memoryview(np.array([3.0])), TypeError),
                                        (memoryview(np.zeros(4, np.float16)), TypeError),
                                        (memoryview(np.zeros((2, 2), np.float16)), TypeError),
                                        (memoryview(np.zeros(1, np.complex64)), TypeError),
                                        (memoryview(np.zeros(1, np.longdouble)), TypeError),
                                        (memoryview(np.array(["ab"])), TypeError),
                                        (memoryview(bytes(8)).cast("?"), TypeError),
                                        ((ctypes.c_float * 2)(3, 0), TypeError),
                                        (ctypes.c_double(3), TypeError)])
def test_bad_single_keys(store, key, error):
    for call in (store.get, store.delete, lambda k: store.put(k, bytes(128))):
        with pytest.raises(error, match="key: "):
            call(key)


def test_bad_single_values(path, store):
    with pytest.raises(gpmstore.InvalidArgumentError, match="value: it has 3 bytes"):
        store.put(1, b"abc")
    with pytest.raises(TypeError, match="value: 'int'"):
        store.put(1, 5)
    with gpmstore.create(path + "32", key_size=32, executor=EXECUTOR) as wide:
        with pytest.raises(TypeError, match="keys are 32 bytes"):
            wide.get(5)
    assert len(store) == 0


@pytest.mark.parametrize("key_size, value_size", [(8, 24), (16, 8), (32, 40), (36, 8)])
def test_random_batches_against_a_dict(path, rng, key_size, value_size):
    model = {}
    pool_of_keys = make_keys(120, key_size)
    store = gpmstore.create(path, key_size, value_size, executor=EXECUTOR, threads=2)
    for batch in range(60):
        n = int(rng.integers(0, 200))
        keys = pool_of_keys[rng.integers(0, len(pool_of_keys), n)]
        ops = rng.integers(0, 5, n).astype(np.uint8)
        values = rng.integers(0, 256, (n, value_size), dtype=np.uint8)
        found = store.apply(ops, keys, values)
        as_keys = keys.tolist() if key_size == 8 else [key.tobytes() for key in keys]
        results, there = applied(model, ops, as_keys, values)
        assert found.results.tolist() == results, batch
        assert all(value is None or (value == row).all()
                   for value, row in zip(there, found.values))
        if batch % 20 == 19:
            store.close()
            store = gpmstore.open(path, executor=EXECUTOR, threads=2)
            assert dict(store.items()) == {key: row.tobytes() for key, row in model.items()}
    store.close()


def test_bulk_load_and_reserve(store):
    n = 5000
    keys, values = make_keys(n), make_values(n)
    store.reserve(n)
    resizes = store.stats()["resizes"]
    outcome = store.bulk_load(keys, values)
    assert outcome.failed == 0 and store.stats()["resizes"] == resizes
    assert store.bulk_load(keys[:10], values[:10]).results.tolist() == [Result.EXISTS] * 10
    assert np.array_equal(store.find(keys).values, values)
    with store.export():  # which these wait for
        for call in (lambda: store.bulk_load(keys, values), lambda: store.reserve(n)):
            with pytest.raises(gpmstore.BusyError):
                call()
    assert store.bulk_load(make_keys(10, first=n), values[:10]).failed == 0


def test_compact(store):
    n = 50_000
    keys = make_keys(n)
    store.insert(keys, make_values(n))
    before = store.stats()
    store.erase(keys[1000:])
    store.compact()
    after = store.stats()
    assert after["items"] == 1000 and after["capacity_slots"] < before["capacity_slots"] / 8
    # (What was made ready for the next growth comes and goes in the background.)
    least = before["pm_bytes"] - before["pm_bytes_ready"] - after["pm_bytes"]
    assert after["pm_bytes_given_back"] >= least > 0
    assert sum(after["level_buckets"]) * 8 == after["capacity_slots"]
    assert np.array_equal(store.find(keys[:1000]).values, make_values(n)[:1000])


def test_snapshots(store, path):
    n = 3000
    keys, values = make_keys(n), make_values(n)
    store.insert(keys, values)
    whole, increment = pathlib.Path(f"{path}.whole"), f"{path}.increment"
    taken = store.snapshot(whole)
    assert taken["items"] == taken["written"] == n
    assert taken["bytes"] == whole.stat().st_size and taken["pause_seconds"] <= taken["seconds"]
    store.erase(keys[:10])
    store.update(keys[10:20], values[:10])
    assert store.snapshot(increment, base=whole)["written"] < n / 10
    assert store.stats()["snapshots"] == 2
    with pytest.raises(gpmstore.InvalidArgumentError, match="base"):
        store.snapshot(f"{path}.other", base=whole)
    with pytest.raises(gpmstore.ExistsError):
        store.snapshot(whole)
    with gpmstore.restore([whole, increment], f"{path}.restored", executor=EXECUTOR) as restored:
        found = restored.find(keys)
        assert found.found.tolist() == [False] * 10 + [True] * (n - 10)
        assert np.array_equal(found.values[10:20], values[:10])
        assert np.array_equal(found.values[20:], values[20:])
    with pytest.raises(gpmstore.DamagedError, match="whole snapshot"):
        gpmstore.restore([increment], f"{path}.none", executor=EXECUTOR)
    with gpmstore.restore(os.fsencode(whole), f"{path}.alone", executor=EXECUTOR) as restored:
        assert len(restored) == n
    with pytest.raises(gpmstore.NotFoundError, match="no such folder"):
        gpmstore.restore(f"{path}.mistyped", f"{path}.none", executor=EXECUTOR)
    assert not os.path.exists(f"{path}.mistyped")


def test_snapshots_of_its_own(path):
    n = 2000
    keys, values = make_keys(n), make_values(n)
    folder = pathlib.Path(f"{path}.snapshots")
    with gpmstore.open_or_create(path, executor=EXECUTOR, snapshot=folder) as store:
        store.insert(keys, values)
    names = {file.name for file in folder.iterdir()}
    assert names == {"MANIFEST", "000001-0000.snap"}
    os.unlink(path)
    with pytest.raises(gpmstore.ExistsError, match="has snapshots already"):
        gpmstore.create(path, executor=EXECUTOR, snapshot=folder)
    told = []
    schedule = {"path": folder, "interval": 1e-3, "chains": 1, "at_close": True, "restore": True}
    with gpmstore.open(path, executor=EXECUTOR, snapshot=schedule,
                       log=lambda level, message: told.append(level)) as store:
        assert np.array_equal(store.find(keys).values, values)
        while store.stats()["snapshots"] < 3:
            store.update(keys[:10], values[10:20])
        assert store.stats()["snapshot_failures"] == 0 and store.stats()["snapshot_error"] == ""
    assert set(told) == {"info"}
    with gpmstore.restore(folder, f"{path}.restored", executor=EXECUTOR) as restored:
        assert np.array_equal(restored.find(keys).values[:10], values[10:20])


def test_a_snapshot_of_one_pool_is_restored_as_one(store, path):
    own, file = f"{path}.snapshots", f"{path}.snapshot"
    store.snapshot(file)
    gpmstore.create(f"{path}.other", executor=EXECUTOR, snapshot=own).close()
    for files in (file, [file], own):
        for option in ({"shards": 4}, {"devices": [0, 1]}):
            text = f"{next(iter(option))}: .* one pool"
            with pytest.raises(gpmstore.InvalidArgumentError, match=text):
                gpmstore.restore(files, f"{path}.restored", executor=EXECUTOR, **option)
            assert not os.path.exists(f"{path}.restored")
        gpmstore.restore(files, f"{path}.restored", executor=EXECUTOR, shards=None).close()
        os.remove(f"{path}.restored")
    with pytest.raises(gpmstore.NotFoundError, match="no such folder"):
        gpmstore.restore(f"{path}.mistyped", f"{path}.restored", executor=EXECUTOR, shards=4)


def test_a_log_that_waits_for_no_close(path):
    """It is called by the thread that takes snapshots, which close waits for."""
    refused = []

    def log(level, message):
        for call in (lambda: store.close(), lambda: store.stats()):
            try:
                call()
            except gpmstore.Error as error:
                refused.append(error.code)

    keys, values = make_keys(100), make_values(100)
    for round in range(20):
        name = f"{path}.{round}"
        store = gpmstore.create(name, executor=EXECUTOR, log=log,
                                snapshot={"path": f"{name}.snapshots", "interval": 1e-4})
        store.insert(keys, values)
        while store.stats()["snapshots"] == 0:
            store.update(keys, values)
        store.close()
    assert gpmstore.ErrorCode.BUSY in refused


def test_all_names_are_told():
    names = {name for name, value in vars(gpmstore).items()
             if not name.startswith("_") and not isinstance(value, types.ModuleType)}
    assert names | {"__version__"} == set(gpmstore.__all__)


def test_no_space(path):
    with gpmstore.create(path, value_size=4096, executor=EXECUTOR, max_bytes=1 << 20) as store:
        n = 600
        outcome = store.insert(make_keys(n), make_values(n, 4096))
        assert 0 < outcome.failed < n
        assert set(outcome.results.tolist()) == {Result.OK, Result.NO_SPACE}
        full = make_keys(1, first=n)[0]
        with pytest.raises(gpmstore.NoSpaceError) as raised:
            store.put(full, bytes(4096))
        assert raised.value.code == gpmstore.ErrorCode.NO_SPACE
        with pytest.raises(gpmstore.NoSpaceError):
            store.reserve(10**9)
        with pytest.raises(gpmstore.NoSpaceError, match="no pool can have them"):
            store.reserve(2**64 - 1)
        assert len(store) == n - outcome.failed


def test_cache(path):
    with gpmstore.create(path, executor=EXECUTOR, directory=True, cache_fraction=0.5,
                         cache_policy="lru", cache_refresh_interval=0) as store:
        keys, values = make_keys(1000), make_values(1000)
        store.insert(keys, values)
        store.find(keys)
        store.refresh_cache()
        assert store.refresh_cache_async().wait() is None
        assert np.array_equal(store.find(keys).values, values)
        cache = store.stats()["cache"]
        assert cache["refreshes"] >= 2 and cache["policy"] == "lru" and cache["hits"] > 0


def test_stats(store):
    keys = make_keys(10)
    store.insert(keys, make_values(10))
    store.find(make_keys(20))
    stats = store.stats()
    assert stats["items"] == 10 and stats["finds_found"] == 10
    assert stats["operations"] == {"find": 20, "insert": 10, "update": 0, "upsert": 0, "erase": 0,
                                   "find-or-insert": 0, "accumulate": 0}
    assert (stats["executor"], stats["threads"]) == (EXECUTOR, 2 if EXECUTOR == "cpu" else 0)
    assert stats["geometry"] == "2L-2H-8S" and stats["medium"]["survives_process_crash"]


def test_open_takes_no_options_of_a_new_pool(path):
    gpmstore.create(path, executor=EXECUTOR).close()
    for name, value in [("key_size", 8), ("value_size", 128), ("initial_capacity", 10),
                        ("hash_seed", 1), ("geometry", "2L-2H-8S"), ("overwrite", True)]:
        with pytest.raises(TypeError, match=name):
            gpmstore.open(path, executor=EXECUTOR, **{name: value})


@pytest.mark.parametrize("content", [b"", b"not a pool"])
def test_overwrite_leaves_files_alone(path, content):
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(gpmstore.ExistsError):
        gpmstore.create(path, overwrite=True)
    with open(path, "rb") as file:
        assert file.read() == content


def test_overwrite_is_a_flag_of_creation(path):
    for wrong in ("yes", None, 1):
        with pytest.raises(TypeError, match="overwrite"):
            gpmstore.create(path, overwrite=wrong)
    gpmstore.create(path, overwrite=True, executor=EXECUTOR).close()


def test_memory_nodes(path):
    with gpmstore.create(path, executor="cpu", memory_node=0) as store:
        assert store.stats()["medium"]["memory_node"] in (0, -1)  # as far as the medium has nodes
    for anywhere in ({}, {"memory_node": None}):
        with gpmstore.open(path, executor="cpu", **anywhere) as store:
            assert store.stats()["medium"]["memory_node"] == -1
    with pytest.raises(gpmstore.InvalidArgumentError, match="memory_node: 999"):
        gpmstore.open(path, memory_node=999)
    with pytest.raises(TypeError, match="memory_node"):
        gpmstore.open(path, memory_node="near")
