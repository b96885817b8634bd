"""Calls that work on what matches a query."""

from __future__ import annotations

from typing import Any

from . import _arrays
from ._search import Bound, Matches, Where, query_text


def _is_missing(where: Where | None) -> bool:
    return where is None or isinstance(where, str) and not where.strip()


class Queries:
    """Of stores: `search` and what goes with it."""

    _core: Any

    def search(self, where: Where | None = None, *, values: bool = False, limit: int | None = None,
               **conditions: Bound) -> Matches:
        """The items whose attributes match, as they are now:
        `keys, _, count = store.search(session=7, model=(None, 3))`.

        conditions: of an attribute a number, or (least, most), each or None; all have to be met. One
        named as another argument (where, values, limit) has its condition in `where` alone.
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
        all: `erase_where({})`; `erase_where()`, or an empty text, is a `TypeError`.
        """
        if _is_missing(where) and not conditions:
            raise TypeError("erase_where: no condition; to erase all items give {}")
        return self._core.erase_where(query_text(where, conditions))

    def update_where(self, where: Where | None = None, *, values: Any,
                     **conditions: Bound) -> int:
        """Changes the values of the items that match now, as `search` has it, and still do when it
        is their turn; batches wait for some thousand at a time. Returns how many were changed.

        values: one value for all of them, `value_size` bytes or what has a buffer of them; or a
        function `values(keys, rows)` of n items at a time: n uint64, or (n, key_size) uint8, and
        (n, value_size) uint8, which are copies. It edits `rows` in place, or returns n other rows
        in host memory. It must not call the store (`BusyError`). What it raises leaves those n as
        they were; items before them were changed. Without a condition it is all:
        `update_where({}, values=...)`. NoSpaceError: some found no room, and stay as they were.
        """
        if _is_missing(where) and not conditions:
            raise TypeError("update_where: no condition; to update all items give {}")
        query = query_text(where, conditions)
        if not callable(values):
            return self._core.update_where(query, _arrays.bytes_of(values, "values"))
        return self._core.update_where(
            query, lambda keys, rows: _arrays.exported(values(keys, rows), "values", 0))
