"""find_or_insert and accumulate."""

import sys

import numpy as np
import pytest

import gpmstore
from conftest import EXECUTOR, make_keys, make_values
from gpmstore import Constant, Normal, Op, Result, Uniform


@pytest.fixture
def store(path):
    with gpmstore.create(path, executor=EXECUTOR, threads=2) as opened:
        yield opened


def test_rows_given(store):
    keys, values = make_keys(4), make_values(4)
    store.insert(keys[:1], values[3:])
    found = store.find_or_insert(keys, values)
    assert found.results.tolist() == [Result.EXISTS] + [Result.OK] * 3
    assert found.found.tolist() == [True, False, False, False]
    assert found.inserted.tolist() == [False, True, True, True]
    assert found.failed == 0
    assert np.array_equal(found.values, np.concatenate([values[3:], values[1:]]))
    rows, there = store.find_or_insert(keys, values)
    assert there.all() and np.array_equal(rows, found.values)
    assert np.array_equal(store.find(keys).values, rows)


def test_constant_and_duplicates(store):
    row = make_values(1)[0]
    keys = np.repeat(make_keys(3), 5)
    found = store.find_or_insert(keys, Constant(row))
    assert found.results.tolist() == ([Result.OK] + [Result.EXISTS] * 4) * 3
    assert (found.values == row).all() and len(store) == 3


@pytest.mark.parametrize("rule", [Uniform(-1, 2, seed=7), Normal(1, 0.5, seed=7)])
def test_drawn(folder, rule):
    n = 3000
    keys = make_keys(n)
    rows = []
    for name, order in (("one", keys), ("other", keys[::-1].copy())):
        with gpmstore.create(f"{folder}/{name}", executor=EXECUTOR) as store:
            rows.append(store.find_or_insert(order, rule).values)
            assert rows[-1].dtype == np.float32 and rows[-1].shape == (n, 32)
            out = np.zeros((n, 32), np.float32)
            assert store.find_or_insert(order, rule, out).found.all()
            assert np.array_equal(out, rows[-1])
    assert np.array_equal(rows[0], rows[1][::-1])  # of seed and key alone
    drawn = rows[0].astype(np.float64)
    assert abs(drawn.mean() - (0.5 if isinstance(rule, Uniform) else 1)) < 0.02
    assert abs(drawn.std() - (3 / 12**0.5 if isinstance(rule, Uniform) else 0.5)) < 0.02


@pytest.mark.parametrize("kind", [Uniform, Normal])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_drawn_in_part(folder, kind, dtype):
    keys = make_keys(20)
    with (gpmstore.create(folder + "/all", executor=EXECUTOR) as whole,
          gpmstore.create(folder + "/part", executor=EXECUTOR) as part):
        drawn = whole.find_or_insert(keys, kind(1, 2, seed=7, dtype=dtype)).values.copy()
        drawn[:, 7:] = 0
        rows = part.find_or_insert(keys, kind(1, 2, seed=7, dtype=dtype, elements=7)).values
        assert np.array_equal(rows, drawn)
        assert np.array_equal(part.find(keys, dtype=dtype).values, drawn)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_accumulate(path, rng, dtype):
    keys = make_keys(50)
    with gpmstore.create(path, value_size=24, executor=EXECUTOR) as store:
        width = 24 // np.dtype(dtype).itemsize
        model = rng.normal(size=(50, width)).astype(dtype)
        store.insert(keys, model)
        chosen = rng.integers(0, 60, 5000)
        rows = rng.normal(size=(5000, width)).astype(dtype)
        outcome = store.accumulate(make_keys(60)[chosen], rows)
        assert np.array_equal(outcome.results == Result.OK, chosen < 50)
        assert set(outcome.results[chosen >= 50].tolist()) <= {int(Result.NOT_FOUND)}
        for key, row in zip(chosen, rows):
            if key < 50:
                model[key] += row
        assert np.array_equal(store.find(keys, dtype=dtype).values, model)


def test_initial_values_that_are_none(store):
    keys = make_keys(1)
    with pytest.raises(TypeError, match="Constant: 'float'; give the bytes"):
        store.find_or_insert(keys, Constant(0.5))
    with pytest.raises(gpmstore.InvalidArgumentError, match="a value has 128"):
        store.find_or_insert(keys, Normal(elements=33))
    assert len(store) == 0


def test_accumulate_counters(path):
    with gpmstore.create(path, value_size=8, executor=EXECUTOR) as store:
        keys = make_keys(2)
        store.find_or_insert(keys, Constant(bytes(8)))
        store.accumulate(np.repeat(keys, 10), np.ones(20, np.uint64))
        assert store.find(keys, dtype=np.uint64).values.tolist() == [10, 10]


def test_accumulate_bytes_as_bfloat16(store):
    keys = make_keys(1)
    one = np.full(64, 0x3F80, np.uint16)  # 1 in bfloat16
    store.insert(keys, one.view(np.uint8).reshape(1, 128))
    store.accumulate(keys, one.reshape(1, 64), "bfloat16")
    assert (store.find(keys, dtype=np.uint16).values == 0x4000).all()  # 2


def test_accumulate_takes_no_other_numbers(store):
    """Which would be added as the bits that they have."""
    keys = make_keys(1)
    ones = np.ones((1, 32), np.float32)
    store.insert(keys, ones)
    for rows in (np.ones((1, 16)), np.ones((1, 32), np.int32), np.ones((1, 64), np.float16),
                 np.ones((1, 64), np.uint16), np.ones((1, 128), bool)):
        with pytest.raises(TypeError, match=f"rows: they are {rows.dtype.name}, and dtype is"):
            store.accumulate(keys, rows, "float32")
        with pytest.raises(TypeError, match="rows: they are"):
            store.accumulate_async(keys, rows, np.float32)
    assert (store.find(keys, dtype=np.float32).values == 1).all()
    for rows in (ones, ones.view(np.uint8), ones.view("V128"), ones.view([("a", "f4", 32)])):
        assert store.accumulate(keys, rows, "float32").failed == 0
    assert (store.find(keys, dtype=np.float32).values == 5).all()
    store.upsert(keys, np.zeros((1, 16), np.uint64))
    store.accumulate(keys, np.full((1, 16), -1), np.uint64)
    assert (store.find(keys, dtype=np.uint64).values == 2**64 - 1).all()


@pytest.mark.parametrize("rule, error, message", [
    (Normal(seed=-1), ValueError, "seed: -1"),
    (Normal(seed=2**64), ValueError, "seed: 18446744073709551616"),
    (Uniform(0, 1, seed=1.5), TypeError, "seed: 1.5; it must be an int"),
    (Normal("a"), TypeError, "mean: 'a'; it must be a number"),
    (Normal(0, None), TypeError, "deviation: None"),
    (Uniform([], 1), TypeError, "low: "),
    (Uniform(0, b"1"), TypeError, "high: b'1'"),
    (Normal(elements=1.5), TypeError, "elements: 1.5; it must be an int"),
])
def test_rules_that_are_no_numbers(store, rule, error, message):
    with pytest.raises(error, match=message):
        store.find_or_insert(make_keys(2), rule)
    assert len(store) == 0
    rule = Uniform(np.float32(0), np.int64(1), seed=np.uint64(2**64 - 1), elements=np.int8(1))
    assert store.find_or_insert(make_keys(2), rule).failed == 0


def test_bytes_of_numbers_of_this_machine(store):
    """A copy of bytes would keep addresses, or numbers that read as others."""
    order = ">" if sys.byteorder == "little" else "<"
    objects, foreign = np.array([None] * 16), np.zeros(32, order + "f4")
    mixed = np.zeros(1, [("O", "u1", 124), ("b", order + "i4")])
    dates = np.zeros(16, order + "M8[s]")
    for wrong, message in ((objects, "addresses"), (foreign, "byte order"), (mixed, "byte order"),
                           (dates, "byte order"), (memoryview(foreign), "byte order")):
        for call in (lambda: store.put(1, wrong), lambda: store.__setitem__(1, wrong),
                     lambda: store.find_or_insert(make_keys(1), Constant(wrong)),
                     lambda: store.update_where({}, values=wrong)):
            with pytest.raises(TypeError, match=message):
                call()
    assert len(store) == 0
    for right in (np.ones(32, np.float32), np.ones(1, [("O", "u1", 124), ("b", "i4")]),
                  bytearray(128), memoryview(bytes(256))[::2], np.zeros(1, "S128")):
        store.put(1, right)
        assert store[1] == bytes(memoryview(right))
    row = np.arange(16).astype("M8[s]")  # which has no buffer
    store[1] = row
    assert store[1] == row.tobytes()
    assert store.find_or_insert(make_keys(1), Constant(row)).values.tobytes() == row.tobytes()
    assert store.update_where({}, values=row[::-1]) == 2 and store[1] == row[::-1].tobytes()


def test_in_a_mixed_batch(store):
    keys = np.repeat(make_keys(1), 4)
    rows = np.arange(4, dtype=np.float32).repeat(32).reshape(4, 32) + 1
    ops = [Op.ACCUMULATE, Op.FIND_OR_INSERT, Op.ACCUMULATE, Op.FIND]
    mixed = store.apply(np.array([int(op) for op in ops]), keys, rows, element="float32",
                        dtype=np.float32)
    assert mixed.results.tolist() == [Result.NOT_FOUND, Result.OK, Result.OK, Result.OK]
    assert (mixed.values[1] == 2).all() and (mixed.values[3] == 5).all()


def test_bad_input(store):
    keys, rows = make_keys(2), make_values(2)
    with pytest.raises(TypeError, match="uint8"):
        store.accumulate(keys, rows)
    with pytest.raises(TypeError, match="rows"):
        store.accumulate(keys, None)
    with pytest.raises(TypeError, match="rows: 'list' is no array"):
        store.accumulate(keys, [[1.0] * 32] * 2)
    with pytest.raises(TypeError, match="initial"):
        store.find_or_insert(keys, None)
    with pytest.raises(gpmstore.InvalidArgumentError, match="must have 128"):
        store.find_or_insert(keys, Constant(bytes(5)))
    with pytest.raises(gpmstore.InvalidArgumentError, match="can't be drawn"):
        store.find_or_insert(keys, Uniform(2, 1))
    with pytest.raises(gpmstore.InvalidArgumentError, match="elements: -1"):
        store.find_or_insert(keys, Uniform(0, 1, elements=-1))
    with pytest.raises(TypeError, match="int8"):
        store.find_or_insert(keys, Uniform(0, 1, dtype=np.int8))
    assert len(store) == 0
