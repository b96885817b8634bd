"""GPMStore: a persistent key-value store for GPU applications, and for CPUs.

    import numpy as np
    import gpmstore

    with gpmstore.open_or_create("/dev/shm/rows.pool", value_size=128) as store:
        store.upsert(keys, rows)                             # n uint64 keys, n rows of 128 bytes
        values, found = store.find(keys, dtype=np.float32)   # (n, 32) float32, n booleans
"""

from ._core import VERSION as __version__
from ._core import ErrorCode, Op, Result
from ._batch import Evicted, Found, FoundOrInserted, Outcome, Ticket
from ._errors import (BusyError, DamagedError, Error, ExistsError, GpuError, InvalidArgumentError,
                      IoError, NoSpaceError, NotFoundError, UnsupportedError)
from ._initial import Constant, Normal, Uniform
from ._search import ManyMatches, Matches
from ._export import Export
from ._open import create, open, open_or_create, reshard, restore
from ._reader import Reader
from ._store import Store

__all__ = [
    "BusyError", "Constant", "DamagedError", "Error", "ErrorCode", "Evicted", "ExistsError",
    "Export", "Found", "FoundOrInserted", "GpuError", "InvalidArgumentError", "IoError",
    "ManyMatches", "Matches", "NoSpaceError",
    "Normal", "NotFoundError", "Op", "Outcome", "Reader", "Result", "Store", "Ticket", "Uniform",
    "UnsupportedError", "__version__", "create", "open", "open_or_create", "reshard", "restore",
]
