"""The array libraries: what the module _core gets of an array, on which stream, and what is made
for results.

An array goes to _core as something that has DLPack, a buffer or __cuda_array_interface__. On a GPU
its library is told the stream that the batch will run on, as DLPack wants it, so that the batch
waits for what makes the array.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np

from ._errors import InvalidArgumentError

# As in DLPack. There the default stream is 1, and 0 means nothing.
_DLPACK_CUDA = 2
_DEFAULT_STREAM = 1


# Numbers that DLPack knows, by NumPy's characters: booleans, integers, floats and complex numbers.
_NUMBERS = frozenset("?bBhHiIlLqQefdFD")
# Byte orders of buffers' formats that are not this machine's ("!" is big-endian).
_FOREIGN = frozenset(">!" if sys.byteorder == "little" else "<")
# Kinds of buffers' formats that are no integers: floats (Z: complex numbers), booleans, texts.
_NO_INTEGERS = frozenset("efdgFDZ?uw")


class _Torch:
    """What is used of torch, looked up once."""

    def __init__(self, torch: Any) -> None:
        self.Tensor = torch.Tensor
        self.dtype = torch.dtype
        self.empty = torch.empty
        self.to_dlpack = torch.utils.dlpack.to_dlpack
        # What torch has for those that generate code: it makes no object, which takes a microsecond.
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self.current_stream = raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)
        self.dtypes: dict[Any, Any] = {}  # by what NumPy takes for one

    def dtype_of(self, dtype: Any) -> Any:
        if isinstance(dtype, self.dtype):
            return dtype
        try:
            known = self.dtypes.get(dtype)
        except TypeError:  # it has no hash: a list of fields, or the like
            raise _no_dtype(dtype, "torch") from None
        if known is None:
            known = self.dtypes[dtype] = self._dtype_named(dtype)
        return known

    def _dtype_named(self, dtype: Any) -> Any:
        as_numpy = _as_numpy(dtype)
        # NumPy lacks bfloat16, and has others by other names: its "float" is float64.
        name = _name_of(dtype) if as_numpy is None else as_numpy.name
        known = getattr(sys.modules["torch"], name, None)
        if not isinstance(known, self.dtype) or (as_numpy is not None and not as_numpy.isnative):
            raise _no_dtype(dtype, "torch")
        return known


_torch: Any = None  # a _Torch, once there is torch


def is_torch(array: Any) -> bool:
    global _torch
    if _torch is None:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "Tensor"):  # which is just being imported
            return False
        _torch = _Torch(torch)
    return isinstance(array, _torch.Tensor)


def _is_cupy(array: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def _is_on_gpu(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return False
    if is_torch(array):
        return array.is_cuda
    device = getattr(array, "__dlpack_device__", None)
    if device is not None:
        return int(device()[0]) == _DLPACK_CUDA
    return hasattr(array, "__cuda_array_interface__")


def _current_stream(array: Any) -> int:
    """The handle of the stream on which the array's library works now; 0: the default stream."""
    if is_torch(array):
        return _torch.current_stream(array.get_device())
    if _is_cupy(array):
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    if hasattr(array, "__dlpack__"):
        return 0  # which the array's library makes wait for the array
    stream = array.__cuda_array_interface__.get("stream")
    return 0 if stream is None else stream


def stream_of(*arrays: Any) -> int:
    """The current stream of the first array that is on a GPU; 0 where none is."""
    for array in arrays:
        if array is None or isinstance(array, np.ndarray):
            continue
        if _is_on_gpu(array):
            return _current_stream(array)
    return 0


def stream_handle(stream: Any) -> int:
    """The handle of what a user gave as a stream."""
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)  # cuda.core's: a version, and the handle
    if callable(protocol) and not isinstance(stream, type):
        return int(protocol()[1])
    for name in ("cuda_stream", "ptr", "handle"):  # torch, CuPy, Numba
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or 0)  # (a ctypes pointer has a value)
    raise TypeError(f"stream: not a CUDA stream: {type(stream).__name__!r}; give its handle")


def rows_of(keys: Any) -> int:
    """How many keys there are."""
    try:
        return int(keys.shape[0])
    except (AttributeError, IndexError, TypeError):
        pass
    if hasattr(getattr(keys, "shape", None), "__len__"):
        raise InvalidArgumentError("keys: a single number; it must be an array of n rows")
    raise TypeError(f"keys: not an array: {type(keys).__name__!r}; give a NumPy array, or one "
                    "with __dlpack__ or __cuda_array_interface__")


def comparable(array: Any) -> Any:
    """An array that compares element by element: itself, or NumPy's of the same host memory."""
    if hasattr(array, "sum") or _is_on_gpu(array):
        return array
    return np.from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)


def op_codes(ops: Any, kinds: int) -> Any:
    """`ops` as bytes: itself, or a copy of an array of wider integers, each below `kinds`."""
    dtype: Any = getattr(ops, "dtype", None)
    if is_torch(ops):
        torch = sys.modules["torch"]
        if dtype not in (torch.int16, torch.int32, torch.int64):
            return ops
        bytes_of = torch.uint8
    elif isinstance(ops, np.ndarray) or _is_cupy(ops):
        if dtype.kind not in "iu" or dtype.itemsize == 1:
            return ops
        bytes_of = np.uint8
    else:
        return ops
    wrong = (ops < 0) | (ops >= kinds)
    if bool(wrong.any()):
        raise InvalidArgumentError(f"ops: {int(ops[wrong][0])} is no gpmstore.Op; those are 0 to "
                                   f"{kinds - 1}")
    return ops.to(bytes_of) if is_torch(ops) else ops.astype(bytes_of)


def exported(array: Any, name: str, stream: int, written: bool = False) -> Any:
    """What _core gets of an array for a batch on `stream`."""
    if array is None:
        return None
    if isinstance(array, np.ndarray):
        return _numpy_exported(array, name)
    if is_torch(array):
        return _torch_exported(array, name, stream, written)
    if written and type(array).__module__.split(".")[0] in ("jax", "jaxlib"):
        raise InvalidArgumentError(f"{name}: JAX's arrays are read-only; give a NumPy array")
    if not _is_on_gpu(array):
        return array
    if hasattr(array, "__dlpack__"):
        return array.__dlpack__(stream=stream or _DEFAULT_STREAM)
    made_on = array.__cuda_array_interface__.get("stream")
    if made_on is not None and made_on != (stream or _DEFAULT_STREAM):
        raise InvalidArgumentError(
            f"{name}: the array belongs to stream {made_on}, and the batch runs on "
            f"{stream or _DEFAULT_STREAM}; give that stream, or an array of no stream")
    return array


def bytes_of(data: Any, name: str, wanted: str = "bytes", integers: bool = False) -> bytes:
    """A copy of the bytes of what has a buffer, in which numbers are as on this machine.

    integers: of buffers that are not NumPy's, only integers, bytes, and structures of any fields.
    """
    if isinstance(data, np.ndarray):  # of some dtypes, such as dates, it has no buffer
        _require_bytes(data.dtype, name, wanted)
        return np.asarray(data).tobytes()
    try:
        view = memoryview(data)
    except TypeError:
        raise TypeError(f"{name}: {type(data).__name__!r}; give {wanted}") from None
    if view.format != "B":
        kinds = re.sub(":[^:]*:", "", view.format)  # without the names of fields
        if "O" in kinds:
            raise TypeError(f"{name}: Python objects, which are addresses; give {wanted}")
        if _FOREIGN.intersection(kinds):
            raise TypeError(f"{name}: numbers that are not of this machine's byte order")
        if integers and not kinds.startswith("T{") and _NO_INTEGERS.intersection(kinds):
            raise TypeError(f"{name}: a buffer of format {view.format!r}; give {wanted}")
    return view.tobytes()


def _require_bytes(dtype: np.dtype, name: str, wanted: str) -> None:
    """Requires elements to be bytes that say all, with numbers as on this machine."""
    if dtype.hasobject:
        raise TypeError(f"{name}: Python objects, which are addresses; give {wanted}")
    if not dtype.isnative:
        raise TypeError(f"{name}: {dtype} is not of this machine's byte order; "
                        "array.astype(array.dtype.newbyteorder('=')) makes a copy that is")


def _numpy_exported(array: np.ndarray, name: str) -> Any:
    dtype = array.dtype
    if dtype.char in _NUMBERS and dtype.isnative:
        return array
    _require_bytes(dtype, name, "an array of numbers or bytes")
    # Bytes, structures and the like, of which DLPack knows nothing, are rows of bytes.
    if array.ndim == 0 or not array.flags.c_contiguous:
        raise InvalidArgumentError(f"{name}: the array of shape {array.shape} is not C-contiguous; "
                                   "numpy.ascontiguousarray makes a copy that is")
    rows = array.shape[0]
    return array.reshape(-1).view(np.uint8).reshape(rows, array.nbytes // rows if rows else
                                                    _row_bytes(array))


def _row_bytes(array: np.ndarray) -> int:
    return array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))


def _torch_exported(tensor: Any, name: str, stream: int, written: bool) -> Any:
    if written and tensor.requires_grad:
        raise InvalidArgumentError(f"{name}: the tensor requires a gradient, which does not know "
                                   "what is written to it; give tensor.detach()")
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgumentError(f"{name}: the tensor's memory has other numbers than it shows; "
                                   "give tensor.resolve_conj().resolve_neg()")
    if tensor.is_cuda and _torch.current_stream(tensor.get_device()) != stream:
        return tensor.detach().__dlpack__(stream=stream or _DEFAULT_STREAM)
    # On the current stream nothing has to wait, and this takes less time than __dlpack__.
    return _torch.to_dlpack(tensor.detach() if tensor.requires_grad else tensor)


def empty(keys: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A new array of the library and on the device of `keys`; of NumPy for other libraries."""
    if is_torch(keys):
        # (It reads a tuple in half a microsecond more.)
        return _torch.empty(*shape, dtype=_torch.dtype_of(dtype), device=keys.device)
    if _is_cupy(keys):
        with keys.device:
            return sys.modules["cupy"].empty(shape, dtype=dtype)
    return np.empty(shape, dtype=dtype)


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _as_numpy(dtype: Any) -> np.dtype | None:
    """NumPy's dtype for one of its own, one of torch, or a name of either; None: it has none."""
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        name = _name_of(dtype)
    try:
        known = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        return None
    return known if known.name == name else None  # "torch.float" is not NumPy's "float"


def _no_dtype(dtype: Any, library: str, hint: str = "") -> TypeError:
    return TypeError(f"dtype: {dtype}, which {library} does not have{hint}")


def _numpy_dtype(dtype: Any) -> np.dtype:
    known = _as_numpy(dtype)
    if known is None:
        bits = "; ml_dtypes adds it, and uint16 has its bits"
        raise _no_dtype(dtype, "NumPy", bits if _name_of(dtype) == "bfloat16" else "")
    return known


def rows_of_values(keys: Any, value_size: int, dtype: Any) -> Any:
    """A new array for the values of `keys`: n rows of `value_size` bytes, elements of `dtype`."""
    n = rows_of(keys)
    dtype = _torch.dtype_of(dtype) if is_torch(keys) else _numpy_dtype(dtype)
    itemsize = dtype.itemsize
    if itemsize == 0 or value_size % itemsize != 0:
        raise InvalidArgumentError(f"dtype: {dtype} has {itemsize} bytes, of which no whole number "
                                   f"makes a value of {value_size} bytes")
    if itemsize == value_size:
        return empty(keys, (n,), dtype)
    return empty(keys, (n, value_size // itemsize), dtype)
