#ifndef GPM_DEVICE_VIEW_CUH_
#define GPM_DEVICE_VIEW_CUH_

#include <memory>

#include "engine/cuda/context.cuh"
#include "gpmstore/store.h"
#include "table/elements.h"
#include "table/key_rows.h"
#include "table/operation.h"

namespace gpm {

/// The store as a user's own kernel sees it: a trivially copyable, non-owning view, passed to the
/// kernel by value. Got from a DeviceScope and valid while that is open.
///
/// Each operation is carried out by a tile of DeviceView::kLanes threads, which all call it with
/// the same arguments. Thread safety: any number of tiles at once, on any keys; each operation is
/// atomic, two on one key take effect in some order. When a call returns, what it did is durable as
/// far as the medium promises (where the medium needs flushing: once the scope is closed).
struct DeviceView {
  static constexpr std::uint32_t kLanes = kTileLanes;
  using Tile = CudaTile::Tile;

  TableContext context;
  BatchSums* sums;

  /// Makes the key that the calls below take of a row, which may begin anywhere: where key_size is
  /// no multiple of 8, they take no row itself. Each thread has its own.
  /// @param words receives (key_size + 7) / 8 of them
  __device__ void PadKey(const std::byte* row, std::uint64_t* words) const {
    for (std::uint32_t w = 0; w < context.table.key_words; ++w) {
      words[w] = PaddedWord(row + 8 * w, context.table.key_size - 8 * w);
    }
  }
  /// @param key key_size bytes, with zeros behind them up to whole words; 8-byte aligned, device
  ///        memory
  /// @param value value_size bytes, device memory, any alignment; written when the key is there;
  ///        null to ask for existence only
  /// @return kOk or kNotFound, to all lanes
  __device__ Result Find(const Tile& tile, const std::uint64_t* key, std::byte* value) const {
    const CudaTile group(tile);
    const TileOperations operations = Make(group);
    const Candidates candidates = operations.Locate(key);
    const Outcome outcome = operations.Find(candidates, key);
    if (!outcome.present) return Result::kNotFound;
    if (value != nullptr) operations.ReadFound(candidates, outcome, value);
    return Result::kOk;
  }
  /// @param value value_size bytes, device memory, any alignment
  /// @return kOk, kExists, or kNoSpace when no slot or reserved value cell is free: the scope can't
  ///         resize; close it, then give the item to the store in a batch
  __device__ Result Insert(const Tile& tile, const std::uint64_t* key,
                           const std::byte* value) const {
    return Do(tile, Op::kInsert, key, value);
  }
  /// @return kOk, kNotFound or kNoSpace
  __device__ Result Update(const Tile& tile, const std::uint64_t* key,
                           const std::byte* value) const {
    return Do(tile, Op::kUpdate, key, value);
  }
  /// @return kOk or kNoSpace
  __device__ Result Upsert(const Tile& tile, const std::uint64_t* key,
                           const std::byte* value) const {
    return Do(tile, Op::kUpsert, key, value);
  }
  /// @param value what a missing key gets, as of Insert
  /// @param found value_size bytes, device memory, any alignment; receives the key's value, but for
  ///        kNoSpace; null if nobody wants it
  /// @return kOk (it was missing), kExists or kNoSpace
  __device__ Result FindOrInsert(const Tile& tile, const std::uint64_t* key, const std::byte* value,
                                 std::byte* found) const {
    return Do(tile, Op::kFindOrInsert, key, value, found);
  }
  /// @return kOk or kNotFound
  __device__ Result Erase(const Tile& tile, const std::uint64_t* key) const {
    return Do(tile, Op::kErase, key, nullptr);
  }

 private:
  __device__ TileOperations Make(const CudaTile& group) const {
    return TileOperations(context.table, context.reclaim, context.locks, context.accelerators,
                          group, CudaMedia(context.dirty));
  }
  __device__ Result Do(const Tile& tile, Op op, const std::uint64_t* key, const std::byte* value,
                       std::byte* found = nullptr) const {
    const CudaTile group(tile);
    const TileOperations operations = Make(group);
    const Plan plan = PlanOf(op, value);
    const Candidates candidates = operations.Locate(key);
    const Outcome outcome = operations.Apply(candidates, key, plan);
    const int added = ItemsAdded(plan, outcome);
    if (added != 0 && group.IsLeader()) {
      AtomicAdd(&sums->items_added, static_cast<std::uint64_t>(std::int64_t{added}));
    }
    if (outcome.shortage != Shortage::kNothing) return Result::kNoSpace;
    if (found != nullptr && outcome.present) {
      operations.ReadFound(candidates, outcome, found);
    } else if (found != nullptr) {
      for (std::uint32_t i = 8 * group.Lane(); i < context.table.value_size; i += 8 * kLanes) {
        const std::uint32_t rest = context.table.value_size - i;
        StoreBytes(found + i, LoadBytes(value + i, rest), rest);
      }
    }
    return ResultOf(op, outcome.present);
  }
};

/// A stretch of a stream in which the user's kernels work on the store through a DeviceView. For
/// the store it is one batch: other batches run beside it, resizing waits for it. Kernels must not
/// wait for one of those: some of theirs begin when all their blocks find room at once.
///
/// A new scope waits for whoever waits for the open ones, such as a resize, unless its thread has
/// one open. That thread gets Error(kBusy) from calls that need to be alone (Store): it would wait
/// for itself. A scope counts as the thread's that opened it, whoever closes it.
///
/// Thread safety: one thread at a time.
class DeviceScope {
 public:
  /// @param store opened with executor cuda; outlives the scope
  /// @param stream on which the kernels are launched, not cudaStreamPerThread; lives until Close
  /// has returned
  /// @param max_writes inserts, updates, upserts and find-or-inserts that the kernels may carry out
  /// in all
  /// @param max_erases erases that they may carry out in all; more is undefined behaviour
  /// @throws Error kInvalidArgument (the store is empty, or the stream is that, or being captured),
  ///         kUnsupported (executor cpu), kGpu, kBusy (there is no room for so many writes, and
  ///         this thread has another scope open)
  DeviceScope(Store& store, Stream stream, std::uint64_t max_writes, std::uint64_t max_erases);
  ~DeviceScope();  ///< closes; an error is lost
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  const DeviceView& view() const;

  /// Waits for the kernels launched so far on the stream and ends the scope. Idempotent.
  /// @throws Error kGpu
  void Close();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace gpm

#endif  // GPM_DEVICE_VIEW_CUH_
