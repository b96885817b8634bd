// DyHash (Li, Zhu, Lyu, Huang, Sun, Luo: "DyHash: Dynamic Hash Table on GPUs"): cuckoo hashing over
// d = 3 subtables in GPU memory, of which one alone is resized at a time (sections 4 and 5).
//
// A bucket has 16 keys of 8 bytes, one line; values are referred to by 4 bytes beside the keys, so
// that keys move and values stay. Inserts are a thread each, which vote for the one that the warp
// works for next, and nobody waits for a lock (algorithm 2). Keys of inserts are new: an insert
// looks at one subtable only.
//
// Before a batch of inserts the smallest subtable is doubled where the fill would be above beta,
// after one of erases the largest one halved where it is below alpha (section 5.3). An insert that
// finds no place after kMaxEvictions leaves the item that it holds to the host, which doubles the
// smallest subtable and inserts it again. Of a subtable that is halved, the items that have no room
// are inserted again. Finds and erases are 16 threads each, as many as a bucket has keys.
//
// Left out: keys of other sizes than 8 bytes (the paper's buckets have 32 of 4), and other numbers
// of subtables than 3.

#include "bench/peer.h"
#include "bench/peers/cells.cuh"
#include "bench/peers/device.cuh"
#include "gpmstore/error.h"
#include "table/hash.h"

namespace gpm::bench::peers {
namespace {

constexpr unsigned kTables = 3;   ///< d
constexpr unsigned kSlots = 16;   ///< of a bucket
constexpr double kMinFill = 0.4;  ///< alpha (section 6.1)
constexpr double kMaxFill = 0.9;  ///< beta
constexpr unsigned kMaxEvictions = 256;
constexpr unsigned kMaxRounds = 1u << 20;  ///< of a warp: each but few end an eviction or an insert
constexpr std::uint64_t kEmpty = 0;

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
  __device__ std::uint64_t BucketOf(std::uint64_t key, unsigned table) const {
    return Reduce(Scramble(key + (table + 1) * 0x9E3779B97F4A7C15ull), tables[table].size);
  }

  /// Finds a key by 16 lanes. @return its lane, or kSlots
  template <class Tile>
  __device__ unsigned Search(const Tile& tile, std::uint64_t key, unsigned* table,
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
  __device__ Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
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
        atomicAdd(reinterpret_cast<unsigned long long*>(&counters->items[table]), ~0ull);  // - 1
      }
    }
    return tile.any(won) ? Result::kOk : Result::kNotFound;
  }

  /// The subtable of a new item, i with a probability in proportion to n_i / C(m_i, 2) (section
  /// 5.2, theorem 1).
  __device__ unsigned SampleTable(std::uint64_t key) const {
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
__device__ void InsertPending(const DyHashTable& table, Pending pending, unsigned* placed) {
  const auto warp = cg::tiled_partition<kWarpThreads>(cg::this_thread_block());
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
    if (lane == leader) locked = atomicCAS(&table.tables[t].locks[bucket], 0u, 1u) == 0;
    if (!warp.any(locked)) continue;
    __threadfence();
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
      __threadfence();
      atomicExch(&table.tables[t].locks[bucket], 0u);
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
          const unsigned long long place =
              atomicAdd(reinterpret_cast<unsigned long long*>(&table.counters->left_over), 1ull);
          table.left_over[place] = {pending.key, pending.reference};
          pending.active = false;
        }
      }
    }
    warp.sync();
  }
  // So long takes nothing that makes progress; what is left is for the host, too.
  if (pending.active) {
    const unsigned long long place =
        atomicAdd(reinterpret_cast<unsigned long long*>(&table.counters->left_over), 1ull);
    table.left_over[place] = {pending.key, pending.reference};
  }
}

/// Adds what a warp placed to the counts of items.
__device__ void CountPlaced(const DyHashTable& table, const unsigned* placed) {
  for (unsigned t = 0; t < kTables; ++t) {
    const unsigned sum = __reduce_add_sync(~0u, placed[t]);
    if (threadIdx.x % kWarpThreads == 0 && sum != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&table.counters->items[t]), sum);
    }
  }
}

/// Kernel: an insert a thread, `per_warp` of them a warp.
__global__ void __launch_bounds__(kBlockThreads)
    InsertBatch(DyHashTable table, KernelBatch batch, unsigned per_warp) {
  const auto warp = cg::tiled_partition<kWarpThreads>(cg::this_thread_block());
  const unsigned lane = warp.thread_rank();
  const std::uint64_t first =
      (blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x) / kWarpThreads * per_warp;
  const std::uint64_t i = first + lane;
  Pending pending;
  if (lane < per_warp && i < batch.n) {
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
  InsertPending(table, pending, placed);
  CountPlaced(table, placed);
}

/// Kernel: inserts items that have their cells.
__global__ void __launch_bounds__(kBlockThreads)
    InsertItems(DyHashTable table, const Item* items, std::uint64_t n) {
  const std::uint64_t i = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  Pending pending;
  if (i < n) {
    pending = {items[i].key, items[i].reference, table.SampleTable(items[i].key), 0, true};
  }
  unsigned placed[kTables] = {};
  InsertPending(table, pending, placed);
  CountPlaced(table, placed);
}

/// Kernel: brings the items of a subtable to one of twice its size, which is empty (section 5.3,
/// upsizing): each keeps its slot, so that nobody meets another.
__global__ void __launch_bounds__(kBlockThreads)
    MoveItems(Subtable from, DyHashTable table, unsigned to) {
  const std::uint64_t i = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  if (i >= from.size * kSlots) return;
  const std::uint64_t key = from.buckets[i / kSlots].keys[i % kSlots];
  if (key == kEmpty) return;
  const std::uint64_t bucket = table.BucketOf(key, to);
  table.tables[to].buckets[bucket].keys[i % kSlots] = key;
  table.tables[to].references[bucket * kSlots + i % kSlots] = from.references[i];
}

/// Kernel: brings the items of two buckets side by side to one of a subtable of half the size,
/// which is empty (section 5.3, downsizing), by a thread. Those for which it has no room are left
/// over.
__global__ void __launch_bounds__(kBlockThreads)
    MergeItems(Subtable from, DyHashTable table, unsigned to) {
  const std::uint64_t bucket = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  if (bucket >= from.size / 2) return;
  unsigned taken = 0;
  for (unsigned i = 0; i < 2 * kSlots; ++i) {
    const std::uint64_t key = from.buckets[2 * bucket + i / kSlots].keys[i % kSlots];
    const std::uint32_t reference = from.references[2 * bucket * kSlots + i];
    if (key == kEmpty) continue;
    if (taken < kSlots) {
      table.tables[to].buckets[bucket].keys[taken] = key;
      table.tables[to].references[bucket * kSlots + taken++] = reference;
    } else {
      const unsigned long long place =
          atomicAdd(reinterpret_cast<unsigned long long*>(&table.counters->left_over), 1ull);
      table.left_over[place] = {key, reference};
      atomicAdd(reinterpret_cast<unsigned long long*>(&table.counters->items[to]), ~0ull);  // - 1
    }
  }
}

class DyHashAdapter : public KvAdapter {
 public:
  explicit DyHashAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes),
        max_batch_(spec.max_batch),
        max_items_(spec.most_items != 0 ? spec.most_items : 2 * spec.items),
        shrink_below_(spec.shrink_below != 0 ? spec.shrink_below : kMinFill),
        grow_above_(spec.grow_above != 0 ? spec.grow_above : kMaxFill) {
    values_.Reserve(CellRing::CountOf(max_items_, max_batch_) * value_bytes_);
    cells_ =
        std::make_unique<CellRing>(values_.data(), value_bytes_, max_items_, max_batch_, stream_);
    counters_.Reserve(1);
    ReserveLeftOver(max_batch_);
    table_.cells = cells_->cells();
    table_.counters = counters_.data();
    const double slots = static_cast<double>(spec.items) / std::min(spec.fill, grow_above_);
    for (unsigned t = 0; t < kTables; ++t) {
      Allocate(t, static_cast<std::uint64_t>(slots / kSlots / kTables) + 1);
    }
    CheckCuda(cudaMemsetAsync(counters_.data(), 0, sizeof(Counters), stream_), "cudaMemset");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemset");
  }

  void Apply(const Batch& batch) override {
    cells_->RequireRoomFor(batch);
    const KernelBatch kernel_batch(batch, value_bytes_);
    if (batch.ops.empty() && batch.op == Op::kInsert) {
      Insert(kernel_batch);
    } else {
      ApplyAndWait<kSlots>(table_, kernel_batch, stream_);
      if (batch.ops.empty() && batch.op == Op::kErase) Shrink();
    }
  }

  std::uint64_t SlotCount() const override {
    std::uint64_t slots = 0;
    for (const Subtable& table : table_.tables) slots += table.size * kSlots;
    return slots;
  }

 private:
  /// What a subtable is made of.
  struct Memory {
    DeviceArray<Bucket> buckets;
    DeviceArray<std::uint32_t> references;
    DeviceArray<std::uint32_t> locks;
  };

  /// Makes subtable t anew, empty, of `size` buckets.
  void Allocate(unsigned t, std::uint64_t size) {
    Memory memory;
    memory.buckets.Reserve(size);
    memory.references.Reserve(size * kSlots);
    memory.locks.Reserve(size);
    CheckCuda(cudaMemsetAsync(memory.buckets.data(), 0, size * sizeof(Bucket), stream_),
              "cudaMemset");
    CheckCuda(cudaMemsetAsync(memory.locks.data(), 0, size * sizeof(std::uint32_t), stream_),
              "cudaMemset");
    table_.tables[t] = {memory.buckets.data(), memory.references.data(), memory.locks.data(), size};
    memory_[t] = std::move(memory);
  }

  /// Doubles the smallest subtable.
  void Grow() {
    unsigned smallest = 0;
    for (unsigned t = 1; t < kTables; ++t) {
      if (table_.tables[t].size < table_.tables[smallest].size) smallest = t;
    }
    const Subtable from = table_.tables[smallest];
    const Memory old = std::move(memory_[smallest]);
    Allocate(smallest, 2 * from.size);
    MoveItems<<<BlocksFor(from.size * kSlots), kBlockThreads, 0, stream_>>>(from, table_, smallest);
    CheckCuda(cudaGetLastError(), "MoveItems");
    CheckCuda(cudaStreamSynchronize(stream_), "MoveItems");
  }

  /// Halves the largest subtable, and then the next, while there are so few items, and as long as
  /// it has not to grow again for those that lose their places.
  void Shrink() {
    Counters counters = ReadCounters();
    for (std::uint64_t before = ~std::uint64_t{0};
         FillOf(counters) < shrink_below_ && SlotCount() < before;) {
      before = SlotCount();
      unsigned largest = 0;
      for (unsigned t = 1; t < kTables; ++t) {
        if (table_.tables[t].size > table_.tables[largest].size) largest = t;
      }
      const Subtable from = table_.tables[largest];
      if (from.size % 2 != 0) return;  // its buckets are no pairs
      const Memory old = std::move(memory_[largest]);
      ReserveLeftOver(std::max(max_batch_, from.size * kSlots / 2));
      Allocate(largest, from.size / 2);
      MergeItems<<<BlocksFor(from.size / 2), kBlockThreads, 0, stream_>>>(from, table_, largest);
      CheckCuda(cudaGetLastError(), "MergeItems");
      counters = ReadCounters();
      InsertLeftOver(&counters);
    }
  }

  /// Room for the items that a kernel leaves over. REQUIRES: there are none.
  void ReserveLeftOver(std::uint64_t items) {
    left_over_.Reserve(items);
    again_.Reserve(items);
    table_.left_over = left_over_.data();
  }
  /// Inserts the items that were left over, and grows for those that find no place.
  void InsertLeftOver(Counters* counters) {
    while (counters->left_over > 0) {
      std::swap(left_over_, again_);
      table_.left_over = left_over_.data();
      CheckCuda(
          cudaMemsetAsync(&counters_.data()->left_over, 0, sizeof(counters->left_over), stream_),
          "cudaMemset");
      InsertItems<<<BlocksFor(counters->left_over), kBlockThreads, 0, stream_>>>(
          table_, again_.data(), counters->left_over);
      CheckCuda(cudaGetLastError(), "InsertItems");
      *counters = ReadCounters();
      if (counters->left_over > 0) Grow();
    }
  }

  Counters ReadCounters() {
    Counters counters;
    CheckCuda(cudaMemcpyAsync(&counters, counters_.data(), sizeof(counters), cudaMemcpyDeviceToHost,
                              stream_),
              "cudaMemcpy");
    CheckCuda(cudaStreamSynchronize(stream_), "DyHash's kernels");
    return counters;
  }
  static std::uint64_t ItemsOf(const Counters& counters) {
    std::uint64_t items = 0;
    for (const std::uint64_t in_table : counters.items) items += in_table;
    return items;
  }
  double FillOf(const Counters& counters) const {
    return static_cast<double>(ItemsOf(counters)) / static_cast<double>(SlotCount());
  }

  void Insert(const KernelBatch& batch) {
    if (batch.n == 0) return;
    const auto is_too_much = [&] {
      return static_cast<double>(items_ + batch.n) > grow_above_ * static_cast<double>(SlotCount());
    };
    // (Erases are not counted before.)
    if (is_too_much() || items_ + batch.n > max_items_) items_ = ItemsOf(ReadCounters());
    if (items_ + batch.n > max_items_) {
      throw Error(ErrorCode::kNoSpace, "DyHash: there is memory for the values of fewer items");
    }
    // What can't fit is not tried: each insert would evict kMaxEvictions items in vain.
    while (is_too_much()) Grow();
    const unsigned per_warp = OperationsPerWarp(batch.n);
    const std::uint64_t warps = (batch.n + per_warp - 1) / per_warp;
    InsertBatch<<<BlocksFor(warps * kWarpThreads), kBlockThreads, 0, stream_>>>(table_, batch,
                                                                                per_warp);
    CheckCuda(cudaGetLastError(), "InsertBatch");
    Counters counters = ReadCounters();
    if (counters.left_over > 0) Grow();
    InsertLeftOver(&counters);
    items_ = ItemsOf(counters);
  }

  const std::uint32_t value_bytes_;
  const std::uint64_t max_batch_;
  const std::uint64_t max_items_;
  const double shrink_below_, grow_above_;
  std::uint64_t items_ = 0;  ///< at most, as far as inserts told
  CudaStream stream_;
  DyHashTable table_{};
  Memory memory_[kTables];
  DeviceArray<std::byte> values_;
  std::unique_ptr<CellRing> cells_;
  DeviceArray<Counters> counters_;
  DeviceArray<Item> left_over_;
  DeviceArray<Item> again_;
};

const RegisteredPeer registered({.name = "dyhash",
                                 .can = {.memory = ycsb::Memory::kDevice,
                                         .kinds = {Op::kFind, Op::kInsert, Op::kErase},
                                         .value_unit = 16,
                                         .mixed = false,
                                         .inserts = Inserts::kNew,
                                         .grows = true},
                                 .make = MakePeer<DyHashAdapter>});

}  // namespace
}  // namespace gpm::bench::peers
