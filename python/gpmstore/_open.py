"""How stores are made, opened and restored."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Literal, overload

from . import _core
from ._options import CreateOptions, OpenOptions, Path, path_of
from ._reader import Reader
from ._store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack


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


def prepared(options: dict[str, Any]) -> object:
    """Makes options what _core takes. Returns what has to live as long as the store."""
    log = None
    if callable(options.get("log")):
        log = _Log(options["log"])
        options["log"] = log.weak()
    if options.get("snapshot") is not None:
        options["snapshot"] = _schedule(options["snapshot"])
    return log


def _store(make: Callable[[str, dict[str, Any]], _core.Store], path: Path,
           options: dict[str, Any]) -> Store:
    log = prepared(options)
    path = path_of(path)
    return Store(make(path, options), path, log)


def _schedule(given: Any) -> dict[str, Any]:
    if isinstance(given, (str, bytes, os.PathLike)):
        given = {"path": given, "restore": True}
    if not isinstance(given, dict):
        raise TypeError("snapshot: it must be a path or a dict")
    path = path_of(given.get("path", ""))
    if not path:  # which _core takes for no snapshots
        raise TypeError("snapshot: it must have a path, of the folder for them")
    return {**given, "path": path}


def create(path: Path, key_size: int = 8, value_size: int = 128,
           **options: Unpack[CreateOptions]) -> Store:
    """Creates a pool and opens it; with `shards`, so many pools, which are one store.

    path: a file that does not exist, a DAX device that holds nothing (else `overwrite`), or
    "pinned:" for volatile memory; of shards a folder, which is made if it is not there. key_size: 1 to 255 bytes. value_size: 1 byte to 16 MiB.
    options: those of `CreateOptions` and `OpenOptions`. An `ExistsError` leaves what is there.
    """
    return _store(_core.create, path, {"key_size": key_size, "value_size": value_size, **options})


def open_or_create(path: Path, key_size: int = 8, value_size: int = 128,
                   **options: Unpack[CreateOptions]) -> Store:
    """Opens the pool if it exists, which must have these sizes, and else creates it; so the folder
    of a store over several, with `shards`, of which it must have as many.

    What else `CreateOptions` has counts only if it is created.
    """
    return _store(_core.open_or_create, path,
                  {"key_size": key_size, "value_size": value_size, **options})


def restore(files: Iterable[Path] | Path, path: Path, **options: Unpack[OpenOptions]) -> Store:
    """Creates a pool with what snapshots hold, and opens it.

    files: a whole snapshot, or a list of one and its increments in their order; all are checked.
    Or a folder of the option `snapshot`: the newest chain that is there, as far as it is whole; or
    one that a store over several shards wrote, of which as many shards are made.
    path: a file that does not exist, or "pinned:"; of shards a folder. options: those of
    `OpenOptions`; `shards` and `devices` only of a store over several shards.
    """
    if isinstance(files, (str, bytes, os.PathLike)) and os.path.isfile(files):
        files = [files]
    if isinstance(files, (str, bytes, os.PathLike)):
        folder = path_of(files)
        return _store(lambda pool, given: _core.restore_folder(folder, pool, given), path,
                      dict(options))
    names = [path_of(file) for file in files]
    return _store(lambda pool, given: _core.restore(names, pool, given), path, dict(options))


def reshard(path: Path, shards: int, **options: Any) -> None:
    """Divides a store over several pools, which nobody has open, among another number of them.

    path: its folder, which needs room for both. A crash leaves the store with the old number or the
    new one. options: those of `OpenOptions`.
    """
    given = {**options, "shards": shards}
    log = prepared(given)  # noqa: F841  (it has to live until this returns)
    _core.reshard(path_of(path), given)


@overload
def open(path: Path, *, read_only: Literal[False] = ..., **options: Unpack[OpenOptions]) -> Store: ...
@overload
def open(path: Path, *, read_only: Literal[True]) -> Reader: ...
@overload
def open(path: Path, *, read_only: bool, **options: Unpack[OpenOptions]) -> Store | Reader: ...
def open(path: Path, *, read_only: bool = False, **options: Any) -> Store | Reader:
    """Opens a pool, or the folder of a store over several, recovering it first if it was not closed
    in order.

    options: those of `OpenOptions`. read_only: as a `Reader`, which has none.
    """
    if read_only:
        if options:
            raise TypeError(f"a reader has no option {next(iter(options))!r}")
        return Reader(path)
    return _store(_core.open, path, options)
