"""Tensors that torch lends to calls that wait: such a call does what it does with tensors that are
exported to it, and refuses the same with the same words. Types whose table of functions is of no
use are exported."""

import ctypes
import gc
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import gpmstore
from conftest import make_keys, make_values
from gpmstore import Op
from gpmstore._batch import Found
from gpmstore._batches import Batches
from gpmstore._core import Element
from test_arrays import OtherArray

N = 4


@pytest.fixture
def store(path):
    with gpmstore.create(path, executor="cpu", threads=1) as opened:
        yield opened


@pytest.fixture
def torch():
    found = pytest.importorskip("torch", reason="torch is not installed")
    if not hasattr(found.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch lends nothing")
    return found


def is_lent(store, keys, values=None, out=None, results=None, ops=None, op=Op.UPSERT, stream=None):
    """Whether the arrays of a batch can be lent; then it runs."""
    if results is None:
        results = sys.modules["torch"].empty(N, dtype=sys.modules["torch"].uint8)
    failed = store._core.run_lent(op, ops, keys, values, out, results, stream, Element.NONE, None)
    return failed is not NotImplemented


def came_to(call):
    """What a call returns, or how it is refused."""
    try:
        outcome = call()
    except Exception as error:
        return type(error), str(error)
    arrays = [outcome.results]
    if getattr(outcome, "values", None) is not None:  # of which other rows hold anything
        there = outcome.ok if isinstance(outcome, Found) else outcome.ok | outcome.found
        arrays += [outcome.values[there]]
    return [outcome.failed] + [f"{type(array)} {array.dtype} {array.tolist()}" for array in arrays]


def test_tensors_are_lent(store, torch):
    keys, rows = torch.arange(N), torch.rand(N, 32)
    out = torch.empty(N, 128, dtype=torch.uint8)
    for values in (rows, rows.view(torch.int16), rows.to(torch.bfloat16).repeat(1, 2), out > 0,
                   torch.complex(rows, rows)[:, :16].contiguous(), torch.cat([rows, rows])[N:],
                   rows.clone().requires_grad_() * 2):
        assert is_lent(store, keys, values)
    assert is_lent(store, keys.view(torch.uint8).reshape(N, 8), rows)
    assert is_lent(store, keys, out=out, op=Op.FIND)
    assert torch.equal(out.view(torch.float32), rows)
    assert is_lent(store, keys, rows, out, ops=torch.zeros(N, dtype=torch.uint8))
    assert is_lent(store, keys, op=Op.FIND, stream=0)


def test_others_are_not(store, torch):
    class Subclass(torch.Tensor):
        pass

    keys, rows = torch.arange(N), torch.rand(N, 32)
    both = torch.complex(rows, rows)
    for values in (rows.numpy(), rows.as_subclass(Subclass), torch.nn.Parameter(rows),
                   both[:, :16].conj(), both.conj().imag, rows.to("meta"), rows.to_sparse(),
                   "rows"):
        assert not is_lent(store, keys, values)
    assert not is_lent(store, keys.numpy(), rows)
    assert not is_lent(store, keys, out=rows.clone().requires_grad_(), op=Op.FIND)
    assert not is_lent(store, keys, rows, results=np.zeros(N, np.uint8))
    assert not is_lent(store, keys, rows, ops=np.zeros(N, np.uint8))
    assert len(store) == 0


def cases(torch):
    class Subclass(torch.Tensor):
        pass

    def bytes_of(*shape):
        return torch.zeros(shape, dtype=torch.uint8)

    keys, rows = torch.arange(N), torch.rand(N, 32)
    both, grid = torch.complex(rows, rows), bytes_of(N, 128)
    empty, either = keys[:0], bytes_of(N) + int(Op.FIND_OR_INSERT)
    for given in (keys, keys.to(torch.uint64), empty, torch.arange(9)[3:7], keys.view(2, 2),
                  torch.tensor(3), torch.arange(8)[::2], keys.int(), keys > 1, rows, bytes_of(N, 8),
                  bytes_of(N, 7), bytes_of(0, 7), bytes_of(8, N).T, keys.to("meta"),
                  keys.as_subclass(Subclass), keys.to_sparse(), torch._neg_view(keys)):
        yield lambda store, given=given: store.find(given)
        yield lambda store, given=given: store.find(given, dtype=torch.float32)
        yield lambda store, given=given: store.erase(given)
        yield lambda store, given=given: store.find_or_insert(given, gpmstore.Normal(seed=1))
    for given in (rows, both[:, :16].contiguous(), rows.half().repeat(1, 2), rows > 2, grid > 2,
                  torch.nn.Parameter(rows), rows.clone().requires_grad_() * 2, rows.T, rows[:3],
                  rows.double(), rows.view(N, 2, 16), rows[:1].expand(N, 32), rows[:, ::2],
                  torch.tensor(3), rows[:0], rows.to("meta"), both[:, :16].conj(), both.conj().imag,
                  rows.to_sparse(), rows.as_subclass(Subclass), torch._efficientzerotensor(N, 32),
                  torch.quantize_per_tensor(torch.zeros(N, 128), 0.1, 0, torch.quint8),
                  rows.numpy(), None, [1, 2]):
        yield lambda store, given=given: store.upsert(keys, given)
        yield lambda store, given=given: store.insert(keys, given)
        yield lambda store, given=given: store.find(keys, given)
        yield lambda store, given=given: store.find_or_insert(keys, given)
        yield lambda store, given=given: store.accumulate(keys, given, "float32")
        yield lambda store, given=given: store.apply(either, keys, given)
    yield lambda store: store.upsert(empty, rows[:0])
    yield lambda store: store.upsert(empty, torch.empty(0, 0))
    yield lambda store: store.upsert(keys[:1], rows[:1].expand(1, 32))
    yield lambda store: store.find(keys, False)
    yield lambda store: store.find(keys, rows.clone().requires_grad_())
    for given in (bytes_of(N), bytes_of(3), bytes_of(N, 2), torch.zeros(N, dtype=torch.int8),
                  torch.zeros(N, dtype=torch.int16), keys > 1, torch.zeros(N).requires_grad_(),
                  torch.tensor(3), bytes_of(8)[::2], np.zeros(N, np.uint8), grid.view(-1)[:N]):
        yield lambda store, given=given: store.upsert(keys, rows, results=given)
        yield lambda store, given=given: store.find(keys, grid, results=given)
        yield lambda store, given=given: store.apply(given, keys, rows)
    yield lambda store: store.find(keys, stream=5)
    yield lambda store: store.find(keys, stream="fast")
    yield lambda store: torch.vmap(lambda one: store.find(one).values)(keys.view(2, 2))


@pytest.mark.filterwarnings("ignore")  # of torch, for kinds of tensors that it will drop
def test_lending_changes_nothing(folder, torch, monkeypatch):
    """Each call in a store that is lent tensors, and in one to which they are exported."""
    answers = []
    for lends in (True, False):
        torch.manual_seed(1)
        monkeypatch.setattr(Batches, "_lends", lends)
        with gpmstore.create(f"{folder}/{lends}", executor="cpu", threads=1) as store:
            answers.append([came_to(lambda: call(store)) for call in cases(torch)])
            answers[-1].append(sorted(store.items()))
    different = [i for i, (lent, exported) in enumerate(zip(*answers)) if lent != exported]
    assert different == [], [str(answer[different[0]])[:500] for answer in answers]
    refused = [answer for answer in answers[0] if isinstance(answer, tuple)]
    assert 50 < len(refused) < len(answers[0]) - 50


def test_a_mode_of_torch(store, torch):
    """Code of Python's may run while tensors are lent."""
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    keys, rows = torch.arange(N), torch.rand(N, 32)
    with Mode():
        assert store.upsert(keys, rows).failed == 0
        assert torch.equal(store.find(keys, dtype=torch.float32).values, rows)
    with torch.inference_mode():
        assert torch.equal(store.find(torch.arange(N), dtype=torch.float32).values, rows)


def test_nothing_is_kept(store, torch):
    keys, rows = torch.arange(N), torch.rand(N, 32)
    out, results = torch.empty(N, 128, dtype=torch.uint8), torch.empty(N, dtype=torch.uint8)

    def some_calls():
        for _ in range(200):
            store.upsert(keys, rows, results=results)
            store.find(keys, out, results=results)
            store.find(keys, out.numpy(), results=results)  # exported
            for wrong in (rows[:3], out.to("meta")):
                with pytest.raises((ValueError, BufferError)):
                    store.find(keys, wrong, results=results)

    def references():
        objects = (keys, rows, out, results, NotImplemented, store, store._core)
        return [sys.getrefcount(one) for one in objects]

    some_calls()
    before = references()
    tracemalloc.start()
    try:
        some_calls()
        gc.collect()
        after_one = tracemalloc.get_traced_memory()[0]
        some_calls()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < after_one + 20_000
    finally:
        tracemalloc.stop()
    after = references()
    assert after[:4] == before[:4]
    assert all(now < then + 100 for now, then in zip(after, before)), (before, after)


def test_threads(store, torch):
    failures = []

    def work(number):
        try:
            for i in range(100):
                keys = torch.arange(64) + 1000 * number
                rows = torch.full((64, 32), float(number * 100 + i))
                assert store.upsert(keys, rows).failed == 0
                assert torch.equal(store.find(keys, dtype=torch.float32).values, rows)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


class View(ctypes.Structure):
    """DLTensor."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


LEND = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(View))
STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32,
                           ctypes.POINTER(ctypes.c_void_p))


class Table(ctypes.Structure):
    """DLPackExchangeAPI."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("older", ctypes.c_void_p), ("unused", ctypes.c_void_p * 3), ("lend", LEND),
                ("stream", STREAM)]


def capsule(table, name=b"dlpack_exchange_api"):
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                     ctypes.c_void_p]
    KEPT.append(name)
    return make(ctypes.addressof(table), name, None)


KEPT = []  # as types that lend stay


class LendingArray(OtherArray):
    """Has what torch's tensors have, and DLPack for those to whom it can't be lent."""
    conjugated = requires_grad = False
    device = 1  # a CPU; CUDA is 2
    lent = 0

    def is_conj(self):
        return self.conjugated

    def is_neg(self):
        return False


@LEND
def lend(array, to):
    """With 8 bytes before the array, which byte_offset makes up for."""
    if array.array.dtype == np.int16:
        return -1
    view, numbers = to[0], array.array
    shape = (ctypes.c_int64 * 4)(*numbers.shape, *numbers.strides)
    for i in range(numbers.ndim):
        shape[2 + i] = numbers.strides[i] // numbers.itemsize
    array.kept = shape
    view.data, view.byte_offset = numbers.ctypes.data - 8, 8
    view.device_type, view.device_id, view.ndim = array.device, 0, numbers.ndim
    view.code, view.bits, view.lanes = {"i": 0, "u": 1, "f": 2}[numbers.dtype.kind], \
        8 * numbers.itemsize, 1
    view.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    view.strides = ctypes.cast(ctypes.addressof(shape) + 16, ctypes.POINTER(ctypes.c_int64))
    LendingArray.lent += 1
    return 0


@STREAM
def stream(device_type, device_id, to):
    return -1


def table(major=1, older=None, **functions):
    given = {"lend": lend, "stream": stream, **functions}
    KEPT.append(Table(major=major, minor=3,
                      older=None if older is None else ctypes.addressof(older), **given))
    return KEPT[-1]


def calls_of(store, kind):
    """Calls with arrays of a type, and how many were lent."""
    LendingArray.lent = 0
    keys, rows = kind(make_keys(N)), kind(make_values(N).view(np.float32))
    out, results = kind(np.zeros((N, 128), np.uint8)), kind(np.full(N, 9, np.uint8))
    assert store.upsert(keys, rows, results=results).failed == 0
    assert store.find(keys, out, results=results).failed == 0
    assert np.array_equal(out.array, make_values(N)) and not results.array.any()
    return LendingArray.lent


def test_tables_of_other_types(store):
    v1 = table()

    class Lends(LendingArray):
        __dlpack_c_exchange_api__ = capsule(v1)

    class HasAnOlderTable(LendingArray):
        __dlpack_c_exchange_api__ = capsule(table(2, v1, lend=LEND()))

    class Inherits(Lends):
        pass

    assert calls_of(store, Lends) == calls_of(store, HasAnOlderTable) == 6
    assert calls_of(store, Lends) == 6  # as before, now that the type is known
    assert calls_of(store, Inherits) == 0
    rows = Lends(make_values(N))
    with pytest.raises(ValueError, match="values: .* has 3 rows; it must have 4"):
        store.upsert(Lends(make_keys(N)), Lends(make_values(3)))
    with pytest.raises(ValueError, match="not C-contiguous"):
        store.upsert(Lends(make_keys(N)), Lends(make_values(2 * N)[::2]))
    LendingArray.lent = 0
    assert store.upsert(Lends(make_keys(N)), Lends(make_values(N).view(np.int16))).failed == 0
    assert LendingArray.lent == 1  # and then its function failed
    rows = Lends(make_values(N).view(np.float32))
    rows.conjugated = True
    assert not is_lent(store, Lends(make_keys(N)), rows, results=Lends(np.zeros(N, np.uint8)))
    rows.conjugated, rows.requires_grad = False, True
    assert is_lent(store, Lends(make_keys(N)), rows, results=Lends(np.zeros(N, np.uint8)))
    assert not is_lent(store, Lends(make_keys(N)), None, rows, Lends(np.zeros(N, np.uint8)),
                       op=Op.FIND)


def test_the_current_stream_is_asked(store):
    """Of arrays that say they are on a GPU, which executor cpu refuses when they are lent."""
    @STREAM
    def is_seven(device_type, device_id, to):
        to[0] = 7
        return int(device_type != 2)

    class Lends(LendingArray):
        __dlpack_c_exchange_api__ = capsule(table(stream=is_seven))

    class Fails(LendingArray):
        __dlpack_c_exchange_api__ = capsule(table())

    KEPT.append(is_seven)
    for kind in (Lends, Fails):
        keys, results = kind(make_keys(N)), kind(np.zeros(N, np.uint8))
        assert is_lent(store, keys, results=results, op=Op.FIND, stream=6)
        keys.device = 2
        for given in (None, 7):
            if kind is Lends:
                with pytest.raises(gpmstore.UnsupportedError, match="keys: .* memory of a GPU"):
                    is_lent(store, keys, results=results, op=Op.FIND, stream=given)
            else:
                assert not is_lent(store, keys, results=results, op=Op.FIND, stream=given)
        assert not is_lent(store, keys, results=results, op=Op.FIND, stream=6)


def test_tables_that_are_of_no_use(store):
    for given in (None, 5, "table", lambda: None, capsule(table(), b"dltensor"),
                  capsule(table(2)), capsule(table(0)), capsule(table(2, table(3))),
                  capsule(table(lend=LEND())), capsule(table(stream=STREAM()))):
        kind = type("Strange", (LendingArray,), {"__dlpack_c_exchange_api__": given})
        for _ in range(2):
            assert calls_of(store, kind) == 0

    class WithoutMethods(OtherArray):
        __dlpack_c_exchange_api__ = capsule(table())

    class Raises(type):
        @property
        def __dict__(self):
            raise RuntimeError("no")

    assert calls_of(store, WithoutMethods) == 0
    assert calls_of(store, Raises("Raising", (LendingArray,), {})) == 0
