#include "gpmstore/distributed_store.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "engine/home_process.h"
#include "engine/log.h"
#include "pm/gpu_host.h"
#include "shard/batch_queue.h"
#include "shard/collective.h"
#include "shard/collective_search.h"
#include "shard/folder.h"
#include "shard/options.h"
#include "shard/shard_set.h"
#include "shard/shard_snapshots.h"
#include "shard/sum_stats.h"
#include "shard/together.h"
#include "snapshot/new_file.h"

namespace gpm {
namespace {

/// Rank 0's text, on all ranks.
std::string Broadcast(Exchange& exchange, const std::string& text) {
  const std::vector<std::span<const std::byte>> send(exchange.ranks(),
                                                     std::as_bytes(std::span(text)));
  const std::vector<std::byte> received = SendBytes(exchange, send).front();
  return {reinterpret_cast<const char*>(received.data()), received.size()};
}

void RequireShardsFor(const Exchange& exchange, const std::string& path, std::uint32_t shards) {
  if (shards >= exchange.ranks()) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: a store of {} shards can't be opened by {} ranks: each needs one",
                          path, shards, exchange.ranks()));
}

}  // namespace

class DistributedStore::Impl {
 public:
  Impl(const std::string& path, std::unique_ptr<Exchange> exchange, const OpenOptions& open,
       const ShardOptions& options)
      : exchange_(std::move(exchange)), threads_(std::make_unique<ThreadPool>(ThreadsFor(open))) {
    const std::uint32_t rank = exchange_->rank();
    const std::uint32_t ranks = exchange_->ranks();
    std::string text;
    Together(*exchange_, [&] {
      ValidateForShards(open);
      if (rank != 0) return;
      folder_.emplace(path, ShardFolder::Use::kWrite);  // for all ranks
      folder_->RequirePools();
      text = ToText(folder_->manifest());
    });
    manifest_ = ParseManifest(Broadcast(*exchange_, text), path);
    Together(*exchange_, [&] {
      RequireShards(path, manifest_, options.shards);
      RequireShardsFor(*exchange_, path, manifest_.shards());
      const std::uint32_t first = Collective::FirstShard(rank, ranks, manifest_.shards());
      const std::uint32_t end = Collective::FirstShard(rank + 1, ranks, manifest_.shards());
      std::vector<std::string> paths;
      for (std::uint32_t i = first; i < end; ++i) {
        paths.push_back(fmt::format("{}/{}", path, manifest_.pools[i].file));
      }
      set_.emplace(manifest_.partition(), first, std::move(paths), threads_->threads(),
                   [&](std::uint32_t shard, const std::string& pool) {
                     return Store::Open(pool, ShareOf(open, options, shard - first, end - first));
                   });
    });
    if (folder_) folder_->RemoveOthers();
    collective_ =
        std::make_unique<Collective>(*exchange_, set_->partition(), set_->key_size(),
                                     set_->value_size(), *threads_, set_->device(set_->first()));
    in_flight_ = std::make_unique<BatchQueue>(process_, std::make_shared<Log>(nullptr));
  }
  /// In a child of the process, its threads do not run, and can't be joined; what joins the ranks,
  /// and what is on a GPU, is the parent's.
  ~Impl() {
    if (process_.IsThis()) return;
    static_cast<void>(in_flight_.release());
    static_cast<void>(collective_.release());
    static_cast<void>(threads_.release());
    static_cast<void>(exchange_.release());
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const HomeProcess& process() const { return process_; }
  BatchQueue& in_flight() { return *in_flight_; }
  Exchange& exchange() { return *exchange_; }
  ShardSet& set() { return *set_; }
  const Manifest& manifest() const { return manifest_; }
  Collective& collective() { return *collective_; }
  std::uint64_t Run(const Batch& mine, ShardSet::Call call) {
    return collective_->Apply(mine, [&](const Batch& batch) { set_->Run(batch, call); });
  }
  Ticket Begin(const Batch& mine) {
    return in_flight_->Begin([&] {
      return [this, mine] {
        if (const int device = set_->device(set_->first()); device >= 0) UseGpu(device);
        Run(mine, ApplyTo);
      };
    });
  }
  template <class Work>
  void ForEachShard(const Work& work) {
    for (std::uint32_t i = 0; i < set_->count(); ++i) work(set_->first() + i);
  }

 private:
  static unsigned ThreadsFor(const OpenOptions& open) {
    return open.threads > 0 ? open.threads : 1;
  }

  const HomeProcess process_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<ThreadPool> threads_;
  std::optional<ShardFolder> folder_;  ///< of rank 0
  Manifest manifest_;
  std::optional<ShardSet> set_;
  std::unique_ptr<Collective> collective_;
  std::unique_ptr<BatchQueue> in_flight_;  ///< goes first: its batches use all of the others
};

DistributedStore::DistributedStore() noexcept = default;
DistributedStore::DistributedStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DistributedStore::DistributedStore(DistributedStore&&) noexcept = default;

DistributedStore& DistributedStore::operator=(DistributedStore&& other) noexcept {
  if (this != &other) {
    const DistributedStore closed(std::move(*this));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

DistributedStore::~DistributedStore() = default;

template <class Make>
DistributedStore DistributedStore::MakeAndOpen(const std::string& folder,
                                               std::unique_ptr<Exchange> exchange,
                                               const OpenOptions& open, const ShardOptions& shards,
                                               const Make& make) {
  Together(*exchange, [&] {
    if (exchange->rank() == 0) make(*exchange).Close();
  });
  return Open(folder, std::move(exchange), open, shards);
}

DistributedStore DistributedStore::Create(const std::string& folder,
                                          std::unique_ptr<Exchange> exchange,
                                          const CreateOptions& create, const ShardOptions& shards,
                                          const OpenOptions& open) {
  return MakeAndOpen(folder, std::move(exchange), open, shards, [&](const Exchange& ranks) {
    ValidateShardCount(shards.shards);
    RequireShardsFor(ranks, folder, shards.shards);
    return ShardedStore::Create(folder, create, shards, open);
  });
}

DistributedStore DistributedStore::OpenOrCreate(const std::string& folder,
                                                std::unique_ptr<Exchange> exchange,
                                                const CreateOptions& create,
                                                const ShardOptions& shards,
                                                const OpenOptions& open) {
  return MakeAndOpen(folder, std::move(exchange), open, shards, [&](const Exchange& ranks) {
    ValidateShardCount(shards.shards);
    RequireShardsFor(ranks, folder, shards.shards);
    return ShardedStore::OpenOrCreate(folder, create, shards, open);
  });
}

DistributedStore DistributedStore::Restore(const std::string& snapshot, const std::string& folder,
                                           std::unique_ptr<Exchange> exchange,
                                           const OpenOptions& open, const ShardOptions& shards) {
  return MakeAndOpen(folder, std::move(exchange), open, shards, [&](const Exchange& ranks) {
    const ShardFolder from(snapshot, ShardFolder::Use::kRead);
    RequireShardsFor(ranks, snapshot, from.manifest().shards());
    return ShardedStore::Restore(snapshot, folder, open, shards);
  });
}

DistributedStore DistributedStore::Open(const std::string& folder,
                                        std::unique_ptr<Exchange> exchange, const OpenOptions& open,
                                        const ShardOptions& shards) {
  return DistributedStore(std::make_unique<Impl>(folder, std::move(exchange), open, shards));
}

DistributedStore::Impl& DistributedStore::Opened() const {
  if (impl_ == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "the store is empty: it was closed, moved from, or never opened");
  }
  impl_->process().Check();
  return *impl_;
}

DistributedStore::Impl& DistributedStore::Idle() const {
  Impl& impl = Opened();
  impl.in_flight().Await();
  return impl;
}

std::uint32_t DistributedStore::rank() const { return Opened().exchange().rank(); }
std::uint32_t DistributedStore::ranks() const { return Opened().exchange().ranks(); }
std::uint32_t DistributedStore::shards() const { return Opened().set().partition().shards; }
std::uint32_t DistributedStore::key_size() const { return Opened().set().key_size(); }
std::uint32_t DistributedStore::value_size() const { return Opened().set().value_size(); }
const std::vector<Attribute>& DistributedStore::attributes() const {
  ShardSet& set = Opened().set();
  return set.store(set.first()).attributes();
}

std::uint64_t DistributedStore::Apply(const Batch& mine) { return Idle().Run(mine, ApplyTo); }

Ticket DistributedStore::ApplyAsync(const Batch& mine) {
  Impl& impl = Opened();
  if (!impl.exchange().AnyThread()) {
    throw Error(ErrorCode::kUnsupported,
                "batches in flight: only the thread that made the exchange may use it; MPI takes "
                "others from MPI_Init_thread's level MPI_THREAD_SERIALIZED on");
  }
  return impl.Begin(mine);
}

std::uint64_t DistributedStore::BulkLoad(std::span<const std::byte> keys,
                                         std::span<const std::byte> values,
                                         std::span<Result> results) {
  return Idle().Run({.op = Op::kInsert, .keys = keys, .values = values, .results = results},
                    BulkLoadInto);
}

void DistributedStore::Reserve(std::uint64_t items) {
  Impl& impl = Idle();
  Together(impl.exchange(), [&] {
    impl.set().ForAll([&](std::uint32_t shard) {
      impl.set().store(shard).Reserve(ShareOfItems(items, shards()));
    });
  });
}

void DistributedStore::Compact() {
  Impl& impl = Idle();
  Together(impl.exchange(), [&] {
    impl.set().ForAll([&](std::uint32_t shard) { impl.set().store(shard).Compact(); });
  });
}

SearchResult DistributedStore::Search(std::span<const Query> mine, const SearchOptions& options) {
  Impl& impl = Idle();
  return SearchTogether(impl.exchange(), impl.set(), mine, options);
}

std::uint64_t DistributedStore::EraseWhere(const Query& query) {
  Impl& impl = Idle();
  return ChangeTogether(impl.exchange(), impl.set(), query, [&] {
    return impl.set().SumAtOnce([&](Store& store) { return store.EraseWhere(query); });
  });
}

std::uint64_t DistributedStore::UpdateRowsWhere(const Query& query,
                                                const Store::RowsEditor& change) {
  Impl& impl = Idle();
  return ChangeTogether(impl.exchange(), impl.set(), query, [&] {
    return impl.set().SumInTurn([&](Store& store) { return store.UpdateRowsWhere(query, change); });
  });
}

std::uint64_t DistributedStore::UpdateWhere(const Query& query, const Store::ValueEditor& change) {
  Impl& impl = Idle();
  return ChangeTogether(impl.exchange(), impl.set(), query, [&] {
    return impl.set().SumInTurn([&](Store& store) { return store.UpdateWhere(query, change); });
  });
}

SnapshotResult DistributedStore::Snapshot(const std::string& path) {
  Impl& impl = Idle();
  Exchange& exchange = impl.exchange();
  ShardSet& set = impl.set();
  std::optional<ShardFolder> folder;  // of rank 0, for all
  bool begun = false;                 // what is in the folder is this snapshot's
  try {
    Together(exchange, [&] {
      if (exchange.rank() != 0) return;
      RequireNoFile(path);
      folder.emplace(path, ShardFolder::Use::kCreate);
    });
    begun = true;
    SnapshotResult mine;
    Together(exchange, [&] { mine = SnapshotShards(set, path); });
    Together(exchange, [&] {
      if (folder) folder->SetManifest(impl.manifest());
    });
    return SumSnapshots(GatherObjects(exchange, mine));
  } catch (...) {
    if (begun) {
      RemoveShardSnapshots(path, folder ? 0 : set.first(),
                           folder ? set.partition().shards : set.first() + set.count());
    }
    if (folder) folder->Abandon();
    throw;
  }
}

StoreStats DistributedStore::Stats() const {
  Impl& impl = Idle();
  std::vector<StoreStats> stats;
  impl.ForEachShard([&](std::uint32_t i) { stats.push_back(impl.set().store(i).Stats()); });
  return SumStats(stats);
}

ExchangeStats DistributedStore::Exchanged() const { return Idle().collective().stats(); }

void DistributedStore::ForEach(const Store::Visitor& visit) {
  ForEachUntil([&](auto key, auto value) {
    visit(key, value);
    return true;
  });
}

bool DistributedStore::ForEachUntil(const Store::StoppableVisitor& visit) {
  ShardSet& set = Idle().set();
  for (std::uint32_t i = set.first(); i < set.first() + set.count(); ++i) {
    if (!set.InShard(i, [&](Store& store) { return store.ForEach(visit); })) return false;
  }
  return true;
}

void DistributedStore::Close() {
  if (impl_ == nullptr) return;
  const std::unique_ptr<Impl> impl = std::move(impl_);
  if (!impl->process().IsThis()) return;
  impl->in_flight().Await();
  impl->set().ForAll([&](std::uint32_t i) { impl->set().store(i).Close(); });
}

}  // namespace gpm
