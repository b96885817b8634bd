// GPHash as published (FAST 2025), on PM through UVA: levels of buckets with several locations and
// slots, read at once by a warp (sections 3.1 and 3.2), in-place keys, lock-free and log-free
// operations, values by reference, and the frozen bucket cache, BktCache, with LFU (section 3.3).
// The geometry is the default one, 2L-2H-8S. Buckets and operations are in gphash_table.h.
//
// Keys of 8 bytes are their own states. Those of 32 bytes have a fingerprint of 8 bytes for a state
// (section 3.2.3) and are in their slots, too: slots become wider, not fewer, so that a warp still
// has one lane for each, and a bucket has 384 bytes instead of 128. A key is read where the
// fingerprint is that of the key that is looked for, which the paper does in searches and inserts
// alike. Frames of BktCache have the keys.
//
// Left out: resizing and recovery; keys of other sizes and of variable length; loading the cache
// beside operations, and the reference counts that this needs: it is loaded between batches.
//
// Otherwise than published, each in its favour: an update exchanges the reference instead of trying
// a compare-and-swap; a warp has 32 operations where it finds, and else as few as fill the GPU; its
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
template <unsigned kWords>
__global__ void __launch_bounds__(kBlockThreads)
    LoadFrames(GpHashTable<kWords> table, const std::uint32_t* hottest, std::uint64_t frames) {
  const auto warp = cg::tiled_partition<kWarpThreads>(cg::this_thread_block());
  const std::uint64_t thread = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  const std::uint64_t frame = thread / kWarpThreads;
  if (frame < frames) table.LoadFrame(warp, frame, hottest[frame]);
}

__global__ void __launch_bounds__(kBlockThreads)
    NumberBuckets(std::uint32_t* numbers, std::uint64_t buckets) {
  const std::uint64_t i = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  if (i < buckets) numbers[i] = static_cast<std::uint32_t>(i);
}

template <unsigned kWords>
class GpHashAdapter : public KvAdapter {
 public:
  explicit GpHashAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes),
        top_buckets_(TopBuckets(spec)),
        buckets_(top_buckets_ + top_buckets_ / 2),
        frames_count_(static_cast<std::uint64_t>(kCachedShare * static_cast<double>(buckets_))),
        pm_(buckets_ * sizeof(Bucket<kWords>) +
            CellRing::CountOf(buckets_ * kSlots, spec.max_batch) * value_bytes_),
        cells_(pm_.data() + buckets_ * sizeof(Bucket<kWords>), value_bytes_, buckets_ * kSlots,
               spec.max_batch, stream_) {
    frame_of_.Reserve(buckets_);
    uses_.Reserve(buckets_);
    frames_.Reserve(frames_count_ + 1);
    writers_.Reserve((frames_count_ + 1) * kSlots);
    CheckCuda(cudaMemsetAsync(writers_.data(), 0, writers_.size() * sizeof(std::uint64_t), stream_),
              "cudaMemset");
    static_assert(kNotCached == 0xFFFFFFFF);
    CheckCuda(cudaMemsetAsync(frame_of_.data(), 0xFF, buckets_ * sizeof(kNotCached), stream_),
              "cudaMemset");
    CheckCuda(cudaMemsetAsync(uses_.data(), 0, buckets_ * sizeof(std::uint32_t), stream_),
              "cudaMemset");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemset");
    table_ = {reinterpret_cast<Bucket<kWords>*>(pm_.data()),
              top_buckets_,
              cells_.cells(),
              {frame_of_.data(), uses_.data(), frames_.data(), writers_.data()}};
  }

  void Apply(const Batch& batch) override {
    cells_.RequireRoomFor(batch);
    // Finds of a warp share the values that they read.
    const unsigned per_warp =
        batch.found.empty() ? OperationsPerWarp(batch.results.size()) : kWarpThreads;
    ApplyByWarpsAndWait(table_, KernelBatch(batch, value_bytes_), per_warp, stream_);
  }

  void LoadCaches() override {
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
    CheckCuda(cudaMemsetAsync(frame_of_.data(), 0xFF, buckets_ * sizeof(kNotCached), stream_),
              "cudaMemset");
    if (frames_count_ > 0) {
      LoadFrames<<<BlocksFor(frames_count_ * kWarpThreads), kBlockThreads, 0, stream_>>>(
          table_, hottest.data(), frames_count_);
      CheckCuda(cudaGetLastError(), "LoadFrames");
    }
    CheckCuda(cudaStreamSynchronize(stream_), "LoadFrames");
  }

  std::uint64_t SlotCount() const override { return buckets_ * kSlots; }

  CountedMemory Persistent() override { return {.all = pm_.bytes()}; }

 private:
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
  DeviceArray<std::uint32_t> frame_of_;
  DeviceArray<std::uint32_t> uses_;
  DeviceArray<Bucket<kWords>> frames_;
  DeviceArray<std::uint64_t> writers_;
  GpHashTable<kWords> table_{};
};

const RegisteredPeer registered({.name = "gphash",
                                 .can = {.memory = ycsb::Memory::kDevice,
                                         .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase},
                                         .long_key_bytes = kLongKeyBytes,
                                         .value_unit = 16,
                                         .inserts = Inserts::kNewInBatch,
                                         .durable = true},
                                 .make = MakePeerByKey<GpHashAdapter>});

}  // namespace
}  // namespace gpm::bench::peers::gphash
