"""Stores."""

from __future__ import annotations

import atexit
import time
import weakref
from typing import Any, Sequence

import numpy as np

from . import _arrays, _core
from ._batch import Array, Evicted, Ticket
from ._batches import Batches, require_values
from ._core import Op, Result
from ._errors import InvalidArgumentError, NoSpaceError
from ._export import Export
from ._items import Key, page_of
from ._options import Path, path_of
from ._queries import Queries
from ._search import ManyMatches, Where, query_text


class Store(Batches, Queries):
    """A persistent key-value store in one pool, or over several in a folder: its shards.

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
    until it was waited for.

    Several shards work on a batch at once, each on a GPU of its own with `devices`. They have no
    `capacity`, no cache that is asked to refresh, whole snapshots alone (in a folder), and take no
    stream: on executor cuda a batch is in the order of the default stream. Each says so
    (`UnsupportedError`, or `InvalidArgumentError` of an option).

    Any thread may use a store. It belongs to the process that opened it:
    a fork gets `UnsupportedError`.
    """

    def __init__(self, core: _core.Store, path: str, log: object = None) -> None:
        """Use `create`, `open` or `open_or_create`."""
        self._core = core
        self._log = log
        self.path = path
        close_at_exit(self)

    @property
    def shards(self) -> int | None:
        """Pools that the items are spread over; None: it is one pool, not in a folder."""
        return self._core.shards or None

    def shard_stats(self) -> list[dict[str, Any]]:
        """`stats` of each shard by itself."""
        return self._core.shard_stats()

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
        require_values(values, f"{op.name.lower()}_and_evict")
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
        if self._core.put(self._key_bytes(key), _arrays.bytes_of(value, "value")) == Result.NO_SPACE:
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
        """Makes room for `items` items in all, at once. Raises NoSpaceError.

        It waits for exports and snapshots; by the thread that has an export open: `BusyError`.
        """
        self._core.reserve(items)

    def compact(self) -> None:
        """Gives back what the items do not need: the table's levels, value cells, the file's end.

        What `reserve` was last called for, or the pool created for, stays.
        """
        self._core.compact()

    def snapshot(self, path: Path, base: Path | None = None, *,
                 track_changes: bool = True) -> dict[str, Any]:
        """Writes a file with all items as they are at one instant, while batches go on.

        path: a file that does not exist, of a store over several shards a folder. base: the file of the last snapshot that was taken of
        this store with `track_changes`, since it was opened: only what changed since is written, and `restore` needs both.
        track_changes: whether the next snapshot may have this one as its base. Returns `items` in
        the store, `written` to the file, its `bytes`, and the `pause_seconds` that batches were
        excluded for, of all `seconds`.
        """
        return self._core.snapshot(path_of(path), "" if base is None else path_of(base),
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
        match, as `search` has it: a text, or a dict.

        Snapshots, other exports, `reserve`, `bulk_load` and `compact` wait for its end, and are a
        `BusyError` by the thread that began it; a full pool may have no room for updates until
        then. `close` of the store ends it, too.
        """
        if page is None:
            page = page_of(self.value_size)
        if page < 1:
            raise ValueError("page: it must be at least 1")
        if score is None and (least, most) != (0, 2**64 - 1):
            raise InvalidArgumentError("least, most: they are of a score; give score, too")
        offset, length = (0, 0) if score is None else score
        since = "" if changed_since is None else path_of(changed_since)
        core = self._core.export(offset, length, least, most, since, query_text(where))
        return Export(self, core, page, with_values)

    @property
    def attributes(self) -> dict[str, tuple[int, int]]:
        """Names, and (offset, bytes), of the fields of values that items are searched by."""
        return self.stats()["attributes"]

    def search_many(self, attributes: Sequence[str], bounds: Array, *, keys: bool = True,
                    limit: int | None = None, room: int | None = None,
                    stream: Any = None) -> ManyMatches:
        """What each of q queries matches, all as of one instant, as `search`:
        `counts, offsets, keys = store.search_many(["session", "model"], bounds)`.

        bounds: (q, 2 * len(attributes)) uint64 (int64 is taken for that), C-contiguous: of each
        query the least and the most of each attribute, both included. On executor cuda it may be on
        the GPU, and what is given back is there, too (torch, CuPy; of other libraries it is
        NumPy's). keys: else `counts` alone. limit: rows of each query at most. room: keys that
        there is room for at first, by default one a query; where there are more, it searches again.
        """
        q = _arrays.rows_of(bounds)
        handle = _arrays.stream_of(bounds) if stream is None else _arrays.stream_handle(stream)
        given = _arrays.exported(bounds, "bounds", handle)
        counts = _arrays.empty(bounds, (q,), np.int64)
        key_size = self._core.key_size
        rows = q if room is None else room
        while True:
            offsets = found = None
            if keys:
                offsets = _arrays.empty(bounds, (q + 1,), np.int64)
                found = (_arrays.empty(bounds, (rows,), np.int64) if key_size == 8 else
                         _arrays.empty(bounds, (rows, key_size), np.uint8))
            wanted = self._core.search_many(
                list(attributes), given, _arrays.exported(counts, "counts", handle, True),
                _arrays.exported(offsets, "offsets", handle, True),
                _arrays.exported(found, "keys", handle, True), limit, handle)
            if wanted <= rows or not keys:
                return ManyMatches(counts, offsets, None if found is None else found[:wanted])
            rows = wanted
            given = _arrays.exported(bounds, "bounds", handle)

    def close(self) -> None:
        """Ends exports, completes running batches and closes. Closing again does nothing.

        Calls of other threads end first. From within a log or a visitor: `BusyError`.
        """
        super().close()

    def refresh_cache(self) -> None:
        """Refreshes the cache with the buckets that are hot now, while batches go on."""
        self.refresh_cache_async().wait()

    def refresh_cache_async(self) -> Ticket[None]:
        """As `refresh_cache`, without waiting."""
        return Ticket(self._core.refresh_cache(), None, self)


_opened: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def close_at_exit(store: Any) -> None:
    """Has a store closed when the program ends, if it is open then."""
    _opened[id(store)] = store


@atexit.register
def _close_all() -> None:
    """A program that ends without closing leaves pools that need no recovery."""
    for reference in _opened.valuerefs():  # in one step: other threads may open more
        store = reference()
        try:
            if store is not None:
                store.close()
        except Exception:
            pass  # the pool is recovered when it is opened next; the others are closed still
