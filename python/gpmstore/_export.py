"""The items of an instant, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import _core

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._store import Store


class Export:
    """The items of a store at one instant, in pages; see `Store.export`. An iterator of (keys,
    values): n uint64, or (n, key_size) uint8; (n, value_size) uint8. It ends behind the last page,
    by `close`, and when it is dropped. Once its store is closed it raises `InvalidArgumentError`.
    """

    def __init__(self, store: Store, core: _core.Export, page: int, with_values: bool) -> None:
        """Use `Store.export`."""
        self._sizes = (page, store.key_size, store.value_size)
        self._core: _core.Export | None = core
        self._with_values = with_values

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[np.ndarray, np.ndarray | None]:
        page, key_size, value_size = self._sizes
        core = self._core  # another thread may close it
        if core is None:
            raise StopIteration
        keys = np.empty(page, np.uint64) if key_size == 8 else np.empty((page, key_size), np.uint8)
        values = np.empty((page, value_size), np.uint8) if self._with_values else None
        rows = core.next(keys, values)
        if rows == 0:
            self.close()
            raise StopIteration
        return keys[:rows], None if values is None else values[:rows]

    def close(self) -> None:
        """Ends it, at any page; no matter if it has ended."""
        core, self._core = self._core, None
        if core is not None:
            core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
