"""Processes count together how often each number comes in what they have each.

    torchrun --nproc-per-node 4 examples/ranks/count.py --folder /dev/shm/counts

The same as main.cc does over MPI. Counts stay in the folder: a second run adds to them.
"""

import argparse

import numpy as np

import gpmstore
from gpmstore import distributed


def count(store, numbers):
    """Adds up how often each number comes. All ranks call it, each with numbers of its own."""
    zero = gpmstore.Constant(np.zeros(1, np.uint64))
    store.find_or_insert(numbers, zero, out=False)
    assert store.accumulate(numbers, np.ones(len(numbers), np.uint64)).failed == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="that all processes reach by this name")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--numbers", type=int, default=100_000, help="of each process")
    parser.add_argument("--executor", default="auto")
    given = parser.parse_args()
    with distributed.open_or_create(given.folder, value_size=8, shards=given.shards,
                                    executor=given.executor) as store:
        before = store.find(np.arange(1000, dtype=np.uint64), dtype=np.uint64)
        squares = np.arange(given.numbers, dtype=np.uint64) ** np.uint64(2)
        count(store, (squares + np.uint64(store.rank)) % np.uint64(1000))
        after = store.find(np.arange(1000, dtype=np.uint64), dtype=np.uint64)
        more = after.values[after.ok].sum() - before.values[before.ok].sum()
        print(f"rank {store.rank} of {store.ranks}: {store.stats()['items']} items of its own; "
              f"{more} numbers counted by all\n", end="", flush=True)
        assert more == store.ranks * given.numbers


if __name__ == "__main__":
    main()
