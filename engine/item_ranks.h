#ifndef GPM_ENGINE_ITEM_RANKS_H_
#define GPM_ENGINE_ITEM_RANKS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/options.h"
#include "pm/annotate.h"
#include "table/hash.h"

namespace gpm {

class TableCopy;

/// What an operation was for its item.
enum class UseKind : std::uint8_t {
  kNone,    ///< it found no item
  kUsed,    ///< it found the item
  kPut,     ///< it found the item, or added it
  kAdded,   ///< it added the item
  kErased,  ///< it removed the item
};

GPM_HD inline UseKind UseOf(Op op, Result result) {
  if (result == Result::kExists) return UseKind::kUsed;
  if (result != Result::kOk) return UseKind::kNone;
  switch (op) {
    case Op::kFind:
    case Op::kUpdate:
    case Op::kAccumulate:
      return UseKind::kUsed;
    case Op::kUpsert:
      return UseKind::kPut;
    case Op::kInsert:
    case Op::kFindOrInsert:
      return UseKind::kAdded;
    case Op::kErase:
      return UseKind::kErased;
  }
  return UseKind::kNone;
}

/// A use is a word: the id of a key, whose low bits are free for a UseKind. 0: none.
inline constexpr std::uint64_t kUseKindMask = 7;

/// A word that stands for a key, the same in every pool; 0 stands for none.
GPM_HD inline std::uint64_t IdOfKey(const std::byte* key, std::uint32_t key_size) {
  constexpr std::uint64_t kSeed[2] = {0x243F6A8885A308D3, 0x13198A2E03707345};
  constexpr std::uint32_t kMostWords = 32;
  std::uint64_t words[kMostWords];
  const std::uint32_t count = (key_size + 7) / 8;
  if (key_size == 8) {  // most are, and in kernels the word then stays in a register
    std::memcpy(words, key, 8);
  } else {
    words[count - 1] = 0;
    std::memcpy(words, key, key_size);
  }
  return (HashKey(kSeed, words, count).h | (kUseKindMask + 1)) & ~kUseKindMask;
}

// The rank of kLfu: uses, and below them the number of the batch that used it last.
inline constexpr std::uint32_t kRankBatchBits = 40;
inline constexpr std::uint64_t kMostUses = (std::uint64_t{1} << (64 - kRankBatchBits)) - 1;
GPM_HD inline std::uint64_t RankOfUses(std::uint64_t uses, std::uint64_t batch) {
  return (uses < kMostUses ? uses : kMostUses) << kRankBatchBits |
         (batch & ((std::uint64_t{1} << kRankBatchBits) - 1));
}

/// Of ranks that are known, more than so many for each item are forgotten where there are no items
/// for them: a DeviceView erased those.
inline constexpr std::uint64_t kMostRanksOfItem = 2;
inline constexpr std::uint64_t kFewRanks = 1024;

/// What ranks are of.
struct RankedItems {
  Capacity capacity;
  std::uint32_t key_size = 0;
  const std::byte* cells = nullptr;  ///< what references are relative to; null: values are inline
};

/// The uses that a batch made of items, as they were noted.
class NotedUses {
 public:
  virtual ~NotedUses() = default;
};

/// The keys of a batch that is to begin.
class KeysOfBatch {
 public:
  virtual ~KeysOfBatch() = default;
  std::uint64_t there = 0;    ///< different ones that the store has
  std::uint64_t missing = 0;  ///< different ones that it may add
};

/// How the items of a store rank, as its policy has it, by how batches used them: and so which go
/// first. In host memory, looked through by threads (engine/host_item_ranks.h), or in that of a
/// GPU, by kernels (engine/cuda/item_ranks.cu). Volatile: of what was in the pool when it was
/// opened nothing is known.
///
/// Both give the same ranks, and choose the same items: by rank, among equals by id, and then by
/// key. (Where a DeviceView erased many items, they may forget those at another eviction.)
///
/// Thread safety: Note by any thread; LookAt by one at a time, and everything else by one at a
/// time, each beside the others.
class ItemRanks {
 public:
  virtual ~ItemRanks() = default;

  /// Of a batch that has ended. @throws Error(kGpu), std::bad_alloc
  virtual std::unique_ptr<NotedUses> Note(const Batch& batch) = 0;
  /// Takes those of the batch with this number, which is higher than all before. @throws as Note;
  /// then some may have been taken
  virtual void Take(std::uint64_t batch, const NotedUses& uses) = 0;

  /// Looks which keys of a batch there are.
  /// @param find carries out finds of them @throws as Note, and what find throws
  using Find = std::function<void(std::span<Result>)>;
  virtual std::unique_ptr<KeysOfBatch> LookAt(const Batch& batch, const Find& find) = 0;

  /// Chooses items among those that an earlier Choose saw, if their order is still known.
  /// @param kept stay; null: none @return the keys of the first `wanted`; fewer: it is to be called
  ///         anew @throws as Note; then nothing of an earlier Choose is known any more
  virtual std::vector<std::byte> ChooseAgain(std::uint64_t /*wanted*/,
                                             const KeysOfBatch* /*kept*/) {
    return {};
  }
  /// What was seen is not so any more.
  virtual void ForgetSeen() {}
  /// Reads the scores of all items, for kScore. REQUIRES: nobody replaces values. @throws as Note
  virtual void ReadScores(TableCopy* items) = 0;
  /// Chooses items; uses so far count half from then on, with kLfu.
  /// @param items all that there are; their keys are the same while it runs
  /// @return the keys of the first `wanted`; fewer if there are no more @throws as Note
  virtual std::vector<std::byte> Choose(TableCopy* items, std::uint64_t wanted,
                                        const KeysOfBatch* kept) = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_ITEM_RANKS_H_
