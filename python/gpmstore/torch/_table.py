"""The rows of an embedding in a store."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import shutil
import struct
import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _open
from .._arrays import bytes_of
from .._batch import Outcome
from .._core import Result
from .._errors import ExistsError, InvalidArgumentError, IoError, NoSpaceError, NotFoundError
from .._initial import Constant, Initial, Normal, Uniform, element_of, element_of_rows
from .._options import ONLY_CREATED, path_of
from .._reader import Reader
from .._store import Store
from ._optimizers import Optimizer

# The item that says what the rows are: its key, which is no id, and its first 16 bytes.
_HEADER_KEY = -2**63
_HEADER = struct.Struct("<4sBB2xII")  # magic, version, Optimizer.code, dim, steps
_MAGIC = b"GPMe"
_VERSION = 1
_PINNED = "pinned:"
_RESTORING = ".restoring_"  # what follows the pool's name in that of the folder of a new one
_RESTORED = "restored_pool"  # the only file there


class Table:
    """The rows of ids: `dim` weights and the optimizer's state, float32, an item for each id, and
    the header. One thread at a time.

    Invariants:
    1. A row is written whole, weights and state in one update: after a crash it is that of before a
       step or of after it.
    2. The header is there before any row. A step writes it in the batch of its rows, so that it
       counts every step that was completed.
    3. `version` changes with every write of this object: rows read at the same version are those
       in the store, if nothing else writes to it.
    4. `path` names the same file for ever: no link, and not relative to the working directory.
    5. The pool is created when this object is made, and never later: where it is gone the rows are.
    """

    def __init__(self, path: Any, dim: int, init: Initial, optimizer: Optimizer,
                 options: dict[str, Any]) -> None:
        if not isinstance(dim, int) or dim < 1:
            raise InvalidArgumentError(f"dim: {dim!r}; it must be a whole number from 1")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer: {optimizer!r}; give gpmstore.torch.SGD, Adagrad or Adam")
        for name in ("capacity", "capacity_bytes"):
            if not options.get(name):
                continue
            raise InvalidArgumentError(f"{name}: an embedding's store has to keep its header, which a "
                                       "bounded one could evict")
        for name in ("shards", "devices"):
            if not options.get(name):
                continue
            raise InvalidArgumentError(f"{name}: an embedding's store is one pool, as a state is one "
                                       "snapshot")
        self.path = path_of(path)
        if not self._is_pinned():
            self.path = os.path.realpath(self.path)
        self.dim = dim
        self.optimizer = optimizer
        # At least the header's size: 4 float32.
        self.width = max(dim * (1 + optimizer.states), 4)
        self.initial = self._initial(init)
        self.options = options
        self.version = 0
        self.steps = 0
        # Whether the store was closed for a restore, and could not be opened since.
        self._to_reopen = False
        self._open()

    def __len__(self) -> int:
        return len(self.store) - 1

    @property
    def store(self) -> Store:
        if self._to_reopen:
            self._reopen()
        return self._store

    def close(self) -> None:
        self._to_reopen = False
        self._store.close()

    def fetch(self, ids: Tensor, insert: bool) -> Tensor:
        """The rows of n different ids, (n + 1, width); the last is 0.

        insert: ids that are missing get rows; else theirs are 0, and are not stored.
        """
        n = ids.shape[0]
        rows = self._room(ids)
        rows[n].zero_()
        if n == 0:
            return rows
        if insert:
            outcome = self.store.find_or_insert(ids, self.initial, rows[:n])
            self._check(outcome, ids, "were not inserted")
        else:
            found = self.store.find(ids, rows[:n]).found
            rows[:n].masked_fill_(~torch.as_tensor(found)[:, None], 0)
        return rows

    def fetch_again(self, ids: Tensor) -> Tensor:
        """Rows that are to be updated, as in `fetch`. Of ids that were erased it has anything."""
        rows = self._room(ids)
        self.store.find(ids, rows[:-1])
        return rows

    def update(self, ids: Tensor, rows: Tensor, gradients: Tensor) -> None:
        """A step of the optimizer, in one batch.

        rows: of `fetch`, as they are in the store; they are overwritten. gradients: (n, dim) for
        n ids. Rows that were erased meanwhile stay so.
        """
        n = ids.shape[0]
        store = self.store  # first: to open it again reads the steps
        self.version += 1
        self.steps += 1
        self.optimizer.update(rows[:n], gradients, self.steps)
        if self.optimizer.counts_steps:
            rows[n] = self._header_row().to(rows.device)
            ids = torch.cat([ids, ids.new_tensor([_HEADER_KEY])])
        elif n == 0:
            return
        outcome = store.update(ids, rows[:ids.shape[0]])
        self._check(outcome, ids, "were not updated")

    def snapshot(self, file: str) -> None:
        self.store.snapshot(file, track_changes=False)

    def snapshot_bytes(self) -> Tensor:
        """A snapshot as a uint8 tensor: a mapped file that has no name any more."""
        with self._folder() as folder:
            file = os.path.join(folder, "snapshot")
            self.snapshot(file)
            return torch.from_file(file, False, os.path.getsize(file), dtype=torch.uint8)

    def restore_bytes(self, snapshot: Tensor) -> None:
        self._require_replaceable()
        with self._folder() as folder:
            file = os.path.join(folder, "snapshot")
            snapshot.cpu().numpy().tofile(file)
            self.restore(file)

    def _require_replaceable(self) -> None:
        with contextlib.suppress(NotFoundError):  # the new pool takes the place
            self.store.stats()  # a closed one raises
        if self.options.get("snapshot") is not None:
            then = "" if self._is_pinned() else ", close that, and open it with another folder"
            raise InvalidArgumentError(f"{self.path}: a state makes a new pool, and the folder of "
                                       "snapshot= belongs to the old one; load it into a module "
                                       f"without snapshot={then}")

    def restore(self, file: str) -> None:
        """Takes the rows of a snapshot. The pool is replaced when the new one is whole: a crash, or
        a file that can't be used, leaves the rows that were there. After an error the pool is open
        again; or, where that can't be (another store has it), is opened at the next use."""
        self._require_replaceable()
        options = {name: value for name, value in self.options.items()
                   if name not in ONLY_CREATED}
        self.version += 1
        if self._is_pinned():
            restored = _open.restore([file], _PINNED, **options)
            self.steps = self._steps_of(restored)
            self.store.close()
            self._store = restored
            return
        self._store.close()  # which gives back what it has of a GPU
        self._to_reopen = True
        try:
            self._replace(file, options)
        except BaseException:
            with contextlib.suppress(Exception):  # the next use says it
                self._reopen()
            raise
        self._reopen()

    def _replace(self, file: str, options: dict[str, Any]) -> None:
        """Puts a snapshot's pool in the place of the one that was closed, or is gone."""
        with contextlib.ExitStack() as until_then:
            old = True
            try:
                until_then.enter_context(Reader(self.path))  # so that no store writes to the pool
            except NotFoundError:
                old = False
            for left in glob.glob(glob.escape(self.path) + _RESTORING + "*"):
                _remove_left(left)
            folder = until_then.enter_context(
                self._folder(os.path.basename(self.path) + _RESTORING))
            fresh = os.path.join(folder, _RESTORED)
            if old:
                _require_access(self.path, fresh)
            with _open.restore([file], fresh, **options) as restored:
                steps = self._steps_of(restored)
            if old:
                _copy_access(self.path, fresh)
                os.replace(fresh, self.path)
            else:
                try:
                    os.link(fresh, self.path)
                except FileExistsError:
                    raise ExistsError(f"{self.path}: it was gone, and another was made while the "
                                      "state was restored") from None
            self.steps = steps

    def _room(self, ids: Tensor) -> Tensor:
        return torch.empty(ids.shape[0] + 1, self.width, dtype=torch.float32, device=ids.device)

    def _folder(self, prefix: str = ".gpmstore_") -> tempfile.TemporaryDirectory[str]:
        """For a moment, beside the pool, and for this user alone."""
        beside = None if self._is_pinned() else os.path.dirname(self.path)
        return tempfile.TemporaryDirectory(dir=beside, prefix=prefix)

    def _is_pinned(self) -> bool:
        return self.path == _PINNED

    def _initial(self, init: Initial) -> Initial:
        if isinstance(init, Constant):
            row = bytes_of(init.row, "init", f"{self.dim} float32")
            element_of_rows(np.asarray(init.row), "float32", "init")
            if len(row) != 4 * self.dim:
                raise InvalidArgumentError(f"init: a constant of {len(row)} bytes; {self.dim} "
                                           f"float32 have {4 * self.dim}")
            return Constant(row.ljust(4 * self.width, b"\0"))
        if not isinstance(init, (Normal, Uniform)):
            raise TypeError(f"init: {init!r}; give gpmstore.Normal, Uniform or Constant")
        if element_of(init.dtype) != element_of("float32"):
            raise InvalidArgumentError(f"init: of {init.dtype}; weights are float32")
        return dataclasses.replace(init, elements=self.dim)

    def _open(self) -> None:
        kind = type(self.optimizer).__name__
        try:
            self._store = _open.open_or_create(self.path, 8, 4 * self.width, **self.options)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{error} (rows of dim {self.dim} with {kind} are values of "
                                       f"{4 * self.width} bytes, keys are 8)") from error
        try:
            if len(self._store) == 0:
                self._store.put(_HEADER_KEY, self._header_row().numpy())
            self.steps = self._steps_of(self._store)
        except BaseException:
            self._store.close()
            raise

    def _reopen(self) -> None:
        options = {name: value for name, value in self.options.items()
                   if name not in ONLY_CREATED}
        store = _open.open(self.path, **options)
        try:
            self.steps = self._steps_of(store)
        except BaseException:
            store.close()
            raise
        self._store, self._to_reopen = store, False

    def _header_row(self) -> Tensor:
        header = _HEADER.pack(_MAGIC, _VERSION, self.optimizer.code, self.dim, self.steps)
        return torch.frombuffer(bytearray(header.ljust(4 * self.width, b"\0")), dtype=torch.float32)

    def _steps_of(self, store: Store) -> int:
        """Of the header, which has to be that of rows as these."""
        value = store.get(_HEADER_KEY) if store.key_size == 8 else None
        if value is None or value[:4] != _MAGIC:
            raise InvalidArgumentError(f"{store.path}: it has other items than an embedding's rows")
        _, version, code, dim, steps = _HEADER.unpack_from(value)
        kinds = {kind.code: kind.__name__ for kind in Optimizer.__subclasses__()}
        if version != _VERSION:
            raise InvalidArgumentError(f"{store.path}: rows of version {version}; this gpmstore "
                                       f"knows {_VERSION}")
        if (code, dim) != (self.optimizer.code, self.dim):
            raise InvalidArgumentError(
                f"{store.path}: it has rows of dim {dim} with {kinds.get(code, code)}, not of "
                f"dim {self.dim} with {kinds[self.optimizer.code]}")
        return steps

    def _check(self, outcome: Outcome, ids: Tensor, what: str) -> None:
        failed = int((outcome.results == int(Result.NO_SPACE)).sum())
        if failed:
            raise NoSpaceError(f"{self.path}: no room, {failed} of {ids.shape[0]} rows {what}")


def _remove_left(folder: str) -> None:
    """Removes the folder of a new pool, which a process left that was killed; no other folder."""
    try:
        if os.path.islink(folder) or not set(os.listdir(folder)) <= {_RESTORED}:
            return
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, _RESTORED))
        os.rmdir(folder)
    except OSError:
        pass  # it takes room, and does no other harm


def _require_access(path: str, to: str) -> None:
    """Requires that a file can get the owner and the permissions of another. `to`: where a file is
    made to try it, and removed."""
    with open(to, "xb"):
        pass
    try:
        _copy_access(path, to)
    except PermissionError:
        old = os.stat(path)
        raise IoError(f"{path}: it belongs to user {old.st_uid} and group {old.st_gid}, which this "
                      f"process, of user {os.geteuid()}, can't give to a state's pool; load it as a "
                      "user who can, chown the pool to this one, or load it into a module of "
                      "another path") from None
    finally:
        os.remove(to)


def _copy_access(path: str, to: str) -> None:
    """Gives a file the owner and the permissions of another."""
    old, now = os.stat(path), os.stat(to)
    if (old.st_uid, old.st_gid) != (now.st_uid, now.st_gid):
        os.chown(to, old.st_uid, old.st_gid)
    shutil.copymode(path, to)
