// SlabHash-GPM (GPHash, FAST 2025, section 4.1, which made it of SlabHash: Ashkiani, Farach-Colton,
// Owens, "A Dynamic Hash Table for the GPU", IPDPS 2018): chains of slabs on PM through UVA, a warp
// an operation, with a redo log for crash consistency.
//
// A slab is what a warp reads at once: 15 keys, 15 references of values and the next slab, of 8
// bytes each. Inserts look at all slabs of the chain. Erased slots are not used again.
//
// Left out: resizing, and so recovery and the compaction of erased slots; SlabHash's allocator of
// slabs, for which a counter in GPU memory stands. A warp has as few operations as fill the GPU. A
// record of the log has a checksum, so that it needs no fence of its own between it and its mark.

#include "bench/peer.h"
#include "bench/peers/cells.cuh"
#include "bench/peers/device.cuh"
#include "bench/pm_file.h"
#include "gpmstore/error.h"
#include "table/hash.h"

namespace gpm::bench::peers {
namespace {

constexpr unsigned kSlots = 15;          ///< of a slab
constexpr unsigned kReferenceLane = 16;  ///< of slot 0
constexpr unsigned kNextLane = kWarpThreads - 1;
constexpr std::uint64_t kEmpty = 0;
constexpr std::uint64_t kErased = ~kEmpty;
constexpr unsigned kMaxSlabs = 256;          ///< of a chain
constexpr unsigned kMaxAttempts = 4096;      ///< of an insert; each but the last meets another
constexpr std::uint64_t kClaimed = ~kEmpty;  ///< a next slab that is being added

struct Slab {
  std::uint64_t words[kWarpThreads];
};
static_assert(sizeof(Slab) == 256);

/// What is to be done again after a crash: words[0] of the slab's slot is the key.
struct LogRecord {
  std::uint64_t slot;  ///< slab * kWarpThreads + slot; ~0 when there is nothing to be done
  std::uint64_t key;
  std::uint64_t reference;
  std::uint64_t checksum;
};
constexpr std::uint64_t kNothing = ~std::uint64_t{0};

/// What kernels see of a table. Slabs [0, buckets) begin a chain each.
struct SlabHashTable {
  Slab* slabs;     ///< PM
  LogRecord* log;  ///< PM, a record for each operation of a batch
  std::uint64_t buckets;
  std::uint64_t max_slabs;
  unsigned long long* slab_count;  ///< in use
  Cells cells;

  /// A slab of a key's chain, a word by each lane.
  struct Visit {
    std::uint64_t slab;
    std::uint64_t word;
  };

  __device__ std::uint64_t BucketOf(std::uint64_t key) const {
    return Reduce(Scramble(key), buckets);
  }
  template <class Tile>
  __device__ Visit Read(const Tile& tile, std::uint64_t slab) const {
    return {slab, LoadWord(&slabs[slab].words[tile.thread_rank()])};
  }
  template <class Tile>
  __device__ static unsigned SlotsWith(const Tile& tile, const Visit& visit, std::uint64_t key) {
    return tile.ballot(tile.thread_rank() < kSlots && visit.word == key);
  }

  /// Finds a key's slot. @return whether it is there, and its value is
  template <class Tile>
  __device__ bool Search(const Tile& tile, std::uint64_t key, std::uint64_t* slab, unsigned* slot,
                         std::uint64_t* reference) const {
    std::uint64_t at = BucketOf(key);
    for (unsigned visited = 0; visited < kMaxSlabs; ++visited) {
      const Visit visit = Read(tile, at);
      const unsigned match = SlotsWith(tile, visit, key);
      if (match != 0) {
        *slab = at;
        *slot = FirstOf(match);
        *reference = tile.shfl(visit.word, *slot + kReferenceLane);
        return *reference != 0;  // 0: an insert has not ended
      }
      at = tile.shfl(visit.word, kNextLane);
      if (at == 0 || at == kClaimed) return false;
    }
    return false;
  }

  /// By one thread, before an operation changes the table; a fence follows.
  __device__ void Log(std::uint64_t i, std::uint64_t slab, unsigned slot, std::uint64_t key,
                      std::uint64_t reference) const {
    const std::uint64_t where = slab * kWarpThreads + slot;
    auto* const record = reinterpret_cast<ulonglong2*>(&log[i]);
    __stwt(&record[0], make_ulonglong2(where, key));
    __stwt(&record[1], make_ulonglong2(reference, Scramble(where ^ key) ^ reference));
  }
  /// By one thread, when what was logged is durable.
  __device__ void ClearLog(std::uint64_t i) const { StoreWord(&log[i].slot, kNothing); }

  template <class Tile>
  __device__ Result Find(const Tile& tile, std::uint64_t key, std::uint64_t* found) const {
    std::uint64_t slab, cell;
    unsigned slot;
    if (!Search(tile, key, &slab, &slot, &cell)) return Result::kNotFound;
    *found = cell;
    return Result::kOk;
  }

  /// Writes a value to a new cell, by all lanes. Neither logged nor fenced.
  template <class Tile>
  __device__ std::uint64_t WriteCell(const Tile& tile, const KernelBatch& batch,
                                     std::uint64_t i) const {
    const std::uint64_t taken = tile.thread_rank() == 0 ? cells.Take() : 0;
    const std::uint64_t cell = tile.shfl(taken, 0);
    CopyValue(tile, cells.AddressOf(cell), batch.ValueOf(i), batch.value_bytes);
    return cell;
  }

  template <class Tile>
  __device__ Result Insert(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                           std::uint64_t key) const {
    std::uint64_t at = BucketOf(key);
    std::uint64_t cell = 0;
    Result result = Result::kNoSpace;
    for (unsigned attempt = 0; attempt < kMaxAttempts; ++attempt) {
      const Visit visit = Read(tile, at);
      if (SlotsWith(tile, visit, key) != 0) {
        result = Result::kExists;
        break;
      }
      const unsigned empty = SlotsWith(tile, visit, kEmpty);
      if (empty == 0) {
        const std::uint64_t next = NextOf(tile, at, tile.shfl(visit.word, kNextLane));
        if (next == 0) break;
        if (next != kClaimed) at = next;  // else the slab is read again
        continue;
      }
      if (cell == 0) cell = WriteCell(tile, batch, i);
      const unsigned slot = FirstOf(empty);
      if (tile.thread_rank() == 0) Log(i, at, slot, key, cell);
      __threadfence_system();
      tile.sync();
      bool won = false;
      if (tile.thread_rank() == 0) {
        won = Cas(&slabs[at].words[slot], kEmpty, key);
        if (won) {
          StoreWord(&slabs[at].words[slot + kReferenceLane], cell);
          __threadfence_system();
        }
        // Another insert may have the slot now: the record must not be applied any more.
        ClearLog(i);
      }
      if (!tile.any(won)) continue;
      return Result::kOk;
    }
    if (cell != 0 && tile.thread_rank() == 0) cells.Give(cell);
    return result;
  }

  /// The slab behind `at`, which is full; adds one where there is none.
  /// @param next that was read @return 0: there is no room for one; kClaimed: another adds one
  template <class Tile>
  __device__ std::uint64_t NextOf(const Tile& tile, std::uint64_t at, std::uint64_t next) const {
    if (next != 0) return next;
    if (tile.thread_rank() == 0) {
      std::uint64_t* const link = &slabs[at].words[kNextLane];
      next = kClaimed;
      if (Cas(link, 0, kClaimed)) {
        next = atomicAdd(slab_count, 1ull);
        if (next >= max_slabs) {
          atomicAdd(slab_count, ~0ull);  // minus one
          next = 0;
        }
        StoreWord(link, next);
        __threadfence_system();
      }
    }
    return tile.shfl(next, 0);
  }

  template <class Tile>
  __device__ Result Update(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                           std::uint64_t key) const {
    std::uint64_t slab, old;
    unsigned slot;
    if (!Search(tile, key, &slab, &slot, &old)) return Result::kNotFound;
    const std::uint64_t cell = WriteCell(tile, batch, i);
    if (tile.thread_rank() == 0) Log(i, slab, slot, key, cell);
    __threadfence_system();
    tile.sync();
    if (tile.thread_rank() == 0) {
      cells.Give(Exchange(&slabs[slab].words[slot + kReferenceLane], cell));
      __threadfence_system();
      ClearLog(i);
    }
    return Result::kOk;
  }

  template <class Tile>
  __device__ Result Erase(const Tile& tile, std::uint64_t i, std::uint64_t key) const {
    std::uint64_t slab, cell;
    unsigned slot;
    if (!Search(tile, key, &slab, &slot, &cell)) return Result::kNotFound;
    bool won = false;
    if (tile.thread_rank() == 0) {
      Log(i, slab, slot, kErased, 0);
      __threadfence_system();
      won = Cas(&slabs[slab].words[slot], key, kErased);
      __threadfence_system();
      ClearLog(i);
      if (won) cells.Give(cell);
    }
    return tile.any(won) ? Result::kOk : Result::kNotFound;
  }

  template <class Tile>
  __device__ Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                          std::uint64_t* found) const {
    const std::uint64_t key = batch.KeyOf<std::uint64_t>(i);
    if (key == kEmpty || key == kErased) return Result::kInvalid;
    switch (batch.KindOf(i)) {
      case Op::kFind:
        return Find(tile, key, found);
      case Op::kInsert:
        return Insert(tile, batch, i, key);
      case Op::kUpdate:
        return Update(tile, batch, i, key);
      case Op::kErase:
        return Erase(tile, i, key);
      default:
        return Result::kInvalid;
    }
  }
};

class SlabHashAdapter : public KvAdapter {
 public:
  explicit SlabHashAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes),
        buckets_(static_cast<std::uint64_t>(static_cast<double>(spec.items) / spec.fill) / kSlots +
                 1),
        // As many items as it is made for come in even where chains are uneven.
        slabs_(buckets_ + buckets_ / 2 + 64),
        log_bytes_((spec.max_batch * sizeof(LogRecord) + sizeof(Slab) - 1) / sizeof(Slab) *
                   sizeof(Slab)),
        pm_(slabs_ * sizeof(Slab) + log_bytes_ +
            CellRing::CountOf(slabs_ * kSlots, spec.max_batch) * value_bytes_),
        cells_(pm_.data() + slabs_ * sizeof(Slab) + log_bytes_, value_bytes_, slabs_ * kSlots,
               spec.max_batch, stream_) {
    slab_count_.Reserve(1);
    const unsigned long long used = buckets_;
    CheckCuda(
        cudaMemcpyAsync(slab_count_.data(), &used, sizeof(used), cudaMemcpyHostToDevice, stream_),
        "cudaMemcpy");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemcpy");
    table_ = {reinterpret_cast<Slab*>(pm_.data()),
              reinterpret_cast<LogRecord*>(pm_.data() + slabs_ * sizeof(Slab)),
              buckets_,
              slabs_,
              slab_count_.data(),
              cells_.cells()};
  }

  void Apply(const Batch& batch) override {
    cells_.RequireRoomFor(batch);
    ApplyByWarpsAndWait(table_, KernelBatch(batch, value_bytes_),
                        OperationsPerWarp(batch.results.size()), stream_);
  }

  /// Of the slabs that chains have.
  std::uint64_t SlotCount() const override {
    unsigned long long used = 0;
    CheckCuda(
        cudaMemcpyAsync(&used, slab_count_.data(), sizeof(used), cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpy");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemcpy");
    return std::min<std::uint64_t>(used, slabs_) * kSlots;
  }

 private:
  const std::uint32_t value_bytes_;
  const std::uint64_t buckets_;
  const std::uint64_t slabs_;
  const std::uint64_t log_bytes_;
  CudaStream stream_;
  PmFile pm_;
  CellRing cells_;
  DeviceArray<unsigned long long> slab_count_;
  SlabHashTable table_{};
};

const RegisteredPeer registered({.name = "slabhash-gpm",
                                 .can = {.memory = ycsb::Memory::kDevice,
                                         .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase},
                                         .value_unit = 16,
                                         .durable = true},
                                 .make = MakePeer<SlabHashAdapter>});

}  // namespace
}  // namespace gpm::bench::peers
