"""The modules: torch.nn.Embedding and EmbeddingBag on a store."""

from __future__ import annotations

import os
import uuid
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .._errors import InvalidArgumentError
from .._initial import Initial
from .._store import Store
from ._optimizers import Optimizer
from ._table import _HEADER_KEY, Table


class _Weights(torch.autograd.Function):
    """(n + 1, dim): the weights of n different ids, and a row of 0. Backward is a step of the
    optimizer."""

    @staticmethod
    def forward(context: Any, requires_gradient: Tensor, ids: Tensor, table: Table) -> Tensor:
        rows = table.fetch(ids, insert=True)
        context.ids, context.rows, context.table = ids, rows, table
        context.version = table.version
        return rows[:, :table.dim]

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[None, ...]:
        table, ids, rows = context.table, context.ids, context.rows
        context.rows = None  # they are written over, and may be large
        if rows is None or context.version != table.version:  # there was another step since
            rows = table.fetch_again(ids)
        table.update(ids, rows, gradient[:ids.shape[0]])
        return None, None, None


class _Module(nn.Module):
    """What both modules have in common: see `Embedding`."""

    def __init__(self, path: Any, dim: int, init: Initial, optimizer: Optimizer, *,
                 padding_idx: int | None = None, snapshots: Any = None, **options: Any) -> None:
        """path: of the pool, which is created where it is not there. dim: weights of a row.
        init: weights of new rows: `gpmstore.Normal`, `Uniform` (drawn from id and seed), `Constant`.
        optimizer: `SGD`, `Adagrad` or `Adam`; its kind is fixed for a pool, its numbers are not.
        padding_idx: an id that has no row, reads as 0 and gets no gradient.
        snapshots: a folder, where `state_dict` leaves files (else it has all bytes).
        options: those of `gpmstore.open_or_create`, but for shards, devices and a
            capacity.
        """
        super().__init__()
        self.padding_idx = padding_idx
        self.snapshots = None if snapshots is None else os.path.abspath(os.fsdecode(snapshots))
        self._table = Table(path, dim, init, optimizer, options)

    @property
    def store(self) -> Store:
        """The store of the rows. What is written to it between a forward and its backward, by
        others than this module, is lost for the rows of that batch."""
        return self._table.store

    @property
    def dim(self) -> int:
        """Weights of a row."""
        return self._table.dim

    @property
    def optimizer(self) -> Optimizer:
        """Whose attributes may be changed, such as `lr`."""
        return self._table.optimizer

    @property
    def steps(self) -> int:
        """Steps of the optimizer. With Adam it counts those of earlier processes too."""
        return self._table.steps

    @property
    def rows(self) -> int:
        """How many ids have rows."""
        return len(self._table)

    def close(self) -> None:
        """Closes the store."""
        self._table.close()

    def get_extra_state(self) -> Any:
        """What `state_dict` has: a snapshot. Its bytes, which torch.save takes along; or, with
        `snapshots`, the path of a new file there, which nobody removes."""
        if self.snapshots is None:
            return self._table.snapshot_bytes()
        os.makedirs(self.snapshots, exist_ok=True)
        file = os.path.join(self.snapshots, f"{uuid.uuid4().hex}.snapshot")
        self._table.snapshot(file)
        return file

    def set_extra_state(self, state: Any) -> None:
        """Takes the rows of a snapshot, bytes or path, in place of those that are there. The pool
        keeps its owner and permissions (`IoError` before anything is done, where this process may
        not give a file these), and no other store opens it meanwhile: `BusyError`, where one has;
        the module then opens its pool again at the next use. Where the pool's file was removed, a
        new one takes its place. Refused where the module has the option `snapshot`, or was closed.
        """
        if isinstance(state, str):
            self._table.restore(state)
        elif isinstance(state, Tensor) and state.dtype == torch.uint8 and state.dim() == 1:
            self._table.restore_bytes(state)
        else:
            raise TypeError(f"state: {type(state).__name__!r}; give the path of a snapshot, or its "
                            "bytes as a uint8 tensor")

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self._table.path!r}, {self.dim}, optimizer={self.optimizer}{padding}"

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__}: a pool has one owner, and can't be copied or "
                        "pickled; save its state_dict()")

    def _look_up(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of the different ids, the last row 0, and for each id the number of its row."""
        if not isinstance(ids, Tensor):
            raise TypeError(f"input: {type(ids).__name__!r}; give a tensor of ids")
        if ids.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            raise TypeError(f"input: of {ids.dtype}; ids are integers, int64 or smaller")
        flat = ids.detach().reshape(-1).long()
        kept = None
        if self.padding_idx is not None:
            kept = flat != self.padding_idx
            flat = flat[kept]
        unique, rows_of = torch.unique(flat, return_inverse=True)
        if unique.shape[0] and int(unique[0]) == _HEADER_KEY:  # they are sorted
            raise InvalidArgumentError(f"input: the id {_HEADER_KEY} is reserved")
        if kept is not None:
            padded = rows_of.new_full(kept.shape, unique.shape[0])
            padded[kept] = rows_of
            rows_of = padded
        if not self.training:
            weights = self._table.fetch(unique, insert=False)[:, :self.dim]
        else:
            weights = _Weights.apply(torch.empty(0, requires_grad=True), unique, self._table)
        return weights, rows_of


class Embedding(_Module):
    """torch.nn.Embedding whose rows live in a store, under their ids: any int64 but -2^63.

    Forward looks up the different ids of the input once, in one batch; ids that are new get rows.
    Backward updates each row once, by the sum of its gradients, weights and state in one piece, and
    returns when that is durable, as far as the pool's medium promises. There are no parameters: no
    optimizer of torch's has to know of it. Each forward that gets a gradient is a step of its own.

    `eval()`: rows are only read. Ids that have none read as 0, and nothing gets a gradient.

    Input on a GPU: on the current stream, with executor cuda; rows go from the store to GPU memory
    and back. `state_dict` has a snapshot, and `load_state_dict` restores it, but where the module has
    the option `snapshot`. One thread at a time.
    """

    @torch.compiler.disable
    def forward(self, input: Tensor) -> Tensor:
        """input: ids of any shape. Returns their weights, of the shape (*input.shape, dim)."""
        weights, rows_of = self._look_up(input)
        return weights.index_select(0, rows_of).view(*input.shape, self.dim)


class EmbeddingBag(_Module):
    """torch.nn.EmbeddingBag with sum or mean on a store; else as `Embedding`."""

    def __init__(self, path: Any, dim: int, init: Initial, optimizer: Optimizer, *,
                 mode: str = "mean", include_last_offset: bool = False, **options: Any) -> None:
        """mode: "sum" or "mean". include_last_offset: offsets end with the length of the input.
        The others are those of `Embedding`.
        """
        if mode not in ("sum", "mean"):
            raise InvalidArgumentError(f"mode: {mode!r}; it must be 'sum' or 'mean'")
        super().__init__(path, dim, init, optimizer, **options)
        self.mode = mode
        self.include_last_offset = include_last_offset

    @torch.compiler.disable
    def forward(self, input: Tensor, offsets: Tensor | None = None,
                per_sample_weights: Tensor | None = None) -> Tensor:
        """Returns (bags, dim), 0 for an empty bag.

        input: (bags, ids), without offsets; or n ids, bag i beginning at offsets[i].
        per_sample_weights: as input; with mode "sum".
        """
        if isinstance(input, Tensor) and input.dim() not in (1, 2):
            raise InvalidArgumentError(f"input: of shape {tuple(input.shape)}; it must have 1 or 2 "
                                       "dimensions")
        if isinstance(input, Tensor) and (offsets is None) != (input.dim() == 2):
            raise InvalidArgumentError("offsets: they go with an input of 1 dimension, and only "
                                       "with that")
        if per_sample_weights is not None and self.mode != "sum":
            raise InvalidArgumentError("per_sample_weights: they go with mode 'sum'")
        weights, rows_of = self._look_up(input)
        return nn.functional.embedding_bag(
            rows_of.view(input.shape), weights, None if offsets is None else offsets.long(),
            mode=self.mode, per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset, padding_idx=weights.shape[0] - 1)
