#ifndef GPM_SHARD_EXPORT_GATE_H_
#define GPM_SHARD_EXPORT_GATE_H_

#include <memory>

#include "engine/home_process.h"

namespace gpm {

/// Exports of a store over several shards, against the calls that wait in a shard until its export
/// has ended. Such a call waits here first, where it holds nothing that the exporter's own batches
/// need; and none of them is under way in any shard when an export begins.
///
/// Neither side starves: who waited while an export was open goes before the next one.
///
/// Thread safety: any thread.
class ExportGate {
 public:
  ExportGate();
  ~ExportGate();
  ExportGate(const ExportGate&) = delete;
  ExportGate& operator=(const ExportGate&) = delete;

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
  struct State;
  const HomeProcess process_;
  std::unique_ptr<State> state_;  ///< in a child of the process, nobody's: threads may wait in it
};

}  // namespace gpm

#endif  // GPM_SHARD_EXPORT_GATE_H_
