#ifndef GPM_SHARD_EXPORT_GATE_H_
#define GPM_SHARD_EXPORT_GATE_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "engine/home_process.h"
#include "pm/mutex.h"

namespace gpm {

/// Exports of a store over several shards, against the calls that wait in a shard until its export
/// has ended. Such a call waits here first, where it holds nothing that the exporter's own batches
/// need; and none of them is under way in any shard when an export begins.
///
/// Thread safety: any thread.
class ExportGate {
 public:
  /// Waits until no export is open, and lets none begin during its life.
  class KeepsOut {
   public:
    /// @throws Error(kBusy) when the calling thread has one open
    explicit KeepsOut(ExportGate& gate);
    ~KeepsOut();
    KeepsOut(const KeepsOut&) = delete;
    KeepsOut& operator=(const KeepsOut&) = delete;

   private:
    ExportGate& gate_;
  };

  /// Waits until no other export is open, and nothing keeps it out. @return at its end, wherever
  /// that is, the export is over @throws Error(kBusy) as KeepsOut
  static std::shared_ptr<void> Begin(const std::shared_ptr<ExportGate>& gate);

 private:
  void RefuseExporter() GPM_REQUIRES(mutex_);

  const HomeProcess process_;
  Mutex mutex_;
  std::condition_variable changed_;                                 ///< when what follows does
  std::optional<std::thread::id> exporter_ GPM_GUARDED_BY(mutex_);  ///< who began the one
  std::uint64_t keeping_out_ GPM_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpm

#endif  // GPM_SHARD_EXPORT_GATE_H_
