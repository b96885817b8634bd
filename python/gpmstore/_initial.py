"""Initial values for `Store.find_or_insert`, and what values consist of."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from ._arrays import bytes_of
from ._core import Element, From
from ._errors import InvalidArgumentError

_ELEMENTS = {"float32": Element.FLOAT32, "float16": Element.FLOAT16,
             "bfloat16": Element.BFLOAT16, "uint64": Element.UINT64}


# What holds the bits of elements, where a library lacks their dtype.
_BITS = {Element.BFLOAT16: "uint16", Element.UINT64: "int64"}


def _name_of(dtype: Any) -> str:
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name is None:
        name = str(dtype).rsplit(".", 1)[-1] if "torch" in str(dtype) else np.dtype(dtype).name
    return name


def element_of(dtype: Any) -> Element:
    """What elements of a dtype are: of NumPy, torch or ml_dtypes, or its name."""
    name = _name_of(dtype)
    element = _ELEMENTS.get(name)
    if element is None:
        raise TypeError(f"dtype: {name}; values can be calculated with as {', '.join(_ELEMENTS)}")
    return element


def element_of_rows(rows: Any, dtype: Any, what: str = "rows") -> Element:
    """What rows are to be added as: `dtype`, or by default what they are."""
    given = getattr(rows, "dtype", None)
    if dtype is None:
        if given is None:
            raise TypeError(f"{what}: {type(rows).__name__!r} is no array with a dtype; give a NumPy "
                            "array, or one that has, or say the dtype")
        return element_of(given)
    element = element_of(dtype)
    name = None if given is None else _name_of(given)
    is_number = getattr(given, "kind", "f") in "biufc" or name in _ELEMENTS  # (torch has no kind)
    if name is not None and is_number and name not in ("uint8", _BITS.get(element)) and (
            _ELEMENTS.get(name) != element):
        raise TypeError(f"{what}: they are {name}, and dtype is {_name_of(dtype)}; give rows of "
                        "that")
    return element


@dataclass(frozen=True)
class Constant:
    """All new items get this value: `value_size` bytes, or what has a buffer of them."""

    row: Any

    def _core(self) -> tuple[Any, ...]:
        row = bytes_of(self.row, "Constant", "the bytes of a value, or an array of them")
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
        return (From.UNIFORM, b"", _seed(self), _number("low", self.low),
                _number("high", self.high), _drawn_bytes(self))

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
        return (From.NORMAL, b"", _seed(self), _number("mean", self.mean),
                _number("deviation", self.deviation), _drawn_bytes(self))

    @property
    def _dtype(self) -> Any:
        return self.dtype


def _whole(name: str, number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name}: {number!r}; it must be an int") from None


def _number(name: str, number: Any) -> float:
    try:
        if isinstance(number, (str, bytes)):
            raise TypeError
        return float(number)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {number!r}; it must be a number") from None


def _seed(rule: Uniform | Normal) -> int:
    seed = _whole("seed", rule.seed)
    if not 0 <= seed < 2**64:
        raise InvalidArgumentError(f"seed: {seed}; it must be from 0 to 2**64 - 1")
    return seed


def _drawn_bytes(rule: Uniform | Normal) -> int:
    if rule.elements is None:
        return 2**32 - 1
    elements = _whole("elements", rule.elements)
    if not 0 <= elements < 2**30:
        raise InvalidArgumentError(f"elements: {elements}; it must be from 0 to those of a value")
    return elements * (4 if element_of(rule.dtype) == Element.FLOAT32 else 2)


Initial = Union[Constant, Uniform, Normal]
