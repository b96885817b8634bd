"""Queries by attributes, and what they find."""

from __future__ import annotations

import operator
from typing import Any, Mapping, NamedTuple, Optional, SupportsIndex, Tuple, Union

import numpy as np

Bound = Union[SupportsIndex, Tuple[Optional[SupportsIndex], Optional[SupportsIndex]]]
Where = Union[str, Mapping[str, Bound]]


class Matches(NamedTuple):
    """What a search found: `keys, values, count = store.search(...)`."""

    keys: np.ndarray  # in the order of their bytes: n uint64, or (n, key_size) uint8
    values: np.ndarray | None  # (n, value_size) uint8; None where none were asked for
    count: int  # type: ignore[assignment]  # items that match, in all

    @property
    def more(self) -> bool:
        """Whether there are more than the limit let through."""
        return self.count > len(self.keys)


class ManyMatches(NamedTuple):
    """What many queries found: `counts, offsets, keys = store.search_many(...)`."""

    counts: Any  # of each query, the items that match, in all: q int64
    offsets: Any  # query i has rows offsets[i] to offsets[i + 1]: q + 1 int64; None: counts alone
    keys: Any  # of each query in the order of their bytes: n int64, or (n, key_size) uint8; or None


def query_text(where: Where | None, conditions: Mapping[str, Bound] | None = None) -> str:
    """A query as _core has it."""
    parts = []
    if isinstance(where, str):
        if where.strip():
            parts.append(where)
    elif isinstance(where, Mapping):
        parts += [_condition(name, bound) for name, bound in where.items()]
    elif where is not None:
        raise TypeError(f"where: {type(where).__name__!r}; give a text or a dict")
    parts += [_condition(name, bound) for name, bound in (conditions or {}).items()]
    return " and ".join(part for part in parts if part)


def _condition(name: Any, bound: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise TypeError(f"{name!r}: it can't be the name of an attribute")
    if isinstance(bound, tuple):
        if len(bound) != 2:
            raise TypeError(f"{name}: {bound!r}; give a number, or (least, most)")
        signs = [(">=", bound[0]), ("<=", bound[1])]
        return " and ".join(f"{name} {sign} {_number(name, number)}" for sign, number in signs
                            if number is not None)
    return f"{name} = {_number(name, bound)}"


def _number(name: str, number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name}: {number!r}; give a number, or (least, most)") from None
