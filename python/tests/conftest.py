"""What the tests share: a folder for pools, a seed that is printed, keys, values, and a model."""

import importlib.util
import os
import random
import shutil
import tempfile

import numpy as np
import pytest

from gpmstore import Op, Result

EXECUTOR = os.environ.get("GPM_TEST_EXECUTOR") or "cpu"  # of the tests that do not need cpu
NO_TORCH = "torch is not installed"
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture(params=["pipes", pytest.param("torch", marks=pytest.mark.skipif(
    not HAS_TORCH, reason=NO_TORCH))])
def kind(request):
    """What joins ranks (ranks.run)."""
    return request.param


@pytest.fixture
def folder():
    shm = "/dev/shm"
    path = tempfile.mkdtemp(prefix="gpmstore_py_",
                            dir=shm if os.access(shm, os.W_OK) else None)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def path(folder):
    return os.path.join(folder, "test.pool")


@pytest.fixture
def rng():
    """Printed when a test fails; GPM_TEST_SEED replays it."""
    seed = int(os.environ.get("GPM_TEST_SEED") or random.randrange(2**32))
    print(f"GPM_TEST_SEED={seed}")
    return np.random.default_rng(seed)


def make_keys(n, key_size=8, first=0):
    """n different keys: uint64, or rows of bytes."""
    numbers = np.arange(first, first + n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    if key_size == 8:
        return numbers
    rows = np.zeros((n, key_size), np.uint8)
    word = min(key_size, 8)
    rows[:, :word] = numbers.view(np.uint8).reshape(n, 8)[:, :word]
    rows[:, -word:] = numbers[::-1].copy().view(np.uint8).reshape(n, 8)[:, :word]
    return rows


def make_values(n, value_size=128, salt=0):
    return ((np.arange(n * value_size, dtype=np.uint64) * np.uint64(2654435761) +
             np.uint64(salt)) >> np.uint64(7)).astype(np.uint8).reshape(n, value_size)


def applied(model, ops, keys, rows):
    """Applies operations to a dictionary, one by one. Returns results, and what is to be found."""
    results, values = [], []
    for op, key, row in zip(ops, keys, rows):
        there, result, value = key in model, Result.OK, None
        if op in (Op.INSERT, Op.FIND_OR_INSERT):
            result = Result.EXISTS if there else Result.OK
            model.setdefault(key, row)
        elif op == Op.UPSERT:
            model[key] = row
        elif not there:
            result = Result.NOT_FOUND
        elif op == Op.UPDATE:
            model[key] = row
        elif op == Op.ERASE:
            del model[key]
        elif op == Op.ACCUMULATE:
            model[key] = model[key] + row
        if op == Op.FIND_OR_INSERT or (op == Op.FIND and there):
            value = model[key]
        results.append(int(result))
        values.append(value)
    return results, values
