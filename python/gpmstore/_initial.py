"""Initial values for `Store.find_or_insert`, and what values consist of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from ._core import Element, From
from ._errors import InvalidArgumentError

_ELEMENTS = {"float32": Element.FLOAT32, "float16": Element.FLOAT16,
             "bfloat16": Element.BFLOAT16, "uint64": Element.UINT64}


def element_of(dtype: Any) -> Element:
    """What elements of a dtype are: of NumPy, torch or ml_dtypes, or its name."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name is None:
        name = str(dtype).rsplit(".", 1)[-1] if "torch" in str(dtype) else np.dtype(dtype).name
    element = _ELEMENTS.get(name)
    if element is None:
        raise TypeError(f"dtype: {name}; values can be calculated with as {', '.join(_ELEMENTS)}")
    return element


@dataclass(frozen=True)
class Constant:
    """All new items get this value: `value_size` bytes, or what has a buffer of them."""

    row: Any

    def _core(self) -> tuple[Any, ...]:
        try:
            row = bytes(memoryview(self.row))
        except TypeError:
            raise TypeError(f"Constant: {type(self.row).__name__!r}; give the bytes of a value, or "
                            "an array of them") from None
        return From.CONSTANT, row, 0, 0.0, 0.0, 0

    _dtype = None


@dataclass(frozen=True)
class Uniform:
    """Elements drawn evenly between `low` and `high`. The value of a key depends on it and the
    seed alone: it is the same in every batch and pool, and on both executors.

    elements: how many of each value are drawn, from its start; the others are 0. By default all.
    """

    low: float
    high: float
    seed: int = 0
    dtype: Any = "float32"  # or float16, bfloat16
    elements: int | None = None

    def _core(self) -> tuple[Any, ...]:
        return From.UNIFORM, b"", self.seed, self.low, self.high, _drawn_bytes(self)

    @property
    def _dtype(self) -> Any:
        return self.dtype


@dataclass(frozen=True)
class Normal:
    """Elements drawn from a normal distribution; else as `Uniform`."""

    mean: float = 0.0
    deviation: float = 1.0
    seed: int = 0
    dtype: Any = "float32"
    elements: int | None = None

    def _core(self) -> tuple[Any, ...]:
        return From.NORMAL, b"", self.seed, self.mean, self.deviation, _drawn_bytes(self)

    @property
    def _dtype(self) -> Any:
        return self.dtype


def _drawn_bytes(rule: Uniform | Normal) -> int:
    if rule.elements is None:
        return 2**32 - 1
    if not 0 <= rule.elements < 2**30:
        raise InvalidArgumentError(f"elements: {rule.elements}; it must be from 0 to those of a value")
    return rule.elements * (4 if element_of(rule.dtype) == Element.FLOAT32 else 2)


Initial = Union[Constant, Uniform, Normal]
