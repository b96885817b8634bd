"""How a row is updated: its weights, and the state behind them.

Each calculates what torch's optimizer of that name does with a sparse gradient. The attributes may
be changed between steps, such as `lr` by a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass
class Optimizer:
    """What the three have in common. A row is `1 + states` times `dim` float32."""

    code: ClassVar[int]  # in pools, for ever
    states: ClassVar[int]
    counts_steps: ClassVar[bool] = False

    def update(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        """Updates n rows in place.

        gradients: (n, dim), the sum for each row. step: from 1.
        """
        raise NotImplementedError


@dataclass
class SGD(Optimizer):
    """As torch.optim.SGD without momentum."""

    lr: float = 1e-3

    code = 0
    states = 0

    def update(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        rows[:, :gradients.shape[1]].sub_(gradients, alpha=self.lr)


@dataclass
class Adagrad(Optimizer):
    """As torch.optim.Adagrad, with the sum of squares in the row."""

    lr: float = 1e-2
    eps: float = 1e-10

    code = 1
    states = 1

    def update(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        weights, squares = _parts(rows, gradients, 1)
        squares.addcmul_(gradients, gradients)
        weights.addcdiv_(gradients, squares.sqrt().add_(self.eps), value=-self.lr)


@dataclass
class Adam(Optimizer):
    """As torch.optim.SparseAdam, with both moments in the row. Moments of a row change when the row
    has a gradient; the count of steps, which corrects their bias, is that of the module."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    code = 2
    states = 2
    counts_steps = True

    def update(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        weights, mean, square = _parts(rows, gradients, 2)
        first, second = self.betas
        mean.lerp_(gradients, 1 - first)
        square.mul_(second).addcmul_(gradients, gradients, value=1 - second)
        size = self.lr * (1 - second**step)**0.5 / (1 - first**step)
        weights.addcdiv_(mean, square.sqrt().add_(self.eps), value=-size)


def _parts(rows: Tensor, gradients: Tensor, states: int) -> tuple[Tensor, ...]:
    dim = gradients.shape[1]
    return tuple(rows[:, i * dim:(i + 1) * dim] for i in range(1 + states))
