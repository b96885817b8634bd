"""Batches of operations on arrays."""

from __future__ import annotations

import time
from typing import Any, Callable

import numpy as np

from . import _arrays
from ._batch import Array, Found, FoundOrInserted, Outcome, Ticket
from ._core import Element, Op
from ._initial import Constant, Initial, Normal, Uniform, element_of, element_of_rows
from ._items import Items, Rows

_FIND = Op.FIND  # an enumeration looks its members up


class Calls(Rows):
    """What calls of batches do with their arguments. Who waits gives `_run` as `begin`, and who
    does not `_start`."""

    # Told of each batch that has ended: its kind, operations and seconds (gpmstore.metrics).
    _observer: Callable[[str, int, float], None] | None = None
    _lends = False  # whether _core.run_lent is there, for tensors that need not be exported

    def _run(self, op: Op, outcome: Any, keys: Array, values: Array = None, out: Array = None,
             ops: Array = None, stream: Any = None, element: Element = Element.NONE,
             initial: tuple[Any, ...] | None = None) -> Any:
        observer = self._observer
        began = time.perf_counter() if observer else 0.0
        failed = NotImplemented
        if self._lends and type(keys) is not np.ndarray:
            failed = self._core.run_lent(op, ops, keys, values, out, outcome.results,
                                         None if stream is None else _arrays.stream_handle(stream),
                                         element, initial)
        if failed is NotImplemented:
            failed = self._core.run(
                *_arguments(op, outcome.results, keys, values, out, ops, stream, element, initial))
        outcome._failed = failed
        if observer:
            observer(op.name.lower() if ops is None else "mixed", outcome.operations,
                     time.perf_counter() - began)
        return outcome

    def _start(self, op: Op, outcome: Any, keys: Array, values: Array = None, out: Array = None,
               ops: Array = None, stream: Any = None, element: Element = Element.NONE,
               initial: tuple[Any, ...] | None = None) -> Ticket[Any]:
        done = None
        if observer := self._observer:
            name = op.name.lower() if ops is None else "mixed"

            def done(seconds: float) -> None:
                observer(name, outcome.operations, seconds)

        began = time.perf_counter()
        ticket = self._core.start(
            *_arguments(op, outcome.results, keys, values, out, ops, stream, element, initial))
        return Ticket(ticket, outcome, self, done, began)

    def _bulk_load(self, keys: Array, values: Array, results: Array) -> Outcome:
        require_values(values, "bulk_load")
        outcome = Outcome(self._room_for_results(keys, results))
        began = time.perf_counter()
        outcome._failed = self._core.bulk_load(
            _arrays.exported(keys, "keys", 0), _arrays.exported(values, "values", 0),
            _arrays.exported(outcome.results, "results", 0, written=True))
        if self._observer:
            self._observer("bulk_load", outcome.operations, time.perf_counter() - began)
        return outcome

    def _find(self, begin: Callable[..., Any], keys: Array, out: Array, results: Array, dtype: Any,
              stream: Any) -> Any:
        out = self._room_for_values(keys, out, dtype)
        results = self._room_for_results(keys, results)
        return begin(_FIND, Found(results, out), keys, None, out, None, stream)

    def _write(self, begin: Callable[..., Any], op: Op, keys: Array, values: Array, results: Array,
               stream: Any) -> Any:
        if op != Op.ERASE:
            require_values(values, op.name.lower())
        return begin(op, Outcome(self._room_for_results(keys, results)), keys, values,
                     stream=stream)

    def _find_or_insert(self, begin: Callable[..., Any], keys: Array, initial: Initial | Array,
                        out: Array, results: Array, dtype: Any, stream: Any) -> Any:
        is_rule = isinstance(initial, (Constant, Uniform, Normal))
        element = Element.NONE
        if is_rule and initial._dtype is not None:
            element = element_of(initial._dtype)
            # NumPy has no bfloat16: there it is bytes.
            if dtype is None and out is None and (element != Element.BFLOAT16 or
                                                  _arrays.is_torch(keys)):
                dtype = initial._dtype
        out = self._room_for_values(keys, out, dtype)
        results = self._room_for_results(keys, results)
        found = FoundOrInserted(results, out)
        if not is_rule:
            if initial is None:
                raise TypeError("initial: None; give n rows of values, or how to make them")
            return begin(Op.FIND_OR_INSERT, found, keys, initial, out, stream=stream)
        return begin(Op.FIND_OR_INSERT, found, keys, None, out, stream=stream, element=element,
                     initial=initial._core())

    def _accumulate(self, begin: Callable[..., Any], keys: Array, rows: Array, dtype: Any,
                    results: Array, stream: Any) -> Any:
        if rows is None:
            raise TypeError("rows: None; accumulate needs n rows")
        element = element_of_rows(rows, dtype)
        return begin(Op.ACCUMULATE, Outcome(self._room_for_results(keys, results)), keys, rows,
                     stream=stream, element=element)

    def _apply(self, begin: Callable[..., Any], ops: Array, keys: Array, values: Array, out: Array,
               results: Array, dtype: Any, stream: Any, element: Any) -> Any:
        out = self._room_for_values(keys, out, dtype)
        results = self._room_for_results(keys, results)
        return begin(Op.FIND, Found(results, out), keys, values, out,
                     _arrays.op_codes(ops, len(Op)), stream,
                     Element.NONE if element is None else element_of(element))


class Batches(Calls, Items):
    """The batches of a store: their calls, with and without waiting."""

    _lends = True

    def find(self, keys: Array, out: Array = None, *, results: Array = None, dtype: Any = None,
             stream: Any = None) -> Found:
        """Finds n keys: `values, found = store.find(keys)`.

        out: n rows of `value_size` bytes for the values, else a new array; False: none.
        results: n bytes (uint8) for the results, else a new array.
        dtype: of the new array's elements (default uint8), which has the shape (n, elements a
        value), or (n,) when a value is one element.
        """
        return self._find(self._run, keys, out, results, dtype, stream)

    def find_async(self, keys: Array, out: Array = None, *, results: Array = None,
                   dtype: Any = None, stream: Any = None) -> Ticket[Found]:
        """As `find`, without waiting."""
        return self._find(self._start, keys, out, results, dtype, stream)

    def insert(self, keys: Array, values: Array, *, results: Array = None,
               stream: Any = None) -> Outcome:
        """Adds n items; a key that is there keeps its value (`Result.EXISTS`)."""
        return self._write(self._run, Op.INSERT, keys, values, results, stream)

    def insert_async(self, keys: Array, values: Array, *, results: Array = None,
                     stream: Any = None) -> Ticket[Outcome]:
        """As `insert`, without waiting."""
        return self._write(self._start, Op.INSERT, keys, values, results, stream)

    def update(self, keys: Array, values: Array, *, results: Array = None,
               stream: Any = None) -> Outcome:
        """Replaces the values of n keys; one that is not there is `Result.NOT_FOUND`."""
        return self._write(self._run, Op.UPDATE, keys, values, results, stream)

    def update_async(self, keys: Array, values: Array, *, results: Array = None,
                     stream: Any = None) -> Ticket[Outcome]:
        """As `update`, without waiting."""
        return self._write(self._start, Op.UPDATE, keys, values, results, stream)

    def upsert(self, keys: Array, values: Array, *, results: Array = None,
               stream: Any = None) -> Outcome:
        """Inserts or updates n items."""
        return self._write(self._run, Op.UPSERT, keys, values, results, stream)

    def upsert_async(self, keys: Array, values: Array, *, results: Array = None,
                     stream: Any = None) -> Ticket[Outcome]:
        """As `upsert`, without waiting."""
        return self._write(self._start, Op.UPSERT, keys, values, results, stream)

    def erase(self, keys: Array, *, results: Array = None, stream: Any = None) -> Outcome:
        """Removes n items; one that is not there is `Result.NOT_FOUND`."""
        return self._write(self._run, Op.ERASE, keys, None, results, stream)

    def erase_async(self, keys: Array, *, results: Array = None,
                    stream: Any = None) -> Ticket[Outcome]:
        """As `erase`, without waiting."""
        return self._write(self._start, Op.ERASE, keys, None, results, stream)

    def find_or_insert(self, keys: Array, initial: Initial | Array, out: Array = None, *,
                       results: Array = None, dtype: Any = None,
                       stream: Any = None) -> FoundOrInserted:
        """Finds n keys, and adds those that are missing, in one batch.

        initial: values for new items: n rows, or a `Constant`, `Uniform` or `Normal`. Of a key that
        comes several times the first adds (`Result.OK`), and all get the same value
        (`Result.EXISTS`). out, dtype: as in `find`.
        """
        return self._find_or_insert(self._run, keys, initial, out, results, dtype, stream)

    def find_or_insert_async(self, keys: Array, initial: Initial | Array, out: Array = None, *,
                             results: Array = None, dtype: Any = None,
                             stream: Any = None) -> Ticket[FoundOrInserted]:
        """As `find_or_insert`, without waiting."""
        return self._find_or_insert(self._start, keys, initial, out, results, dtype, stream)

    def accumulate(self, keys: Array, rows: Array, dtype: Any = None, *, results: Array = None,
                   stream: Any = None) -> Outcome:
        """Adds a row to the value of each of n keys, element by element; of a key that comes
        several times, in batch order. One that is not there is `Result.NOT_FOUND`.

        dtype: of the elements of values and rows: float32, float16, bfloat16 or uint64; by default
        that of `rows`, which has to be the same, or bytes (uint8, structures), uint16 for bfloat16
        or int64 for uint64. Sums are rounded to the nearest number, once.
        """
        return self._accumulate(self._run, keys, rows, dtype, results, stream)

    def accumulate_async(self, keys: Array, rows: Array, dtype: Any = None, *,
                         results: Array = None, stream: Any = None) -> Ticket[Outcome]:
        """As `accumulate`, without waiting."""
        return self._accumulate(self._start, keys, rows, dtype, results, stream)

    def apply(self, ops: Array, keys: Array, values: Array = None, out: Array = None, *,
              results: Array = None, dtype: Any = None, stream: Any = None,
              element: Any = None) -> Found:
        """Runs a batch of mixed kinds.

        ops: n integers, each an `Op`. Bytes are used where they are, and what is no `Op` is
        `Result.INVALID`; wider integers of NumPy, torch and CuPy are checked and copied. values:
        needed where an operation is an insert, update, upsert, find_or_insert (whose initial value
        it is) or accumulate (else it is `Result.INVALID`); other rows do not matter. element: the
        dtype of elements, for accumulate. out, dtype: as in `find`.
        """
        return self._apply(self._run, ops, keys, values, out, results, dtype, stream, element)

    def apply_async(self, ops: Array, keys: Array, values: Array = None, out: Array = None, *,
                    results: Array = None, dtype: Any = None, stream: Any = None,
                    element: Any = None) -> Ticket[Found]:
        """As `apply`, without waiting."""
        return self._apply(self._start, ops, keys, values, out, results, dtype, stream, element)

    def bulk_load(self, keys: Array, values: Array, *, results: Array = None) -> Outcome:
        """Inserts many items: makes room for all of them first, then inserts in large batches.

        It runs on the default stream, and waits for exports and snapshots, as `reserve` does; by
        the thread that has an export open: `BusyError`.
        """
        return self._bulk_load(keys, values, results)


def require_values(values: Array, call: str) -> None:
    if values is None:
        raise TypeError(f"values: None; {call} needs n rows of values")


def _arguments(op: Op, results: Array, keys: Array, values: Array, out: Array, ops: Array,
               stream: Any, element: Element, initial: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """What _core starts or runs a batch with."""
    handle = (_arrays.stream_of(keys, values, out, results, ops) if stream is None
              else _arrays.stream_handle(stream))
    exported = _arrays.exported
    return (op, None if ops is None else exported(ops, "ops", handle),
            exported(keys, "keys", handle),
            None if values is None else exported(values, "values", handle),
            None if out is None else exported(out, "out", handle, True),
            exported(results, "results", handle, True), handle, element, initial)
