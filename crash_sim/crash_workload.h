#ifndef GPM_CRASH_SIM_CRASH_WORKLOAD_H_
#define GPM_CRASH_SIM_CRASH_WORKLOAD_H_

#include <cstdint>
#include <random>
#include <vector>

#include "crash_sim/crash_batch.h"
#include "crash_sim/machine.h"
#include "crash_sim/promise.h"
#include "crash_sim/scratch_pool.h"
#include "crash_sim/trace.h"

namespace gpm::crash {

/// The largest pool that a workload uses: what scratch pools are made for. (A table with one place
/// of two slots for each key grows several times before it has room for all.)
inline constexpr std::uint64_t kMaxPoolBytes = 2048 * 1024;
/// One that small tables can fill.
inline constexpr std::uint64_t kSmallPoolBytes = 128 * 1024;

/// A sequence of sessions of a small store, from a seed: batches, orderly closes and process
/// crashes, each by a thread of its own, on a pool that existed, empty, or that is created, or that
/// a crash left. Run once, traced; then it is asked what it did, and what a crash must leave of it.
///
/// A process crash, between batches or within one, or within an open, loses nothing that is
/// visible, but makes nothing durable either: the trace goes on with recovery on what is visible,
/// and the power fails some time after it. What was visible when an open returned stays so: a
/// reader may have seen it.
///
/// Thread safety: none.
class CrashWorkload {
 public:
  explicit CrashWorkload(std::uint64_t seed);
  /// Begins with recovery from a crash of another workload, and goes on for a short while.
  /// @param left what the crash left
  /// @param contents what is in it, as recovery showed before: recovery changes no item
  CrashWorkload(const CrashWorkload& crashed, std::uint64_t seed, Image left, Contents contents);

  /// Runs it on the machine, in the scratch pool's file.
  /// @throws Violation when a result is wrong, or a write escaped tracing; Error, std::logic_error
  void Run(Machine& machine, ScratchPool& scratch);

  const Shape& shape() const { return shape_; }
  /// What the file held before the trace: nothing when the pool is created in it.
  const Image& before() const { return before_; }
  const Trace& trace() const { return trace_; }
  /// What a crash may leave after a mark of the trace (0: before the first).
  const Promise& promise(std::uint64_t mark) const { return promises_[mark]; }
  /// Crashes are tried after this mark; what comes before only leads there.
  std::uint64_t first_mark() const { return first_mark_; }
  /// The last tag that a value has.
  std::uint64_t last_tag() const { return tag_; }

 private:
  class Session;
  enum class Start : std::uint8_t {
    kCreation,
    kEmptyPool,
    kFullTable,    ///< an empty pool that gets more items than it has slots
    kUnluckyKeys,  ///< the same, with UnluckyBatch
    kCrowd,        ///< the same, with a Crowd
    kRecovery,
  };
  static Start PickStart(std::mt19937_64& random);
  void Act(Session& session, Machine& machine);
  void MarkPromise(Machine& machine, Promise promise);
  void CreateEmptyPool(ScratchPool& scratch);
  BatchData FillingBatch();
  BatchData UnluckyBatch();
  std::vector<std::uint64_t> Crowd() const;
  /// @return false when the process was killed meanwhile
  bool GrowByCrowd(Session& session, Machine& machine);

  std::mt19937_64 random_;
  const Start start_;
  Shape shape_;
  std::uint64_t initial_capacity_ = 0;
  Image before_;
  Trace trace_;
  std::vector<Promise> promises_;
  std::uint64_t first_mark_ = 0;
  std::uint64_t tag_ = 0;
};

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_CRASH_WORKLOAD_H_
