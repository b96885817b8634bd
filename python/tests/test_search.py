"""Searches by attributes, against a plain scan of the arrays that the store was filled from."""

import numpy as np
import pytest

import gpmstore
from conftest import EXECUTOR

ATTRIBUTES = {"session": (0, 8), "model": (8, 4)}
FIELDS = np.dtype([("session", np.uint64), ("model", np.uint32), ("rest", np.uint32)])


@pytest.fixture
def rows():
    random = np.random.default_rng(7)
    rows = np.zeros(1000, FIELDS)
    rows["session"] = random.integers(0, 20, 1000)
    rows["model"] = random.integers(0, 5, 1000)
    rows["rest"] = np.arange(1000)
    return rows


@pytest.fixture
def store(path, rows):
    with gpmstore.create(path, value_size=16, executor=EXECUTOR, attributes=ATTRIBUTES,
                         search_index_bytes=1 << 20) as store:
        store.insert(np.arange(1000), rows.view(np.uint8).reshape(1000, 16))
        yield store


def keys_where(wanted):
    return sorted(np.flatnonzero(wanted).tolist())


def test_conditions(store, rows):
    session, model = rows["session"], rows["model"]
    assert store.attributes == ATTRIBUTES
    for wanted, where, conditions in [
        (session == 7, None, {"session": 7}),
        ((session == 7) & (model <= 3), None, {"session": np.int64(7), "model": (None, 3)}),
        ((session >= 3) & (session <= 9), {"session": (3, 9)}, {}),
        ((session > 3) & (model == 2), "session > 3", {"model": 2}),
        (session >= 0, None, {}),
        (session >= 0, "  ", {"model": (None, None)}),
        (session >= 15, {"session": (15, None)}, {}),
        (session < 0, "session < 0", {}),
    ]:
        keys, values, count = store.search(where, values=True, **conditions)
        assert sorted(keys.tolist()) == keys_where(wanted)
        assert count == store.count(where, **conditions) == len(keys)
        assert keys.tolist() == sorted(keys.tolist(), key=lambda k: k.to_bytes(8, "little"))
        assert (values.view(FIELDS).reshape(-1) == rows[keys.astype(int)]).all()
    assert store.stats()["search_scans"] < store.stats()["searches"] == 16
    assert store.stats()["search_indexes_made"] == 2  # the second one has the model, too
    # Keys, numbers of 8 and of 4 bytes, and 4 for each; and little more, but for a log.
    assert 1000 * (8 + 12 + 8) < store.stats()["search_index_bytes"] < 1 << 18


def test_attributes_that_are_fixed(path, rows):
    options = {"search_index_bytes": 1 << 20, "executor": EXECUTOR}
    with gpmstore.create(path, value_size=16, attributes=ATTRIBUTES, search_indexed=["model"],
                         **options) as store:
        store.insert(np.arange(1000), rows.view(np.uint8).reshape(1000, 16))
        assert store.count(model=2) == store.count(model=2) == np.sum(rows["model"] == 2)
        assert store.stats()["search_indexes_made"] == store.stats()["search_scans"] == 1
    with gpmstore.open(path, search_indexed=["session+model"], **options) as store:
        match = (rows["session"] == 7) & (rows["model"] == 2)
        assert store.count(session=7, model=2) == store.count(session=7, model=2) == np.sum(match)
        assert store.stats()["search_pairs"] == store.stats()["search_scans"] == 1
    for fixed, why in [(["model", "color"], "no attribute 'color'"),
                       (["model+model"], "names one attribute twice")]:
        with pytest.raises(gpmstore.InvalidArgumentError, match=why):
            gpmstore.open(path, search_indexed=fixed, **options)
    with pytest.raises(TypeError, match="search_indexed"):
        gpmstore.open(path, search_indexed=[1], **options)


def test_many_queries(store, rows):
    session, model = rows["session"].astype(np.int64), rows["model"].astype(np.int64)
    random = np.random.default_rng(5)
    for q in [0, 1, 300]:
        least = random.integers(1, 20, q)
        bounds = np.stack([least, least + random.integers(-1, 3, q), np.zeros(q, np.int64),
                           random.integers(0, 5, q)], axis=1).astype(np.int64)
        for limit in [None, 3]:
            counts, offsets, keys = store.search_many(["session", "model"], bounds, limit=limit)
            assert len(offsets) == q + 1 and offsets[0] == 0 and len(keys) == offsets[-1]
            for i in range(q):
                wanted = np.flatnonzero((session >= bounds[i, 0]) & (session <= bounds[i, 1])
                                        & (model <= bounds[i, 3])).tolist()
                wanted.sort(key=lambda k: k.to_bytes(8, "little"))
                assert counts[i] == len(wanted)
                assert keys[offsets[i]:offsets[i + 1]].tolist() == wanted[:limit]
        alone = store.search_many(["session", "model"], bounds, keys=False)
        assert alone.offsets is None and alone.keys is None
        assert (alone.counts == counts).all()
    assert store.search_many(("model",), bounds[:, :2].copy().view(np.uint64), room=0).keys.size > 0
    for attributes, given, error in [
        (["session"], bounds, gpmstore.InvalidArgumentError),
        (["color"], bounds[:, :2].copy(), gpmstore.InvalidArgumentError),
        ([], bounds, gpmstore.InvalidArgumentError),
        (["session"], bounds[:, :2].astype(float), TypeError),
        (["session"], bounds[:, :2], gpmstore.InvalidArgumentError),  # not contiguous
        (["session"], [1, 2], TypeError),
    ]:
        with pytest.raises(error):
            store.search_many(attributes, given)
    for name in ["color", "", "session = 0 and model"]:
        with pytest.raises(gpmstore.InvalidArgumentError, match=f"no attribute '{name}'"):
            store.search_many([name], bounds[:, :2].copy())


def test_a_limit(store, rows):
    all_keys, values, count = store.search(session=7)
    assert values is None
    some = store.search(session=7, limit=5)
    assert some.keys.tolist() == all_keys[:5].tolist()
    assert some.count == count > 5 and some.more
    assert not store.search(session=7, limit=count).more


def test_erase_and_export(store, rows):
    wanted = rows["session"] == 4
    exported = [keys for keys, _ in store.export(page=10, where={"session": 4})]
    assert sorted(np.concatenate(exported).tolist()) == keys_where(wanted)
    assert store.erase_where(session=4) == wanted.sum()
    assert store.count(session=4) == 0
    assert len(store) == 1000 - wanted.sum()
    with pytest.raises(TypeError, match="no condition"):
        store.erase_where()
    with pytest.raises(TypeError, match="no condition"):
        store.erase_where(" ")
    with pytest.raises(TypeError, match="no condition"):
        store.update_where("", values=bytes(store.value_size))
    assert store.erase_where({}) == 1000 - wanted.sum()
    assert len(store) == 0


def test_long_keys(path):
    with gpmstore.create(path, key_size=20, value_size=8, executor=EXECUTOR,
                         attributes={"n": (0, 4)}) as store:
        keys = np.random.default_rng(3).integers(0, 256, (50, 20), np.uint8)
        store.insert(keys, np.arange(50, dtype=np.uint64))
        found = store.search(n=(10, 19)).keys
        assert found.shape == (10, 20)
        assert [bytes(key) for key in found] == sorted(bytes(key) for key in keys[10:20])
    assert gpmstore.open(path, read_only=True).stats()["attributes"] == {"n": (0, 4)}


def test_what_is_wrong(store, path):
    for error, where, conditions in [
        (gpmstore.InvalidArgumentError, None, {"age": 1}),
        (gpmstore.InvalidArgumentError, "session ~ 1", {}),
        (gpmstore.InvalidArgumentError, None, {"session": -1}),
        (gpmstore.InvalidArgumentError, None, {"session": 2**64}),
        (TypeError, None, {"session": 1.5}),
        (TypeError, None, {"session": "7"}),
        (TypeError, None, {"session": (1, 2, 3)}),
        (TypeError, {"session = 1 and model": 3}, {}),
        (TypeError, 7, {}),
    ]:
        for call in (store.search, store.count, store.erase_where):
            with pytest.raises(error):
                call(where, **conditions)
    assert len(store) == 1000
    with pytest.raises(gpmstore.InvalidArgumentError, match="no attribute 'age'"):
        store.export(where="age = 1")
    for attributes, error in [({"a": (0, 2)}, gpmstore.InvalidArgumentError),
                              ({"1": (0, 4)}, gpmstore.InvalidArgumentError),
                              ({"a": 4}, TypeError), ({4: (0, 4)}, TypeError), ([], TypeError)]:
        with pytest.raises(error):
            gpmstore.create(f"{path}.other", attributes=attributes)
    store.close()
    with pytest.raises(gpmstore.InvalidArgumentError):
        store.search(session=7)
