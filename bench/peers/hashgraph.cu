// HashGraph (Green: "HashGraph: Scalable Hash Tables Using a Sparse Graph Data Structure", TOPC
// 2021, and the thesis on it): a table that is built at once, as a graph in CSR from buckets to
// items.
//
// hashgraph-v1 counts the items of each bucket, scans, and scatters the items (version 1).
// hashgraph-v2 brings the items into the order of their hashes first (version 2, as generalized: by
// a radix sort), so that counting and scattering go through memory once.
// hashgraph-ordered is version 2 that brings the keys of a batch of finds into that order, too
// (ordered probing).
// hashgraph-ellpack and hashgraph-sliced are version 1 with other rows: all as wide as the widest
// one (Ellpack), which needs no table of rows, or 32 as wide as the widest of them (sliced).
//
// Left out: rows with spare places for inserts behind the build, and several GPUs. Values are
// copied to their items' places. Eight threads look up a key, of which the paper has one: they copy
// the value, of 128 bytes and not 4; so the places of a row lie side by side in Ellpack, too.
// Memory for rows of Ellpack that are as wide as those of random keys usually are is there
// beforehand.
//
// Rows and what threads do with them are in hashgraph_table.h.

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>

#include "bench/peer.h"
#include "bench/peers/device.cuh"
#include "bench/peers/hashgraph_table.h"
#include "gpmstore/error.h"

namespace gpm::bench::peers::hashgraph {
namespace {

constexpr unsigned kLanes = 8;  ///< of a find, and of an item's placing

__device__ std::uint64_t ThisThread() {
  return blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
}

/// Kernel: the bucket of each item of a batch, and the item's number.
template <Layout kLayout>
__global__ void __launch_bounds__(kBlockThreads)
    HashItems(HashGraphTable<kLayout> table, KernelBatch batch, std::uint32_t* buckets,
              std::uint32_t* numbers) {
  const std::uint64_t i = ThisThread();
  if (i < batch.n) HashItem(table, batch, i, buckets, numbers);
}

/// Kernel: counts the items of each bucket.
__global__ void __launch_bounds__(kBlockThreads)
    CountItems(const std::uint32_t* buckets, std::uint64_t n, std::uint32_t* counts) {
  const std::uint64_t i = ThisThread();
  if (i < n) CountItem(buckets[i], counts);
}

/// Kernel: puts items into their buckets' rows, kLanes threads an item.
/// @param places counts what each row has already
template <Layout kLayout>
__global__ void __launch_bounds__(kBlockThreads)
    ScatterItems(HashGraphTable<kLayout> table, KernelBatch batch, Items items,
                 std::uint32_t* places) {
  const auto tile = cg::tiled_partition<kLanes>(cg::this_thread_block());
  const std::uint64_t i = ThisThread() / kLanes;
  if (i < batch.n) PlaceItem(tile, table, batch, items, i, places);
}

/// Kernel: places of each slice, a warp a slice.
__global__ void __launch_bounds__(kBlockThreads)
    MeasureSlices(const std::uint32_t* counts, std::uint64_t buckets, std::uint64_t slices,
                  std::uint64_t* places) {
  const auto warp = cg::tiled_partition<kWarpThreads>(cg::this_thread_block());
  const std::uint64_t bucket = ThisThread();
  if (bucket / kSliceBuckets < slices) MeasureSlice(warp, counts, buckets, bucket, places);
}

/// Kernel: no place has a key of its bucket.
template <Layout kLayout>
__global__ void __launch_bounds__(kBlockThreads)
    ClearPlaces(HashGraphTable<kLayout> table, std::uint64_t places) {
  ClearKeys(table, places, ThisThread(), std::uint64_t{gridDim.x} * kBlockThreads);
}

/// Kernel: ApplyByTiles, of operations in another order.
template <Layout kLayout>
__global__ void __launch_bounds__(kBlockThreads)
    FindInOrder(HashGraphTable<kLayout> table, KernelBatch batch, const std::uint32_t* order) {
  const auto tile = cg::tiled_partition<kLanes>(cg::this_thread_block());
  const std::uint64_t j = ThisThread() / kLanes;
  if (j < batch.n) ApplyInOrder(tile, table, batch, order, j);
}

/// @tparam kSorts version 2 @tparam kOrders finds, too
template <Layout kLayout, bool kSorts, bool kOrders = false>
class HashGraphAdapter : public KvAdapter {
 public:
  explicit HashGraphAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes),
        capacity_(spec.items),
        most_(std::max(capacity_, kOrders ? spec.max_batch : 0)) {
    table_.SetBuckets(capacity_);
    counts_.Reserve(table_.buckets + 1);
    buckets_.Reserve(most_);
    numbers_.Reserve(most_);
    if (kSorts || kOrders) {
      sorted_buckets_.Reserve(most_);
      sorted_numbers_.Reserve(most_);
    }
    std::uint64_t places = capacity_;
    if constexpr (kLayout == Layout::kCsr) {
      rows_.Reserve(table_.buckets + 1);
      table_.rows = rows_.data();
      // Without items: all rows are empty.
      CheckCuda(cudaMemsetAsync(rows_.data(), 0, RowBytes(), stream_), "cudaMemset");
    } else if constexpr (kLayout == Layout::kEllpack) {
      constexpr std::uint64_t kUsualWidth = 12;
      places = kUsualWidth * table_.buckets;
    } else {
      constexpr std::uint64_t kUsualWidth = 4;
      places = kUsualWidth * table_.buckets;
      sizes_.Reserve(Slices() + 1);
      slices_.Reserve(Slices() + 1);
      table_.slices = slices_.data();
      CheckCuda(cudaMemsetAsync(slices_.data(), 0, SliceBytes(), stream_), "cudaMemset");
    }
    ReservePlaces(places);
    workspace_.Reserve(std::max(AddUp(nullptr), kSorts || kOrders ? Sort(nullptr, most_) : 0));
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemset");
  }

  void Apply(const Batch& batch) override {
    const KernelBatch kernel_batch(batch, value_bytes_);
    if (batch.ops.empty() && batch.op == Op::kInsert) {
      Build(kernel_batch);
    } else if (kOrders && batch.results.size() > 0) {
      Hash(kernel_batch);
      Sort(workspace_.data(), kernel_batch.n);
      FindInOrder<<<BlocksFor(kernel_batch.n * kLanes), kBlockThreads, 0, stream_>>>(
          table_, kernel_batch, sorted_numbers_.data());
      CheckCuda(cudaGetLastError(), "FindInOrder");
      CheckCuda(cudaStreamSynchronize(stream_), "FindInOrder");
    } else {
      ApplyAndWait<kLanes>(table_, kernel_batch, stream_);
    }
  }

 private:
  std::uint64_t RowBytes() const { return (table_.buckets + 1) * sizeof(std::uint32_t); }
  std::uint64_t Slices() const { return SlicesOf(table_.buckets); }
  std::uint64_t SliceBytes() const { return (Slices() + 1) * sizeof(std::uint64_t); }
  void ReservePlaces(std::uint64_t places) {
    keys_.Reserve(places);
    values_.Reserve(places * value_bytes_);
    table_.keys = keys_.data();
    table_.values = values_.data();
  }

  /// What rows are made of, from counts: where they begin, or how wide the widest is.
  /// @return bytes that it needs
  std::size_t AddUp(void* workspace) {
    std::size_t bytes = workspace == nullptr ? 0 : workspace_.size();
    if constexpr (kLayout == Layout::kCsr) {
      CheckCuda(cub::DeviceScan::ExclusiveSum(workspace, bytes, counts_.data(), rows_.data(),
                                              table_.buckets + 1, stream_),
                "ExclusiveSum");
    } else if constexpr (kLayout == Layout::kEllpack) {
      CheckCuda(cub::DeviceReduce::Max(workspace, bytes, counts_.data(), widest_.get(),
                                       table_.buckets, stream_),
                "Max");
    } else {
      CheckCuda(cub::DeviceScan::ExclusiveSum(workspace, bytes, sizes_.data(), slices_.data(),
                                              Slices() + 1, stream_),
                "ExclusiveSum");
    }
    return bytes;
  }
  /// Sorts items by bins of buckets. @return bytes that it needs
  std::size_t Sort(void* workspace, std::uint64_t n) {
    std::size_t bytes = workspace == nullptr ? 0 : workspace_.size();
    const BinBits bits = BinsOf(table_.buckets);
    CheckCuda(cub::DeviceRadixSort::SortPairs(
                  workspace, bytes, buckets_.data(), sorted_buckets_.data(), numbers_.data(),
                  sorted_numbers_.data(), n, bits.first, bits.end, stream_),
              "SortPairs");
    return bytes;
  }
  void Hash(const KernelBatch& batch) {
    HashItems<<<BlocksFor(batch.n), kBlockThreads, 0, stream_>>>(table_, batch, buckets_.data(),
                                                                 numbers_.data());
    CheckCuda(cudaGetLastError(), "HashItems");
  }

  /// From counts.
  void MakeRows() {
    if constexpr (kLayout == Layout::kSliced) {
      CheckCuda(cudaMemsetAsync(sizes_.data(), 0, SliceBytes(), stream_), "cudaMemset");
      MeasureSlices<<<BlocksFor(Slices() * kSliceBuckets), kBlockThreads, 0, stream_>>>(
          counts_.data(), table_.buckets, Slices(), sizes_.data());
      CheckCuda(cudaGetLastError(), "MeasureSlices");
    }
    AddUp(workspace_.data());
    if constexpr (HashGraphTable<kLayout>::kPadded) {
      std::uint64_t places = 0;
      if constexpr (kLayout == Layout::kSliced) {
        CheckCuda(cudaMemcpyAsync(&places, slices_.data() + Slices(), sizeof places,
                                  cudaMemcpyDeviceToHost, stream_),
                  "cudaMemcpy");
      }
      CheckCuda(cudaStreamSynchronize(stream_), "the widest rows");
      if constexpr (kLayout == Layout::kEllpack) {
        table_.width = *widest_.get();
        places = table_.buckets * table_.width;
      }
      ReservePlaces(places);
      ClearPlaces<<<BlocksFor(std::uint64_t{1} << 20), kBlockThreads, 0, stream_>>>(table_, places);
      CheckCuda(cudaGetLastError(), "ClearPlaces");
    }
  }

  void Build(const KernelBatch& batch) {
    if (batch.n > capacity_) {
      throw Error(ErrorCode::kInvalidArgument, "more items than the table is made for");
    }
    if (batch.n == 0) return;
    Hash(batch);
    if (kSorts) Sort(workspace_.data(), batch.n);
    const std::uint32_t* const buckets = kSorts ? sorted_buckets_.data() : buckets_.data();
    CheckCuda(cudaMemsetAsync(counts_.data(), 0, RowBytes(), stream_), "cudaMemset");
    CountItems<<<BlocksFor(batch.n), kBlockThreads, 0, stream_>>>(buckets, batch.n, counts_.data());
    CheckCuda(cudaGetLastError(), "CountItems");
    MakeRows();
    CheckCuda(cudaMemsetAsync(counts_.data(), 0, RowBytes(), stream_), "cudaMemset");
    ScatterItems<<<BlocksFor(batch.n * kLanes), kBlockThreads, 0, stream_>>>(
        table_, batch, {buckets, kSorts ? sorted_numbers_.data() : nullptr}, counts_.data());
    CheckCuda(cudaGetLastError(), "ScatterItems");
    CheckCuda(cudaStreamSynchronize(stream_), "ScatterItems");
  }

  const std::uint32_t value_bytes_;
  const std::uint64_t capacity_;
  const std::uint64_t most_;  ///< operations whose hashes are kept
  CudaStream stream_;
  HashGraphTable<kLayout> table_{};
  DeviceArray<std::uint32_t> rows_;
  DeviceArray<std::uint64_t> sizes_;  ///< places of slices, and a 0 behind them
  DeviceArray<std::uint64_t> slices_;
  PinnedBox<std::uint32_t> widest_;
  DeviceArray<std::uint32_t> counts_;  ///< of buckets, and a 0 behind them
  DeviceArray<std::uint64_t> keys_;
  DeviceArray<std::byte> values_;
  DeviceArray<std::uint32_t> buckets_;  ///< of items in the batch's order, and their numbers
  DeviceArray<std::uint32_t> numbers_;
  DeviceArray<std::uint32_t> sorted_buckets_;
  DeviceArray<std::uint32_t> sorted_numbers_;
  DeviceArray<std::byte> workspace_;
};

const Capabilities kCan = {.memory = ycsb::Memory::kDevice,
                           .kinds = {Op::kFind, Op::kInsert},
                           .value_unit = 16,
                           .mixed = false,
                           .inserts = Inserts::kNew,
                           .builds_once = true};
const RegisteredPeer version1({.name = "hashgraph-v1",
                               .can = kCan,
                               .make = MakePeer<HashGraphAdapter<Layout::kCsr, false>>});
const RegisteredPeer version2({.name = "hashgraph-v2",
                               .can = kCan,
                               .make = MakePeer<HashGraphAdapter<Layout::kCsr, true>>});
const RegisteredPeer ordered({.name = "hashgraph-ordered",
                              .can = kCan,
                              .by_default = false,
                              .make = MakePeer<HashGraphAdapter<Layout::kCsr, true, true>>});
const RegisteredPeer ellpack({.name = "hashgraph-ellpack",
                              .can = kCan,
                              .by_default = false,
                              .make = MakePeer<HashGraphAdapter<Layout::kEllpack, false>>});
const RegisteredPeer sliced({.name = "hashgraph-sliced",
                             .can = kCan,
                             .by_default = false,
                             .make = MakePeer<HashGraphAdapter<Layout::kSliced, false>>});

}  // namespace
}  // namespace gpm::bench::peers::hashgraph
