"""Opening and closing, tickets, threads, forks, and what the garbage collector takes."""

import gc
import inspect
import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import gpmstore
from conftest import make_keys, make_values
from gpmstore import distributed
from gpmstore._options import ONLY_CREATED, CreateOptions


@pytest.fixture
def store(path):
    with gpmstore.create(path, executor="cpu", threads=2) as opened:
        yield opened


def test_errors_of_opening(path, folder):
    with pytest.raises(gpmstore.NotFoundError) as raised:
        gpmstore.open(path)
    assert isinstance(raised.value, (gpmstore.Error, FileNotFoundError))
    assert raised.value.code == gpmstore.ErrorCode.NOT_FOUND and path in str(raised.value)
    with gpmstore.create(path, executor="cpu"):
        with pytest.raises(FileExistsError) as raised:
            gpmstore.create(path)
        assert raised.value.code == gpmstore.ErrorCode.EXISTS
        for again in (gpmstore.open, gpmstore.open_or_create, gpmstore.Reader):
            with pytest.raises(gpmstore.BusyError) as raised:
                again(path)
            assert raised.value.code == gpmstore.ErrorCode.BUSY
    with pytest.raises(gpmstore.InvalidArgumentError, match="keys of 8 bytes"):
        gpmstore.open_or_create(path, key_size=16)
    broken = os.path.join(folder, "broken")
    with open(broken, "wb") as file:
        file.write(b"x" * 100000)
    with pytest.raises(gpmstore.DamagedError):
        gpmstore.open(broken)
    assert gpmstore.ErrorCode.DAMAGED == gpmstore.DamagedError.code
    if os.geteuid() != 0:
        os.chmod(broken, 0)
        with pytest.raises(OSError):
            gpmstore.open(broken)


@pytest.mark.parametrize("name, error, message", [
    ("new\0.pool", ValueError, "embedded null byte"), (b"new\0.pool", ValueError, "null byte"),
    (b"new\xff.pool", gpmstore.InvalidArgumentError, "has to be UTF-8"),
    ("new\udcff.pool", gpmstore.InvalidArgumentError, "has to be UTF-8")])
def test_paths_that_name_another_file(path, folder, name, error, message):
    given = os.path.join(os.fsencode(folder) if isinstance(name, bytes) else folder, name)
    with gpmstore.create(path, value_size=8, executor="cpu") as store:
        for call in (gpmstore.create, gpmstore.open, gpmstore.open_or_create, gpmstore.Reader,
                     lambda file: gpmstore.restore(file, path),
                     lambda file: gpmstore.restore([file], path),
                     lambda file: gpmstore.restore(path, file),
                     lambda file: gpmstore.reshard(file, 2),
                     lambda file: gpmstore.create(path + "2", snapshot=file),
                     lambda file: gpmstore.create(path + "2", snapshot={"path": file}),
                     store.snapshot, lambda file: store.snapshot(path + "3", base=file),
                     lambda file: store.export(changed_since=file)):
            with pytest.raises(error, match=message):
                call(given)
    assert os.listdir(folder) == [os.path.basename(path)]


def test_every_error_code_has_a_class():
    classes = {kind.code for kind in gpmstore.Error.__subclasses__()}
    assert classes == set(gpmstore.ErrorCode)
    assert issubclass(gpmstore.InvalidArgumentError, ValueError)
    assert issubclass(gpmstore.IoError, OSError) and issubclass(gpmstore.GpuError, RuntimeError)


@pytest.mark.parametrize("options, error, message", [
    ({"key_size": 0}, ValueError, "between 1 and 255"),
    ({"key_size": 256}, ValueError, "between 1 and 255"),
    ({"value_size": 0}, ValueError, "0"),
    ({"value_size": -1}, TypeError, "value_size"),
    ({"geometry": "3L"}, ValueError, "3L"),
    ({"growth_pause": float("nan")}, ValueError, "growth_pause nan"),
    ({"growth_pause": -1.0}, ValueError, "growth_pause -1"),
    ({"growth_pause": float("inf")}, ValueError, "growth_pause inf"),
    ({"executor": "gpu"}, ValueError, "'auto', 'cpu' or 'cuda'"),
    ({"cache_policy": "best"}, ValueError, "best"),
    ({"threads": "two"}, TypeError, "threads: it can't be 'two'"),
    ({"log": 5}, TypeError, "log"),
    ({"snapshot": 5}, TypeError, "path or a dict"),
    ({"snapshot": {"path": "f", "often": True}}, TypeError, "no 'often'"),
    ({"snapshot": {"path": "f", 1: 2}}, TypeError, "snapshot: the name of an option: .* be 1"),
    ({"snapshot": {"path": "f", "interval": 0.0}}, ValueError, "interval"),
    ({"snapshot": {"restore": True}}, TypeError, "must have a path"),
    ({"snapshot": {"interval": 0.01}}, TypeError, "must have a path"),
    ({"snapshot": {"path": "", "interval": 0.01}}, TypeError, "must have a path"),
    ({"snapshot": ""}, TypeError, "must have a path"),
    ({"thread": 2}, TypeError, "there is no option 'thread'"),
    ({"executor": "cpu", "cache_fraction": 2.0}, ValueError, "cache"),
    ({"executor": "cpu", "cache_fraction": 0.1}, ValueError, "without a directory"),
    ({"directory": False, "cache_policy": "lru"}, ValueError, "switch the directory on"),
])
def test_bad_options(path, options, error, message):
    with pytest.raises(error, match=message):
        gpmstore.create(path, **options)
    assert not os.path.exists(path)


def test_options_that_only_a_pool_that_is_created_takes(path):
    gpmstore.create(path, executor="cpu").close()
    assert {"attributes", "geometry", "overwrite"} < ONLY_CREATED and "threads" not in ONLY_CREATED
    for name in ONLY_CREATED:
        with pytest.raises(TypeError, match=f"{name}: only a pool that is created takes it"):
            gpmstore.open(path, **{name: None})


def test_all_options(path):
    with gpmstore.create(path, 16, 64, geometry="2L-2H-4S", initial_capacity=1000, hash_seed=7,
                         executor="cpu", threads=1, max_bytes=1 << 26, growth=1.5, growth_pause=0.0,
                         grow_above=0.8, compact_below=0.2, device=0, directory=True,
                         cache_policy="random", cache_fraction=0.1, cache_bytes=1 << 20,
                         cache_refresh_interval=1000, access_by_address=False,
                         access_combine=False, access_dealt_up_to=1 << 20, log=None) as store:
        stats = store.stats()
        assert stats["geometry"] == "2L-2H-4S" and stats["cache"]["directory"]
        assert stats["capacity_slots"] >= 1000 and stats["threads"] == 1
        assert repr(store) == (f"<gpmstore.Store {path!r}, keys of 16 bytes, values of 64>")


def test_no_argument_has_the_name_of_an_option():
    for module in (gpmstore, distributed):
        for name in ("create", "open", "open_or_create", "restore"):
            own = inspect.signature(getattr(module, name)).parameters
            assert not own.keys() & CreateOptions.__annotations__.keys(), name


def test_cuda_executor_without_a_gpu(path):
    try:
        gpmstore.create(path, executor="cuda").close()
    except gpmstore.UnsupportedError as error:
        assert error.code == gpmstore.ErrorCode.UNSUPPORTED
        assert not os.path.exists(path)


def test_pinned():
    with gpmstore.create("pinned:", executor="cpu") as store:
        store.put(1, bytes(128))
        assert not store.stats()["medium"]["survives_process_crash"]


def test_open_or_create(path):
    with gpmstore.open_or_create(path, value_size=8, executor="cpu") as store:
        store.put(5, b"12345678")
    with gpmstore.open_or_create(path, value_size=8, executor="cpu") as store:
        assert store[5] == b"12345678"


def test_closed_store(store):
    keys = make_keys(3)
    ticket = store.find_async(keys)
    store.close()
    store.close()
    assert store.closed and "closed" in repr(store)
    assert ticket.wait().failed == 3
    for call in (lambda: store.find(keys), lambda: store.insert(keys, make_values(3)),
                 lambda: store.bulk_load(keys, make_values(3)), lambda: store.get(1),
                 lambda: store.put(1, bytes(128)), lambda: store.delete(1), lambda: len(store),
                 lambda: store.reserve(10), store.compact, store.stats, store.refresh_cache,
                 lambda: store.snapshot("/none/file"), lambda: list(store.items()), lambda: store.for_each(print)):
        with pytest.raises(gpmstore.InvalidArgumentError, match="closed"):
            call()
    assert store.key_size == 8


def test_context_manager_closes_after_an_error(path):
    with pytest.raises(RuntimeError, match="of the user"):
        with gpmstore.create(path, executor="cpu") as store:
            raise RuntimeError("of the user")
    assert store.closed


def test_tickets(store):
    keys, values = make_keys(500), make_values(500)
    tickets = [store.insert_async(keys, values), store.update_async(keys, values),
               store.upsert_async(keys, values), store.find_async(keys),
               store.apply_async(np.zeros(500, np.uint8), keys), store.erase_async(keys)]
    for ticket in tickets:
        outcome = ticket.wait()
        assert ticket.wait() is outcome and outcome is ticket.outcome and outcome.failed == 0
    assert np.array_equal(tickets[3].outcome.values, values)
    threads = [threading.Thread(target=tickets[0].wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_tickets_keep_arrays_and_store(path):
    store = gpmstore.create(path, executor="cpu")
    keys = np.arange(1000, dtype=np.uint64)
    gone, store_gone = weakref.ref(keys), weakref.ref(store)
    ticket = store.insert_async(keys, make_values(1000))
    del keys, store
    gc.collect()
    assert gone() is not None and store_gone() is not None
    assert ticket.wait().failed == 0
    del ticket
    gc.collect()
    assert gone() is None and store_gone() is None
    with gpmstore.open(path, executor="cpu") as store:  # it was closed, in order
        assert len(store) == 1000 and store.stats()["recovery"]["was_clean"]


def test_tickets_that_nobody_waits_for(store):
    store.insert_async(make_keys(1000), make_values(1000))
    assert len(store) == 1000


def test_log_that_knows_its_store(path):
    class Owner:
        def __init__(self):
            self.lines = []
            self.store = gpmstore.create(path, executor="cpu", log=self.tell)

        def tell(self, level, message):
            self.lines.append((level, message, len(self.store)))
            with pytest.raises(gpmstore.BusyError, match="close"):
                self.store.close()

    owner = Owner()
    owner.store.insert(make_keys(20000), make_values(20000))
    assert owner.lines and all(level in ("info", "warning") for level, _, _ in owner.lines)
    assert any("resize" in message for _, message, _ in owner.lines)
    gone = weakref.ref(owner.store)
    del owner
    gc.collect()
    assert gone() is None
    gpmstore.open(path, executor="cpu").close()


def test_log_that_waits_for_the_ticket_that_tells_it(path):
    tickets, refused = [], []

    def log(level, message):
        for ticket in tickets:
            assert not ticket.done()
            with pytest.raises(gpmstore.BusyError, match="wait for itself"):
                ticket.wait()
            refused.append(message)

    with gpmstore.create(path, executor="cpu", log=log) as store:
        tickets.append(store.insert_async(make_keys(20000), make_values(20000)))
        waiting = threading.Thread(target=tickets[0].wait, daemon=True)
        waiting.start()
        waiting.join(timeout=60)
        assert not waiting.is_alive() and refused
        assert tickets.pop().wait().failed == 0


@pytest.mark.parametrize("what", ["start", "refresh", "drop", "for_each", "visit", "call"])
def test_log_of_another_thread_beside_close(path, tmp_path, what):
    """The store's own thread tells it that a snapshot failed; meanwhile this thread closes."""
    folder = tmp_path / "snapshots"
    keys, values = make_keys(100), make_values(100)
    in_log, errors, kept = threading.Event(), [], {}
    here = threading.get_ident()

    def visit(key, value):
        if not in_log.is_set():
            in_log.set()
            time.sleep(0.5)

    def act():
        if what == "visit":
            store.for_each(visit)
            return
        in_log.set()
        time.sleep(0.5)  # the other one waits in close() then
        if what == "start":
            store.upsert_async(keys, values)
        elif what == "refresh":
            store.refresh_cache_async()
        elif what == "drop":
            del kept["ticket"]
        elif what == "for_each":
            store.for_each(lambda key, value: None)
        else:
            store.upsert(keys, values)

    def log(level, message):
        # (One of a snapshot that was just complete may come with it, and a call in there tells both.)
        if threading.get_ident() == here or in_log.is_set() or "no snapshot" not in message:
            return
        try:
            act()
        except gpmstore.Error as error:
            errors.append(error)

    store = gpmstore.create(path, executor="cpu", log=log,
                            snapshot={"path": str(folder), "interval": 0.2, "at_close": False})
    kept["ticket"] = store.upsert_async(keys, values)
    deadline = time.monotonic() + 30
    while not list(folder.glob("*.snap")) and time.monotonic() < deadline:
        time.sleep(0.01)
    folder.rename(tmp_path / "elsewhere")
    folder.touch()
    store.upsert(keys, values)
    assert in_log.wait(30)
    store.close()
    refused = what in ("start", "refresh", "for_each", "call")
    assert [type(error) for error in errors] == [gpmstore.BusyError] * refused
    with gpmstore.open(path, executor="cpu") as again:
        assert len(again) == 100


def test_log_that_raises(path, monkeypatch):
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: raised.append(unraisable))
    gpmstore.create(path, executor="cpu").close()

    def log(level, message):
        raise KeyError(message)
    gpmstore.open(path, executor="cpu", log=log).close()
    assert raised and isinstance(raised[0].exc_value, KeyError)


def test_threads(store):
    n, errors = 400, []

    def work(number):
        try:
            keys = make_keys(n, first=number * n)
            for salt in range(10):
                values = make_values(n, salt=number * 100 + salt)
                assert store.upsert(keys, values).failed == 0
                assert np.array_equal(store.find_async(keys).wait().values, values)
                store.stats()
            assert store.erase(keys[::2].copy()).failed == 0
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(store) == 6 * n // 2


def test_closing_while_others_work(path):
    store = gpmstore.create(path, executor="cpu")
    started, outcomes = threading.Barrier(5), []

    def work(number):
        started.wait()
        try:
            for i in range(100000):
                store.upsert(make_keys(50, first=50 * number), make_values(50))
        except gpmstore.InvalidArgumentError as error:
            outcomes.append("closed" in str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    store.close()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 4
    with gpmstore.open(path, executor="cpu") as store:
        assert store.stats()["recovery"]["was_clean"]


def test_the_gil_is_released(store):
    """A thread counts while another visits, of which each page waits for it to have counted."""
    store.insert(make_keys(10), make_values(10))
    done, counts = threading.Event(), [0]

    def count():
        while not done.is_set():
            counts[0] += 1

    def look():
        store.find(make_keys(10))  # waits for the visit, without the GIL

    threads = [threading.Thread(target=count), threading.Thread(target=look)]
    def visit(keys, values):
        if not threads[0].is_alive():
            for thread in threads:
                thread.start()
        before = counts[0]
        while counts[0] < before + 10:
            pass
    assert store.for_each(visit, rows=5)
    done.set()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


def in_child(function):
    """Runs it in a fork. Returns the exit status."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork(path):
    store = gpmstore.create(path, executor="cpu", threads=2)
    keys, values = make_keys(100), make_values(100)
    ticket = store.insert_async(keys, values)
    export = store.export(page=10)

    def use():
        for call in (lambda: store.find(keys), lambda: store.get(1), store.stats, ticket.wait,
                     lambda: store.for_each(print), lambda: next(export)):
            try:
                call()
            except gpmstore.UnsupportedError as error:
                assert "fork" in str(error)
            else:
                raise AssertionError("the call was not refused")
        export.close()
        store.close()

    assert in_child(use) == 0
    assert in_child(lambda: store.close()) == 0
    assert ticket.wait().failed == 0
    assert np.array_equal(store.find(keys).values, values)
    store.close()

    def open_own():
        with gpmstore.open(path, executor="cpu") as own:
            assert len(own) == 100
            own.put(2**40, bytes(128))
    assert in_child(open_own) == 0
    with gpmstore.open(path, executor="cpu") as store:
        assert len(store) == 101 and store.stats()["recovery"]["was_clean"]


# (A daemon's frame, and what it holds, is not destroyed when a program ends.)
DAEMON = """import threading
def hold(held): threading.Event().wait()
threading.Thread(target=hold, args=([store, ticket],), daemon=True).start()"""


@pytest.mark.parametrize("end", ["", "os.fork() or sys.exit(); os.wait()", "store.close()", DAEMON])
def test_programs_that_end_without_closing(path, end):
    program = f"""
import gpmstore, numpy as np, os, sys
store = gpmstore.create({path!r}, executor="cpu", threads=2)
ticket = store.upsert_async(np.arange(100, dtype=np.int64), np.zeros((100, 128), np.uint8))
{end}
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True,
                         text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    with gpmstore.open(path, executor="cpu") as store:
        assert len(store) == 100 and store.stats()["recovery"]["was_clean"]


def test_a_store_that_fails_to_close_leaves_no_other_open(folder):
    program = f"""
import gpmstore, threading
stores = [gpmstore.create({folder!r} + f"/{{i}}", executor="cpu") for i in range(8)]
def fail(): raise RuntimeError
stores[3].close = fail
{DAEMON.replace("[store, ticket]", "stores[:]")}
del stores
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                         timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    for i in range(8):
        with gpmstore.open(f"{folder}/{i}", executor="cpu") as store:
            assert store.stats()["recovery"]["was_clean"] == (i != 3)


@pytest.mark.parametrize("call", ["store.find(keys)", "store.for_each(print)",
                                  "store.insert_async(keys, rows).wait()"])
def test_programs_that_end_while_a_daemon_calls(path, call):
    """Up to Python 3.13 the interpreter ends a daemon that wants the GIL, wherever it is."""
    program = f"""
import gpmstore, numpy as np, threading, time
store = gpmstore.create({path!r}, executor="cpu", threads=1)
keys, rows = np.arange(2000, dtype=np.int64), np.zeros((2000, 128), np.uint8)
def work():
    while True:
        try:
            {call.replace("print", "lambda *page: None")}
        except gpmstore.Error:
            pass
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""
    for _ in range(10):
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                             timeout=120)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
        with gpmstore.open(path, executor="cpu") as store:
            assert store.stats()["recovery"]["was_clean"]
        os.remove(path)


def test_killed_programs_lose_nothing_that_was_done(path):
    program = f"""
import gpmstore, numpy as np, os, signal
store = gpmstore.create({path!r}, executor="cpu")
store.upsert(np.arange(100, dtype=np.int64), np.ones((100, 128), np.uint8))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == -9
    lines = []
    with gpmstore.open(path, executor="cpu", log=lambda *line: lines.append(line)) as store:
        assert not store.stats()["recovery"]["was_clean"]
        assert (store.find(np.arange(100)).values == 1).all()
    assert lines[0][0] == "warning" and "not in order" in lines[0][1]
