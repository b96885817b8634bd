// Clevel-GPM (GPHash, FAST 2025, section 4.1, which made it of Clevel: Chen et al., "Lock-free
// Concurrent Level Hashing for Persistent Memory", ATC 2020): a lock-free multi-level table on PM
// through UVA, where each thread carries out an operation on its own.
//
// Slots are words: 16 bits of the key's hash and the number of a cell that has key and value, which
// is written before the slot is. A key has two buckets of eight slots in each of two levels, of
// which the lower has half as many.
//
// Left out: resizing and what its context word protects, recovery, and the search for duplicates
// that it leaves. Tables have the size that the fill asks for. Which cells are free is known in GPU
// memory, as in the other peers on PM.

#include "bench/peer.h"
#include "bench/peers/cells.cuh"
#include "bench/peers/device.cuh"
#include "bench/pm_file.h"
#include "table/hash.h"

namespace gpm::bench::peers {
namespace {

constexpr unsigned kSlots = 8;
constexpr unsigned kBuckets = 4;  ///< of a key
constexpr unsigned kTagShift = 48;
constexpr std::uint64_t kCellMask = (std::uint64_t{1} << kTagShift) - 1;
constexpr unsigned kKeyBytes = 16;      ///< in front of the value, so that it is aligned
constexpr unsigned kMaxAttempts = 128;  ///< of an insert; each but the last loses a slot

/// What kernels see of a table. Buckets of both levels are numbered in one row, the top level
/// first.
struct ClevelTable {
  std::uint64_t* words;  ///< PM: kSlots of each bucket
  std::uint64_t top_buckets;
  Cells cells;

  /// Where a key may be.
  struct Candidates {
    std::uint64_t* buckets[kBuckets];
    std::uint64_t tag;
  };
  /// A slot of them.
  struct Slot {
    std::uint64_t* word = nullptr;
    std::uint64_t value = 0;  ///< that was read
  };

  __device__ Candidates CandidatesOf(std::uint64_t key) const {
    const std::uint64_t a = Scramble(key);
    const std::uint64_t b = Scramble(key ^ 0x9E3779B97F4A7C15ull);
    const std::uint64_t tops[2] = {Reduce(a, top_buckets), Reduce(b, top_buckets)};
    Candidates candidates;
    for (unsigned i = 0; i < 2; ++i) {
      candidates.buckets[i] = words + tops[i] * kSlots;
      candidates.buckets[2 + i] = words + (top_buckets + tops[i] / 2) * kSlots;
    }
    candidates.tag = (a ^ b) & 0xFFFF;
    return candidates;
  }

  __device__ std::uint64_t KeyOfCell(std::uint64_t word) const {
    return LoadWord(reinterpret_cast<const std::uint64_t*>(cells.AddressOf(word & kCellMask)));
  }

  /// Reads the buckets of a key until one has it.
  /// @param fresh what has changed since the batch began is seen
  /// @param free if not null: gets an empty slot of the bucket that has most of them
  __device__ Slot Search(std::uint64_t key, bool fresh, Slot* free) const {
    const Candidates candidates = CandidatesOf(key);
    unsigned most = 0;
    for (std::uint64_t* bucket : candidates.buckets) {
      std::uint64_t read[kSlots];
      for (unsigned s = 0; s < kSlots; s += 2) {
        const auto* const pair = reinterpret_cast<const ulonglong2*>(&bucket[s]);
        const ulonglong2 words_read = fresh ? __ldcv(pair) : *pair;
        read[s] = words_read.x;
        read[s + 1] = words_read.y;
      }
      unsigned empty = 0;
      Slot first_empty;
      for (unsigned s = 0; s < kSlots; ++s) {
        if (read[s] == 0) {
          if (empty++ == 0) first_empty = {&bucket[s], 0};
        } else if (read[s] >> kTagShift == candidates.tag && KeyOfCell(read[s]) == key) {
          return {&bucket[s], read[s]};
        }
      }
      if (free != nullptr && empty > most) {
        most = empty;
        *free = first_empty;
      }
    }
    return {};
  }

  template <class Tile>
  __device__ std::uint64_t WriteCell(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                                     std::uint64_t key) const {
    const std::uint64_t cell = cells.Take();
    std::byte* const address = cells.AddressOf(cell);
    StoreWord(reinterpret_cast<std::uint64_t*>(address), key);
    CopyValue(tile, address + kKeyBytes, batch.ValueOf(i), batch.value_bytes);
    __threadfence_system();
    return cell;
  }

  template <class Tile>
  __device__ Result Find(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                         std::uint64_t key) const {
    const Slot slot = Search(key, false, nullptr);
    if (slot.word == nullptr) return Result::kNotFound;
    if (batch.found != nullptr) {
      CopyValue(tile, batch.FoundOf(i), cells.AddressOf(slot.value & kCellMask) + kKeyBytes,
                batch.value_bytes);
    }
    return Result::kOk;
  }

  template <class Tile>
  __device__ Result Insert(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                           std::uint64_t key) const {
    std::uint64_t cell = 0;
    Result result = Result::kNoSpace;
    for (unsigned attempt = 0; attempt < kMaxAttempts; ++attempt) {
      Slot free;
      if (Search(key, attempt > 0, &free).word != nullptr) {
        result = Result::kExists;
        break;
      }
      if (free.word == nullptr) break;
      if (cell == 0) cell = WriteCell(tile, batch, i, key);
      if (Cas(free.word, 0, WordOf(key, cell))) {
        __threadfence_system();
        return Result::kOk;
      }
    }
    if (cell != 0) cells.Give(cell);
    return result;
  }

  __device__ std::uint64_t WordOf(std::uint64_t key, std::uint64_t cell) const {
    return CandidatesOf(key).tag << kTagShift | cell;
  }

  template <class Tile>
  __device__ Result Update(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                           std::uint64_t key) const {
    const Slot slot = Search(key, false, nullptr);
    if (slot.word == nullptr) return Result::kNotFound;
    const std::uint64_t cell = WriteCell(tile, batch, i, key);
    // (Nothing erases meanwhile, so the slot keeps its key, whoever else updates it.)
    cells.Give(Exchange(slot.word, WordOf(key, cell)) & kCellMask);
    __threadfence_system();
    return Result::kOk;
  }

  __device__ Result Erase(std::uint64_t key) const {
    const Slot slot = Search(key, false, nullptr);
    if (slot.word == nullptr) return Result::kNotFound;
    const bool won = Cas(slot.word, slot.value, 0);
    __threadfence_system();
    if (won) cells.Give(slot.value & kCellMask);
    return won ? Result::kOk : Result::kNotFound;
  }

  template <class Tile>
  __device__ Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    const std::uint64_t key = batch.KeyOf<std::uint64_t>(i);
    switch (batch.KindOf(i)) {
      case Op::kFind:
        return Find(tile, batch, i, key);
      case Op::kInsert:
        return Insert(tile, batch, i, key);
      case Op::kUpdate:
        return Update(tile, batch, i, key);
      case Op::kErase:
        return Erase(key);
      default:
        return Result::kInvalid;
    }
  }
};

class ClevelAdapter : public KvAdapter {
 public:
  explicit ClevelAdapter(const PeerSpec& spec)
      : value_bytes_(spec.value_bytes),
        top_buckets_(TopBuckets(spec)),
        slots_((top_buckets_ + top_buckets_ / 2) * kSlots),
        cell_bytes_(kKeyBytes + value_bytes_),
        pm_(slots_ * sizeof(std::uint64_t) +
            CellRing::CountOf(slots_, spec.max_batch) * cell_bytes_),
        cells_(pm_.data() + slots_ * sizeof(std::uint64_t), cell_bytes_, slots_, spec.max_batch,
               stream_) {
    table_ = {reinterpret_cast<std::uint64_t*>(pm_.data()), top_buckets_, cells_.cells()};
  }

  void Apply(const Batch& batch) override {
    cells_.RequireRoomFor(batch);
    ApplyAndWait<1>(table_, KernelBatch(batch, value_bytes_), stream_);
  }

  std::uint64_t SlotCount() const override { return slots_; }

 private:
  static std::uint64_t TopBuckets(const PeerSpec& spec) {
    const double slots = static_cast<double>(spec.items) / spec.fill;
    const auto buckets = static_cast<std::uint64_t>(slots / kSlots / 1.5) + 1;
    return (buckets + 1) / 2 * 2;  // two share one of the lower level
  }

  const std::uint32_t value_bytes_;
  const std::uint64_t top_buckets_;
  const std::uint64_t slots_;
  const std::uint64_t cell_bytes_;
  CudaStream stream_;
  PmFile pm_;
  CellRing cells_;
  ClevelTable table_{};
};

const RegisteredPeer registered({.name = "clevel-gpm",
                                 .can = {.memory = ycsb::Memory::kDevice,
                                         .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase},
                                         .value_unit = 16,
                                         .inserts = Inserts::kNewInBatch,
                                         .durable = true},
                                 .make = MakePeer<ClevelAdapter>});

}  // namespace
}  // namespace gpm::bench::peers
