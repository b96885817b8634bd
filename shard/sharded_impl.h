#ifndef GPM_SHARD_SHARDED_IMPL_H_
#define GPM_SHARD_SHARDED_IMPL_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "engine/log.h"
#include "gpmstore/sharded_store.h"
#include "shard/batch_queue.h"
#include "shard/export_gate.h"
#include "shard/folder.h"
#include "shard/shard_set.h"

namespace gpm {

/// An open ShardedStore: its folder, its shards, the batches in flight, and who may be beside whom.
/// Thread safety: any thread, but for destruction.
class ShardedStore::Impl {
 public:
  /// Calls of batches are beside each other; what needs all shards at one instant is alone. Who
  /// waits to be alone has the turn, so that those who come later wait behind it. Both come behind
  /// the batches that are in flight.
  class Beside {
   public:
    explicit Beside(Impl& impl) : Beside(impl, true) {}
    /// Of a batch in flight, when it is carried out.
    static Beside InFlight(Impl& impl) { return Beside(impl, false); }

   private:
    Beside(Impl& impl, bool waits) : lock_(impl.use_, std::defer_lock) {
      if (waits) impl.in_flight_->Await();
      const std::lock_guard turn(impl.turn_);
      lock_.lock();
    }
    std::shared_lock<std::shared_mutex> lock_;
  };
  class Alone {
   public:
    explicit Alone(Impl& impl) {
      impl.in_flight_->Await();
      turn_ = std::unique_lock(impl.turn_);
      lock_ = std::unique_lock(impl.use_);
    }

   private:
    std::unique_lock<std::mutex> turn_;
    std::unique_lock<std::shared_mutex> lock_;
  };

  /// A call, from its begin to its end: what it holds (Beside or Alone), and the log, which is told
  /// when that is let go of.
  template <class Holds>
  class Call {
   public:
    explicit Call(Impl& impl) : set_(impl.set()), tells_(impl.log()), holds_(impl) {}
    ShardSet* operator->() const { return &set_; }

   private:
    ShardSet& set_;
    const Log::TellsAtEnd tells_;
    const Holds holds_;
  };
  /// One that waits for the end of exports, and lets none begin.
  template <class Holds>
  class WithoutExport {
   public:
    explicit WithoutExport(Impl& impl) : no_export_(*impl.exports()), holds_(impl) {}

   private:
    const ExportGate::KeepsOut no_export_;
    const Holds holds_;
  };
  using BatchCall = Call<Beside>;
  using WorkCall = Call<WithoutExport<Beside>>;

  /// Opens the store in a folder. @throws as ShardedStore::Open
  Impl(const std::string& path, const OpenOptions& open, const ShardOptions& options,
       std::shared_ptr<Log> log);
  /// Creates one of pools that `make` makes. @param seed of the partition
  /// @throws as ShardedStore::Create
  Impl(const std::string& path, std::uint32_t shards, std::array<std::uint64_t, 2> seed,
       const OpenOptions& open, std::shared_ptr<Log> log,
       const std::function<Store(std::uint32_t, const std::string&)>& make);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ShardSet& set() { return *set_; }
  BatchQueue& in_flight() { return *in_flight_; }
  Log& log() { return *log_; }
  const std::shared_ptr<Log>& shared_log() const { return log_; }
  const ShardFolder& folder() const { return folder_; }
  std::uint32_t shards() const { return folder_.manifest().shards(); }
  const std::shared_ptr<ExportGate>& exports() const { return exports_; }

  /// A batch that is valid, of several shards; its arrays stay until the ticket was waited for.
  Ticket Begin(const Batch& batch);

 private:
  // First: where there is no memory for it, there is nothing yet that has to be removed.
  const std::shared_ptr<ExportGate> exports_ = std::make_shared<ExportGate>();
  const std::shared_ptr<Log> log_;
  ShardFolder folder_;
  std::unique_ptr<ShardSet> set_;
  std::mutex turn_;
  std::shared_mutex use_;
  std::unique_ptr<BatchQueue> in_flight_;  ///< goes first: its batches use all of the others
};

}  // namespace gpm

#endif  // GPM_SHARD_SHARDED_IMPL_H_
