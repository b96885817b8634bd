"""What a batch comes to, and a batch in flight."""

from __future__ import annotations

import time
from typing import Any, Callable, Generic, Iterator, TypeVar

from . import _arrays, _core

Array = Any  # of NumPy, torch, CuPy or another library


class Outcome:
    """What the operations of a batch came to.

    results: n bytes (uint8), a `Result` for each operation; on the GPU where the keys are there.
    """

    __slots__ = ("results", "_failed")

    def __init__(self, results: Array) -> None:
        self.results = results
        self._failed: int | None = None

    @property
    def _codes(self) -> Array:
        """The results, as what has operators."""
        return _arrays.comparable(self.results)

    @property
    def ok(self) -> Array:
        """n booleans: which operations are `Result.OK`."""
        return self._codes == 0

    @property
    def failed(self) -> int:
        """How many operations are not `Result.OK`."""
        if self._failed is None:  # the results are on a GPU, where _core does not count
            self._failed = int((self._codes != 0).sum())
        return self._failed

    @property
    def operations(self) -> int:
        """How many operations the batch has."""
        return int(self._codes.shape[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.operations} operations, {self.failed} failed)"


class Found(Outcome):
    """What a batch with finds came to. `values, found = store.find(keys)` unpacks it.

    values: n rows; row i has the value of key i where operation i is a find that is ok, or a
    find_or_insert that found room, and anything elsewhere. None where none were asked for.
    """

    __slots__ = ("values",)

    def __init__(self, results: Array, values: Array) -> None:
        self.results = results
        self._failed = None
        self.values = values

    @property
    def found(self) -> Array:
        """n booleans: which keys were found."""
        return self.ok

    @property
    def count(self) -> int:
        """How many keys were found."""
        return self.operations - self.failed

    def __iter__(self) -> Iterator[Array]:
        return iter((self.values, self.found))


class FoundOrInserted(Outcome):
    """What a find_or_insert came to. `values, found = store.find_or_insert(keys, ...)` unpacks it.

    values: n rows, those of new items too; anything where the result is `Result.NO_SPACE`. None
    where none were asked for.
    """

    __slots__ = ("values",)

    def __init__(self, results: Array, values: Array) -> None:
        self.results = results
        self._failed = None
        self.values = values

    @property
    def found(self) -> Array:
        """n booleans: which keys were there."""
        return self._codes == int(_core.Result.EXISTS)

    @property
    def inserted(self) -> Array:
        """n booleans: which operations added their key."""
        return self.ok

    @property
    def failed(self) -> int:
        """How many operations found no room."""
        return int((self._codes == int(_core.Result.NO_SPACE)).sum())

    def __iter__(self) -> Iterator[Array]:
        return iter((self.values, self.found))


class Evicted(Outcome):
    """What a batch that may evict came to. `keys, values = store.insert_and_evict(...)` unpacks it.

    keys: of the items that were evicted, those that went first in front: n uint64, or (n, key_size)
    uint8. values: (n, value_size) uint8, or None where none were asked for. Both are NumPy's.
    """

    __slots__ = ("keys", "values")

    def __init__(self, results: Array, keys: Array, values: Array) -> None:
        super().__init__(results)
        self.keys = keys
        self.values = values

    def __iter__(self) -> Iterator[Array]:
        return iter((self.keys, self.values))


T = TypeVar("T")


class Ticket(Generic[T]):
    """A batch in flight. It keeps the batch's arrays and the store; dropping it waits (from within
    a visitor of the store's `for_each`, when that has ended).

    outcome: its arrays are complete after `wait`. On a GPU they are there for later work on the
    batch's stream before that, but operations that found no room read `Result.NO_SPACE` until
    `wait` has made room and finished them.
    """

    __slots__ = ("outcome", "_core", "_store", "_done", "_began")

    def __init__(self, core: _core.Ticket, outcome: T, store: object,
                 done: Callable[[float], None] | None = None, began: float = 0.0) -> None:
        self.outcome = outcome
        self._core = core
        self._store = store
        self._done = done
        self._began = began

    def done(self) -> bool:
        """Whether `wait` would not wait for the executor. Never blocks.

        The results are complete after `wait` alone, which may still have to make room for
        operations that found none.
        """
        return self._core.done()

    def wait(self) -> T:
        """Completes the batch: every operation is durable, as far as the medium promises.

        Any thread may call it, several times; all get the same, also the same error. From within
        the store's log, which it tells: `BusyError`.
        """
        failed = self._core.wait()
        if isinstance(self.outcome, Outcome) and failed is not None:
            self.outcome._failed = failed
        done, self._done = self._done, None
        if done:
            done(time.perf_counter() - self._began)
        return self.outcome
