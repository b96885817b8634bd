"""The rows of an embedding in a store."""

from __future__ import annotations

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
from .._errors import InvalidArgumentError, NoSpaceError
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
    """

    store: Store

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
        self._open()

    def __len__(self) -> int:
        return len(self.store) - 1

    def close(self) -> None:
        self.store.close()

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
        self.version += 1
        self.steps += 1
        self.optimizer.update(rows[:n], gradients, self.steps)
        if self.optimizer.counts_steps:
            rows[n] = self._header_row().to(rows.device)
            ids = torch.cat([ids, ids.new_tensor([_HEADER_KEY])])
        elif n == 0:
            return
        outcome = self.store.update(ids, rows[:ids.shape[0]])
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
        self.store.stats()  # a closed one raises
        if self.options.get("snapshot") is not None:
            then = "" if self._is_pinned() else ", close that, and open it with another folder"
            raise InvalidArgumentError(f"{self.path}: a state makes a new pool, and the folder of "
                                       "snapshot= belongs to the old one; load it into a module "
                                       f"without snapshot={then}")

    def restore(self, file: str) -> None:
        """Takes the rows of a snapshot. The pool is replaced when the new one is whole: a crash, or
        a file that can't be used, leaves the rows that were there."""
        self._require_replaceable()
        options = {name: value for name, value in self.options.items()
                   if name not in ONLY_CREATED}
        self.version += 1
        if self._is_pinned():
            restored = _open.restore([file], _PINNED, **options)
            self._read_header(restored)
            self.store.close()
            self.store = restored
            return
        self.store.close()  # which gives back what it has of a GPU
        try:
            with Reader(self.path):  # so that no store writes to the old pool
                for left in glob.glob(glob.escape(self.path) + _RESTORING + "*"):
                    shutil.rmtree(left, ignore_errors=True)  # of a process that was killed here
                with self._folder(os.path.basename(self.path) + _RESTORING) as folder:
                    fresh = os.path.join(folder, "pool")
                    with _open.restore([file], fresh, **options) as restored:
                        self._read_header(restored)
                    _copy_access(self.path, fresh)
                    os.replace(fresh, self.path)
        finally:
            self._open()

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
            self.store = _open.open_or_create(self.path, 8, 4 * self.width, **self.options)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{error} (rows of dim {self.dim} with {kind} are values of "
                                       f"{4 * self.width} bytes, keys are 8)") from error
        try:
            if len(self.store) == 0:
                self.store.put(_HEADER_KEY, self._header_row().numpy())
            self._read_header(self.store)
        except BaseException:
            self.store.close()
            raise

    def _header_row(self) -> Tensor:
        header = _HEADER.pack(_MAGIC, _VERSION, self.optimizer.code, self.dim, self.steps)
        return torch.frombuffer(bytearray(header.ljust(4 * self.width, b"\0")), dtype=torch.float32)

    def _read_header(self, store: Store) -> None:
        value = store.get(_HEADER_KEY)
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
        self.steps = steps

    def _check(self, outcome: Outcome, ids: Tensor, what: str) -> None:
        failed = int((outcome.results == int(Result.NO_SPACE)).sum())
        if failed:
            raise NoSpaceError(f"{self.path}: no room, {failed} of {ids.shape[0]} rows {what}")


def _copy_access(path: str, to: str) -> None:
    """Gives a file the owner and the permissions of another."""
    old, now = os.stat(path), os.stat(to)
    if (old.st_uid, old.st_gid) != (now.st_uid, now.st_gid):
        os.chown(to, old.st_uid, old.st_gid)
    shutil.copymode(path, to)
