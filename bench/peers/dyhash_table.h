#ifndef GPM_BENCH_PEERS_DYHASH_TABLE_H_
#define GPM_BENCH_PEERS_DYHASH_TABLE_H_

#include <cstdint>

#include "bench/peers/cells.h"
#include "bench/peers/shared_words.h"
#include "bench/peers/tiles.h"
#include "gpmstore/batch.h"
#include "pm/annotate.h"
#include "table/hash.h"
#include "table/volatile_ops.h"

/// DyHash's subtables, and what threads do with them (what is left out: dyhash.cu).
namespace gpm::bench::peers::dyhash {

inline constexpr unsigned kTables = 3;  ///< d
inline constexpr unsigned kSlots = 16;  ///< of a bucket
inline constexpr unsigned kMaxEvictions = 256;
inline constexpr unsigned kMaxRounds =
    1u << 20;  ///< of a warp: each but few end an eviction or an insert
inline constexpr std::uint64_t kEmpty = 0;

struct Bucket {
  std::uint64_t keys[kSlots];
};

struct Subtable {
  Bucket* buckets;
  std::uint32_t* references;  ///< kSlots of each bucket
  std::uint32_t* locks;       ///< of buckets
  std::uint64_t size;         ///< buckets
};

/// An item that a warp could not place.
struct Item {
  std::uint64_t key;
  std::uint32_t reference;
};

struct Counters {
  std::uint64_t items[kTables];  ///< m_i
  std::uint64_t left_over;       ///< items of `left_over`
};

/// What kernels see of a table.
struct DyHashTable {
  Subtable tables[kTables];
  Cells cells;
  Counters* counters;
  Item* left_over;  ///< has room for those of a batch, or of the half of a subtable

  /// h_i(key), from the hash's high bits: so the items of bucket j go to 2j and 2j + 1 when the
  /// size is doubled (the paper's are a remainder, and go to j and j + size).
  GPM_HD std::uint64_t BucketOf(std::uint64_t key, unsigned table) const {
    return Reduce(Scramble(key + (table + 1) * 0x9E3779B97F4A7C15ull), tables[table].size);
  }

  /// Finds a key by 16 lanes. @return its lane, or kSlots
  template <class Tile>
  GPM_HD unsigned Search(const Tile& tile, std::uint64_t key, unsigned* table,
                         std::uint64_t* bucket) const {
    for (*table = 0; *table < kTables; ++*table) {
      *bucket = BucketOf(key, *table);
      const std::uint64_t word =
          LoadWord(&tables[*table].buckets[*bucket].keys[tile.thread_rank()]);
      const unsigned match = tile.ballot(word == key);
      if (match != 0) return FirstOf(match);
    }
    return kSlots;
  }

  template <class Tile>
  GPM_HD Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    const std::uint64_t key = batch.KeyOf<std::uint64_t>(i);
    const Op kind = batch.KindOf(i);
    if (key == kEmpty || (kind != Op::kFind && kind != Op::kErase)) return Result::kInvalid;
    unsigned table;
    std::uint64_t bucket;
    const unsigned slot = Search(tile, key, &table, &bucket);
    if (slot == kSlots) return Result::kNotFound;
    const std::uint32_t cell = tables[table].references[bucket * kSlots + slot];
    if (kind == Op::kFind) {
      if (batch.found != nullptr) {
        CopyValue(tile, batch.FoundOf(i), cells.AddressOf(cell), batch.value_bytes);
      }
      return Result::kOk;
    }
    // The paper just writes. Of two erases of a key in a batch one alone is ok here.
    bool won = false;
    if (tile.thread_rank() == 0) {
      won = Cas(&tables[table].buckets[bucket].keys[slot], key, kEmpty);
      if (won) {
        cells.Give(cell);
        AtomicAdd(&counters->items[table], ~std::uint64_t{0});  // minus one
      }
    }
    return tile.any(won) ? Result::kOk : Result::kNotFound;
  }

  /// The subtable of a new item, i with a probability in proportion to n_i / C(m_i, 2) (section
  /// 5.2, theorem 1).
  GPM_HD unsigned SampleTable(std::uint64_t key) const {
    float weights[kTables];
    float sum = 0;
    for (unsigned t = 0; t < kTables; ++t) {
      const float m = static_cast<float>(LoadWord(&counters->items[t])) + 2;
      weights[t] = static_cast<float>(tables[t].size) / (m * (m - 1));
      sum += weights[t];
    }
    float drawn = sum * static_cast<float>(Scramble(~key) >> 40) * 0x1p-24f;
    unsigned table = 0;
    while (table + 1 < kTables && drawn >= weights[table]) drawn -= weights[table++];
    return table;
  }

  /// Leaves an item without a place to the host.
  GPM_HD void LeaveOver(std::uint64_t key, std::uint32_t reference) const {
    left_over[AtomicAdd(&counters->left_over, 1)] = {key, reference};
  }
};

/// A lane's item on its way into a table.
struct Pending {
  std::uint64_t key = 0;
  std::uint32_t reference = 0;
  unsigned table = 0;
  unsigned evictions = 0;
  bool active = false;
};

/// Inserts the active lanes' items, by all lanes of a warp (algorithm 2). @param placed of this
/// lane's counts, how many items each subtable got
template <class Tile>
GPM_HD void InsertPending(const Tile& warp, const DyHashTable& table, Pending pending,
                          unsigned* placed) {
  const unsigned lane = warp.thread_rank();
  unsigned last = kWarpThreads - 1;  // who led last
  for (unsigned round = 0; round < kMaxRounds; ++round) {
    const unsigned votes = warp.ballot(pending.active);
    if (votes == 0) return;
    // The next one behind the last: who met a lock comes again when all others had their turn.
    const unsigned behind = last + 1 < kWarpThreads ? votes & ~0u << (last + 1) : 0;
    const unsigned leader = FirstOf(behind != 0 ? behind : votes);
    last = leader;
    const std::uint64_t key = warp.shfl(pending.key, leader);
    const unsigned t = warp.shfl(pending.table, leader);
    const std::uint64_t bucket = table.BucketOf(key, t);
    bool locked = false;
    if (lane == leader) locked = Cas(&table.tables[t].locks[bucket], 0, 1);
    if (!warp.any(locked)) continue;
    Fence();
    const std::uint64_t word =
        lane < kSlots ? LoadWord(&table.tables[t].buckets[bucket].keys[lane]) : kEmpty;
    const unsigned match = warp.ballot(lane < kSlots && word == key);
    const unsigned empty = warp.ballot(lane < kSlots && word == kEmpty);
    // Of a full bucket, one that nobody foresees is evicted.
    const unsigned slot = match != 0   ? FirstOf(match)
                          : empty != 0 ? FirstOf(empty)
                                       : static_cast<unsigned>(Scramble(key + round) % kSlots);
    const std::uint64_t victim = warp.shfl(word, slot);
    if (lane == leader) {
      std::uint32_t* const reference = &table.tables[t].references[bucket * kSlots + slot];
      const std::uint32_t old = LoadWord(reference);
      StoreWord(&table.tables[t].buckets[bucket].keys[slot], key);
      StoreWord(reference, pending.reference);
      Fence();
      Exchange(&table.tables[t].locks[bucket], 0);
      if (match != 0) {
        table.cells.Give(old);
        pending.active = false;
      } else if (empty != 0) {
        ++placed[t];
        pending.active = false;
      } else {
        pending.key = victim;
        pending.reference = old;
        pending.table = (t + 1) % kTables;
        if (++pending.evictions == kMaxEvictions) {
          table.LeaveOver(pending.key, pending.reference);
          pending.active = false;
        }
      }
    }
    warp.sync();
  }
  // So long takes nothing that makes progress; what is left is for the host, too.
  if (pending.active) table.LeaveOver(pending.key, pending.reference);
}

/// Adds what a warp placed to the counts of items.
GPM_HD inline void CountPlaced(const DyHashTable& table, const unsigned* placed) {
  for (unsigned t = 0; t < kTables; ++t) AddByWarp(&table.counters->items[t], placed[t]);
}

/// Inserts new keys by a warp: operations [first, first + count) of a batch, a lane each.
/// REQUIRES: count <= 32.
template <class Tile>
GPM_HD void InsertRows(const Tile& warp, const DyHashTable& table, const KernelBatch& batch,
                       std::uint64_t first, unsigned count) {
  const unsigned lane = warp.thread_rank();
  const std::uint64_t i = first + lane;
  Pending pending;
  if (lane < count && i < batch.n) {
    pending.key = batch.KeyOf<std::uint64_t>(i);
    pending.active = pending.key != kEmpty;
    batch.results[i] = pending.active ? Result::kOk : Result::kInvalid;
    if (pending.active) {
      pending.table = table.SampleTable(pending.key);
      pending.reference = static_cast<std::uint32_t>(table.cells.Take());
    }
  }
  for (unsigned votes = warp.ballot(pending.active); votes != 0; votes &= votes - 1) {
    const unsigned from = FirstOf(votes);
    const std::uint32_t cell = warp.shfl(pending.reference, from);
    CopyValue(warp, table.cells.AddressOf(cell), batch.ValueOf(first + from), batch.value_bytes);
  }
  unsigned placed[kTables] = {};
  InsertPending(warp, table, pending, placed);
  CountPlaced(table, placed);
}

/// Inserts items that have their cells, by a warp: each lane the i-th of n, if there are so many.
template <class Tile>
GPM_HD void InsertItem(const Tile& warp, const DyHashTable& table, const Item* items,
                       std::uint64_t n, std::uint64_t i) {
  Pending pending;
  if (i < n) {
    pending = {items[i].key, items[i].reference, table.SampleTable(items[i].key), 0, true};
  }
  unsigned placed[kTables] = {};
  InsertPending(warp, table, pending, placed);
  CountPlaced(table, placed);
}

/// Brings what slot i of a subtable has to one of twice its size, which is empty (section 5.3,
/// upsizing): each item keeps its slot, so that nobody meets another. REQUIRES: there is a slot i.
GPM_HD inline void MoveItem(const Subtable& from, const DyHashTable& table, unsigned to,
                            std::uint64_t i) {
  const std::uint64_t key = from.buckets[i / kSlots].keys[i % kSlots];
  if (key == kEmpty) return;
  const std::uint64_t bucket = table.BucketOf(key, to);
  table.tables[to].buckets[bucket].keys[i % kSlots] = key;
  table.tables[to].references[bucket * kSlots + i % kSlots] = from.references[i];
}

/// Brings the items of two buckets side by side to one of a subtable of half the size, which is
/// empty (section 5.3, downsizing). Those for which it has no room are left over. REQUIRES: the
/// smaller subtable has this bucket.
GPM_HD inline void MergeBuckets(const Subtable& from, const DyHashTable& table, unsigned to,
                                std::uint64_t bucket) {
  unsigned taken = 0;
  for (unsigned i = 0; i < 2 * kSlots; ++i) {
    const std::uint64_t key = from.buckets[2 * bucket + i / kSlots].keys[i % kSlots];
    const std::uint32_t reference = from.references[2 * bucket * kSlots + i];
    if (key == kEmpty) continue;
    if (taken < kSlots) {
      table.tables[to].buckets[bucket].keys[taken] = key;
      table.tables[to].references[bucket * kSlots + taken++] = reference;
    } else {
      table.LeaveOver(key, reference);
      AtomicAdd(&table.counters->items[to], ~std::uint64_t{0});  // minus one
    }
  }
}

}  // namespace gpm::bench::peers::dyhash

#endif  // GPM_BENCH_PEERS_DYHASH_TABLE_H_
