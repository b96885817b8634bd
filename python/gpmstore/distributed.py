"""A store that several processes have open together, one a GPU or one a machine.

    # One of the processes that torchrun started:
    from gpmstore import distributed

    with distributed.open_or_create("/dev/shm/rows", value_size=128, shards=8) as store:
        store.upsert(keys, rows)             # all ranks call it, each with keys and rows of its own
        values, found = store.find(keys)
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from . import _core
from ._batch import Array, Found, FoundOrInserted, Outcome, Ticket
from ._batches import Calls
from ._core import Op
from ._errors import BusyError
from ._exchange import Exchange, TorchExchange
from ._initial import Initial
from ._items import Visit
from ._open import prepared
from ._options import CreateOptions, OpenOptions, Path, path_of
from ._queries import Queries
from ._search import Bound, Matches, Where
from ._store import close_at_exit

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["DistributedStore", "Exchange", "TorchExchange", "create", "open", "open_or_create",
           "restore"]

Method = TypeVar("Method", bound=Callable[..., Any])


def _told(refuse: str) -> Callable[[Method], Method]:
    """Of collective calls: what one rank raises before the others know of it, they are told of."""

    def collective(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: DistributedStore, *args: Any, **kwargs: Any) -> Any:
            calls = self._core.calls
            try:
                return method(self, *args, **kwargs)
            except BusyError:  # another call goes on, which the others make too
                raise
            except Exception:
                if self._core.calls == calls:
                    getattr(self._core, refuse)()
                raise

        return call  # type: ignore[return-value]

    return collective


_batch = _told("refuse_batch")
_other = _told("refuse_other")


class DistributedStore(Calls, Queries):
    """One rank's side of a store over several shards, each of which some rank has.

    Calls that are collective are made by all ranks, in the same order. Each rank gives arrays of
    its own, of any length, also 0: all parts together are one batch. Operations on one key take
    effect in the order of the ranks, and of one rank's in the order of its part. Parts may be of
    different kinds (one rank finds what another inserts). When a call returns, on any rank, all
    that they asked for is durable as far as the medium promises.

    Arrays are as a `Store`'s: NumPy's, or torch's and others'; those on a GPU where NCCL joins the
    ranks (`open`), in the order of the default stream.

    When a call raises on one rank, it raises on the others too, which name that rank. What a rank
    can't ask for (an array of the wrong shape) leaves everything as it was, and the store goes on.
    After an `IoError` of the exchange (a rank has died, closed its store, or does not come within
    the timeout) only `close` is of use, on all ranks; each operation of the batch has happened or
    not. What the shards have is sound, and the store can be opened again.

    One thread at a time uses it: a call beside another is a `BusyError`, and so is one from within
    a `for_each` or a log. It belongs to the process that opened it.
    """

    def __init__(self, core: _core.DistributedStore, path: str, log: object = None) -> None:
        """Use `create`, `open` or `open_or_create`."""
        self._core = core
        self._log = log
        self.path = path
        close_at_exit(self)

    @property
    def rank(self) -> int:
        """Of this process, from 0."""
        return self._core.rank

    @property
    def ranks(self) -> int:
        """In all."""
        return self._core.ranks

    @property
    def shards(self) -> int:
        """Of all ranks."""
        return self._core.shards

    @_batch
    def find(self, keys: Array, out: Array = None, *, results: Array = None,
             dtype: Any = None) -> Found:
        """Collective. Finds n keys, as `Store.find`."""
        return self._find(self._run, keys, out, results, dtype, None)

    @_batch
    def insert(self, keys: Array, values: Array, *, results: Array = None) -> Outcome:
        """Collective. Adds n items; a key that is there keeps its value (`Result.EXISTS`)."""
        return self._write(self._run, Op.INSERT, keys, values, results, None)

    @_batch
    def update(self, keys: Array, values: Array, *, results: Array = None) -> Outcome:
        """Collective. Replaces the values of n keys; one that is not there is
        `Result.NOT_FOUND`."""
        return self._write(self._run, Op.UPDATE, keys, values, results, None)

    @_batch
    def upsert(self, keys: Array, values: Array, *, results: Array = None) -> Outcome:
        """Collective. Inserts or updates n items."""
        return self._write(self._run, Op.UPSERT, keys, values, results, None)

    @_batch
    def erase(self, keys: Array, *, results: Array = None) -> Outcome:
        """Collective. Removes n items; one that is not there is `Result.NOT_FOUND`."""
        return self._write(self._run, Op.ERASE, keys, None, results, None)

    @_batch
    def find_or_insert(self, keys: Array, initial: Initial | Array, out: Array = None, *,
                       results: Array = None, dtype: Any = None) -> FoundOrInserted:
        """Collective. Finds n keys, and adds those that are missing, as `Store.find_or_insert`.

        initial: as there; a `Constant`, `Uniform` or `Normal` is the same on all ranks.
        """
        return self._find_or_insert(self._run, keys, initial, out, results, dtype, None)

    @_batch
    def accumulate(self, keys: Array, rows: Array, dtype: Any = None, *,
                   results: Array = None) -> Outcome:
        """Collective. Adds a row to the value of each of n keys, as `Store.accumulate`; `dtype` is
        the same on all ranks."""
        return self._accumulate(self._run, keys, rows, dtype, results, None)

    @_batch
    def apply(self, ops: Array, keys: Array, values: Array = None, out: Array = None, *,
              results: Array = None, dtype: Any = None, element: Any = None) -> Found:
        """Collective. Runs a batch of mixed kinds, as `Store.apply`."""
        return self._apply(self._run, ops, keys, values, out, results, dtype, None, element)

    @_batch
    def find_async(self, keys: Array, out: Array = None, *, results: Array = None,
                   dtype: Any = None) -> Ticket[Found]:
        """Collective. As `find`, without waiting: a thread of this rank's carries it out, and what
        is called later comes behind it. Other ranks may take part by `find`. Arrays, on a GPU
        too, are filled when the ticket was waited for, and not before. So of the calls below.
        """
        return self._find(self._start, keys, out, results, dtype, None)

    @_batch
    def insert_async(self, keys: Array, values: Array, *,
                     results: Array = None) -> Ticket[Outcome]:
        """Collective. As `insert`, without waiting."""
        return self._write(self._start, Op.INSERT, keys, values, results, None)

    @_batch
    def update_async(self, keys: Array, values: Array, *,
                     results: Array = None) -> Ticket[Outcome]:
        """Collective. As `update`, without waiting."""
        return self._write(self._start, Op.UPDATE, keys, values, results, None)

    @_batch
    def upsert_async(self, keys: Array, values: Array, *,
                     results: Array = None) -> Ticket[Outcome]:
        """Collective. As `upsert`, without waiting."""
        return self._write(self._start, Op.UPSERT, keys, values, results, None)

    @_batch
    def erase_async(self, keys: Array, *, results: Array = None) -> Ticket[Outcome]:
        """Collective. As `erase`, without waiting."""
        return self._write(self._start, Op.ERASE, keys, None, results, None)

    @_batch
    def find_or_insert_async(self, keys: Array, initial: Initial | Array, out: Array = None, *,
                             results: Array = None, dtype: Any = None) -> Ticket[FoundOrInserted]:
        """Collective. As `find_or_insert`, without waiting."""
        return self._find_or_insert(self._start, keys, initial, out, results, dtype, None)

    @_batch
    def accumulate_async(self, keys: Array, rows: Array, dtype: Any = None, *,
                         results: Array = None) -> Ticket[Outcome]:
        """Collective. As `accumulate`, without waiting."""
        return self._accumulate(self._start, keys, rows, dtype, results, None)

    @_batch
    def apply_async(self, ops: Array, keys: Array, values: Array = None, out: Array = None, *,
                    results: Array = None, dtype: Any = None,
                    element: Any = None) -> Ticket[Found]:
        """Collective. As `apply`, without waiting."""
        return self._apply(self._start, ops, keys, values, out, results, dtype, None, element)

    @_batch
    def bulk_load(self, keys: Array, values: Array, *, results: Array = None) -> Outcome:
        """Collective. Inserts many items: makes room for all of them first."""
        return self._bulk_load(keys, values, results)

    @_batch
    def contains(self, keys: Array) -> Array:
        """Collective. n booleans: which of n keys are there."""
        return self._find(self._run, keys, False, None, None, None).found

    @_other
    def reserve(self, items: int) -> None:
        """Collective. Makes room for `items` items in all, on all ranks together. Raises
        NoSpaceError."""
        self._core.reserve(items)

    @_other
    def compact(self) -> None:
        """Collective. Gives back what the items do not need, as `Store.compact`."""
        self._core.compact()

    @_other
    def search(self, where: Where | None = None, *, values: bool = False, limit: int | None = None,
               **conditions: Bound) -> Matches:
        """Collective. The items of all ranks that match this rank's query, as `Store.search`; the
        others' may be another one. It sees what the collective calls before it left."""
        return super().search(where, values=values, limit=limit, **conditions)

    @_other
    def count(self, where: Where | None = None, **conditions: Bound) -> int:
        """Collective. How many items of all ranks match; as `search`."""
        return super().count(where, **conditions)

    @_other
    def erase_where(self, where: Where | None = None, **conditions: Bound) -> int:
        """Collective. Erases the items of all ranks that match a query, which is the same on all.
        Returns how many went, in all."""
        return super().erase_where(where, **conditions)

    @_other
    def update_where(self, where: Where | None = None, *, values: Any, **conditions: Bound) -> int:
        """Collective. Changes the values of the items of all ranks that match a query, which is the
        same on all. Returns how many were changed, in all.

        values: as of `Store.update_where`, for the items of this rank's shards. What a function
        raises on one rank is an error of the others' call; they have changed theirs.
        """
        return super().update_where(where, values=values, **conditions)

    @_other
    def snapshot(self, folder: Path) -> dict[str, Any]:
        """Collective. Writes all items to a new folder, of the same name on all ranks, each rank
        those of its shards. `restore`, and `gpmstore.restore` of one process, make a store of it.
        Returns as `Store.snapshot`, of all ranks together."""
        return self._core.snapshot(path_of(folder))

    def stats(self) -> dict[str, Any]:
        """Not collective. `Store.stats` of this rank's shards together: `items` is theirs."""
        return self._core.stats()

    def exchanged(self) -> dict[str, Any]:
        """Not collective. What this rank's collective batches took so far: the seconds that
        dividing, sending, the owners' batches and the way back took; and how many operations this
        rank `asked` for, `sent` (of finds of one key, one) and carried out for all
        (`carried_out`)."""
        return self._core.exchanged()

    def for_each(self, visit: Visit, rows: int | None = None) -> bool:
        """Not collective. Calls `visit(keys, values)` for the items of this rank's shards, as
        `Store.for_each`."""
        return super().for_each(visit, rows)

    def close(self) -> None:
        """Not collective. Closes this rank's shards; what the others call then raises. Closing
        again does nothing."""
        self._core.close()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, rank {self.rank} of {self.ranks}>"


def create(folder: Path, key_size: int = 8, value_size: int = 128, *,
           exchange: Exchange | None = None, nccl: bool | None = None,
           **options: Unpack[CreateOptions]) -> DistributedStore:
    """Collective. Rank 0 creates a store over `shards` pools, and all ranks open it.

    folder: one that does not exist, or is empty, and that all ranks reach by this name. options:
    those of `CreateOptions`; `shards` has to be given, at least as many as there are ranks: rank r
    of n gets those from r * shards // n on. The rest is as in `open`.
    """
    return _store(_core.create_distributed, folder, exchange, nccl,
                  {"key_size": key_size, "value_size": value_size, **options})


def open_or_create(folder: Path, key_size: int = 8, value_size: int = 128, *,
                   exchange: Exchange | None = None, nccl: bool | None = None,
                   **options: Unpack[CreateOptions]) -> DistributedStore:
    """Collective. Opens the store if rank 0 finds one, which must have these sizes and as many
    shards, and else creates it. Else as `create`."""
    return _store(_core.open_or_create_distributed, folder, exchange, nccl,
                  {"key_size": key_size, "value_size": value_size, **options})


def open(folder: Path, *, exchange: Exchange | None = None, nccl: bool | None = None,
         **options: Unpack[OpenOptions]) -> DistributedStore:
    """Collective. Opens a store over several shards: one of this module's, or of `gpmstore.create`
    with `shards`. Any number of ranks does, up to that of the shards.

    exchange: what joins the ranks, and belongs to the store from now on; by default
    `TorchExchange()`, for processes that torchrun started. nccl: arrays on GPUs are taken, and go
    by NCCL: the package was built with it, and each rank has a GPU of its own; by default where
    that was built, the executor is not cpu, and torchrun's LOCAL_RANK says which GPU it is.
    options: those of `OpenOptions`, for this rank's shards together; `device` is by default that
    GPU, and `devices` are those of the shards of all ranks.
    """
    return _store(_core.open_distributed, folder, exchange, nccl, dict(options))


def restore(files: Path, folder: Path, *, exchange: Exchange | None = None,
            nccl: bool | None = None, **options: Unpack[OpenOptions]) -> DistributedStore:
    """Collective. Rank 0 makes a store of the snapshot of one (`DistributedStore.snapshot`, or of
    `gpmstore.open` of a folder), and all ranks open it. files: the snapshot's folder. Else as
    `open`."""
    return _store(functools.partial(_core.restore_distributed, path_of(files)), folder,
                  exchange, nccl, dict(options))


def _store(make: Callable[[str, Any, dict[str, Any], float], _core.DistributedStore],
           folder: Path, exchange: Exchange | None, nccl: bool | None,
           options: dict[str, Any]) -> DistributedStore:
    if exchange is None:
        exchange = TorchExchange()
    try:
        device = getattr(exchange, "device", None)
        if device is not None and "devices" not in options:
            options.setdefault("device", device)
        if nccl is None:
            nccl = _core.NCCL and device is not None and options.get("executor") != "cpu"
        log = prepared(options)
        path = path_of(folder)
    except BaseException:
        exchange.leave("")  # for which the others would wait
        raise
    seconds = getattr(exchange, "timeout", 60.0) if nccl else 0.0
    return DistributedStore(make(path, exchange, options, seconds), path, log)
