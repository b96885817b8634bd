// HashGraph (Green: "HashGraph: Scalable Hash Tables Using a Sparse Graph Data Structure", TOPC
// 2021, and the thesis on it): a table that is built at once, as a graph in CSR from buckets to
// items.
//
// hashgraph-v1 counts the items of each bucket, scans, and scatters the items (version 1).
// hashgraph-v2 brings the items into the order of their hashes first (version 2, as generalized: by
// a radix sort), so that counting and scattering go through memory once.
//
// Left out: rows with spare places for inserts behind the build, Ellpack and sliced Ellpack,
// ordered probing, and several GPUs. Values are copied to their items' places. Eight threads look
// up a key, of which the paper has one: they copy the value, of 128 bytes and not 4.

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "bench/peer.h"
#include "bench/peers/device.cuh"
#include "gpmstore/error.h"
#include "table/hash.h"

namespace gpm::bench::peers {
namespace {

constexpr unsigned kLanes = 8;  ///< of a find

/// What kernels see of a table.
struct HashGraphTable {
  std::uint32_t* rows;  ///< first item of each bucket, and the end
  std::uint64_t* keys;  ///< of items
  std::byte* values;    ///< of items
  std::uint64_t buckets;

  __device__ std::uint32_t BucketOf(std::uint64_t key) const {
    return static_cast<std::uint32_t>(Reduce(Scramble(key), buckets));
  }

  template <class Tile>
  __device__ Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    if (batch.KindOf(i) != Op::kFind) return Result::kInvalid;
    const std::uint64_t key = batch.KeyOf<std::uint64_t>(i);
    const std::uint32_t bucket = BucketOf(key);
    const std::uint32_t end = rows[bucket + 1];
    for (std::uint32_t first = rows[bucket]; first < end; first += kLanes) {
      const std::uint32_t item = first + tile.thread_rank();
      const unsigned match = tile.ballot(item < end && keys[item] == key);
      if (match == 0) continue;
      if (batch.found != nullptr) {
        CopyValue(tile, batch.FoundOf(i),
                  values + (first + FirstOf(match)) * std::uint64_t{batch.value_bytes},
                  batch.value_bytes);
      }
      return Result::kOk;
    }
    return Result::kNotFound;
  }
};

__device__ std::uint64_t ThisThread() {
  return blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
}

/// Kernel: the bucket of each item of a batch, and the item's number.
__global__ void __launch_bounds__(kBlockThreads)
    HashItems(HashGraphTable table, KernelBatch batch, std::uint32_t* buckets,
              std::uint32_t* numbers) {
  const std::uint64_t i = ThisThread();
  if (i >= batch.n) return;
  buckets[i] = table.BucketOf(batch.KeyOf<std::uint64_t>(i));
  numbers[i] = static_cast<std::uint32_t>(i);
}

/// Kernel: counts the items of each bucket.
__global__ void __launch_bounds__(kBlockThreads)
    CountItems(const std::uint32_t* buckets, std::uint64_t n, std::uint32_t* counts) {
  const std::uint64_t i = ThisThread();
  if (i < n) atomicAdd(&counts[buckets[i]], 1u);
}

/// Kernel: puts item numbers[i], of bucket buckets[i], into its bucket's row, kLanes threads an
/// item.
/// @param numbers or null: item i @param places counts what each row has already
__global__ void __launch_bounds__(kBlockThreads)
    ScatterItems(HashGraphTable table, KernelBatch batch, const std::uint32_t* buckets,
                 const std::uint32_t* numbers, std::uint32_t* places) {
  const auto tile = cg::tiled_partition<kLanes>(cg::this_thread_block());
  const std::uint64_t i = ThisThread() / kLanes;
  if (i >= batch.n) return;
  const std::uint32_t bucket = buckets[i];
  const std::uint64_t item = numbers == nullptr ? i : numbers[i];
  std::uint32_t place = 0;
  if (tile.thread_rank() == 0) {
    place = table.rows[bucket] + atomicAdd(&places[bucket], 1u);
    table.keys[place] = batch.KeyOf<std::uint64_t>(item);
    batch.results[item] = Result::kOk;
  }
  place = tile.shfl(place, 0);
  CopyValue(tile, table.values + std::uint64_t{place} * batch.value_bytes, batch.ValueOf(item),
            batch.value_bytes);
}

/// @tparam kSorted version 2
template <bool kSorted>
class HashGraphAdapter : public KvAdapter {
 public:
  explicit HashGraphAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes), capacity_(spec.items) {
    table_.buckets = std::max<std::uint64_t>(capacity_, 1);  // m = n
    rows_.Reserve(table_.buckets + 1);
    counts_.Reserve(table_.buckets + 1);
    keys_.Reserve(capacity_);
    values_.Reserve(capacity_ * value_bytes_);
    buckets_.Reserve(capacity_);
    numbers_.Reserve(capacity_);
    if (kSorted) {
      sorted_buckets_.Reserve(capacity_);
      sorted_numbers_.Reserve(capacity_);
    }
    workspace_.Reserve(std::max(Scan(nullptr), kSorted ? Sort(nullptr, capacity_) : 0));
    table_.rows = rows_.data();
    table_.keys = keys_.data();
    table_.values = values_.data();
    // Without items: all rows are empty.
    CheckCuda(cudaMemsetAsync(rows_.data(), 0, RowBytes(), stream_), "cudaMemset");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemset");
  }

  void Apply(const Batch& batch) override {
    const KernelBatch kernel_batch(batch, value_bytes_);
    if (batch.ops.empty() && batch.op == Op::kInsert) {
      Build(kernel_batch);
    } else {
      ApplyAndWait<kLanes>(table_, kernel_batch, stream_);
    }
  }

 private:
  std::uint64_t RowBytes() const { return (table_.buckets + 1) * sizeof(std::uint32_t); }

  /// Adds up counts to rows. @return bytes that it needs
  std::size_t Scan(void* workspace) {
    std::size_t bytes = workspace == nullptr ? 0 : workspace_.size();
    CheckCuda(cub::DeviceScan::ExclusiveSum(workspace, bytes, counts_.data(), rows_.data(),
                                            table_.buckets + 1, stream_),
              "ExclusiveSum");
    return bytes;
  }
  /// Sorts items by bucket. @return bytes that it needs
  std::size_t Sort(void* workspace, std::uint64_t n) {
    std::size_t bytes = workspace == nullptr ? 0 : workspace_.size();
    int bits = 1;
    while (bits < 32 && table_.buckets >> bits != 0) ++bits;
    CheckCuda(cub::DeviceRadixSort::SortPairs(workspace, bytes, buckets_.data(),
                                              sorted_buckets_.data(), numbers_.data(),
                                              sorted_numbers_.data(), n, 0, bits, stream_),
              "SortPairs");
    return bytes;
  }

  void Build(const KernelBatch& batch) {
    if (batch.n > capacity_) {
      throw Error(ErrorCode::kInvalidArgument, "more items than the table is made for");
    }
    if (batch.n == 0) return;
    const unsigned blocks = BlocksFor(batch.n);
    HashItems<<<blocks, kBlockThreads, 0, stream_>>>(table_, batch, buckets_.data(),
                                                     numbers_.data());
    CheckCuda(cudaGetLastError(), "HashItems");
    if (kSorted) Sort(workspace_.data(), batch.n);
    const std::uint32_t* const buckets = kSorted ? sorted_buckets_.data() : buckets_.data();
    CheckCuda(cudaMemsetAsync(counts_.data(), 0, RowBytes(), stream_), "cudaMemset");
    CountItems<<<blocks, kBlockThreads, 0, stream_>>>(buckets, batch.n, counts_.data());
    CheckCuda(cudaGetLastError(), "CountItems");
    Scan(workspace_.data());
    CheckCuda(cudaMemsetAsync(counts_.data(), 0, RowBytes(), stream_), "cudaMemset");
    ScatterItems<<<BlocksFor(batch.n * kLanes), kBlockThreads, 0, stream_>>>(
        table_, batch, buckets, kSorted ? sorted_numbers_.data() : nullptr, counts_.data());
    CheckCuda(cudaGetLastError(), "ScatterItems");
    CheckCuda(cudaStreamSynchronize(stream_), "ScatterItems");
  }

  const std::uint32_t value_bytes_;
  const std::uint64_t capacity_;
  CudaStream stream_;
  HashGraphTable table_{};
  DeviceArray<std::uint32_t> rows_;
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
                               .make = MakePeer<HashGraphAdapter<false>>});
const RegisteredPeer version2({.name = "hashgraph-v2",
                               .can = kCan,
                               .make = MakePeer<HashGraphAdapter<true>>});

}  // namespace
}  // namespace gpm::bench::peers
