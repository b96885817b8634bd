#ifndef GPM_SHARD_COLLECTIVE_H_
#define GPM_SHARD_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/distributed_store.h"
#include "gpmstore/exchange.h"
#include "pm/thread_pool.h"
#include "shard/multisplit.h"
#include "shard/partition.h"

namespace gpm {

/// Each rank does something of its own, and returns when all have.
/// @throws what `local` throws; to the others an Error that names the rank; kIo (Exchange)
void Together(Exchange& exchange, const std::function<void()>& local);

/// Batches of which each rank has a part (after WarpDrive, Juenger et al. 2018, section V): split
/// by owner, all to all, a batch of what each rank owns, and the way back.
///
/// All parts are one batch: operations on one key take effect in the order of the ranks, and of one
/// rank's in the order of its part. Results and rows go back to where they were asked.
///
/// Thread safety: one thread at a time. All ranks call the same functions in the same order.
class Collective {
 public:
  /// Carries out operations on keys that this rank owns. @throws anything
  using Local = std::function<void(const Batch&)>;

  /// @param partition which shard a key belongs to; what is referred to outlives this
  Collective(Exchange& exchange, const Partition& partition, std::uint32_t key_size,
             std::uint32_t value_size, ThreadPool& threads)
      : exchange_(exchange),
        partition_(partition),
        key_size_(key_size),
        value_size_(value_size),
        threads_(threads) {}

  /// The shards [FirstShard(r), FirstShard(r + 1)) are rank r's.
  static std::uint32_t FirstShard(std::uint32_t rank, std::uint32_t ranks, std::uint32_t shards) {
    return static_cast<std::uint32_t>(std::uint64_t{rank} * shards / ranks);
  }

  /// Carries out `mine` and the others' parts. Parts may be of different kinds, and empty; those
  /// that say of which element values are, or what initial values are, say the same. Where all
  /// only find, and many a key comes several times, it is sent once.
  /// @param mine arrays in host memory
  /// @return how many operations of `mine` were not kOk
  /// @throws Error kInvalidArgument (a part is not valid, or they do not fit together: nothing was
  ///         applied), kIo (Exchange); and as Together: then each operation has happened or not
  std::uint64_t Apply(const Batch& mine, const Local& local);

  const ExchangeStats& stats() const { return stats_; }

 private:
  struct Terms;
  struct Route;
  std::vector<Terms> GatherTerms(const Batch& mine);
  /// What is the same for all parts. Every rank finds the same, or throws the same.
  Batch Agree(const Batch& mine, const std::vector<Terms>& terms,
              std::vector<std::byte>* initial_row);
  Route MakeRoute(const Batch& mine, bool send_once);
  void Send(const Route& route, std::span<const std::byte> from, std::size_t row_bytes,
            std::vector<std::byte>* to);
  void Return(const Route& route, std::span<const std::byte> from, std::size_t row_bytes,
              std::span<std::byte> to, const std::function<bool(std::uint32_t)>& wants);

  Exchange& exchange_;
  const Partition& partition_;
  const std::uint32_t key_size_;
  const std::uint32_t value_size_;
  ThreadPool& threads_;
  ExchangeStats stats_;
};

}  // namespace gpm

#endif  // GPM_SHARD_COLLECTIVE_H_
