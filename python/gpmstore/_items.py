"""What stores and readers have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterator

import numpy as np

from . import _arrays
from ._batch import Array

if TYPE_CHECKING:
    from typing_extensions import Self

Key = Any  # an int (8-byte keys), or the key's bytes
Visit = Callable[[np.ndarray, np.ndarray], Any]
_KEY_KINDS = "iuSV"  # of NumPy's dtypes: integers and bytes
_PAGE = 65536
_PAGE_BYTES = 64 << 20


def page_of(value_size: int) -> int:
    """Rows of a page, where nobody says how many."""
    return max(1, min(_PAGE, _PAGE_BYTES // value_size))


class Rows:
    """Arrays of keys and values, visits, closing."""

    _core: Any
    path: str
    find: Any  # a method of each

    @property
    def key_size(self) -> int:
        """Bytes of a key."""
        return self._core.key_size

    @property
    def value_size(self) -> int:
        """Bytes of a value."""
        return self._core.value_size

    @property
    def closed(self) -> bool:
        return self._core.closed

    def for_each(self, visit: Visit, rows: int | None = None) -> bool:
        """Calls `visit(keys, values)` for all items, in no order, in pages of at most `rows`; by
        default as many as make some 64 MiB, and no more than 65536.

        keys: n uint64, or (n, key_size) uint8; values: (n, value_size) uint8. They are copies and
        may be kept. It stops when `visit` returns False. A store excludes batches meanwhile, so
        that `visit` must not call it (`BusyError`). Returns whether it saw all items.
        """
        if rows is None:
            rows = page_of(self.value_size)
        return self._core.for_each(visit, rows)

    def stats(self) -> dict[str, Any]:
        """Sizes, counters, medium, recovery and cache, as numbers, texts and dicts of those."""
        return self._core.stats()

    def contains(self, keys: Array) -> Array:
        """n booleans: which of n keys are there."""
        return self.find(keys, False).found

    def close(self) -> None:
        """Completes running batches and closes. Closing again does nothing.

        Calls of other threads end first. From within a log or a visitor: `BusyError`.
        """
        self._core.close()

    def __bool__(self) -> bool:
        return True  # also without items

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return (f"<gpmstore.{type(self).__name__} {self.path!r}, keys of {self.key_size} bytes, "
                f"values of {self.value_size}{closed}>")

    def _room_for_values(self, keys: Array, out: Array, dtype: Any) -> Array:
        if out is False:
            return None
        if out is None:
            return _arrays.rows_of_values(keys, self.value_size,
                                          np.uint8 if dtype is None else dtype)
        if dtype is not None:
            raise TypeError("dtype: it is that of 'out', which was given")
        return out

    def _room_for_results(self, keys: Array, results: Array) -> Array:
        if results is not None:
            return results
        return _arrays.empty(keys, (_arrays.rows_of(keys),), np.uint8)


class Items(Rows):
    """Single items, and iteration."""

    def get(self, key: Key, default: Any = None) -> Any:
        """The value of a key, `value_size` bytes; `default` when it is not there.

        key: an int for 8-byte keys, or `key_size` bytes.
        """
        value = self._core.get(self._key_bytes(key))
        return default if value is None else value

    def pages(self, rows: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All items of this instant, in no order, as arrays of at most `rows` (as in `for_each`).

        They are copied first, and take memory: `for_each` does without.
        """
        copied: list[tuple[np.ndarray, np.ndarray]] = []
        self.for_each(lambda keys, values: copied.append((keys, values)), rows)
        return iter(copied)

    def items(self) -> Iterator[tuple[Any, bytes]]:
        """All items of this instant, one by one: `dict(store.items())`. Memory as in `pages`."""
        for keys, values in self.pages():
            for key, value in zip(_single(keys), values):
                yield key, value.tobytes()

    def __iter__(self) -> Iterator[Any]:
        """The keys of `items`; no values are kept meanwhile."""
        pages: list[np.ndarray] = []
        self.for_each(lambda keys, _: pages.append(keys))
        for keys in pages:
            yield from _single(keys)

    def __len__(self) -> int:
        return self.stats()["items"]

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: Key) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def _key_bytes(self, key: Key) -> bytes:
        wanted = "an int, or bytes" if self.key_size == 8 else "bytes"
        if isinstance(key, (np.generic, np.ndarray)) and key.dtype.kind not in _KEY_KINDS:
            raise TypeError(f"key: {key.dtype} of NumPy; give {wanted}")
        if isinstance(key, (int, np.integer)):
            if self.key_size != 8:
                raise TypeError(f"key: an int; the store's keys are {self.key_size} bytes")
            try:
                return int(key).to_bytes(8, "little", signed=bool(key < 0))
            except OverflowError:
                raise OverflowError(f"key: {key}; an int is one of 64 bits") from None
        return _arrays.bytes_of(key, "key", wanted, integers=True)


def _single(keys: np.ndarray) -> Iterator[Any]:
    """Keys of a page, one by one, as `items` has them."""
    return (key.tobytes() if keys.ndim > 1 else int(key) for key in keys)
