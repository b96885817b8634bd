"""Pools that are read only."""

from __future__ import annotations

import os
from typing import Any

from . import _arrays, _core
from ._batch import Array, Found
from ._errors import UnsupportedError
from ._items import Items
from ._options import Path, path_of


class Reader(Items):
    """Reads a pool that no store has open, and changes nothing.

    It needs no permission to write. A pool that was not closed in order reads as it will be once
    it was recovered. While a reader is open no store can open the pool; other readers can. It is on
    the CPU, and for a look at single items: a `Store` is faster.
    """

    def __init__(self, path: Path) -> None:
        self.path = path_of(path)
        if os.path.isdir(self.path):
            raise UnsupportedError(f"{self.path}: a folder; a reader reads one pool, such as that "
                                   "of one shard")
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
