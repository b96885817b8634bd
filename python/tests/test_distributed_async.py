"""Batches in flight of stores that several processes have open together."""

import os

import numpy as np
import pytest

import gpmstore
from gpmstore import Op, distributed

import ranks
from conftest import applied, make_keys

VALUE_SIZE = 32
KEYS = make_keys(200)


def opened(exchange, folder):
    return distributed.open_or_create(os.path.join(folder, "store"), value_size=VALUE_SIZE,
                                      shards=4, exchange=exchange, executor="cpu", threads=1)


def part_of(seed, rank, number):
    rng = np.random.default_rng([seed, rank, number])
    n = int(rng.integers(0, 400))
    return (rng.integers(0, len(Op), n).astype(np.uint8), KEYS[rng.integers(0, len(KEYS), n)],
            rng.integers(0, 100, (n, VALUE_SIZE // 4)).astype(np.float32))


def work_in_flight(exchange, folder, seed, batches):
    with opened(exchange, folder) as store:
        rng = np.random.default_rng([seed, store.rank])
        found = []
        for number in range(batches):
            call = store.apply if rng.integers(4) == 0 else store.apply_async
            found.append(call(*part_of(seed, store.rank, number), element=np.float32,
                              dtype=np.float32))
        model = {}
        for number, mine in enumerate(found):
            if isinstance(mine, gpmstore.Ticket):
                mine = mine.wait()
            for rank in range(store.ranks):
                ops, keys, rows = part_of(seed, rank, number)
                results, values = applied(model, ops, keys.tolist(), rows)
                if rank != store.rank:
                    continue
                assert mine.results.tolist() == results
                assert all(value is None or (value == row).all()
                           for value, row in zip(values, mine.values))
        return len(model), store.count()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_batches_in_flight_are_sequential(kind, number, folder, rng):
    answers = ranks.run(kind, number, folder, work_in_flight, folder, int(rng.integers(2**31)), 20)
    assert all(items == counted for items, counted in answers)


def work_each_call(exchange, folder):
    with opened(exchange, folder) as store:
        keys = make_keys(100, first=100 * store.rank)
        rows = np.full((100, VALUE_SIZE // 4), store.rank, np.float32)
        inserted = store.insert_async(keys, rows)
        again = store.insert_async(keys, rows)
        assert again.wait().failed == 100 and inserted.done() and inserted.wait().failed == 0
        assert store.update_async(keys, rows + 1).wait().failed == 0
        assert store.accumulate_async(keys, rows).wait().failed == 0
        assert (store.find_async(keys, dtype=np.float32).wait().values == 2 * store.rank + 1).all()
        assert store.upsert_async(keys[:50], rows[:50]).wait().failed == 0
        store.erase_async(keys[50:])  # is dropped
        made = store.find_or_insert_async(keys, gpmstore.Uniform(1, 2, seed=5)).wait()
        assert made.inserted.sum() == 50
        # A rank that can't ask for it tells the others, behind what is in flight.
        before = store.find_async(keys)
        with pytest.raises(gpmstore.InvalidArgumentError, match="rows|rank 1 is not valid"):
            store.upsert_async(keys, rows[1:] if store.rank == 1 else rows).wait()
        assert before.wait().found.all()
        last = store.find_async(keys)
    return bool(last.wait().found.all())


def test_each_call(kind, folder):
    assert ranks.run(kind, 2, folder, work_each_call, folder) == [True, True]
