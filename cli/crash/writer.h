#ifndef GPM_CLI_CRASH_WRITER_H_
#define GPM_CLI_CRASH_WRITER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cli/any_store.h"
#include "cli/crash/gpu.h"
#include "cli/crash/workload.h"
#include "ycsb/buffer.h"

namespace gpm::cli {

/// A writer of crash-test's child: it writes one batch after the other, on keys that no other
/// writer has, and reports each before it starts and when it is acknowledged. Thread safety: none.
class CrashWriter {
 public:
  /// @param gpu its batches are in GPU memory, but for some
  /// @param answers of its operations, where those are in a scope
  CrashWriter(const CrashRound& round, unsigned number, const CrashItems& items, bool gpu,
              std::span<Result> answers);

  /// Starts the next batch on a stream. REQUIRES: none is in flight. @throws Error as the store
  void Start(AnyStore& store, Stream stream);
  /// Completes the batch in flight, if there is one, and reports its answers.
  /// @throws Error as the store; kNoSpace when an operation found no room
  void Finish(AnyStore& store);

 private:
  void Fill(const CrashBatch& made);
  void StartInScope(AnyStore& store, Stream stream);
  void FinishWithoutRoom(AnyStore& store);

  const CrashRound round_;
  const unsigned number_;
  const CrashItems items_;
  std::uint64_t next_batch_ = 0;
  // As large as a batch can be.
  ycsb::Buffer ops_;
  ycsb::Buffer keys_;
  ycsb::Buffer values_;
  ycsb::Buffer found_;
  ycsb::Buffer results_;
  const std::span<Result> answers_;
  std::unique_ptr<GpuBatch> gpu_;  ///< null: everything is in host memory
  // Of the batch in flight.
  CrashBatch made_;  ///< no operations: there is none
  Batch batch_;      ///< in host memory
  bool on_gpu_ = false;
  Ticket ticket_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_WRITER_H_
