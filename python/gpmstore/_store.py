"""Stores, readers, and how they are opened."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Literal, TypedDict, Union, overload

import numpy as np

from . import _arrays, _core
from ._batch import Array, Evicted, Found, FoundOrInserted, Outcome, Ticket
from ._core import Element, Op, Result
from ._errors import Error, NoSpaceError
from ._initial import Constant, Initial, Normal, Uniform, element_of
from ._search import Bound, Matches, Where, query_text

if TYPE_CHECKING:
    from typing_extensions import Required, Self, Unpack

Path = Union[str, "os.PathLike[str]"]
Key = Any  # an int (8-byte keys), or the key's bytes
Visit = Callable[[np.ndarray, np.ndarray], Any]
_PAGE = 65536
_PAGE_BYTES = 64 << 20


class SnapshotSchedule(TypedDict, total=False):
    """Snapshots that a store takes of itself, in the background and when it is closed."""

    path: Required[str]  # a folder of this store's own; made if it is not there
    interval: float  # seconds from one to the next; by default 300
    chains: int  # that are kept: each a whole snapshot and its increments; by default 2
    at_close: bool  # one more when the store is closed; by default
    restore: bool  # open and open_or_create of a pool that is gone restore the newest


class OpenOptions(TypedDict, total=False):
    """How a store is opened."""

    executor: Literal["auto", "cpu", "cuda"]  # auto: cuda if a GPU can map the pool's medium
    threads: int  # executor cpu: worker threads; 0: one for each core
    max_bytes: int  # the pool may grow up to here; 0: what the medium could hold
    growth: float  # a full table gets a level with so many times the buckets of its newest: 1.1 to 4
    growth_pause: float  # seconds that a growth may keep batches waiting; 0: as short as can be
    grow_above: float  # load factor above which the table grows rather than that it moves items
    compact_below: float  # load factor below which a batch that leaves fewer items compacts
    capacity: int  # items that the store may have; 0: as many as the pool has room for
    capacity_bytes: int  # instead: of the pool, at most; stats()["capacity_items"] says how many fit
    capacity_policy: Literal["lru", "lfu", "oldest", "score"]  # which go first; by default lru
    score_offset: int  # capacity_policy score: where in a value it is,
    score_bytes: int  # and how long, 4 or 8: an unsigned number, little-endian; the lowest go first
    device: int  # executor cuda: device ordinal
    directory: bool | None  # by default on executor cuda; without one there is no cache
    cache_policy: Literal["off", "tinylfu", "lfu", "lru", "random"]
    cache_fraction: float | None  # of the buckets of which the values are cached
    cache_bytes: int  # of GPU memory that the store may take; 0: no limit
    cache_refresh_interval: int | None  # operations between; 0: when asked to; None: when one pays
    access_by_address: bool  # executor cuda, for measurements
    access_combine: bool
    access_dealt_up_to: int
    search_index_bytes: int  # of memory that searches may keep, for the next ones; 0: none
    snapshot: SnapshotSchedule | Path | None  # or its path alone, which then restores too
    log: Callable[[str, str], None] | None  # gets "info" or "warning", and a message


class CreateOptions(OpenOptions, total=False):
    """What is fixed when a pool is created, and how it is opened then."""

    geometry: str  # "2L-2H-8S": levels, hash locations, slots a bucket
    initial_capacity: int  # items that fit without resizing; 0: start small
    overwrite: bool  # of a DAX device: what it holds is lost; any file that is there is refused
    hash_seed: int | None  # for reproducible layouts; else random
    attributes: dict[str, tuple[int, int]]  # names: (offset, bytes) of fields that are searched by


class _Items:
    """What stores and readers have in common: single items, iteration, closing."""

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

    def get(self, key: Key, default: Any = None) -> Any:
        """The value of a key, `value_size` bytes; `default` when it is not there.

        key: an int for 8-byte keys, or `key_size` bytes.
        """
        value = self._core.get(self._key_bytes(key))
        return default if value is None else value

    def for_each(self, visit: Visit, rows: int | None = None) -> bool:
        """Calls `visit(keys, values)` for all items, in no order, in pages of at most `rows`; by
        default as many as make some 64 MiB, and no more than 65536.

        keys: n uint64, or (n, key_size) uint8; values: (n, value_size) uint8. They are copies and
        may be kept. It stops when `visit` returns False. A store excludes batches meanwhile, so
        that `visit` must not call it (`BusyError`). Returns whether it saw all items.
        """
        if rows is None:
            rows = max(1, min(_PAGE, _PAGE_BYTES // self.value_size))
        return self._core.for_each(visit, rows)

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
            for key, value in zip(keys, values):
                yield key.tobytes() if keys.ndim > 1 else int(key), value.tobytes()

    def __iter__(self) -> Iterator[Any]:
        """The keys of `items`."""
        return (key for key, _ in self.items())

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

    def __len__(self) -> int:
        return self.stats()["items"]

    def __bool__(self) -> bool:
        return True  # also without items

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: Key) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return (f"<gpmstore.{type(self).__name__} {self.path!r}, keys of {self.key_size} bytes, "
                f"values of {self.value_size}{closed}>")

    def _key_bytes(self, key: Key) -> bytes:
        if isinstance(key, (int, np.integer)):
            if self.key_size != 8:
                raise TypeError(f"key: an int; the store's keys are {self.key_size} bytes")
            return int(key).to_bytes(8, "little", signed=bool(key < 0))
        return _bytes_of(key, "key")

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


def _numpy_dtype(dtype: Any) -> Any:
    """A dtype for a new array of values; None where it has to be bytes."""
    try:
        return None if dtype is None or element_of(dtype) == Element.BFLOAT16 else np.dtype(dtype)
    except TypeError:  # torch's
        return dtype


def _bytes_of(data: Any, name: str) -> bytes:
    try:
        return bytes(memoryview(data))
    except TypeError as error:
        raise TypeError(f"{name}: {type(data).__name__!r}; give bytes") from error


class Store(_Items):
    """A persistent key-value store in one pool.

    Batches: `keys` are n keys, C-contiguous: n int64 or uint64 for 8-byte keys, else n rows of
    `key_size` bytes, such as (n, key_size) uint8 or n 'S16'. `values` are n rows of `value_size`
    bytes of any dtype. Arrays are NumPy's, or torch's, CuPy's, JAX's, and those of others with
    DLPack or `__cuda_array_interface__`; on executor cuda each may be on the GPU. Results, and
    values that are found, are of the library and on the device of the keys (of NumPy for JAX and
    others), unless `out` and `results` say where.

    Operations on the same key take effect in batch order. When a call returns, all that it did is
    durable as far as the pool's medium promises (`stats()["medium"]`). What an operation came to
    is a value of `Outcome.results`, also that there was no room.

    Arrays on a GPU: the batch runs on the current stream of the array's library, or on `stream`,
    and after what is on it.

    `NAME_async` return a `Ticket` as soon as the batch has begun; the arrays belong to the batch
    until it was waited for. Any thread may use a store. It belongs to the process that opened it:
    a fork gets `UnsupportedError`.
    """

    def __init__(self, core: _core.Store, path: str, log: object = None) -> None:
        """Use `create`, `open` or `open_or_create`."""
        self._core = core
        self._log = log
        self._exports: weakref.WeakSet[Export] = weakref.WeakSet()
        self.path = path
        # Told of each batch that has ended: its kind, operations and seconds (gpmstore.metrics).
        self._observer: Callable[[str, int, float], None] | None = None
        _opened.add(self)

    def find(self, keys: Array, out: Array = None, *, results: Array = None, dtype: Any = None,
             stream: Any = None) -> Found:
        """Finds n keys: `values, found = store.find(keys)`.

        out: n rows of `value_size` bytes for the values, else a new array; False: none.
        results: n bytes (uint8) for the results, else a new array.
        dtype: of the new array's elements (default uint8), which has the shape (n, elements a
        value), or (n,) when a value is one element.
        """
        return self._find(self._run, keys, out, results, dtype, stream)

    def find_async(self, keys: Array, out: Array = None, *, results: Array = None,
                   dtype: Any = None, stream: Any = None) -> Ticket[Found]:
        """As `find`, without waiting."""
        return self._find(self._start, keys, out, results, dtype, stream)

    def insert(self, keys: Array, values: Array, *, results: Array = None,
               stream: Any = None) -> Outcome:
        """Adds n items; a key that is there keeps its value (`Result.EXISTS`)."""
        return self._write(self._run, Op.INSERT, keys, values, results, stream)

    def insert_async(self, keys: Array, values: Array, *, results: Array = None,
                     stream: Any = None) -> Ticket[Outcome]:
        """As `insert`, without waiting."""
        return self._write(self._start, Op.INSERT, keys, values, results, stream)

    def update(self, keys: Array, values: Array, *, results: Array = None,
               stream: Any = None) -> Outcome:
        """Replaces the values of n keys; one that is not there is `Result.NOT_FOUND`."""
        return self._write(self._run, Op.UPDATE, keys, values, results, stream)

    def update_async(self, keys: Array, values: Array, *, results: Array = None,
                     stream: Any = None) -> Ticket[Outcome]:
        """As `update`, without waiting."""
        return self._write(self._start, Op.UPDATE, keys, values, results, stream)

    def upsert(self, keys: Array, values: Array, *, results: Array = None,
               stream: Any = None) -> Outcome:
        """Inserts or updates n items."""
        return self._write(self._run, Op.UPSERT, keys, values, results, stream)

    def upsert_async(self, keys: Array, values: Array, *, results: Array = None,
                     stream: Any = None) -> Ticket[Outcome]:
        """As `upsert`, without waiting."""
        return self._write(self._start, Op.UPSERT, keys, values, results, stream)

    def erase(self, keys: Array, *, results: Array = None, stream: Any = None) -> Outcome:
        """Removes n items; one that is not there is `Result.NOT_FOUND`."""
        return self._write(self._run, Op.ERASE, keys, None, results, stream)

    def erase_async(self, keys: Array, *, results: Array = None,
                    stream: Any = None) -> Ticket[Outcome]:
        """As `erase`, without waiting."""
        return self._write(self._start, Op.ERASE, keys, None, results, stream)

    def find_or_insert(self, keys: Array, initial: Initial | Array, out: Array = None, *,
                       results: Array = None, dtype: Any = None,
                       stream: Any = None) -> FoundOrInserted:
        """Finds n keys, and adds those that are missing, in one batch.

        initial: values for new items: n rows, or a `Constant`, `Uniform` or `Normal`. Of a key that
        comes several times the first adds (`Result.OK`), and all get the same value
        (`Result.EXISTS`). out, dtype: as in `find`.
        """
        return self._find_or_insert(self._run, keys, initial, out, results, dtype, stream)

    def find_or_insert_async(self, keys: Array, initial: Initial | Array, out: Array = None, *,
                             results: Array = None, dtype: Any = None,
                             stream: Any = None) -> Ticket[FoundOrInserted]:
        """As `find_or_insert`, without waiting."""
        return self._find_or_insert(self._start, keys, initial, out, results, dtype, stream)

    def _find_or_insert(self, begin: Callable[..., Any], keys: Array, initial: Initial | Array,
                        out: Array, results: Array, dtype: Any, stream: Any) -> Any:
        is_rule = isinstance(initial, (Constant, Uniform, Normal))
        if is_rule and dtype is None and out is None:
            dtype = _numpy_dtype(initial._dtype)
        out = self._room_for_values(keys, out, dtype)
        results = self._room_for_results(keys, results)
        found = FoundOrInserted(results, out)
        if not is_rule:
            if initial is None:
                raise TypeError("initial: None; give n rows of values, or how to make them")
            return begin(Op.FIND_OR_INSERT, found, keys, initial, out, stream=stream)
        element = Element.NONE if initial._dtype is None else element_of(initial._dtype)
        return begin(Op.FIND_OR_INSERT, found, keys, None, out, stream=stream, element=element,
                     initial=initial._core())

    def accumulate(self, keys: Array, rows: Array, dtype: Any = None, *, results: Array = None,
                   stream: Any = None) -> Outcome:
        """Adds a row to the value of each of n keys, element by element; of a key that comes
        several times, in batch order. One that is not there is `Result.NOT_FOUND`.

        dtype: of the elements of values and rows: float32, float16, bfloat16 or uint64; by default
        that of `rows`. Sums are rounded to the nearest number, once.
        """
        return self._accumulate(self._run, keys, rows, dtype, results, stream)

    def accumulate_async(self, keys: Array, rows: Array, dtype: Any = None, *,
                         results: Array = None, stream: Any = None) -> Ticket[Outcome]:
        """As `accumulate`, without waiting."""
        return self._accumulate(self._start, keys, rows, dtype, results, stream)

    def _accumulate(self, begin: Callable[..., Any], keys: Array, rows: Array, dtype: Any,
                    results: Array, stream: Any) -> Any:
        if rows is None:
            raise TypeError("rows: None; accumulate needs n rows")
        element = element_of(getattr(rows, "dtype", None) if dtype is None else dtype)
        return begin(Op.ACCUMULATE, Outcome(self._room_for_results(keys, results)), keys, rows,
                     stream=stream, element=element)

    def apply(self, ops: Array, keys: Array, values: Array = None, out: Array = None, *,
              results: Array = None, dtype: Any = None, stream: Any = None,
              element: Any = None) -> Found:
        """Runs a batch of mixed kinds.

        ops: n integers, each an `Op`. Bytes are used where they are, and what is no `Op` is
        `Result.INVALID`; wider integers of NumPy, torch and CuPy are checked and copied. values:
        needed where an operation is an insert, update, upsert, find_or_insert (whose initial value
        it is) or accumulate (else it is `Result.INVALID`); other rows do not matter. element: the
        dtype of elements, for accumulate. out, dtype: as in `find`.
        """
        return self._apply(self._run, ops, keys, values, out, results, dtype, stream, element)

    def apply_async(self, ops: Array, keys: Array, values: Array = None, out: Array = None, *,
                    results: Array = None, dtype: Any = None, stream: Any = None,
                    element: Any = None) -> Ticket[Found]:
        """As `apply`, without waiting."""
        return self._apply(self._start, ops, keys, values, out, results, dtype, stream, element)

    def _apply(self, begin: Callable[..., Any], ops: Array, keys: Array, values: Array, out: Array,
               results: Array, dtype: Any, stream: Any, element: Any) -> Any:
        out = self._room_for_values(keys, out, dtype)
        results = self._room_for_results(keys, results)
        return begin(Op.FIND, Found(results, out), keys, values, out,
                     _arrays.op_codes(ops, len(Op)), stream,
                     Element.NONE if element is None else element_of(element))

    def bulk_load(self, keys: Array, values: Array, *, results: Array = None) -> Outcome:
        """Inserts many items: makes room for all of them first, then inserts in large batches.

        It runs on the default stream.
        """
        outcome = Outcome(self._room_for_results(keys, results))
        began = time.perf_counter()
        outcome._failed = self._core.bulk_load(
            _arrays.exported(keys, "keys", 0), _arrays.exported(values, "values", 0),
            _arrays.exported(outcome.results, "results", 0, written=True))
        if self._observer:
            self._observer("bulk_load", outcome.operations, time.perf_counter() - began)
        return outcome

    def insert_and_evict(self, keys: Array, values: Array, room: int | None = None, *,
                         with_values: bool = True, results: Array = None) -> Evicted:
        """Adds n items, as `insert`, to a store with a `capacity`, and gives out what is evicted
        for it: `evicted_keys, evicted_values = store.insert_and_evict(keys, values)`.

        room: items that may be evicted at most; where more have to be it is an
        `InvalidArgumentError`, and nothing was done. By default all that a batch may evict. It runs
        on the default stream.
        """
        return self._and_evict(Op.INSERT, keys, values, room, with_values, results)

    def upsert_and_evict(self, keys: Array, values: Array, room: int | None = None, *,
                         with_values: bool = True, results: Array = None) -> Evicted:
        """Inserts or updates n items, and gives out what is evicted, as `insert_and_evict`."""
        return self._and_evict(Op.UPSERT, keys, values, room, with_values, results)

    def _and_evict(self, op: Op, keys: Array, values: Array, room: int | None, with_values: bool,
                   results: Array) -> Evicted:
        results = self._room_for_results(keys, results)
        if room is None:
            stats = self.stats()
            capacity = stats["capacity_items"]
            beyond = max(0, stats["items"] - capacity) if capacity else 0
            room = _arrays.rows_of(keys) + capacity // 16 + beyond
        evicted_keys = (np.empty(room, np.uint64) if self.key_size == 8
                        else np.empty((room, self.key_size), np.uint8))
        evicted_values = np.empty((room, self.value_size), np.uint8) if with_values else None
        began = time.perf_counter()
        count, failed = self._core.apply_and_evict(
            op, _arrays.exported(keys, "keys", 0), _arrays.exported(values, "values", 0),
            _arrays.exported(results, "results", 0, written=True), evicted_keys, evicted_values)
        evicted = Evicted(results, evicted_keys[:count],
                          None if evicted_values is None else evicted_values[:count])
        evicted._failed = failed
        if self._observer:
            self._observer(op.name.lower(), evicted.operations, time.perf_counter() - began)
        return evicted

    def put(self, key: Key, value: Any) -> None:
        """Inserts or updates one item. Raises NoSpaceError.

        key: as in `get`. value: `value_size` bytes, or what has a buffer of them.
        """
        if self._core.put(self._key_bytes(key), _bytes_of(value, "value")) == Result.NO_SPACE:
            raise NoSpaceError(f"{self.path}: no room for the item")

    def delete(self, key: Key) -> bool:
        """Removes one item. Returns whether it was there."""
        return self._core.delete(self._key_bytes(key))

    def __setitem__(self, key: Key, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def reserve(self, items: int) -> None:
        """Makes room for `items` items in all, at once. Raises NoSpaceError."""
        self._core.reserve(items)

    def compact(self) -> None:
        """Gives back what the items do not need: the table's levels, value cells, the file's end.

        What `reserve` was last called for, or the pool created for, stays.
        """
        self._core.compact()

    def snapshot(self, path: Path, base: Path | None = None, *,
                 track_changes: bool = True) -> dict[str, Any]:
        """Writes a file with all items as they are at one instant, while batches go on.

        path: a file that does not exist. base: the file of the snapshot that was taken of this store
        last, since it was opened: only what changed since is written, and `restore` needs both.
        track_changes: whether the next snapshot may have this one as its base. Returns `items` in
        the store, `written` to the file, its `bytes`, and the `pause_seconds` that batches were
        excluded for, of all `seconds`.
        """
        return self._core.snapshot(os.fspath(path), "" if base is None else os.fspath(base),
                                   track_changes)

    def export(self, page: int | None = None, *, with_values: bool = True,
               score: tuple[int, int] | None = None, least: int = 0,
               most: int = 2**64 - 1, changed_since: Path | None = None,
               where: Where | None = None) -> Export:
        """The items as they are now, page by page, while batches go on:
        `for keys, values in store.export(): ...`. Values take memory for a page, keys for all.

        page: rows at most, by default as in `for_each`. with_values: else `values` is None. score:
        (offset, bytes) of an unsigned number in the value, little-endian, of 4 or 8 bytes: only
        items that have one from `least` to `most`. changed_since: the file of the last `snapshot`,
        which must track changes: only items that were added or updated since, and few others, as
        changes are known by hash range; what was erased is not told of. where: only items that
        match, as `search` has it: a text, or a dict. Snapshots, `reserve` and `compact` wait for its end, and are a `BusyError` by the thread that began it; a full pool
        may have no room for updates until then. `close` ends it.
        """
        if page is None:
            page = max(1, min(_PAGE, _PAGE_BYTES // self.value_size))
        if page < 1:
            raise ValueError("page: it must be at least 1")
        offset, length = (0, 0) if score is None else score
        since = "" if changed_since is None else os.fspath(changed_since)
        core = self._core.export(offset, length, least, most, since, query_text(where))
        export = Export(self, core, page, with_values)
        self._exports.add(export)
        return export

    @property
    def attributes(self) -> dict[str, tuple[int, int]]:
        """Names, and (offset, bytes), of the fields of values that items are searched by."""
        return self.stats()["attributes"]

    def search(self, where: Where | None = None, *, values: bool = False, limit: int | None = None,
               **conditions: Bound) -> Matches:
        """The items whose attributes match, as they are now:
        `keys, _, count = store.search(session=7, model=(None, 3))`.

        conditions: of an attribute a number, or (least, most), each or None; all have to be met.
        where: the same as a dict, or a text, such as "session = 7 and model < 3". values: they are
        wanted, too. limit: rows that are given back at most, those with the least keys as bytes;
        `count` is of all. An open `export` of this thread is a `BusyError`.
        """
        count, keys, rows = self._core.search(query_text(where, conditions), limit, True, values)
        return Matches(keys, rows, count)

    def count(self, where: Where | None = None, **conditions: Bound) -> int:
        """How many items match; as `search`."""
        return self._core.search(query_text(where, conditions), None, False, False)[0]

    def erase_where(self, where: Where | None = None, **conditions: Bound) -> int:
        """Erases the items that match now, as `search` has it, and still do when it is their turn;
        batches wait for some thousand at a time. Returns how many went. Without a condition it is
        all: `erase_where({})`; `erase_where()` is a `TypeError`.
        """
        if where is None and not conditions:
            raise TypeError("erase_where: no condition; to erase all items give {}")
        return self._core.erase_where(query_text(where, conditions))

    def close(self) -> None:
        """Ends exports, completes running batches and closes. Closing again does nothing.

        Calls of other threads end first. From within a log or a visitor: `BusyError`.
        """
        for export in list(self._exports):
            export.close()
        super().close()

    def refresh_cache(self) -> None:
        """Refreshes the cache with the buckets that are hot now, while batches go on."""
        self.refresh_cache_async().wait()

    def refresh_cache_async(self) -> Ticket[None]:
        """As `refresh_cache`, without waiting."""
        return Ticket(self._core.refresh_cache(), None, self)

    # Who waits calls these with `_run`, who does not with `_start`.

    def _find(self, begin: Callable[..., Any], keys: Array, out: Array, results: Array, dtype: Any,
              stream: Any) -> Any:
        out = self._room_for_values(keys, out, dtype)
        results = self._room_for_results(keys, results)
        return begin(Op.FIND, Found(results, out), keys, out=out, stream=stream)

    def _write(self, begin: Callable[..., Any], op: Op, keys: Array, values: Array, results: Array,
               stream: Any) -> Any:
        if values is None and op != Op.ERASE:
            raise TypeError(f"values: None; {op.name.lower()} needs n rows of values")
        return begin(op, Outcome(self._room_for_results(keys, results)), keys, values,
                     stream=stream)

    def _start(self, op: Op, outcome: Any, keys: Array, values: Array = None, out: Array = None,
               ops: Array = None, stream: Any = None, element: Element = Element.NONE,
               initial: tuple[Any, ...] | None = None) -> Ticket[Any]:
        done = None
        if observer := self._observer:
            name = op.name.lower() if ops is None else "mixed"

            def done(seconds: float) -> None:
                observer(name, outcome.operations, seconds)

        began = time.perf_counter()
        ticket = self._core.start(
            *_arguments(op, outcome.results, keys, values, out, ops, stream, element, initial))
        return Ticket(ticket, outcome, self, done, began)

    def _run(self, op: Op, outcome: Any, keys: Array, values: Array = None, out: Array = None,
             ops: Array = None, stream: Any = None, element: Element = Element.NONE,
             initial: tuple[Any, ...] | None = None) -> Any:
        observer = self._observer
        began = time.perf_counter() if observer else 0.0
        failed = self._core.run(
            *_arguments(op, outcome.results, keys, values, out, ops, stream, element, initial))
        if failed is not None:
            outcome._failed = failed
        if observer:
            observer(op.name.lower() if ops is None else "mixed", outcome.operations,
                     time.perf_counter() - began)
        return outcome


def _arguments(op: Op, results: Array, keys: Array, values: Array, out: Array, ops: Array,
               stream: Any, element: Element, initial: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """What _core starts or runs a batch with."""
    handle = (_arrays.stream_of(keys, values, out, results, ops) if stream is None
              else _arrays.stream_handle(stream))
    exported = _arrays.exported
    return (op, None if ops is None else exported(ops, "ops", handle),
            exported(keys, "keys", handle),
            None if values is None else exported(values, "values", handle),
            None if out is None else exported(out, "out", handle, True),
            exported(results, "results", handle, True), handle, element, initial)


class Export:
    """The items of a store at one instant, in pages; see `Store.export`. An iterator of (keys,
    values): n uint64, or (n, key_size) uint8; (n, value_size) uint8. It ends behind the last page,
    by `close`, and when it is dropped.
    """

    def __init__(self, store: Store, core: _core.Export, page: int, with_values: bool) -> None:
        """Use `Store.export`."""
        self._sizes = (page, store.key_size, store.value_size)
        self._core: _core.Export | None = core
        self._with_values = with_values

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[np.ndarray, np.ndarray | None]:
        page, key_size, value_size = self._sizes
        if self._core is None:
            raise StopIteration
        keys = np.empty(page, np.uint64) if key_size == 8 else np.empty((page, key_size), np.uint8)
        values = np.empty((page, value_size), np.uint8) if self._with_values else None
        rows = self._core.next(keys, values)
        if rows == 0:
            self.close()
            raise StopIteration
        return keys[:rows], None if values is None else values[:rows]

    def close(self) -> None:
        """Ends it, at any page; no matter if it has ended."""
        core, self._core = self._core, None
        if core is not None:
            core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Reader(_Items):
    """Reads a pool that no store has open, and changes nothing.

    It needs no permission to write. A pool that was not closed in order reads as it will be once
    it was recovered. While a reader is open no store can open the pool; other readers can. It is on
    the CPU, and for a look at single items: a `Store` is faster.
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self._core = _core.Reader(self.path)

    def find(self, keys: Array, out: Array = None, *, results: Array = None,
             dtype: Any = None) -> Found:
        """As `Store.find`, of arrays in host memory, one key after the other."""
        out = self._room_for_values(keys, out, dtype)
        results = self._room_for_results(keys, results)
        found = Found(results, out)
        found._failed = self._core.find(_arrays.exported(keys, "keys", 0),
                                        _arrays.exported(out, "out", 0, written=True),
                                        _arrays.exported(results, "results", 0, written=True))
        return found


class _Log:
    """Keeps the user's function. _core only gets a weak reference to this, so that a log which
    refers to its store is no cycle through C++, which could not be collected."""

    def __init__(self, function: Callable[[str, str], None]) -> None:
        self.function = function

    def weak(self) -> Callable[[str, str], None]:
        reference = weakref.ref(self)

        def tell(level: str, message: str) -> None:
            log = reference()
            if log is not None:
                log.function(level, message)

        return tell


_opened: weakref.WeakSet[Store] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A program that ends without closing leaves pools that need no recovery."""
    for store in list(_opened):
        try:
            store.close()
        except Error:
            pass  # the pool is recovered when it is opened next


def _store(make: Callable[[str, dict[str, Any]], _core.Store], path: Path,
           options: dict[str, Any]) -> Store:
    log = None
    if callable(options.get("log")):
        log = _Log(options["log"])
        options["log"] = log.weak()
    if options.get("snapshot") is not None:
        options["snapshot"] = _schedule(options["snapshot"])
    path = os.fspath(path)
    return Store(make(path, options), path, log)


def _schedule(given: Any) -> dict[str, Any]:
    if isinstance(given, (str, os.PathLike)):
        return {"path": os.fspath(given), "restore": True}
    if not isinstance(given, dict):
        raise TypeError("snapshot: it must be a path or a dict")
    return {**given, "path": os.fspath(given.get("path", ""))}


def create(path: Path, key_size: int = 8, value_size: int = 128,
           **options: Unpack[CreateOptions]) -> Store:
    """Creates a pool and opens it.

    path: a file that does not exist, a DAX device that holds nothing (else `overwrite`), or
    "pinned:" for volatile memory. key_size: 1 to 255 bytes. value_size: 1 byte to 16 MiB.
    options: those of `CreateOptions` and `OpenOptions`. An `ExistsError` leaves what is there.
    """
    return _store(_core.create, path, {"key_size": key_size, "value_size": value_size, **options})


def open_or_create(path: Path, key_size: int = 8, value_size: int = 128,
                   **options: Unpack[CreateOptions]) -> Store:
    """Opens the pool if it exists, which must have these sizes, and else creates it.

    What else `CreateOptions` has counts only if it is created.
    """
    return _store(_core.open_or_create, path,
                  {"key_size": key_size, "value_size": value_size, **options})


def restore(files: Iterable[Path] | Path, path: Path, **options: Unpack[OpenOptions]) -> Store:
    """Creates a pool with what snapshots hold, and opens it.

    files: a whole snapshot, then its increments in their order; all are checked. Or a folder
    of the option `snapshot`: the newest chain that is there, as far as it is whole.
    path: a file that does not exist, or "pinned:". options: those of `OpenOptions`.
    """
    if isinstance(files, (str, os.PathLike)):
        folder = os.fspath(files)
        return _store(lambda pool, given: _core.restore_newest(folder, pool, given), path, options)
    names = [os.fspath(file) for file in files]
    return _store(lambda pool, given: _core.restore(names, pool, given), path, options)


@overload
def open(path: Path, *, read_only: Literal[False] = ..., **options: Unpack[OpenOptions]) -> Store: ...
@overload
def open(path: Path, *, read_only: Literal[True]) -> Reader: ...
def open(path: Path, *, read_only: bool = False, **options: Any) -> Store | Reader:
    """Opens a pool, recovering it first if it was not closed in order.

    options: those of `OpenOptions`. read_only: as a `Reader`, which has none.
    """
    if read_only:
        if options:
            raise TypeError(f"a reader has no option {next(iter(options))!r}")
        return Reader(path)
    return _store(_core.open, path, options)
