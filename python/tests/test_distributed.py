"""Stores that several processes have open together."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import gpmstore
from gpmstore import Op, distributed

import ranks
from conftest import HAS_TORCH, NO_TORCH, applied, make_keys, make_values

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples/ranks/count.py")
sys.path.insert(0, str(ROOT / "examples/ranks"))
import count

VALUE_SIZE = 32
KEYS = make_keys(200)


def opened(exchange, folder, shards=5, **options):
    return distributed.open_or_create(os.path.join(folder, "store"), value_size=VALUE_SIZE,
                                      shards=shards, exchange=exchange, executor="cpu", threads=1,
                                      **options)


def part_of(seed, rank, round_):
    """A rank's part of a batch of all kinds: some keys are of all ranks."""
    rng = np.random.default_rng([seed, rank, round_])
    n = int(rng.integers(0, 400))
    ops = rng.integers(0, len(Op), n).astype(np.uint8)
    keys = KEYS[rng.integers(0, len(KEYS), n)]
    rows = rng.integers(0, 100, (n, VALUE_SIZE // 4)).astype(np.float32)
    return ops, keys, rows


def items_of(store):
    """Of this rank's shards."""
    items = {}
    store.for_each(lambda keys, values: items.update(zip(keys.tolist(), map(bytes, values))))
    return items


def work_as_a_dictionary(exchange, folder, seed, rounds):
    """Returns what all ranks should have, and what this one has."""
    with opened(exchange, folder) as store:
        assert (store.rank, store.ranks, store.shards) == (exchange.rank, exchange.ranks, 5)
        assert (store.key_size, store.value_size) == (8, VALUE_SIZE)
        there = store.find(KEYS, dtype=np.float32)
        model = dict(zip(KEYS[there.ok].tolist(), there.values[there.ok]))
        for round_ in range(rounds):
            ops, keys, rows = part_of(seed, store.rank, round_)
            found = store.apply(ops, keys, rows, element=np.float32, dtype=np.float32)
            for rank in range(store.ranks):
                ops, keys, rows = part_of(seed, rank, round_)
                results, values = applied(model, ops, keys.tolist(), rows)
                if rank != store.rank:
                    continue
                assert found.results.tolist() == results
                assert all(value is None or (value == row).all()
                           for value, row in zip(values, found.values))
        return {key: row.tobytes() for key, row in model.items()}, items_of(store)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_parts_are_one_batch(kind, number, folder, rng):
    seed = int(rng.integers(2**31))
    answers = ranks.run(kind, number, folder, work_as_a_dictionary, folder, seed, 6)
    contents = {}
    for _, items in answers:
        assert not contents.keys() & items.keys()
        contents.update(items)
    assert all(model == contents for model, _ in answers)
    # Another number of ranks, and one process alone, find the same.
    with gpmstore.open(os.path.join(folder, "store"), executor="cpu") as store:
        assert dict(store.items()) == contents and store.shards == 5
        assert store.stats()["recovery"]["was_clean"]
    again = ranks.run(kind, number % 3 + 1, folder, work_as_a_dictionary, folder, seed + 1, 1)
    assert {key: value for _, items in again for key, value in items.items()} == again[0][0]


def work_each_call(exchange, folder):
    rank, n = exchange.rank, exchange.ranks
    path = os.path.join(folder, "calls")
    store = distributed.create(path, value_size=VALUE_SIZE, shards=n, exchange=exchange,
                               executor="cpu", attributes={"first": (0, 8)})
    keys = make_keys(300, first=300 * rank)
    rows = make_values(300, VALUE_SIZE, rank)
    others = make_keys(300, first=300 * ((rank + 1) % n))
    assert store.insert(keys, rows).failed == 0
    assert store.insert(others, rows).failed == 300
    values, found = store.find(others)
    assert found.all() and (values == make_values(300, VALUE_SIZE, (rank + 1) % n)).all()
    assert store.contains(make_keys(10, first=10**6)).sum() == 0
    # Only one rank has anything to do; and each something else.
    empty = keys[:0]
    assert store.find(empty if rank == 0 else keys).count == (0 if rank == 0 else 300)
    if rank % 2 == 0:
        assert store.update(keys, rows[::-1].copy()).failed == 0
    else:
        assert store.find(keys).count == 300
    assert store.upsert(keys[:10], rows[:10]).failed == 0
    assert store.erase(others[:100]).failed == 0
    assert store.erase(keys[:100]).failed == 100
    out, results = np.zeros((300, VALUE_SIZE), np.uint8), np.zeros(300, np.uint8)
    answer = store.find_or_insert(keys, rows, out, results=results)
    assert answer.values is out and answer.results is results and answer.inserted.sum() == 100
    assert (out[:100] == rows[:100]).all()
    drawn = store.find_or_insert(make_keys(50, first=10**6), gpmstore.Uniform(-1, 1, seed=3))
    assert drawn.inserted.all() == (rank == 0) and drawn.values.std() > 0.1
    ones = np.ones((50, VALUE_SIZE // 4), np.float32)
    assert store.accumulate(make_keys(50, first=10**6), ones).failed == 0
    sums = drawn.values
    for _ in range(n):
        sums = sums + np.float32(1)
    assert (store.find(make_keys(50, first=10**6), dtype=np.float32).values == sums).all()
    store.reserve(5000)
    more = make_keys(1000, first=2 * 10**6 + 1000 * rank)
    assert store.bulk_load(more, make_values(1000, VALUE_SIZE)).failed == 0
    store.compact()
    stats, exchanged = store.stats(), store.exchanged()
    assert exchanged["asked"] > 2000 and exchanged["carried_out"] > 0
    assert 0 < exchanged["sent"] <= exchanged["asked"] and exchanged["local_seconds"] > 0
    assert stats["executor"] == "cpu" and stats["attributes"] == {"first": (0, 8)}
    seen = []
    assert not store.for_each(lambda k, v: seen.append(len(k)) or False, rows=7) and seen == [7]
    assert f"rank {rank} of {n}>" in repr(store)
    store.close()
    store.close()
    assert store.closed
    with pytest.raises(gpmstore.InvalidArgumentError, match="closed"):
        store.find(keys)
    return stats["items"]


def test_each_call(kind, folder):
    assert sum(ranks.run(kind, 2, folder, work_each_call, folder)) == 2 * 300 + 50 + 2 * 1000


def work_refused(exchange, folder):
    rank, texts = exchange.rank, []
    with opened(exchange, folder) as store:
        keys, rows = make_keys(20), make_values(20, VALUE_SIZE)
        store.insert(keys, rows)

        def refused(call, wrong, error):
            try:
                call(*wrong) if rank == 1 else call(keys, rows)
            except gpmstore.InvalidArgumentError as other:
                texts.append(str(other))
            except error:
                texts.append("mine")
            else:
                texts.append("not refused")

        refused(store.upsert, (keys, rows[:, :-1].copy()), gpmstore.InvalidArgumentError)
        refused(store.upsert, (keys, rows.T), gpmstore.InvalidArgumentError)
        refused(store.upsert, (keys.astype(np.float64), rows), TypeError)
        refused(store.upsert, (keys,), TypeError)
        refused(store.upsert, (None, rows), TypeError)
        refused(store.bulk_load, (keys, rows[:3]), gpmstore.InvalidArgumentError)
        initial = gpmstore.Uniform(0, rank, seed=1)
        with pytest.raises(gpmstore.InvalidArgumentError, match="different initial values"):
            store.find_or_insert(keys, initial)
        with pytest.raises(gpmstore.NoSpaceError):
            store.reserve(2**50)
        # The store goes on, and nothing was done.
        values, found = store.find(keys)
        assert found.all() and (values == rows).all()
    return texts


def test_what_one_rank_can_not_ask_for_is_told_to_all(kind, folder):
    first, second, third = ranks.run(kind, 3, folder, work_refused, folder)
    assert len(first) == 6 and first == third
    assert all("rank 1 is not valid" in text for text in first)
    assert second[2:5] == ["mine"] * 3 and "values" in second[0] and "contiguous" in second[1]


def work_until_one_dies(exchange, folder, how):
    rank, ranks_ = exchange.rank, exchange.ranks
    store = opened(exchange, folder)
    keys, rows = make_keys(2000, first=2000 * rank), make_values(2000, VALUE_SIZE, rank)
    store.upsert(keys, rows)
    if rank == ranks_ - 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "closes":
            store.close()
        if how == "sleeps":
            time.sleep(20)
        if how == "raises":
            with pytest.raises(ZeroDivisionError):
                with store:
                    1 // 0
        return None
    began = time.monotonic()
    with pytest.raises(gpmstore.IoError, match="exchange: .*rank") as raised:
        while True:
            store.upsert(keys, rows)
    seconds = time.monotonic() - began
    with pytest.raises(gpmstore.IoError, match="exchange: "):
        store.find(keys)
    assert store.stats()["items"] > 0
    store.close()
    return str(raised.value), seconds


@pytest.mark.parametrize("how", ["killed", "closes", "raises", "sleeps"])
def test_a_lost_rank_ends_the_calls_of_the_others(kind, folder, how):
    timeout = 8.0 if how == "sleeps" else 60.0
    answers = ranks.run(kind, 3, folder, work_until_one_dies, folder, how, timeout=timeout)
    for text, seconds in answers[:2]:
        assert seconds < 30, text  # without waiting for a minute
    # What was acknowledged is there, for any number of ranks.
    with gpmstore.open(os.path.join(folder, "store"), executor="cpu") as store:
        for rank in range(3):
            values, found = store.find(make_keys(2000, first=2000 * rank))
            assert found.all() and (values == make_values(2000, VALUE_SIZE, rank)).all()


def work_opening(exchange, folder):
    rank = exchange.rank
    path = os.path.join(folder, "none")
    try:
        distributed.open(path, exchange=exchange, executor="cpu")
    except gpmstore.NotFoundError as error:
        assert path in str(error)
        return "not found"
    raise AssertionError("opened")


def work_more_ranks(exchange, folder):
    with pytest.raises(gpmstore.InvalidArgumentError, match="3 ranks"):
        opened(exchange, folder, shards=2)
    return not os.path.exists(os.path.join(folder, "store"))


def work_no_shards(exchange, folder):
    with pytest.raises(gpmstore.InvalidArgumentError, match="shards"):
        distributed.create(os.path.join(folder, "store"), exchange=exchange)


def work_wrong_option(exchange, folder):
    """One rank gives an option that there is none of."""
    if exchange.rank == 1:
        with pytest.raises(TypeError, match="no option"):
            opened(exchange, folder, colour="red")
        return None
    with pytest.raises(gpmstore.IoError, match="rank 1"):
        opened(exchange, folder)
    return None


def test_opening_that_fails(kind, folder):
    assert ranks.run(kind, 2, folder, work_opening, folder) == ["not found"] * 2
    assert ranks.run(kind, 3, folder, work_more_ranks, folder) == [True] * 3
    ranks.run(kind, 2, folder, work_no_shards, folder)
    ranks.run(kind, 2, folder, work_wrong_option, folder)


def work_different_calls(exchange, folder):
    store = opened(exchange, folder)
    with pytest.raises(gpmstore.IoError, match="exchange: rank"):
        if exchange.rank == 0:
            store.reserve(100)
        else:
            store.find(KEYS)
    store.close()


def test_ranks_that_make_different_calls(kind, folder):
    ranks.run(kind, 2, folder, work_different_calls, folder, timeout=8.0)


def work_example(exchange, folder):
    with distributed.open_or_create(os.path.join(folder, "counts"), value_size=8, shards=3,
                                    exchange=exchange, executor="cpu") as store:
        for _ in range(2):
            count.count(store, np.arange(100, dtype=np.uint64) % np.uint64(10 + store.rank))
        return store.find(np.arange(11, dtype=np.uint64), dtype=np.uint64).values.tolist()


def test_the_example(kind, folder):
    counts = sum(np.bincount(np.arange(100) % modulus, minlength=11) for modulus in (10, 11))
    assert ranks.run(kind, 2, folder, work_example, folder) == [(2 * counts).tolist()] * 2


@pytest.mark.skipif(not HAS_TORCH, reason=NO_TORCH)
def test_the_example_under_torchrun(folder):
    for processes in (2, 1):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
             str(processes), EXAMPLE, "--folder", os.path.join(folder, "counts"), "--numbers",
             "1000", "--executor", "cpu"], text=True, capture_output=True, timeout=120,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
        print(done.stdout, done.stderr)
        assert done.returncode == 0
        for rank in range(processes):
            assert f"rank {rank} of {processes}" in done.stdout
        assert done.stdout.count(f"{1000 * processes} numbers counted") == processes


def work_torch(exchange, folder):
    import torch
    import torch.distributed

    rank = exchange.rank
    keys = torch.arange(100 * rank, 100 * rank + 100)
    rows = torch.full((100, VALUE_SIZE // 4), float(rank))
    # A group of the user's own, of some ranks, and what is wrong with others.
    group = torch.distributed.new_group([1, 2], backend="gloo")
    if rank > 0:
        some = distributed.TorchExchange(group, timeout=20)
        assert (some.rank, some.ranks, some.device) == (rank - 1, 2, None)
        with distributed.create(os.path.join(folder, "some"), value_size=VALUE_SIZE, shards=2,
                                exchange=some) as store:
            assert store.upsert(keys, rows).failed == 0
            values, found = store.find(keys, dtype=torch.float32)
            assert found.all() and torch.equal(values, rows)
    else:
        with pytest.raises(gpmstore.InvalidArgumentError, match="none of it"):
            distributed.TorchExchange(group)
    with pytest.raises(gpmstore.InvalidArgumentError, match="initialized already"):
        distributed.TorchExchange(init_method="file:///nowhere")
    with pytest.raises(gpmstore.InvalidArgumentError, match="timeout"):
        distributed.TorchExchange(timeout=0)
    # Its own is another one: the user's goes on.
    with opened(exchange, folder) as store:
        assert store.upsert(keys, rows).failed == 0
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not HAS_TORCH, reason=NO_TORCH)
def test_tensors_and_groups_of_torch(folder):
    ranks.run("torch", 3, folder, work_torch, folder)


@pytest.mark.skipif(not HAS_TORCH, reason=NO_TORCH)
def test_torch_without_torchrun():
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    program = ("import gpmstore\n"
               "try:\n    gpmstore.distributed.TorchExchange()\n"
               "except gpmstore.InvalidArgumentError as error:\n    print(error)\n")
    done = subprocess.run([sys.executable, "-c", "import gpmstore.distributed\n" + program],
                          env=environment, check=True, capture_output=True, text=True)
    assert "torchrun" in done.stdout and "init_method" in done.stdout


# One rank: what the exchange is told, and one thread at a time.


class Alone:
    """An exchange of one rank, which counts what it is asked for."""

    rank, ranks = 0, 1

    def __init__(self, fails=None):
        self.calls = 0
        self.left = []
        self.views = []
        self.fails = fails

    def all_to_all(self, send, receive):
        self.calls += 1
        if self.fails is not None and self.calls > self.fails[0]:
            raise self.fails[1]
        self.views = [*send, *receive]
        receive[0][:] = send[0]

    def leave(self, why):
        self.left.append(why)


def test_an_exchange_is_used_as_its_protocol_says(folder):
    exchange = Alone()
    store = opened(exchange, folder)
    assert exchange.calls > 0 and exchange.left == []
    with pytest.raises(ValueError, match="released"):
        exchange.views[0][0]
    store.close()
    assert exchange.left == [""]
    with pytest.raises(gpmstore.InvalidArgumentError, match="rank"):
        wrong = Alone()
        wrong.rank = 1
        opened(wrong, folder)
    for wrong_option, error in (({"colour": "red"}, TypeError), ({"snapshot": 1}, TypeError),
                                ({"executor": "gpu"}, gpmstore.InvalidArgumentError)):
        exchange = Alone()
        with pytest.raises(error):
            distributed.open(folder, exchange=exchange, **wrong_option)
        assert exchange.left == [""]


@pytest.mark.parametrize("raised, expected", [
    (ValueError("no cable"), gpmstore.IoError), (ValueError(), gpmstore.IoError),
    (gpmstore.BusyError("busy"), gpmstore.IoError), (KeyboardInterrupt(), KeyboardInterrupt)])
def test_what_an_exchange_raises(folder, raised, expected):
    exchange = Alone()
    with opened(exchange, folder) as store:
        exchange.fails = (exchange.calls, raised)
        with pytest.raises(expected) as caught:
            store.reserve(10)
        if expected is gpmstore.IoError:
            assert str(caught.value) == f"exchange: {str(raised) or 'ValueError'}"
        assert len(exchange.left) == 1
        calls = exchange.calls
        with pytest.raises(gpmstore.IoError, match="exchange: "):
            store.reserve(10)
        assert exchange.calls == calls
    assert len(exchange.left) == 1


@pytest.mark.parametrize("call", [0, 1, 2, 3, 4])
def test_an_exchange_that_fails_while_a_store_is_opened(folder, call):
    with pytest.raises(gpmstore.IoError, match="exchange: no cable"):
        opened(Alone((call, ValueError("no cable"))), folder).reserve(10)
    with gpmstore.open_or_create(os.path.join(folder, "store"), value_size=VALUE_SIZE, shards=5,
                                 executor="cpu") as store:
        assert len(store) == 0


def test_one_thread_at_a_time(folder):
    keys, rows = make_keys(10), make_values(10, VALUE_SIZE)
    said = []

    def log(level, message):
        said.append(_error_of(stores[0].stats) if stores else None)

    stores = []
    with opened(Alone(), folder, log=log) as store:
        stores.append(store)
        store.upsert(keys, rows)
        inside = []

        def visit(k, v):
            for call in (store.stats, lambda: store.find(keys), store.close):
                with pytest.raises(gpmstore.BusyError, match="one at a time"):
                    call()
            thread = threading.Thread(target=lambda: inside.append(_error_of(store.stats)))
            thread.start()
            thread.join()

        store.for_each(visit)
        assert isinstance(inside[0], gpmstore.BusyError) and not store.closed
        with pytest.raises(ZeroDivisionError):
            store.for_each(lambda k, v: 1 // 0)
        store.upsert(make_keys(50000), make_values(50000, VALUE_SIZE))  # it grows, and says so
        assert any(isinstance(error, gpmstore.BusyError) for error in said)
        assert store.find(keys).count == 10


def _error_of(call):
    try:
        call()
    except Exception as error:
        return error
    return None


def test_a_fork_is_refused(folder):
    with opened(Alone(), folder) as store:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            refused = isinstance(_error_of(store.stats), gpmstore.UnsupportedError)
            store.close()
            os._exit(0 if refused else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert store.upsert(make_keys(5), make_values(5, VALUE_SIZE)).failed == 0


def test_a_program_that_ends_without_closing(folder):
    program = ("import sys; sys.path.insert(0, sys.argv[1])\n"
               "import test_distributed as t\n"
               "store = t.opened(t.Alone(), sys.argv[2])\n"
               "store.upsert(t.make_keys(5), t.make_values(5, t.VALUE_SIZE))\n")
    subprocess.run([sys.executable, "-c", program, os.path.dirname(__file__), folder], check=True)
    with gpmstore.open(os.path.join(folder, "store"), executor="cpu") as store:
        assert len(store) == 5 and store.stats()["recovery"]["was_clean"]


def test_nccl_where_there_is_none(folder):
    exchange = Alone()
    with pytest.raises(gpmstore.UnsupportedError, match="NCCL|CUDA device"):
        opened(exchange, folder, nccl=True)
    assert exchange.left == [""]
    assert not os.path.exists(os.path.join(folder, "store"))


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch(folder):
    with pytest.raises(gpmstore.UnsupportedError, match="torch is not installed"):
        distributed.create(os.path.join(folder, "store"), shards=1)
