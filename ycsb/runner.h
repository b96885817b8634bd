#ifndef GPM_YCSB_RUNNER_H_
#define GPM_YCSB_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "ycsb/batch_buffers.h"
#include "ycsb/operations.h"
#include "ycsb/phase_report.h"
#include "ycsb/target.h"
#include "ycsb/workload.h"

namespace gpm::ycsb {

/// Which results are compared with what they must be, outside the timed part.
enum class Verify {
  kNone,
  kSample,  ///< outcomes of all operations, the value of one find in 16
  kAll,
};

struct RunnerOptions {
  std::size_t batch_rows = 4096;  ///< operations of a batch
  Verify verify = Verify::kSample;
  unsigned generator_threads = 0;  ///< 0: one for each core
  /// The store holds nothing but what this runner loads, so what a find must return is known.
  bool contents_known = true;
  /// Memory for batches generated ahead, about; four times as much, if else they were not four.
  std::uint64_t chunk_bytes = 256u << 20;
  BatchBuffersFactory buffers;  ///< none: host memory
  /// Called after batches with the operations done and asked for.
  std::function<void(Phase phase, std::uint64_t done, std::uint64_t total)> progress;
};

/// Loads a store and runs a workload against it, batch after batch. Batches are generated ahead, as
/// many as there is memory for, applied one right after the other, and verified afterwards.
///
/// Thread safety: one thread; nothing else may change the store meanwhile when contents_known.
class Runner {
 public:
  /// @throws Error(kInvalidArgument) for a workload or batch size that can't be run, or one with
  ///         searches on a pool without an attribute over the records' numbers; kUnsupported: on
  ///         several pools
  Runner(Target store, const WorkloadSpec& spec, const RunnerOptions& options);

  /// Inserts records 0 ... records - 1.
  /// @throws Error(kNoSpace) when the pool is too small for them, and as Store::Apply
  PhaseReport Load();

  /// Runs the operations. @throws as Store::Apply
  PhaseReport Run();

 private:
  PhaseReport RunPhase(Phase phase);
  /// Its operations, and then its searches. @return what both took
  std::chrono::nanoseconds ApplyBatch(BatchBuffers& buffers, const OperationSource::Range& range,
                                      std::size_t batch, std::optional<Op> only);
  /// Searches of nothing, so that the store makes its index, if it keeps one.
  void PrepareSearches();
  void VerifyChunk(BatchBuffers& buffers, const OperationSource& source,
                   const OperationSource::Chunk& chunk, PhaseReport& report);
  void VerifyOperation(BatchBuffers& buffers, const OperationSource& source, std::size_t i,
                       const OperationSource::Chunk& chunk, PhaseReport& report);
  /// @param first the row of its batch's first search
  void VerifySearch(BatchBuffers& buffers, std::size_t i, std::size_t first, std::size_t batch,
                    const OperationSource::Chunk& chunk, PhaseReport& report);
  Version& VersionSlot(std::uint64_t record);

  Target store_;
  WorkloadSpec spec_;
  RunnerOptions options_;
  std::uint32_t attribute_ = 0;  ///< the place of the one over the records' numbers
  ThreadPool threads_;
  std::vector<Version> versions_;  ///< last version written of each record, or one of two marks
};

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_RUNNER_H_
