#ifndef GPM_BENCH_PEERS_CLEVEL_TABLE_H_
#define GPM_BENCH_PEERS_CLEVEL_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "bench/peers/cells.h"
#include "bench/peers/keys.h"
#include "bench/peers/shared_words.h"
#include "bench/peers/tiles.h"
#include "gpmstore/batch.h"
#include "pm/annotate.h"
#include "table/hash.h"

/// Clevel-GPM's buckets, and what a thread does with them (what is left out: clevel_gpm.cu).
namespace gpm::bench::peers::clevel {

inline constexpr unsigned kSlots = 8;
inline constexpr unsigned kBuckets = 4;  ///< of a key
inline constexpr unsigned kTagShift = 48;
inline constexpr std::uint64_t kCellMask = (std::uint64_t{1} << kTagShift) - 1;
inline constexpr unsigned kMaxAttempts = 128;  ///< of an insert; each but the last loses a slot

/// What kernels see of a table. Buckets of both levels are numbered in one row, the top level
/// first.
template <unsigned kWords>
struct ClevelTable {
  using KeyType = Key<kWords>;
  /// Of a cell, in front of the value, so that both are aligned.
  static constexpr unsigned kKeyBytes = (sizeof(KeyType) + 15) / 16 * 16;

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

  GPM_HD Candidates CandidatesOf(const KeyType& key) const {
    const std::uint64_t fold = key.Fold();
    const std::uint64_t a = Scramble(fold);
    const std::uint64_t b = Scramble(fold ^ 0x9E3779B97F4A7C15ull);
    const std::uint64_t tops[2] = {Reduce(a, top_buckets), Reduce(b, top_buckets)};
    Candidates candidates;
    for (unsigned i = 0; i < 2; ++i) {
      candidates.buckets[i] = words + tops[i] * kSlots;
      candidates.buckets[2 + i] = words + (top_buckets + tops[i] / 2) * kSlots;
    }
    candidates.tag = (a ^ b) & 0xFFFF;
    return candidates;
  }

  GPM_HD KeyType KeyOfCell(std::uint64_t word) const {
    return LoadKey<kWords>(
        reinterpret_cast<const std::uint64_t*>(cells.AddressOf(word & kCellMask)));
  }

  /// Reads the buckets of a key until one has it.
  /// @param fresh what has changed since the batch began is seen
  /// @param free if not null: gets an empty slot of the bucket that has most of them
  GPM_HD Slot Search(const KeyType& key, bool fresh, Slot* free) const {
    const Candidates candidates = CandidatesOf(key);
    unsigned most = 0;
    for (std::uint64_t* bucket : candidates.buckets) {
      std::uint64_t read[kSlots];
      for (unsigned s = 0; s < kSlots; s += 2) {
        const WordPair pair = fresh ? LoadPair(&bucket[s]) : LoadCachedPair(&bucket[s]);
        read[s] = pair.first;
        read[s + 1] = pair.second;
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
  GPM_HD std::uint64_t WriteCell(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                                 const KeyType& key) const {
    const std::uint64_t cell = cells.Take();
    std::byte* const address = cells.AddressOf(cell);
    StoreKey(reinterpret_cast<std::uint64_t*>(address), key);
    CopyValue(tile, address + kKeyBytes, batch.ValueOf(i), batch.value_bytes);
    SystemFence();
    return cell;
  }

  template <class Tile>
  GPM_HD Result Find(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                     const KeyType& key) const {
    const Slot slot = Search(key, false, nullptr);
    if (slot.word == nullptr) return Result::kNotFound;
    if (batch.found != nullptr) {
      CopyValue(tile, batch.FoundOf(i), cells.AddressOf(slot.value & kCellMask) + kKeyBytes,
                batch.value_bytes);
    }
    return Result::kOk;
  }

  template <class Tile>
  GPM_HD Result Insert(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                       const KeyType& key) const {
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
        SystemFence();
        return Result::kOk;
      }
    }
    if (cell != 0) cells.Give(cell);
    return result;
  }

  GPM_HD std::uint64_t WordOf(const KeyType& key, std::uint64_t cell) const {
    return CandidatesOf(key).tag << kTagShift | cell;
  }

  template <class Tile>
  GPM_HD Result Update(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                       const KeyType& key) const {
    const Slot slot = Search(key, false, nullptr);
    if (slot.word == nullptr) return Result::kNotFound;
    const std::uint64_t cell = WriteCell(tile, batch, i, key);
    // (Nothing erases meanwhile, so the slot keeps its key, whoever else updates it.)
    cells.Give(Exchange(slot.word, WordOf(key, cell)) & kCellMask);
    SystemFence();
    return Result::kOk;
  }

  GPM_HD Result Erase(const KeyType& key) const {
    const Slot slot = Search(key, false, nullptr);
    if (slot.word == nullptr) return Result::kNotFound;
    const bool won = Cas(slot.word, slot.value, 0);
    SystemFence();
    if (won) cells.Give(slot.value & kCellMask);
    return won ? Result::kOk : Result::kNotFound;
  }

  template <class Tile>
  GPM_HD Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    const auto key = batch.KeyOf<KeyType>(i);
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

}  // namespace gpm::bench::peers::clevel

#endif  // GPM_BENCH_PEERS_CLEVEL_TABLE_H_
