"""Batches in flight of stores that several processes have open together."""

import concurrent.futures
import gc
import os
import queue
import signal
import threading
import time

import numpy as np
import pytest

import gpmstore
from gpmstore import distributed

import ranks
from conftest import applied, make_keys
from test_distributed import VALUE_SIZE, opened, part_of


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


def work_log_that_waits(exchange, folder):
    tickets, refused = [], []

    def log(level, message):
        for ticket in tickets:
            with pytest.raises(gpmstore.BusyError, match="wait for itself"):
                ticket.wait()
            refused.append(message)

    n = 20000
    with opened(exchange, folder, log=log) as store:
        tickets.append(store.insert_async(make_keys(n), np.zeros((n, VALUE_SIZE), np.uint8)))
        assert tickets[0].wait().failed == 0
        tickets.clear()
    return len(refused)


def test_log_that_waits_for_the_ticket_that_tells_it(folder):
    assert ranks.run("pipes", 1, folder, work_log_that_waits, folder)[0] > 0


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


class Joined:
    """One of two ranks of a process, which calls `inside` in each exchange, if there is one."""

    ranks = 2

    def __init__(self, rank, queues):
        self.rank = rank
        self.queues = queues
        self.inside = None

    @classmethod
    def pair(cls):
        queues = [queue.Queue(), queue.Queue()]
        return [cls(rank, queues) for rank in range(2)]

    def all_to_all(self, send, receive):
        if self.inside is not None:
            self.inside()
        other = 1 - self.rank
        self.queues[other].put(bytes(send[other]))
        receive[self.rank][:] = send[self.rank]
        part = self.queues[self.rank].get(timeout=30)
        if part is None:
            raise ConnectionError(f"rank {other} has left")
        receive[other][:] = part

    def leave(self, why):
        self.queues[1 - self.rank].put(None)


def on_both(exchanges, folder, work, log=None):
    """What work(store, exchange) returns on each rank, a thread. log: of rank 0."""
    def one(exchange):
        with distributed.open_or_create(os.path.join(folder, "store"), value_size=VALUE_SIZE,
                                        shards=2, exchange=exchange, executor="cpu", threads=1,
                                        log=log if exchange.rank == 0 else None) as store:
            return work(store, exchange)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [future.result(timeout=60) for future in
                [pool.submit(one, exchange) for exchange in exchanges]]


def rows_of(keys):
    return np.ones((len(keys), VALUE_SIZE), np.uint8)


def test_a_ticket_that_is_collected_in_an_exchange_is_waited_for_later(folder):
    def work(store, exchange):
        keys = make_keys(100, first=100 * store.rank)
        ring = [store.upsert_async(keys, rows_of(keys))]
        ring.append(ring)
        collected = threading.Event()

        def collect():
            gc.collect()
            collected.set()

        exchange.inside = collect
        del ring
        second = store.find_async(keys)
        assert collected.wait(30)
        exchange.inside = None
        assert second.wait().found.all()
        return store.count()

    assert on_both(Joined.pair(), folder, work) == [200, 200]


def test_each_wait_raises_the_same(folder):
    class Enough(BaseException):
        pass

    def work(store, exchange):
        def raises():
            raise Enough("enough")

        keys = make_keys(10)
        if store.rank == 0:
            exchange.inside = raises
        ticket = store.upsert_async(keys, rows_of(keys))
        for _ in range(3):
            with pytest.raises(Enough if store.rank == 0 else gpmstore.IoError):
                ticket.wait()
        return ticket.done()

    assert on_both(Joined.pair(), folder, work) == [True, True]


def test_an_exchange_and_a_log_do_not_wait_for_their_own_batch(folder):
    errors, said = [], []
    stores = []

    def log(level, message):
        try:
            said.append(stores[0].stats()["items"] if stores else 0)
        except gpmstore.BusyError:  # told at the end of a call
            pass

    def work(store, exchange):
        if store.rank == 0:
            stores.append(store)

            def asks():
                try:
                    store.stats()
                except gpmstore.BusyError as error:
                    errors.append(error)

            exchange.inside = asks
        keys = make_keys(20000, first=20000 * store.rank)
        store.upsert_async(keys, rows_of(keys)).wait()  # it grows, and says so
        exchange.inside = None
        return store.count()

    exchanges = Joined.pair()
    assert on_both(exchanges, folder, work, log=log) == [40000, 40000]
    assert errors and any(said)


def test_a_fork_of_who_waits_is_refused(folder):
    held, go_on = threading.Event(), threading.Event()

    def work(store, exchange):
        keys = make_keys(10, first=10 * store.rank)
        if store.rank == 1:
            held.wait(30)
            assert store.upsert(keys, rows_of(keys)).failed == 0
            return True

        def hold():
            exchange.inside = None
            held.set()
            go_on.wait(30)

        exchange.inside = hold
        ticket = store.upsert_async(keys, rows_of(keys))
        waits = threading.Thread(target=ticket.wait)
        waits.start()
        held.wait(30)
        time.sleep(0.05)  # until it waits
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                ticket.wait()
            except gpmstore.UnsupportedError:
                os._exit(0)
            os._exit(1)
        go_on.set()
        waits.join()
        return os.waitpid(child, 0)[1] == 0

    assert on_both(Joined.pair(), folder, work) == [True, True]
