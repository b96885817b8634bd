#!/usr/bin/env python3
"""What a static cache of whole buckets, and one of single items, would find in the same bytes.

Usage: cache_granularity.py [ITEMS]     needs numpy

Items are spread over buckets at random; keys are drawn Zipf 0.99. A cached bucket takes its own 128
bytes and 8 values of 128 bytes. A cached item takes its value, and its bucket a copy of 128 bytes
and an index of 4 bytes a slot. (So it was when granularity was chosen; since there is a directory,
neither takes those 128 bytes.)
"""
import sys

import numpy as np

ITEMS = int(sys.argv[1]) if len(sys.argv) > 1 else 16_000_000
BUCKETS = ITEMS // 5
BUCKET_BYTES, VALUE_BYTES, SLOTS = 128, 128, 8

popularity = 1 / np.arange(1, ITEMS + 1, dtype=np.float64) ** 0.99
popularity /= popularity.sum()
bucket = np.random.default_rng(1).integers(0, BUCKETS, ITEMS)
by_bucket = np.cumsum(np.sort(np.bincount(bucket, weights=popularity, minlength=BUCKETS))[::-1])
by_item = np.cumsum(popularity)

print("share of buckets   bytes (MB)   buckets find   items find")
for share in (0.05, 0.1, 0.2, 0.4):
    cached = int(share * BUCKETS)
    total = cached * (BUCKET_BYTES + SLOTS * VALUE_BYTES)
    low, high = 0, ITEMS
    while high - low > ITEMS // 10000 + 1:
        middle = (low + high) // 2
        copies = len(np.unique(bucket[:middle]))
        fits = middle * VALUE_BYTES + copies * (BUCKET_BYTES + 4 * SLOTS) <= total
        low, high = (middle, high) if fits else (low, middle)
    print(f"{share:16.2f} {total / 1e6:12.0f} {by_bucket[cached - 1]:14.3f} {by_item[low - 1]:12.3f}")
