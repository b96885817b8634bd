#ifndef GPM_SHARD_COLLECTIVE_H_
#define GPM_SHARD_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/distributed_store.h"
#include "gpmstore/exchange.h"
#include "pm/clock.h"
#include "shard/parcel.h"
#include "shard/partition.h"
#include "shard/splitter_pool.h"
#include "shard/terms.h"
#include "shard/together.h"

namespace gpm {

/// Whether a batch is one of finds alone, as it says itself.
inline bool OnlyFinds(const Batch& batch) { return batch.ops.empty() && batch.op == Op::kFind; }

/// Batches of which each rank has a part (after WarpDrive, Juenger et al. 2018, section V): split
/// by owner, all to all, a batch of what each rank owns, and the way back.
///
/// All parts are one batch: operations on one key take effect in the order of the ranks, and of one
/// rank's in the order of its part. Results and rows go back to where they were asked.
///
/// Thread safety: one thread at a time. All ranks call the same functions in the same order.
class Collective {
 public:
  /// Carries out operations on keys that this rank owns, or none. @throws anything
  using Local = std::function<void(const Batch&)>;
  /// Called on the way; they throw nothing.
  struct Steps {
    std::function<void()> agreed = [] {};  ///< all ranks have said what their parts are
    /// All ranks have carried out what they own, well or not, and answers are not sent yet. Not
    /// when a batch is refused, or a rank is lost before.
    std::function<void()> all_ended = [] {};
  };

  /// @param partition which shard a key belongs to; what is referred to outlives this
  /// @param splitters of batches under way, here or elsewhere
  /// @param device on which batches are divided that have arrays in GPU memory; -1: the host alone
  Collective(Exchange& exchange, const Partition& partition, std::uint32_t key_size,
             std::uint32_t value_size, SplitterPool& splitters, int device = -1)
      : exchange_(exchange),
        partition_(partition),
        key_size_(key_size),
        value_size_(value_size),
        splitters_(splitters),
        device_(device),
        lends_gpu_(device >= 0 && exchange.Lends(device)) {}

  /// The shards [FirstShard(r), FirstShard(r + 1)) are rank r's.
  static std::uint32_t FirstShard(std::uint32_t rank, std::uint32_t ranks, std::uint32_t shards) {
    return static_cast<std::uint32_t>(std::uint64_t{rank} * shards / ranks);
  }

  /// Carries out `mine` and the others' parts. Parts may be of different kinds, and empty; those
  /// that say of which element values are, or what initial values are, say the same. Where all
  /// only find, and many a key comes several times, it is sent once.
  /// @param mine arrays in host memory; or any of them in a GPU's, where the exchange takes that
  ///        on all ranks: then all parts are brought to their ranks' GPUs, and `local` gets arrays
  ///        there
  /// @param call what `local` does, on all ranks
  /// @return how many operations of `mine` were not kOk; kNotCounted with results in GPU memory
  /// @throws Error kInvalidArgument (a part is not valid, or they do not fit together) or
  ///         kUnsupported (some rank does not take GPU memory): nothing was applied; kIo
  ///         (Exchange), kGpu, std::bad_alloc; and as Together: then each operation has happened or
  ///         not. A rank that fails otherwise than in `local` leaves the exchange.
  std::uint64_t Apply(const Batch& mine, const Local& local, const Steps& steps,
                      CollectiveCall call = CollectiveCall::kApply);
  std::uint64_t Apply(const Batch& mine, const Local& local) { return Apply(mine, local, {}); }

  const ExchangeStats& stats() const { return stats_; }

 private:
  bool TakesGpuMemory() const;
  /// Of a batch that all ranks agreed on. @param theirs says which arrays are sent
  void CarryOut(const Batch& mine, const std::vector<Terms>& terms, Batch theirs,
                const Local& local, const Steps& steps);
  /// Divides this rank's part, and tells the others how much they get.
  Route MakeRoute(Splitter& splitter, std::span<const std::byte> keys, bool only_finds);
  void Deliver(const Splitter& splitter, const Parcel& parcel);
  /// @param theirs says which arrays are sent, and gets those of what comes here
  /// @param lends rows go from array to array: ranks write into each other's memory; else by
  ///        buffers
  void Send(Splitter& splitter, const Route& route, bool lends, const Batch& mine, Batch* theirs);
  void Return(Splitter& splitter, const Route& route, bool lends, const Batch& theirs,
              const std::vector<Terms>& terms, const Batch& mine);
  /// Adds the time since the last call.
  void Lap(double* seconds) {
    *seconds += SecondsSince(lap_begun_);
    lap_begun_ = Clock::now();
  }

  Exchange& exchange_;
  const Partition& partition_;
  const std::uint32_t key_size_;
  const std::uint32_t value_size_;
  SplitterPool& splitters_;
  const int device_;
  const bool lends_gpu_;  ///< the exchange can, on this rank
  /// Of a batch that failed: MPI may still read and write its memory.
  std::unique_ptr<Splitter> lost_;
  Clock::time_point lap_begun_;
  ExchangeStats stats_;
};

}  // namespace gpm

#endif  // GPM_SHARD_COLLECTIVE_H_
