// GPHash as published (FAST 2025), on PM through UVA: levels of buckets with several locations and
// slots, read at once by a warp (sections 3.1 and 3.2), in-place keys, lock-free and log-free
// operations, values by reference, and the frozen bucket cache, BktCache, with LFU (section 3.3).
// The geometry is the default one, 2L-2H-8S, for keys of 8 bytes, which are their own state words.
//
// Left out: resizing and recovery; keys of more than 8 bytes, and so fingerprints; loading the
// cache beside operations, and the reference counts that this needs: it is loaded between batches.
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
#include "bench/pm_file.h"
#include "gpmstore/error.h"
#include "table/hash.h"

namespace gpm::bench::peers {
namespace {

constexpr unsigned kLevels = 2;
constexpr unsigned kLocations = 2;
constexpr unsigned kSlots = 8;
static_assert(kLevels * kLocations * kSlots == kWarpThreads, "one lane a candidate slot");
constexpr std::uint64_t kEmpty = 0;         ///< state: free
constexpr std::uint64_t kInsert = ~kEmpty;  ///< state: being written
constexpr unsigned kMaxAttempts = 128;      ///< to claim a slot; each but the last loses one
constexpr double kCachedShare = 0.2;        ///< of the buckets (section 4.1)
constexpr std::uint32_t kNotCached = ~0u;

struct Bucket {
  std::uint64_t keys[kSlots];
  std::uint64_t references[kSlots];
};
static_assert(sizeof(Bucket) == 128);

/// BktCache, in GPU memory: frames with copies of the hottest buckets.
struct BucketCache {
  std::uint32_t* frame_of;  ///< F(x) of each bucket; kNotCached: none
  std::uint32_t* uses;      ///< of each bucket, for LFU
  Bucket* frames;
  unsigned long long* writers;  ///< of each slot of a frame: who exchanges its reference
};

/// What kernels see of a table. Buckets of both levels are numbered in one row, the top level
/// first.
struct GpHashTable {
  Bucket* buckets;            ///< PM
  std::uint64_t top_buckets;  ///< of the top level; the other one has half as many
  Cells cells;
  BucketCache cache;

  /// A lane's candidate slot.
  struct Candidate {
    std::uint64_t bucket;
    std::uint64_t* key;   ///< PM
    std::uint64_t word;   ///< that was read, in PM or in the frame
    std::uint32_t frame;  ///< of the bucket, or kNotCached
    __device__ unsigned Slot() const { return threadIdx.x % kSlots; }
    __device__ std::uint64_t* Reference() const { return key + kSlots; }
  };

  /// Reads all candidate slots, one by each lane, in the order in which they are valid: the top
  /// level first, then the lower bucket number (section 3.2.2). A slot that two lanes would have
  /// is the first one's; the other reads kInsert, which is neither free nor a key.
  /// @param cached frames are read where there are any
  template <class Tile>
  __device__ Candidate Probe(const Tile& tile, std::uint64_t key, bool cached) const {
    const std::uint64_t a = Reduce(Scramble(key), top_buckets);
    const std::uint64_t b = Reduce(Scramble(key ^ 0x9E3779B97F4A7C15ull), top_buckets);
    const unsigned lane = tile.thread_rank();
    const bool lower = lane >= kLocations * kSlots;
    const bool second = lane / kSlots % kLocations != 0;
    const std::uint64_t first_bucket = lower ? min(a, b) / 2 : min(a, b);
    const std::uint64_t second_bucket = lower ? max(a, b) / 2 : max(a, b);
    Candidate candidate;
    candidate.bucket = (lower ? top_buckets : 0) + (second ? second_bucket : first_bucket);
    candidate.key = &buckets[candidate.bucket].keys[candidate.Slot()];
    candidate.frame = LoadWord(&cache.frame_of[candidate.bucket]);
    // All that are read are used, those without the key, too.
    if (candidate.Slot() == 0) atomicAdd(&cache.uses[candidate.bucket], 1u);
    if (second && first_bucket == second_bucket) {
      candidate.word = kInsert;
    } else if (cached && candidate.frame != kNotCached) {
      candidate.word = LoadWord(&cache.frames[candidate.frame].keys[candidate.Slot()]);
    } else {
      candidate.word = LoadWord(candidate.key);
    }
    return candidate;
  }

  /// The first empty slot of the least loaded bucket. @param empty votes of all lanes, not 0
  __device__ static unsigned TargetOf(unsigned empty) {
    constexpr unsigned kBucketMask = (1u << kSlots) - 1;
    unsigned target = 0;
    int most = 0;
    for (unsigned first = 0; first < kWarpThreads; first += kSlots) {
      const unsigned in_bucket = empty >> first & kBucketMask;
      if (__popc(in_bucket) <= most) continue;
      most = __popc(in_bucket);
      target = first + FirstOf(in_bucket);
    }
    return target;
  }

  /// Insertion (section 3.2.3, figure 3).
  template <class Tile>
  __device__ Result Insert(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                           std::uint64_t key) const {
    Result result = Result::kNoSpace;
    std::uint64_t cell = 0;
    bool done = false;
    for (unsigned attempt = 0; attempt < kMaxAttempts && !done; ++attempt) {
      // Who lost a slot has been misled by a frame, perhaps.
      const Candidate candidate = Probe(tile, key, attempt == 0);
      if (tile.any(candidate.word == key)) {
        result = Result::kExists;
        break;
      }
      const unsigned empty = tile.ballot(candidate.word == kEmpty);
      if (empty == 0) break;
      const unsigned target = TargetOf(empty);
      bool won = false;
      if (tile.thread_rank() == target) {
        won = Cas(candidate.key, kEmpty, kInsert);
        if (won) cell = cells.Take();
      }
      done = tile.any(won);
      if (!done) continue;
      cell = tile.shfl(cell, target);
      CopyValue(tile, cells.AddressOf(cell), batch.ValueOf(i), batch.value_bytes);
      if (tile.thread_rank() == target) StoreWord(candidate.Reference(), cell);
      __threadfence_system();
      tile.sync();
      if (tile.thread_rank() == target) {
        StoreWord(candidate.key, key);
        __threadfence_system();
        if (candidate.frame != kNotCached) {
          StoreWord(FrameReference(candidate), cell);
          __threadfence();
          StoreWord(&cache.frames[candidate.frame].keys[candidate.Slot()], key);
        }
      }
      result = Result::kOk;
    }
    return result;
  }

  __device__ std::uint64_t* FrameReference(const Candidate& candidate) const {
    return &cache.frames[candidate.frame].references[candidate.Slot()];
  }
  __device__ unsigned long long* Writers(const Candidate& candidate) const {
    return &cache.writers[std::uint64_t{candidate.frame} * kSlots + candidate.Slot()];
  }

  /// Exchanges a reference in PM, and then in the frame. Of several that are written at once, the
  /// last one in PM has to remain in the frame: the last writer to leave copies it from there, and
  /// again if another writer has come meanwhile. @return the old one
  __device__ std::uint64_t ExchangeCached(const Candidate& candidate, std::uint64_t cell) const {
    constexpr unsigned long long kCame = 1ull << 32;  // and below it, how many have not left
    unsigned long long* const writers = Writers(candidate);
    atomicAdd(writers, kCame + 1);
    __threadfence();
    const std::uint64_t old = Exchange(candidate.Reference(), cell);
    __threadfence_system();
    unsigned long long now = atomicAdd(writers, ~0ull) - 1;
    // (Who goes round again does so for a writer that has come: not more often than a batch has.)
    while (now % kCame == 0) {
      StoreWord(FrameReference(candidate), LoadWord(candidate.Reference()));
      __threadfence();
      const unsigned long long after = atomicAdd(writers, 0ull);
      if (after == now) break;
      now = after;
    }
    return old;
  }

  /// @return the valid one of the slots with the key, as a lane, or kWarpThreads
  template <class Tile>
  __device__ static unsigned ValidLane(const Tile& tile, const Candidate& candidate,
                                       std::uint64_t key) {
    const unsigned match = tile.ballot(candidate.word == key);
    return match == 0 ? kWarpThreads : FirstOf(match);
  }

  template <class Tile>
  __device__ Result Find(const Tile& tile, std::uint64_t key, std::uint64_t* found) const {
    const Candidate candidate = Probe(tile, key, true);
    const unsigned valid = ValidLane(tile, candidate, key);
    if (valid == kWarpThreads) return Result::kNotFound;
    std::uint64_t cell = 0;
    if (tile.thread_rank() == valid) {
      cell = LoadWord(candidate.frame != kNotCached ? FrameReference(candidate)
                                                    : candidate.Reference());
    }
    *found = tile.shfl(cell, valid);
    return Result::kOk;
  }

  template <class Tile>
  __device__ Result Update(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                           std::uint64_t key) const {
    const Candidate candidate = Probe(tile, key, true);
    const unsigned valid = ValidLane(tile, candidate, key);
    if (valid == kWarpThreads) return Result::kNotFound;
    // (Duplicates would be deleted here. None are made: the keys of a batch of inserts are new.)
    std::uint64_t cell = tile.thread_rank() == valid ? cells.Take() : 0;
    cell = tile.shfl(cell, valid);
    CopyValue(tile, cells.AddressOf(cell), batch.ValueOf(i), batch.value_bytes);
    __threadfence_system();
    tile.sync();
    if (tile.thread_rank() == valid) {
      if (candidate.frame != kNotCached) {
        cells.Give(ExchangeCached(candidate, cell));
      } else {
        cells.Give(Exchange(candidate.Reference(), cell));
        __threadfence_system();
      }
    }
    return Result::kOk;
  }

  template <class Tile>
  __device__ Result Erase(const Tile& tile, std::uint64_t key) const {
    const Candidate candidate = Probe(tile, key, true);
    bool won = false;
    if (candidate.word == key) {
      const std::uint64_t cell = LoadWord(candidate.Reference());
      won = Cas(candidate.key, key, kEmpty);
      __threadfence_system();
      if (won) {
        cells.Give(cell);
        if (candidate.frame != kNotCached) {
          StoreWord(&cache.frames[candidate.frame].keys[candidate.Slot()], kEmpty);
        }
      }
    }
    return tile.any(won) ? Result::kOk : Result::kNotFound;
  }

  template <class Tile>
  __device__ Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                          std::uint64_t* found) const {
    const std::uint64_t key = batch.KeyOf<std::uint64_t>(i);
    if (key == kEmpty || key == kInsert) return Result::kInvalid;
    switch (batch.KindOf(i)) {
      case Op::kFind:
        return Find(tile, key, found);
      case Op::kInsert:
        return Insert(tile, batch, i, key);
      case Op::kUpdate:
        return Update(tile, batch, i, key);
      case Op::kErase:
        return Erase(tile, key);
      default:
        return Result::kInvalid;
    }
  }
};

/// Kernel: loads frame y with the y-th of the buckets, a warp a frame (section 3.3).
__global__ void __launch_bounds__(kBlockThreads)
    LoadFrames(GpHashTable table, const std::uint32_t* hottest, std::uint64_t frames) {
  const std::uint64_t thread = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  const std::uint64_t frame = thread / kWarpThreads;
  const unsigned lane = threadIdx.x % kWarpThreads;
  if (frame >= frames) return;
  const std::uint32_t bucket = hottest[frame];
  const auto* const from = reinterpret_cast<const std::uint64_t*>(&table.buckets[bucket]);
  auto* const to = reinterpret_cast<std::uint64_t*>(&table.cache.frames[frame]);
  if (lane < sizeof(Bucket) / sizeof(*from)) to[lane] = LoadWord(&from[lane]);
  if (lane == 0) table.cache.frame_of[bucket] = static_cast<std::uint32_t>(frame);
}

__global__ void __launch_bounds__(kBlockThreads)
    NumberBuckets(std::uint32_t* numbers, std::uint64_t buckets) {
  const std::uint64_t i = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  if (i < buckets) numbers[i] = static_cast<std::uint32_t>(i);
}

class GpHashAdapter : public KvAdapter {
 public:
  explicit GpHashAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes),
        top_buckets_(TopBuckets(spec)),
        buckets_(top_buckets_ + top_buckets_ / 2),
        frames_count_(static_cast<std::uint64_t>(kCachedShare * static_cast<double>(buckets_))),
        pm_(buckets_ * sizeof(Bucket) +
            CellRing::CountOf(buckets_ * kSlots, spec.max_batch) * value_bytes_),
        cells_(pm_.data() + buckets_ * sizeof(Bucket), value_bytes_, buckets_ * kSlots,
               spec.max_batch, stream_) {
    frame_of_.Reserve(buckets_);
    uses_.Reserve(buckets_);
    frames_.Reserve(frames_count_ + 1);
    writers_.Reserve((frames_count_ + 1) * kSlots);
    CheckCuda(
        cudaMemsetAsync(writers_.data(), 0, writers_.size() * sizeof(unsigned long long), stream_),
        "cudaMemset");
    static_assert(kNotCached == 0xFFFFFFFF);
    CheckCuda(cudaMemsetAsync(frame_of_.data(), 0xFF, buckets_ * sizeof(kNotCached), stream_),
              "cudaMemset");
    CheckCuda(cudaMemsetAsync(uses_.data(), 0, buckets_ * sizeof(std::uint32_t), stream_),
              "cudaMemset");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemset");
    table_ = {reinterpret_cast<Bucket*>(pm_.data()),
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
  DeviceArray<Bucket> frames_;
  DeviceArray<unsigned long long> writers_;
  GpHashTable table_{};
};

const RegisteredPeer registered({.name = "gphash",
                                 .can = {.memory = ycsb::Memory::kDevice,
                                         .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase},
                                         .value_unit = 16,
                                         .inserts = Inserts::kNewInBatch,
                                         .durable = true},
                                 .make = MakePeer<GpHashAdapter>});

}  // namespace
}  // namespace gpm::bench::peers
