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
// Subtables and what threads do with them are in dyhash_table.h.
//
// Left out: keys of other sizes than 8 bytes (the paper's buckets have 32 of 4), and other numbers
// of subtables than 3.

#include "bench/peer.h"
#include "bench/peers/cells.cuh"
#include "bench/peers/device.cuh"
#include "bench/peers/dyhash_table.h"
#include "gpmstore/error.h"

namespace gpm::bench::peers::dyhash {
namespace {

constexpr double kMinFill = 0.4;  ///< alpha (section 6.1)
constexpr double kMaxFill = 0.9;  ///< beta

/// This thread's number in its kernel.
__device__ std::uint64_t ThreadNumber() {
  return blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
}

/// Kernel: an insert a thread, `per_warp` of them a warp.
__global__ void __launch_bounds__(kBlockThreads)
    InsertBatch(DyHashTable table, KernelBatch batch, unsigned per_warp) {
  const auto warp = cg::tiled_partition<kWarpThreads>(cg::this_thread_block());
  InsertRows(warp, table, batch, ThreadNumber() / kWarpThreads * per_warp, per_warp);
}

/// Kernel: inserts items that have their cells.
__global__ void __launch_bounds__(kBlockThreads)
    InsertItems(DyHashTable table, const Item* items, std::uint64_t n) {
  const auto warp = cg::tiled_partition<kWarpThreads>(cg::this_thread_block());
  InsertItem(warp, table, items, n, ThreadNumber());
}

/// Kernel: brings the items of a subtable to one of twice its size, a slot a thread.
__global__ void __launch_bounds__(kBlockThreads)
    MoveItems(Subtable from, DyHashTable table, unsigned to) {
  const std::uint64_t i = ThreadNumber();
  if (i < from.size * kSlots) MoveItem(from, table, to, i);
}

/// Kernel: brings the items of a subtable to one of half its size, two buckets a thread.
__global__ void __launch_bounds__(kBlockThreads)
    MergeItems(Subtable from, DyHashTable table, unsigned to) {
  const std::uint64_t bucket = ThreadNumber();
  if (bucket < from.size / 2) MergeBuckets(from, table, to, bucket);
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
}  // namespace gpm::bench::peers::dyhash
