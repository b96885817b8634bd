#!/usr/bin/env python3
"""What a static cache of whole buckets, and one of single items, would find in the same bytes.

Usage: cache_granularity.py [ITEMS]                 needs numpy
       cache_granularity.py ITEMS FINDS SHARE     what is cached is what so many finds used most

Items are spread over buckets at random; keys are drawn Zipf 0.99. A cached bucket takes its own 128
bytes and 8 values of 128 bytes. A cached item takes its value, and its bucket a copy of 128 bytes
and an index of 4 bytes a slot. (So it was when granularity was chosen; since there is a directory,
neither takes those 128 bytes.)

With FINDS, of pools so large that counts are few: what is found by a cache of this share of the
buckets, and of as large a share of the items, of half as many more, and which different values a
batch of 2^20 misses.
"""
import sys

import numpy as np

ITEMS = int(sys.argv[1]) if len(sys.argv) > 1 else 16_000_000
BUCKETS = ITEMS // 5
BUCKET_BYTES, VALUE_BYTES, SLOTS = 128, 128, 8



def counted(finds, share):
    random = np.random.default_rng(1)
    bucket = random.integers(0, BUCKETS, ITEMS, dtype=np.int32)

    def draw(count):  # by the inverse of the distribution's integral
        ranks = (random.random(count) * (ITEMS**0.01 - 1) + 1) ** 100
        return np.minimum(ranks.astype(np.int64) - 1, ITEMS - 1)

    uses = np.zeros(ITEMS, np.int32)
    for first in range(0, finds, 6_000_000):
        uses += np.bincount(draw(min(6_000_000, finds - first)), minlength=ITEMS).astype(np.int32)
    tried = draw(1 << 22)
    batch = tried[: 1 << 20]

    def hottest(heat, count):  # of those that are equally hot any
        cached = np.zeros(heat.size, bool)
        cached[np.argpartition(-heat - random.random(heat.size) / 2, count)[:count]] = True
        return cached

    of_buckets = np.bincount(bucket, weights=uses, minlength=BUCKETS)
    for name, has in (
        (f"buckets {share}", hottest(of_buckets, int(share * BUCKETS))[bucket]),
        (f"items {share}", hottest(uses, int(share * ITEMS))),
        (f"items {1.5 * share:.2f}", hottest(uses, int(1.5 * share * ITEMS))),
    ):
        missed = np.unique(batch[~has[batch]]).size
        print(f"{name}: {has[tried].mean():.4f} found; {missed} of {np.unique(batch).size} missed")


if len(sys.argv) > 3:
    counted(int(sys.argv[2]), float(sys.argv[3]))
    sys.exit()

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
