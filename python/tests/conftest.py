"""What the tests share: a folder for pools, a seed that is printed, and keys and values."""

import os
import random
import shutil
import tempfile

import numpy as np
import pytest


EXECUTOR = os.environ.get("GPM_TEST_EXECUTOR") or "cpu"  # of the tests that do not need cpu


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
