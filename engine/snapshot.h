#ifndef GPM_ENGINE_SNAPSHOT_H_
#define GPM_ENGINE_SNAPSHOT_H_

#include <condition_variable>
#include <cstdint>
#include <optional>

#include "engine/admission.h"
#include "gpmstore/stats.h"
#include "pm/mutex.h"
#include "pm/tracer.h"
#include "snapshot/format.h"

namespace gpm {

/// Bits of the ranges of a change map, for so many items: a range has a quarter to half of an item,
/// so that an increment is hardly larger than what changed.
std::uint32_t RangeBitsFor(std::uint64_t items);
/// Room for a copy of the items, and of those that batches add until the instant.
std::uint64_t RoomForCopy(std::uint64_t items);

/// Threads that copy what a snapshot has, beside batches.
unsigned ThreadsForCopy();

/// Who takes a snapshot of a store, and what the next increment rests on.
///
/// Invariants:
///  1. One thread has the turn. It is alone (Admission::Alone) for the instant: then the index is
///     copied, and the cells are held that it names (Epochs::HoldCells).
///  2. From then on, until the values are copied, the thread wants nothing of who is alone: so that
///     may wait for it. But who exports (Exporter) does as it likes: who is alone never waits for
///     that.
///
/// Thread safety: any thread.
class Snapshots {
 public:
  Snapshots(Admission& admission, PmTracer* tracer) : admission_(admission), tracer_(tracer) {}

  /// Waits for the turn. (Who has it may wait for all scopes to close: so none may be the
  /// caller's.)
  class Turn {
   public:
    /// @param exports values are copied as the caller of this thread asks for them
    /// @throws Error kBusy where this thread has the turn for an export, or a DeviceScope open;
    ///         kInvalidArgument after End
    explicit Turn(Snapshots& snapshots, bool exports = false);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Snapshots& snapshots_;
  };

  /// Values are being copied during its life. Begun by who is alone.
  class Copying {
   public:
    explicit Copying(Snapshots& snapshots);
    ~Copying();
    Copying(const Copying&) = delete;
    Copying& operator=(const Copying&) = delete;

   private:
    Snapshots& snapshots_;
  };
  /// Also by who is alone, if no export holds cells. @throws Error(kBusy) where this thread
  /// exports, or has a DeviceScope open
  void AwaitCopied();
  /// Waits until no snapshot copies, by who can do without. @return false, at once: there is an
  /// export
  bool AwaitSnapshotCopied();
  /// By who has the turn: nobody gets it any more, as the store is closed.
  void End();
  /// Whether an export holds cells, or may soon.
  bool exporting();

  /// The snapshot since which changes are marked.
  struct Base {
    SnapshotId id{};
    std::uint64_t sequence = 0;
    std::uint32_t range_bits = 0;
  };
  std::optional<Base> base;  ///< of who has the turn

  void Count(std::uint64_t bytes, double pause_seconds);
  void AddTo(StoreStats* stats);

 private:
  Admission& admission_;
  PmTracer* const tracer_;
  Mutex mutex_;
  void RefuseExporter() GPM_REQUIRES(mutex_);

  std::condition_variable changed_;
  bool taken_ GPM_GUARDED_BY(mutex_) = false;
  bool copying_ GPM_GUARDED_BY(mutex_) = false;
  bool ended_ GPM_GUARDED_BY(mutex_) = false;
  std::optional<std::uint64_t> exporter_
      GPM_GUARDED_BY(mutex_);  ///< thread that has the turn for that
  std::uint64_t count_ GPM_GUARDED_BY(mutex_) = 0;
  std::uint64_t bytes_ GPM_GUARDED_BY(mutex_) = 0;
  double pause_seconds_ GPM_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_SNAPSHOT_H_
