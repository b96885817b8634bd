#ifndef GPM_SHARD_DISTRIBUTED_IMPL_H_
#define GPM_SHARD_DISTRIBUTED_IMPL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/home_process.h"
#include "engine/log.h"
#include "gpmstore/distributed_store.h"
#include "pm/thread_pool.h"
#include "shard/batch_queue.h"
#include "shard/collective.h"
#include "shard/folder.h"
#include "shard/shard_set.h"
#include "shard/turns.h"

namespace gpm {

/// @throws Error(kInvalidArgument) for fewer shards than ranks
void RequireShardsFor(const Exchange& exchange, const std::string& path, std::uint32_t shards);

/// An open DistributedStore: this rank's shards, and what joins it to the other ranks.
class DistributedStore::Impl {
 public:
  /// All ranks call it. @throws Error, on all of them
  Impl(const std::string& path, std::unique_ptr<Exchange> exchange, const OpenOptions& open,
       const ShardOptions& options, std::shared_ptr<Log> log);
  /// In a child of the process, its threads do not run, and can't be joined; what joins the ranks,
  /// and what is on a GPU, is the parent's.
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// A call, from its begin, which waits for batches in flight, to its end, when the log is told.
  class Call {
   public:
    explicit Call(Impl& impl) : impl_(impl), tells_(*impl.log_) { impl.in_flight_->Await(); }
    Impl* operator->() const { return &impl_; }

   private:
    Impl& impl_;
    const Log::TellsAtEnd tells_;
  };

  const HomeProcess& process() const { return process_; }
  const std::shared_ptr<Log>& log() const { return log_; }
  BatchQueue& in_flight() { return *in_flight_; }
  Exchange& exchange() { return *exchange_; }
  ShardSet& set() { return *set_; }
  const Manifest& manifest() const { return manifest_; }
  ExchangeStats exchanged() const;
  /// REQUIRES: no batch is in flight.
  std::uint64_t Run(const Batch& mine, CollectiveCall call);
  Ticket Begin(const Batch& mine);
  template <class Work>
  void ForEachShard(const Work& work) {
    for (std::uint32_t i = 0; i < set_->count(); ++i) work(set_->first() + i);
  }

 private:
  /// Where a batch is under way, beside those of the other lanes.
  struct Lane {
    std::unique_ptr<Exchange> twin;  ///< of the first lane none, which has the exchange itself
    std::unique_ptr<Collective> collective;
  };
  /// Of ranks that can have more than one. (Over two H200s, 2^20 operations a rank, one more in
  /// flight: uniform finds had 3824 M/s by two, 4243 by three, 4828 by six, of 5346 that the link
  /// between them allows.)
  static constexpr std::size_t kLanes = 6;
  static_assert(kLanes + 1 < Turns::kMost);

  /// (A batch's turn ends when all ranks have carried it out: else a rank that is ahead would wait,
  /// and no longer than the exchange's timeout, for several batches of one that is not.)
  /// @param number of the batch, which is the same on all ranks, and with it the lane
  std::uint64_t Run(std::uint64_t number, Turns::Turn& turn, const Batch& mine,
                    CollectiveCall call);
  /// @param caller a thread whose current device stays as it is
  void RunInFlight(std::uint64_t number, const Batch& mine, std::thread::id caller);

  const HomeProcess process_;
  const std::shared_ptr<Log> log_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<ThreadPool> threads_;
  std::optional<ShardFolder> folder_;  ///< of rank 0
  Manifest manifest_;
  std::optional<ShardSet> set_;
  SplitterPool splitters_{*threads_, 0};
  std::vector<Lane> lanes_;  ///< of batch i: i mod their number
  std::unique_ptr<Turns> turns_ = std::make_unique<Turns>();
  std::unique_ptr<BatchQueue> in_flight_;  ///< goes first: its batches use all of the others
};

}  // namespace gpm

#endif  // GPM_SHARD_DISTRIBUTED_IMPL_H_
