"""find_or_insert and accumulate."""

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
