"""How stores are created and opened."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, Literal, TypedDict, Union

from ._errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Required

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def path_of(path: Path) -> str:
    """A path as _core takes it."""
    text = os.fsdecode(path)
    if "\0" in text:  # where the system would take it to end
        raise ValueError("embedded null byte")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{text!r}: a path has to be UTF-8") from None
    return text


class SnapshotSchedule(TypedDict, total=False):
    """Snapshots that a store takes of itself, in the background and when it is closed."""

    path: Required[str]  # a folder of this store's own; made if it is not there
    interval: float  # seconds from one to the next; by default 300
    chains: int  # that are kept: each a whole snapshot and its increments; by default 2
    at_close: bool  # one more when the store is closed; by default
    restore: bool  # open and open_or_create of a pool that is gone restore the newest


class OpenOptions(TypedDict, total=False):
    """How a store is opened."""

    executor: Literal["auto", "cpu", "cuda"]  # auto: cuda if a GPU can map the pool's medium
    threads: int  # executor cpu: worker threads; 0: one for each core
    max_bytes: int  # the pool may grow up to here; 0: what the medium could hold
    growth: float  # a full table gets a level with so many times the buckets of its newest: 1.1 to 4
    growth_pause: float  # seconds that a growth may keep batches waiting; 0: as short as can be
    grow_above: float  # load factor above which the table grows rather than that it moves items
    compact_below: float  # load factor below which a batch that leaves fewer items compacts
    capacity: int  # items that the store may have; 0: as many as the pool has room for
    capacity_bytes: int  # instead: of the pool, at most; stats()["capacity_items"] says how many fit
    capacity_policy: Literal["lru", "lfu", "oldest", "score"]  # which go first; by default lru
    score_offset: int  # capacity_policy score: where in a value it is,
    score_bytes: int  # and how long, 4 or 8: an unsigned number, little-endian; the lowest go first
    device: int  # executor cuda: device ordinal
    memory_node: int | None  # (NUMA) that a pool in memory grows on; None: any; by default near device
    directory: bool | None  # by default on executor cuda; without one there is no cache
    cache_policy: Literal["off", "tinylfu", "lfu", "lru", "random"]
    cache_fraction: float | None  # of the buckets of which the values are cached
    cache_bytes: int  # of GPU memory that the store may take; 0: no limit
    cache_refresh_interval: int | None  # operations between; 0: when asked to; None: when one pays
    access_by_address: bool  # executor cuda, for measurements
    access_by_host: bool
    access_combine: bool
    access_dealt_up_to: int
    search_index_bytes: int  # of memory that searches may keep, for the next ones; 0: none
    search_indexed: list[str]  # names that the first search indexes, before others; "a+b": as a pair
    snapshot: SnapshotSchedule | Path | None  # or its path alone, which then restores too
    shards: int | None  # pools, in a folder, that items are spread over; to open: as many as it has
    devices: list[int]  # of shards, on executor cuda: shard i uses devices[i % len(devices)]
    log: Callable[[str, str], None] | None  # gets "info" or "warning", and a message


class CreateOptions(OpenOptions, total=False):
    """What is fixed when a pool is created, and how it is opened then."""

    geometry: str  # "2L-2H-8S": levels, hash locations, slots a bucket
    initial_capacity: int  # items that fit without resizing; 0: start small
    overwrite: bool  # of a DAX device: what it holds is lost; any file that is there is refused
    hash_seed: int | None  # for reproducible layouts; else random
    attributes: dict[str, tuple[int, int]]  # names: (offset, bytes) of fields that are searched by


ONLY_CREATED = CreateOptions.__annotations__.keys() - OpenOptions.__annotations__.keys()
