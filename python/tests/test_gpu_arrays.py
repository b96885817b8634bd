"""Arrays in GPU memory, of each library that is there, on streams. Needs a GPU:
GPM_TEST_EXECUTOR=cuda."""

import threading

import numpy as np
import pytest

import gpmstore
from conftest import EXECUTOR, make_keys, make_values
from gpmstore._core import Element

if EXECUTOR != "cuda":
    pytest.skip("GPM_TEST_EXECUTOR is not cuda", allow_module_level=True)

N = 5000
KEYS, VALUES, OTHERS = make_keys(N), make_values(N), make_values(N, salt=99)


class Torch:
    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def put(self, array):
        signed = array.view(np.int64) if array.dtype == np.uint64 else array
        return self.torch.from_numpy(signed.copy()).cuda()

    def get(self, array):
        return array.cpu().numpy()

    def of_it(self, array):
        return isinstance(array, self.torch.Tensor) and array.is_cuda

    writable = makes_results = True


class CuPy:
    def __init__(self):
        self.cupy = pytest.importorskip("cupy")

    def put(self, array):
        return self.cupy.asarray(array)

    def get(self, array):
        return array.get()

    def of_it(self, array):
        return isinstance(array, self.cupy.ndarray)

    writable = makes_results = True


class Jax:
    def __init__(self):
        self.jax = pytest.importorskip("jax")
        self.jax.config.update("jax_enable_x64", True)

    def put(self, array):
        return self.jax.device_put(array, self.jax.devices("gpu")[0])

    def get(self, array):
        return np.asarray(array)

    writable = makes_results = False


class Numba:
    def __init__(self):
        self.cuda = pytest.importorskip("numba.cuda")

    def put(self, array):
        return self.cuda.to_device(array)

    def get(self, array):
        return array if isinstance(array, np.ndarray) else array.copy_to_host()

    writable, makes_results = True, False


@pytest.fixture(params=[Torch, CuPy, Jax, Numba], ids=lambda library: library.__name__)
def library(request):
    return request.param()


def test_keys_that_are_not_whole_words(path, library):
    keys = make_keys(N, 36)
    with gpmstore.create(path, key_size=36, executor="cuda") as wide:
        assert wide.insert(library.put(keys), library.put(VALUES)).failed == 0
        found = wide.find(library.put(keys[1:]))  # of which rows begin at 4 bytes
        assert found.count == N - 1
        assert np.array_equal(np.asarray(library.get(found.values)), VALUES[1:])


@pytest.fixture
def store(path):
    with gpmstore.create(path, executor="cuda") as opened:
        yield opened
    with gpmstore.Reader(path):
        pass


def same(library, array, expected):
    found = np.asarray(library.get(array) if not isinstance(array, np.ndarray) else array)
    return np.array_equal(found.view(expected.dtype).reshape(expected.shape), expected)


def test_every_call(store, library):
    keys, values, others = (library.put(a) for a in (KEYS, VALUES, OTHERS))
    assert store.insert(keys, values).failed == 0
    assert store.insert(keys, values).failed == N
    found = store.find(keys)
    assert found.count == N and same(library, found.values, VALUES)
    if library.makes_results:
        assert library.of_it(found.values) and library.of_it(found.results)
        assert library.of_it(found.found)
    else:
        assert isinstance(found.values, np.ndarray)
    assert store.update(keys, others).failed == 0
    assert same(library, store.find(keys).values, OTHERS)
    assert store.upsert(keys, values).failed == 0
    ops = np.full(N, gpmstore.Op.FIND, np.uint8)
    ops[::2] = gpmstore.Op.ERASE
    mixed = store.apply(library.put(ops), keys, values)
    assert mixed.failed == 0
    rows = np.asarray(mixed.values if isinstance(mixed.values, np.ndarray)
                      else library.get(mixed.values))
    assert np.array_equal(rows[1::2], VALUES[1::2])
    there = store.contains(keys)
    assert same(library, there, np.arange(N) % 2 == 1)
    assert store.erase(keys).failed == N // 2
    assert len(store) == 0
    assert store.bulk_load(keys, values).failed == 0 and len(store) == N


def test_out_and_results(store, library):
    keys, values = library.put(KEYS), library.put(VALUES)
    out = library.put(np.full_like(VALUES, 0xA5))
    results = library.put(np.full(N, 0xA5, np.uint8))
    if not library.writable:
        with pytest.raises(gpmstore.InvalidArgumentError, match="read-only"):
            store.find(keys, out)
        with pytest.raises(gpmstore.InvalidArgumentError, match="read-only"):
            store.insert(keys, values, results=results)
        assert len(store) == 0
        return
    store.insert(keys, values, results=results)
    assert same(library, results, np.zeros(N, np.uint8))
    store.find(keys, out, results=results)
    assert same(library, out, VALUES) and same(library, results, np.zeros(N, np.uint8))


def test_each_array_anywhere(store, library):
    keys, values = library.put(KEYS), library.put(VALUES)
    assert store.insert(KEYS, values).failed == 0
    assert store.upsert(keys, OTHERS).failed == 0
    out = np.zeros_like(VALUES)
    assert store.find(keys, out).count == N and np.array_equal(out, OTHERS)
    assert np.array_equal(store.find(KEYS).values, OTHERS)


def test_bad_arrays_on_the_gpu(store, library):
    with pytest.raises(ValueError, match="has 4999 rows"):
        store.insert(library.put(KEYS), library.put(VALUES[:-1]))
    with pytest.raises(ValueError, match="bytes a row"):
        store.find(library.put(VALUES))
    assert len(store) == 0


def test_values_that_are_numbers(store):
    torch = pytest.importorskip("torch")
    keys = torch.arange(N, device="cuda")
    rows = torch.randn(N, 64, device="cuda", dtype=torch.bfloat16)
    assert store.insert(keys, rows).failed == 0
    values, found = store.find(keys, dtype=torch.bfloat16)
    assert values.shape == (N, 64) and torch.equal(values, rows) and bool(found.all())
    pinned = torch.empty(N, 64, dtype=torch.bfloat16).pin_memory()
    assert store.find(keys, pinned).count == N and torch.equal(pinned, rows.cpu())


def slow(torch, tensor):
    """The tensor, as its stream has it in some milliseconds."""
    work = torch.zeros(1 << 26, device="cuda")
    for _ in range(20):
        work += 1
    return tensor + (work[0] != 20).to(tensor.dtype)


@pytest.mark.parametrize("n", [700, 3000, 40_000, 300_000])
def test_a_batch_runs_in_the_order_of_its_stream(store, n):
    """Arrays that the current stream is still making, and results that it uses at once."""
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    store.reserve(2 * n)
    for first in (0, n):
        keys, values = make_keys(n, first=first), make_values(n, salt=first)
        with torch.cuda.stream(stream):
            made_keys = slow(torch, Torch().put(keys))
            made_values = slow(torch, Torch().put(values))
            out = torch.full((n, 128), 0xA5, dtype=torch.uint8, device="cuda")
            tickets = [store.insert_async(made_keys, made_values),
                       store.find_async(made_keys, out)]
            sums = out.to(torch.int64).sum(dim=1)
            made_values.zero_()
        for ticket in tickets:
            assert ticket.wait().failed == 0
        stream.synchronize()
        assert np.array_equal(sums.cpu().numpy(), values.astype(np.int64).sum(axis=1))


def test_a_batch_waits_for_the_stream_of_its_arrays(store):
    """Arrays of the current stream, a batch on another."""
    torch = pytest.importorskip("torch")
    other = torch.cuda.Stream()
    made = slow(torch, Torch().put(KEYS))
    values = slow(torch, Torch().put(VALUES))
    store.insert_async(made, values, stream=other).wait()
    assert np.array_equal(store.find(KEYS).values, VALUES)


@pytest.fixture
def lends():
    """Whether a find of tensors is lent them; it runs then."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch lends nothing")

    def is_lent(store, keys, out, results, stream=None):
        return store._core.run_lent(gpmstore.Op.FIND, None, keys, None, out, results, stream,
                                    Element.NONE, None) is not NotImplemented

    return is_lent


@pytest.mark.parametrize("n", [1, 700, 3000, 40_000, 300_000])
@pytest.mark.parametrize("side", [False, True])
def test_tensors_are_lent_on_their_current_stream(store, lends, n, side):
    """Calls that wait, with tensors that the current stream is still making."""
    torch = pytest.importorskip("torch")
    keys, values = make_keys(n), make_values(n)
    with torch.cuda.stream(torch.cuda.Stream() if side else torch.cuda.default_stream()):
        made_keys, made_values = slow(torch, Torch().put(keys)), slow(torch, Torch().put(values))
        out = slow(torch, torch.full((n, 128), 0xA5, dtype=torch.uint8, device="cuda"))
        results = slow(torch, torch.full((n,), 9, dtype=torch.uint8, device="cuda"))
        assert store.insert(made_keys, made_values, results=results).failed == 0
        made_keys = slow(torch, Torch().put(keys))
        assert lends(store, made_keys, out, results)
        assert np.array_equal(out.cpu().numpy(), values) and not bool(results.any())
        assert store.find(made_keys, out.zero_(), results=results.fill_(9)).count == n
        assert np.array_equal(out.cpu().numpy(), values)
        floats = slow(torch, torch.zeros(n, 32, device="cuda"))
        assert store.upsert(made_keys, floats).failed == 0
        assert not bool(store.find(made_keys, dtype=torch.float32).values.any())


def test_tensors_of_another_stream_are_exported(store, lends):
    torch = pytest.importorskip("torch")
    keys, values = Torch().put(KEYS), Torch().put(VALUES)
    out, results = torch.empty_like(values), torch.empty(N, dtype=torch.uint8, device="cuda")
    assert store.insert(keys, values).failed == 0
    side = torch.cuda.Stream()
    assert not lends(store, keys, out, results, side.cuda_stream)
    with torch.cuda.stream(side):
        assert lends(store, keys, out, results, side.cuda_stream)
        assert not lends(store, keys, out, results, 0)
    made = slow(torch, keys)  # for which that stream has to wait
    assert store.find(made, out, results=results, stream=side).count == N
    assert np.array_equal(out.cpu().numpy(), VALUES)


def test_tensors_are_lent_wherever_they_are(store, lends):
    torch = pytest.importorskip("torch")
    keys, values = Torch().put(KEYS), Torch().put(VALUES)
    assert store.insert(keys, values).failed == 0
    for key_device in ("cpu", "cuda"):
        for device in ("cpu", "cuda"):
            with torch.cuda.stream(torch.cuda.Stream()):
                out = torch.zeros(N, 128, dtype=torch.uint8, device=device)
                results = torch.full((N,), 9, dtype=torch.uint8, device=device)
                assert lends(store, keys.to(key_device), out, results)
            torch.cuda.synchronize()
            assert np.array_equal(out.cpu().numpy(), VALUES) and not bool(results.any())


def test_streams_of_all_libraries(store):
    torch = pytest.importorskip("torch")
    streams = [torch.cuda.Stream(), torch.cuda.Stream().cuda_stream, 0]
    cupy = pytest.importorskip("cupy")
    streams += [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null]
    streams.append(pytest.importorskip("numba.cuda").stream())

    class WithProtocol:
        def __cuda_stream__(self):
            return (0, streams[0].cuda_stream)
    streams.append(WithProtocol())
    for i, stream in enumerate(streams):
        keys = make_keys(100, first=1000 * i)
        assert store.insert(keys, VALUES[:100], stream=stream).failed == 0
        assert np.array_equal(store.find(keys, stream=stream).values, VALUES[:100])
    for wrong in ("fast", None.__class__, 1.5):
        with pytest.raises(TypeError, match="stream"):
            store.find(KEYS, stream=wrong)


def test_cupy_on_its_current_stream(store):
    cupy = pytest.importorskip("cupy")
    store.reserve(N)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        keys, values = cupy.asarray(KEYS), cupy.asarray(VALUES)
        work = cupy.zeros(1 << 26)
        for _ in range(20):
            work += 1
        keys += (work[0] != 20).astype(cupy.uint64)
        out = cupy.full((N, 128), 0xA5, cupy.uint8)
        tickets = [store.insert_async(keys, values), store.find_async(keys, out)]
        sums = out.astype(cupy.int64).sum(axis=1)
        for ticket in tickets:
            assert ticket.wait().failed == 0
        stream.synchronize()
        assert np.array_equal(sums.get(), VALUES.astype(np.int64).sum(axis=1))


def test_threads_with_streams_of_their_own(store):
    torch = pytest.importorskip("torch")
    failures = []

    def work(number):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for i, n in enumerate((1, 500, 4000, 9000, 30_000) * 4):
                    keys = make_keys(n, first=1_000_000 * number + 50_000 * i)
                    values = make_values(n, salt=number * 100 + i)
                    device_keys = Torch().put(keys)
                    assert store.upsert(device_keys, Torch().put(values)).failed == 0
                    found = store.find(device_keys)
                    assert found.count == n
                    assert np.array_equal(found.values.cpu().numpy(), values)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
