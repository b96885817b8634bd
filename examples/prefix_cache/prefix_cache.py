#!/usr/bin/env python3
"""A prefix cache for model blocks that outlives its process.

    python examples/prefix_cache/prefix_cache.py                       # 2000 blocks of 64 KiB
    python examples/prefix_cache/prefix_cache.py --block-kib 1024 --blocks 1000

A server of a language model computes, for each block of some tokens of a prompt, keys and values of
its attention layers. Prompts that begin alike have these in common, so that a cache has them under a
hash of the block's tokens and of all before it. Here one process puts blocks, and another, after it
ended, looks up a thousand at once, those of prompts that it never saw among them. Needs NumPy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

import gpmstore

TOKENS = 16  # of a block
KEY_SIZE = 36  # SHA-256 of the chain, and 4 bytes that say of which model and version
MODEL = b"demo"
BATCH_BYTES = 64 << 20


class PrefixCache:
    """Blocks under the keys of `chain_keys`. Any thread may use it."""

    def __init__(self, path: str, block_bytes: int, **options: Any) -> None:
        self.store = gpmstore.open_or_create(path, KEY_SIZE, block_bytes, **options)
        self._rows = max(1, BATCH_BYTES // block_bytes)

    def put(self, keys: np.ndarray, blocks: np.ndarray) -> int:
        """Adds blocks that are not there. Returns how many were new; they are durable then."""
        new = 0
        for first in range(0, len(keys), self._rows):
            part = slice(first, first + self._rows)
            outcome = self.store.insert(keys[part], blocks[part])
            if (outcome.results == int(gpmstore.Result.NO_SPACE)).any():
                raise gpmstore.NoSpaceError(f"{self.store.path}: no room for more blocks")
            new += int(outcome.ok.sum())
        return new

    def get(self, keys: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Copies the blocks of all keys to `out`, in one batch. Returns which are there."""
        return self.store.find(keys, out).found

    def cached_prefix(self, keys: np.ndarray) -> int:
        """How many blocks from a prompt's start are there. No block is read."""
        missing = np.flatnonzero(~self.store.contains(keys))
        return int(missing[0]) if len(missing) else len(keys)

    def close(self) -> None:
        self.store.close()


def chain_keys(tokens: np.ndarray) -> np.ndarray:
    """The key of each whole block of a prompt: a hash of its tokens and of the key before it."""
    keys = np.zeros((len(tokens) // TOKENS, KEY_SIZE), np.uint8)
    before = b""
    for key, block in zip(keys, tokens[:len(keys) * TOKENS].reshape(-1, TOKENS)):
        before = hashlib.sha256(before + block.astype("<u4").tobytes()).digest()
        key[:] = np.frombuffer(before + MODEL, np.uint8)
    return keys


def blocks_of(keys: np.ndarray, block_bytes: int) -> np.ndarray:
    """What a model would have computed; here the key, over and over."""
    times = -(-block_bytes // KEY_SIZE)
    return np.ascontiguousarray(np.tile(keys, (1, times))[:, :block_bytes])


def prompts(count: int, blocks: int) -> list[np.ndarray]:
    """Prompts of so many blocks, of which the first half is one of four beginnings."""
    random = np.random.default_rng(1)
    length, common = blocks * TOKENS, blocks // 2 * TOKENS
    beginnings = random.integers(0, 32000, (4, common))
    return [np.concatenate([beginnings[i % 4], random.integers(0, 32000, length - common)])
            for i in range(count)]


def put_blocks(given: argparse.Namespace) -> dict[str, Any]:
    cache = PrefixCache(given.pool, given.block_kib << 10, initial_capacity=given.blocks)
    put = new = 0
    seconds = 0.0
    for prompt in prompts(-(-given.blocks // given.prompt_blocks), given.prompt_blocks):
        keys = chain_keys(prompt)
        cached = cache.cached_prefix(keys)
        blocks = blocks_of(keys[cached:], given.block_kib << 10)
        start = time.perf_counter()
        new += cache.put(keys[cached:], blocks)
        seconds += time.perf_counter() - start
        put += len(keys)
    items = len(cache.store)
    cache.close()
    return {"what": "put", "blocks": put, "new": new, "items": items, "seconds": seconds,
            "bytes": new * (given.block_kib << 10)}


def look_up(given: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    cache = PrefixCache(given.pool, given.block_kib << 10)
    opened = time.perf_counter() - start
    known = np.concatenate([chain_keys(prompt) for prompt in prompts(
        -(-given.blocks // given.prompt_blocks), given.prompt_blocks)])
    random = np.random.default_rng(2)
    wanted = random.choice(len(known), given.look_up * 9 // 10)
    never = chain_keys(random.integers(0, 32000, (given.look_up - len(wanted)) * TOKENS))
    keys = np.concatenate([known[wanted], never])
    out = np.full((len(keys), given.block_kib << 10), 0xA5, np.uint8)
    start = time.perf_counter()
    found = cache.get(keys, out)
    seconds = time.perf_counter() - start
    right = found[:len(wanted)].all() and not found[len(wanted):].any() and np.array_equal(
        out[:len(wanted)], blocks_of(known[wanted], given.block_kib << 10))
    items = len(cache.store)
    cache.close()
    return {"what": "look up", "blocks": len(keys), "found": int(found.sum()), "items": items,
            "seconds": seconds, "opened": opened, "right": bool(right),
            "bytes": int(found.sum()) * (given.block_kib << 10)}


def in_a_process(phase: str) -> dict[str, Any]:
    """Runs a phase in a process of its own."""
    run = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--phase", phase],
                         stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(run.returncode)
    return json.loads(run.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "."
    parser.add_argument("--pool", default=os.path.join(shared, "prefix_cache.pool"))
    parser.add_argument("--blocks", type=int, default=2000, help="of all prompts")
    parser.add_argument("--block-kib", type=int, default=64, help="64 to 1024 are usual")
    parser.add_argument("--prompt-blocks", type=int, default=40, help="blocks of a prompt")
    parser.add_argument("--look-up", type=int, default=1000, help="keys, a tenth of them unknown")
    parser.add_argument("--keep", action="store_true", help="the pool, when it ends")
    parser.add_argument("--phase", choices=("put", "look up"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.phase:
        print(json.dumps(put_blocks(given) if given.phase == "put" else look_up(given)))
        return 0
    try:
        rows = [in_a_process("put"), in_a_process("look up")]
    finally:
        if not given.keep and os.path.exists(given.pool):
            os.remove(given.pool)
    put, looked = rows
    print(f"{put['blocks']} blocks of {given.block_kib} KiB were put, {put['new']} of them new; then "
          f"another process opened the pool in {1e3 * looked['opened']:.1f} ms.\n")
    print(f"{'process':<10}{'blocks':>8}{'new':>7}{'found':>7}{'in pool':>9}{'MB':>9}{'ms':>9}"
          f"{'GB/s':>8}")
    for row in rows:
        print(f"{row['what']:<10}{row['blocks']:>8}{row.get('new', ''):>7}{row.get('found', ''):>7}"
              f"{row['items']:>9}{row['bytes'] / 1e6:>9.1f}{1e3 * row['seconds']:>9.1f}"
              f"{row['bytes'] / row['seconds'] / 1e9:>8.2f}")
    if not looked["right"]:
        print("\nblocks are missing or wrong")
        return 1
    print(f"\n{looked['found']} of {looked['blocks']} keys were found, in one call, and each block is "
          "the one that was put.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
