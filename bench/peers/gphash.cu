// GPHash as published (FAST 2025), on PM through UVA: levels of buckets with several locations and
// slots, read at once by a warp (sections 3.1 and 3.2), in-place keys, lock-free and log-free
// operations, values by reference, and the frozen bucket cache, BktCache, with LFU (section 3.3).
// The geometry is the default one, 2L-2H-8S. Buckets and operations are in gphash_table.h.
//
// Keys of 8 bytes are their own states. Those of 32 and 128 bytes have a fingerprint of 8 bytes for
// a state (section 3.2.3) and are in their slots, too: slots become wider, not fewer, so that a
// warp still has one lane for each, and a bucket has 384 or 1152 bytes instead of 128. A key is
// read where the fingerprint is that of the key that is looked for, which the paper does in
// searches and inserts alike. Frames of BktCache have the keys.
//
// Left out: resizing and recovery; keys of further sizes and of variable length. The cache is
// loaded as published, by frames that are taken when nobody holds them any more; but between
// batches, as an operation that writes a bucket while it is fetched would be missing in the frame.
//
// gphash-uncached, gphash-apart and gphash-threads lack what section 4.4 adds, one thing more each:
// BktCache, then keys in place, then warps that cooperate.
//
// Otherwise than published, each in its favour: an update exchanges the reference instead of trying
// a compare-and-swap; a warp has as few operations as fill the GPU, and not 32 at any size; its
// finds' values are copied eight lanes each and not a thread each; tables have any number of
// buckets, and so the fill that is asked for; which cells are free is known in GPU memory. And
// where the paper does not say how a cached reference stays the last of several that are written at
// once, see ExchangeCached.

#include <cub/device/device_radix_sort.cuh>

#include "bench/peer.h"
#include "bench/peers/cells.cuh"
#include "bench/peers/device.cuh"
#include "bench/peers/gphash_table.h"
#include "bench/pm_file.h"

namespace gpm::bench::peers::gphash {
namespace {

constexpr double kCachedShare = 0.2;  ///< of the buckets (section 4.1)

/// Kernel: loads frame y with the y-th of the buckets, a warp a frame.
template <class Table>
__global__ void __launch_bounds__(kBlockThreads)
    LoadFrames(Table table, const std::uint32_t* hottest, std::uint64_t frames) {
  const auto warp = cg::tiled_partition<kWarpThreads>(cg::this_thread_block());
  const std::uint64_t thread = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  const std::uint64_t frame = thread / kWarpThreads;
  if (frame < frames) table.LoadFrame(warp, static_cast<std::uint32_t>(frame), hottest[frame]);
}

__global__ void __launch_bounds__(kBlockThreads)
    NumberBuckets(std::uint32_t* numbers, std::uint64_t buckets) {
  const std::uint64_t i = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  if (i < buckets) numbers[i] = static_cast<std::uint32_t>(i);
}

/// What a thread does that carries out an operation alone.
template <class Table>
struct ByThreads {
  Table table;

  template <class Tile>
  __device__ Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    std::uint64_t cell = 0;
    const Result result = table.Apply(tile, batch, i, &cell);
    if (cell != 0 && batch.found != nullptr) {
      CopyValue(tile, batch.FoundOf(i), table.cells.AddressOf(cell), batch.value_bytes);
    }
    return result;
  }
};

/// @tparam Table a GpHashTable @tparam kLanes carry out an operation together: a warp's, or one
template <class Table, unsigned kWords, bool kCached, unsigned kLanes>
class GpHashAdapter : public KvAdapter {
 public:
  explicit GpHashAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes),
        top_buckets_(TopBuckets(spec)),
        buckets_(top_buckets_ + top_buckets_ / 2),
        frames_count_(static_cast<std::uint64_t>(kCachedShare * static_cast<double>(buckets_))),
        pm_(buckets_ * sizeof(Bucket<kWords>) +
            CellRing::CountOf(buckets_ * kSlots, spec.max_batch) *
                (value_bytes_ + Table::kKeyBytes)),
        cells_(pm_.data() + buckets_ * sizeof(Bucket<kWords>), value_bytes_ + Table::kKeyBytes,
               buckets_ * kSlots, spec.max_batch, stream_) {
    table_ = {reinterpret_cast<Bucket<kWords>*>(pm_.data()), top_buckets_, cells_.cells(), {}};
    if constexpr (kCached) MakeCache();
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemset");
  }

  void Apply(const Batch& batch) override {
    cells_.RequireRoomFor(batch);
    if constexpr (kLanes == kWarpThreads) {
      ApplyByWarpsAndWait(table_, KernelBatch(batch, value_bytes_),
                          OperationsPerWarp(batch.results.size()), stream_);
    } else {
      ApplyAndWait<kLanes>(ByThreads<Table>{table_}, KernelBatch(batch, value_bytes_), stream_);
    }
  }

  void LoadCaches() override {
    if constexpr (kCached) LoadHottest();
  }

  std::uint64_t SlotCount() const override { return buckets_ * kSlots; }

  CountedMemory Persistent() override { return {.all = pm_.bytes()}; }

 private:
  void MakeCache() {
    const auto make = [&](auto& array, std::uint64_t n, int byte) {
      array.Reserve(n);
      CheckCuda(cudaMemsetAsync(array.data(), byte, n * sizeof *array.data(), stream_),
                "cudaMemset");
      return array.data();
    };
    static_assert(kNotCached == 0xFFFFFFFF);
    const std::uint64_t frames = frames_count_ + 1;
    table_.cache = {make(frame_of_, buckets_, 0xFF), make(bucket_of_, frames, 0xFF),
                    make(holders_, frames, 0),       make(uses_, buckets_, 0),
                    make(frames_, frames, 0),        make(writers_, frames * kSlots, 0)};
  }
  void LoadHottest() {
    DeviceArray<std::uint32_t> numbers, hottest, sorted_uses;
    DeviceArray<std::byte> workspace;
    numbers.Reserve(buckets_);
    hottest.Reserve(buckets_);
    sorted_uses.Reserve(buckets_);
    NumberBuckets<<<BlocksFor(buckets_), kBlockThreads, 0, stream_>>>(numbers.data(), buckets_);
    CheckCuda(cudaGetLastError(), "NumberBuckets");
    std::size_t bytes = 0;
    const auto sort = [&] {
      CheckCuda(cub::DeviceRadixSort::SortPairsDescending(
                    workspace.data(), bytes, uses_.data(), sorted_uses.data(), numbers.data(),
                    hottest.data(), static_cast<int>(buckets_), 0, 32, stream_),
                "SortPairsDescending");
    };
    sort();  // says what it needs
    workspace.Reserve(bytes);
    sort();
    if (frames_count_ > 0) {
      LoadFrames<<<BlocksFor(frames_count_ * kWarpThreads), kBlockThreads, 0, stream_>>>(
          table_, hottest.data(), frames_count_);
      CheckCuda(cudaGetLastError(), "LoadFrames");
    }
    CheckCuda(cudaStreamSynchronize(stream_), "LoadFrames");
  }
  static std::uint64_t TopBuckets(const PeerSpec& spec) {
    const double slots = static_cast<double>(spec.items) / spec.fill;
    const auto buckets = static_cast<std::uint64_t>(slots / kSlots / 1.5) + 1;
    return (buckets + 1) / 2 * 2;  // two share one of the lower level
  }

  const std::uint32_t value_bytes_;
  const std::uint64_t top_buckets_;
  const std::uint64_t buckets_;
  const std::uint64_t frames_count_;
  CudaStream stream_;
  PmFile pm_;
  CellRing cells_;
  DeviceArray<std::uint32_t> frame_of_, bucket_of_, holders_;
  DeviceArray<std::uint32_t> uses_;
  DeviceArray<Bucket<kWords>> frames_;
  DeviceArray<std::uint64_t> writers_;
  Table table_{};
};

template <unsigned kWords>
using Published = GpHashAdapter<GpHashTable<kWords>, kWords, true, kWarpThreads>;
template <bool kInPlace, unsigned kLanes>
using Step = GpHashAdapter<GpHashTable<1, kInPlace, false>, 1, false, kLanes>;

constexpr auto CapabilitiesOf = [](const std::vector<std::uint32_t>& longer_keys, bool caches) {
  return Capabilities{.memory = ycsb::Memory::kDevice,
                      .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase},
                      .longer_keys = longer_keys,
                      .value_unit = 16,
                      .inserts = Inserts::kNewInBatch,
                      .caches = caches,
                      .durable = true};
};
const RegisteredPeer registered({.name = "gphash",
                                 .can = CapabilitiesOf({kLongerKeys.begin(), kLongerKeys.end()},
                                                       true),
                                 .make = MakePeerByKey<Published>});
const RegisteredPeer by_threads({.name = "gphash-threads",
                                 .can = CapabilitiesOf({}, false),
                                 .by_default = false,
                                 .make = MakePeer<Step<false, 1>>});
const RegisteredPeer apart({.name = "gphash-apart",
                            .can = CapabilitiesOf({}, false),
                            .by_default = false,
                            .make = MakePeer<Step<false, kWarpThreads>>});
const RegisteredPeer uncached({.name = "gphash-uncached",
                               .can = CapabilitiesOf({}, false),
                               .by_default = false,
                               .make = MakePeer<Step<true, kWarpThreads>>});

}  // namespace
}  // namespace gpm::bench::peers::gphash
