"""What arrays must be, and what is said of those that are not; arrays of other libraries."""

import numpy as np
import pytest

import gpmstore
from conftest import make_keys, make_values
from gpmstore import _arrays


@pytest.fixture
def store(path):
    with gpmstore.create(path, executor="cpu", threads=1) as opened:
        yield opened


KEYS, VALUES = make_keys(4), make_values(4)


class Unknown:  # of no library
    shape = (4,)


@pytest.mark.parametrize("keys, error, message", [
    ([1, 2, 3], TypeError, "keys: not an array: 'list'"),
    (Unknown(), TypeError, "keys: not an array: '.*Unknown'"),
    (np.uint64(5), ValueError, "keys: a single number"),
    (KEYS.astype(np.float64), TypeError, "keys: an array of float64; keys are integers"),
    (KEYS.astype(bool), TypeError, "array of bool"),
    (KEYS.astype(np.int32), ValueError, r"int32 of shape \(4,\) has 4 bytes a row; it must have 8"),
    (KEYS.reshape(2, 2), ValueError, "16 bytes a row"),
    (np.zeros((4, 7), np.uint8), ValueError, "7 bytes a row"),
    (np.zeros((0, 7), np.uint8), ValueError, "7 bytes a row"),
    (make_keys(8)[::2], ValueError, r"keys: the array of shape \(4,\) is not C-contiguous"),
    (KEYS[::-1], ValueError, "not C-contiguous"),
    (np.zeros(4, "i1, u8")["f1"], ValueError, "keys: the array .* is not C-contiguous"),
    (np.zeros((8, 4), np.uint8).T, ValueError, "not C-contiguous"),
    (np.array([b"a", b"b"] * 4, "S8")[::2], ValueError, "not C-contiguous"),
    (KEYS.astype(">u8"), TypeError, "byte order"),
    (KEYS.astype(object), TypeError, "Python objects"),
    (np.array(["a", "b"], "S4"), ValueError, "4 bytes a row"),
])
def test_bad_keys(store, keys, error, message):
    for call in (store.find, store.contains, store.erase, lambda k: store.insert(k, VALUES),
                 lambda k: store.bulk_load(k, VALUES)):
        with pytest.raises(error, match=message):
            call(keys)
    assert sum(store.stats()["operations"].values()) == 0


@pytest.mark.parametrize("values, error, message", [
    (None, TypeError, "values: None; .* needs n rows"),
    ([b"x" * 128] * 4, TypeError, "values: not an array: 'list'"),
    (VALUES[:3], ValueError, "values: .* has 3 rows; it must have 4, one for each key"),
    (VALUES[:, :100].copy(), ValueError, "100 bytes a row; it must have 128"),
    (VALUES[:, :100], ValueError, "values: .* not C-contiguous"),
    (np.asfortranarray(VALUES), ValueError, "not C-contiguous"),
    (np.zeros((4, 16), object), TypeError, "Python objects"),
])
def test_bad_values(store, values, error, message):
    for call in (store.insert, store.update, store.upsert, store.bulk_load,
                 store.insert_and_evict):
        with pytest.raises(error, match=message):
            call(KEYS, values)
    assert len(store) == 0


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("out, error, message", [
    (read_only(VALUES.copy()), ValueError, "out: the array is read-only"),
    (memoryview(VALUES.tobytes()), ValueError, "out: the array is read-only"),
    (VALUES.copy()[:, ::2], ValueError, "not C-contiguous"),
    (np.zeros((5, 128), np.uint8), ValueError, "has 5 rows; it must have 4"),
    (np.zeros((4, 16), np.float32), ValueError, "64 bytes a row"),
    (np.zeros((4, 16), object), TypeError, "Python objects"),
])
def test_bad_out(store, out, error, message):
    with pytest.raises(error, match=message):
        store.find(KEYS, out)


@pytest.mark.parametrize("results, error, message", [
    (read_only(np.zeros(4, np.uint8)), ValueError, "results: the array is read-only"),
    (np.zeros(4, np.int32), TypeError, "results: an array of int32; it must be uint8"),
    (np.zeros(4, bool), TypeError, "it must be uint8"),
    (np.zeros(3, np.uint8), ValueError, "has 3 rows"),
    (np.zeros((4, 2), np.uint8), ValueError, "2 bytes a row"),
])
def test_bad_results(store, results, error, message):
    with pytest.raises(error, match=message):
        store.insert(KEYS, VALUES, results=results)
    assert len(store) == 0


@pytest.mark.parametrize("ops, error", [([0, 1, 2, 3], TypeError), (np.zeros(4), TypeError),
                                        (np.zeros(4, bool), TypeError),
                                        (np.array([0, 1, 7, 0]), ValueError),
                                        (np.array([0, -1, 0, 0], np.int16), ValueError),
                                        (np.array([0, 256, 0, 0], np.uint32), ValueError),
                                        (np.zeros(3, np.uint8), ValueError),
                                        (np.zeros(3, int), ValueError)])
def test_bad_ops(store, ops, error):
    with pytest.raises(error, match="ops"):
        store.apply(ops, KEYS, VALUES)


class OnlyDlpack:
    """An array without operators."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("library", [memoryview, OnlyDlpack])
def test_outcomes_of_results_without_operators(store, library):
    store.insert(KEYS[:1], VALUES[:1])
    wanted = [True, False, False, False]
    found = store.find(KEYS, False, results=library(np.zeros(4, np.uint8)))
    assert found.found.tolist() == found.ok.tolist() == wanted
    assert (found.operations, found.failed, found.count) == (4, 3, 1)
    both = store.find_or_insert(KEYS, VALUES, False, results=library(np.zeros(4, np.uint8)))
    assert both.found.tolist() == wanted and both.inserted.tolist() == [not w for w in wanted]
    assert repr(both) == "FoundOrInserted(4 operations, 0 failed)"
    assert store.contains(memoryview(KEYS)).tolist() == [True] * 4


def test_arrays_that_overlap(store):
    rows = np.zeros((16, 128), np.uint8)
    keys = rows[0, :32].view(np.uint64)
    with pytest.raises(ValueError, match="out: it shares memory with 'keys'"):
        store.find(keys, rows[:4])
    with pytest.raises(ValueError, match="results: it shares memory with 'values'"):
        store.insert(KEYS, rows[:4], results=rows[3, -4:])
    with pytest.raises(ValueError, match="out: it shares memory with 'results'"):
        store.find(KEYS, rows[4:8], results=rows[4, :4])
    assert store.find(keys, rows[4:8], results=rows[1, :4]).failed == 4  # side by side


def test_read_only_inputs_and_odd_shapes(store):
    assert store.insert(read_only(KEYS.copy()), read_only(VALUES.copy())).failed == 0
    one = np.empty((1, 3, 128), np.uint8)[:, :1]  # strides of axes of one element do not matter
    assert store.find(KEYS[:1], one).failed == 0
    assert np.array_equal(one[0, 0], VALUES[0])
    assert store.find(memoryview(KEYS)).failed == 0


@pytest.mark.parametrize("dtype", ["M8[ns]", "complex128", "bool", "f2", "S64", "V128", "U16",
                                   "longdouble"])
def test_values_of_any_dtype(store, dtype):
    dtype = np.dtype(dtype)
    rows = np.zeros((4, 128 // dtype.itemsize), dtype)
    rows.view(np.uint8).reshape(4, 128)[:] = VALUES & 1
    assert store.upsert(KEYS, rows).failed == 0
    assert store.find(KEYS, dtype=dtype).values.tobytes() == rows.tobytes()
    out = np.empty_like(rows)
    assert store.find(KEYS, out).failed == 0 and out.tobytes() == rows.tobytes()


class OtherArray:
    """An array of a library that has DLPack alone."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack(store):
    keys, rows = OtherArray(KEYS), OtherArray(VALUES.view(np.float32))
    assert store.upsert(keys, rows).failed == 0
    found = store.find(keys)
    assert isinstance(found.values, np.ndarray) and np.array_equal(found.values, VALUES)
    out, results = np.zeros((4, 64), np.int16), np.full(4, 9, np.uint8)
    store.find(keys, OtherArray(out), results=OtherArray(results))
    assert out.tobytes() == VALUES.tobytes() and not results.any()
    with pytest.raises(ValueError, match="out: the array is read-only"):
        store.find(keys, OtherArray(read_only(VALUES.copy())))
    with pytest.raises(ValueError, match="shares memory"):
        store.find(keys, OtherArray(out), results=out.view(np.uint8)[0, :4])


class GpuArray:
    """Says that it is on a GPU, as JAX's arrays do."""
    shape = (4,)
    streams = []

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        raise BufferError("no GPU here")


class NumbaArray:
    """Has what Numba's arrays have."""
    shape = (4,)

    def __init__(self, array, **more):
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "version": 3,
            "data": (array.__array_interface__["data"][0], not array.flags.writeable),
            "strides": None if array.flags.c_contiguous else array.strides, **more}


def test_arrays_on_a_gpu_are_told_the_stream(store):
    array = GpuArray()
    for stream, told in ((None, 1), (0, 1), (2, 2), (4711, 4711)):
        with pytest.raises(BufferError):
            store.find(array, stream=stream)
        assert array.streams[-1] == told  # DLPack's name of the default stream is 1

    class Stream:
        cuda_stream = 99
    with pytest.raises(BufferError):
        store.erase(array, stream=Stream())
    assert array.streams[-1] == 99
    with pytest.raises(TypeError, match="stream: not a CUDA stream: 'str'"):
        store.erase(KEYS, stream="default")


def test_cuda_array_interface_on_the_cpu(store):
    with pytest.raises(gpmstore.UnsupportedError, match="keys: .*memory of a GPU.* executor cpu"):
        store.find(NumbaArray(KEYS))
    with pytest.raises(gpmstore.UnsupportedError, match="values: "):
        store.insert(KEYS, NumbaArray(VALUES))
    with pytest.raises(ValueError, match="read-only"):
        store.find(KEYS, NumbaArray(read_only(VALUES.copy())))
    with pytest.raises(ValueError, match="not C-contiguous"):
        store.find(NumbaArray(make_keys(8)[::2]))
    with pytest.raises(TypeError, match="float64"):
        store.find(NumbaArray(KEYS.view(np.float64)))
    with pytest.raises(TypeError, match="bool; keys are integers"):
        store.find(NumbaArray(KEYS > 3))
    with pytest.raises(ValueError, match="byte order is foreign"):
        store.find(NumbaArray(KEYS.astype(">u8")))
    packed = np.zeros(8, dtype=[("key", "<u8"), ("more", "u1")])
    with pytest.raises(ValueError, match="not C-contiguous"):
        store.find(NumbaArray(packed["key"]))
    with pytest.raises(ValueError, match="an array of '<U3'"):
        store.find(NumbaArray(np.zeros(8, "<U3")))
    # Elements of bytes are rows of them, as many as there are.
    keys = make_keys(4)
    with pytest.raises(gpmstore.UnsupportedError, match="values: "):
        store.insert(keys, NumbaArray(np.zeros(4, "V128")))
    with pytest.raises(ValueError, match=r"shape \(4, 384\) has 384 bytes a row; it must have 128"):
        store.insert(keys, NumbaArray(np.zeros(4, "V384")))
    assert _arrays.stream_of(KEYS, None, NumbaArray(KEYS, stream=7)) == 7
    with pytest.raises(ValueError, match="belongs to stream 7.* runs on 8"):
        store.find(NumbaArray(KEYS, stream=7), stream=8)
    with pytest.raises(ValueError, match="belongs to stream 7"):
        store.bulk_load(NumbaArray(KEYS, stream=7), VALUES)


def test_torch_on_the_cpu(store):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    keys = torch.arange(100, dtype=torch.int64)
    rows = torch.arange(3200, dtype=torch.float32).reshape(100, 32)
    assert store.upsert(keys, rows).failed == 0
    values, found = store.find(keys, dtype=torch.float32)
    assert isinstance(values, torch.Tensor) and found.dtype == torch.bool and bool(found.all())
    assert torch.equal(values, rows)
    assert torch.equal(store.find(keys, dtype="float32").values, rows)
    half = rows[:, :16].contiguous().to(torch.bfloat16).repeat(1, 4)
    assert store.update(keys, half).failed == 0
    for dtype in (torch.bfloat16, "bfloat16"):
        assert torch.equal(store.find(keys, dtype=dtype).values, half)
    weights = torch.nn.Parameter(rows)
    assert store.update(keys, weights).failed == 0
    with pytest.raises(ValueError, match="requires a gradient"):
        store.find(keys, weights)
    with pytest.raises(ValueError, match="not C-contiguous"):
        store.find(torch.arange(10)[::2])
    with pytest.raises(ValueError, match=r"values: the array of shape \(100, 32\) is not C-contig"):
        store.update(keys, torch.zeros(32, 100).T)
    with pytest.raises(TypeError, match="float32; keys are integers"):
        store.find(rows)
    with pytest.raises(TypeError, match="bool; keys are integers"):
        store.find(keys > 3)
    with pytest.raises(TypeError, match="results: an array of int16; it must be uint8"):
        store.find(keys, results=torch.zeros(100, dtype=torch.int16))
    with pytest.raises(ValueError, match=r"values: an array of float64 of shape \(100, 32\) has 256"):
        store.update(keys, rows.double())
    with pytest.raises(ValueError, match="values: .* has 99 rows; it must have 100"):
        store.update(keys, rows[:99])
    with pytest.raises(ValueError, match="ops: a single number"):
        store.apply(torch.tensor(1, dtype=torch.uint8), keys)
    with pytest.raises(BufferError, match="meta"):
        store.update(keys, torch.empty(100, 32, device="meta"))
    for shown in (torch.complex(rows, rows)[:, :16].conj(), torch.complex(rows, rows).conj().imag):
        with pytest.raises(ValueError, match="other numbers than it shows"):
            store.update(keys, shown)
    with pytest.raises(ValueError, match="out: it shares memory with 'results'"):
        both = torch.zeros(100, 128, dtype=torch.uint8)
        store.find(keys, both, results=both.view(-1)[:100])
    assert torch.equal(store.find(keys, dtype=torch.float32).values, rows)
    assert store.find(keys[:0]).values.shape == (0, 128)
    as_bytes = keys.view(torch.uint8).reshape(100, 8)
    assert store.find(as_bytes, torch.zeros(100, 4, 32, dtype=torch.uint8)).count == 100


def test_dtypes_of_torch(store):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in ("float32", "float16", "bfloat16"):
        rule = gpmstore.Normal(seed=1, dtype=getattr(torch, dtype))
        drawn = store.find_or_insert(torch.arange(4), rule).values
        assert drawn.dtype == rule.dtype
        as_bytes = drawn.view(torch.uint8).numpy()
        same = store.find_or_insert(np.arange(4), rule).values
        assert same.dtype == ("uint8" if dtype == "bfloat16" else dtype)
        assert np.array_equal(same.view(np.uint8), as_bytes)
        store.erase(np.arange(4))
    store.insert(KEYS, VALUES)
    tensor = torch.from_numpy(KEYS.view(np.int64))
    for keys in (KEYS, tensor):
        for dtype in (torch.int16, "torch.int16", "int16", "i2", np.int16, np.dtype("i2")):
            values = store.find(keys, dtype=dtype).values
            assert str(values.dtype).removeprefix("torch.") == "int16"
            assert np.array_equal(np.asarray(values), VALUES.view(np.int16))
    for keys, both in ((KEYS, "NumPy"), (tensor, "torch")):
        for dtype in ("float99", "f4,,", "torch.nn", "nn", {"a": 1}, 5):
            with pytest.raises(TypeError, match=f"^dtype: .* which {both} does not have"):
                store.find(keys, dtype=dtype)
    with pytest.raises(TypeError, match="^dtype: torch.float, which NumPy does not have"):
        store.find(KEYS, dtype="torch.float")  # NumPy's "float" is another
    assert store.find(tensor, dtype="torch.float").values.dtype == torch.float32
    assert store.find(tensor, dtype="float").values.dtype == torch.float64
    for dtype in ("S4", "M8[s]", object, np.longdouble, [("a", "f4")], np.dtype([("a", "f4")]),
                  (np.void, 4), ("f4", [2]), ">f4"):
        with pytest.raises(TypeError, match="^dtype: .* which torch does not have"):
            store.find(tensor, dtype=dtype)


def test_cupy_and_torch_on_a_gpu(path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    try:
        store = gpmstore.create(path, executor="cuda")
    except gpmstore.UnsupportedError as error:
        pytest.skip(str(error))
    with store:
        keys = torch.arange(5000, dtype=torch.int64, device="cuda")
        rows = torch.rand(5000, 32, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            made = rows * 2  # on that stream; the batch comes after it
            assert store.upsert(keys, made).failed == 0
            values, found = store.find(keys, dtype=torch.float32)
            assert values.is_cuda and torch.equal(values, made) and bool(found.all())
            ticket = store.find_async(keys, dtype=torch.float32)
            assert torch.equal(ticket.outcome.values, made)  # on the stream, before it is waited for
            ticket.wait()
        assert store.bulk_load(keys + 5000, rows).failed == 0
        host = store.find(keys.cpu().numpy(), dtype=np.float32).values
        assert np.array_equal(host, made.cpu().numpy())
        assert not bool(store.contains(keys + 10000).any())
        cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
        found = store.find(cupy.asarray(keys), dtype=cupy.float32)
        assert isinstance(found.values, cupy.ndarray) and found.failed == 0
        assert cupy.array_equal(found.values, cupy.asarray(made))
