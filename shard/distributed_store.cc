#include "gpmstore/distributed_store.h"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shard/collective_search.h"
#include "shard/distributed_impl.h"
#include "shard/options.h"
#include "shard/shard_snapshots.h"
#include "shard/sum_stats.h"
#include "shard/together.h"
#include "snapshot/new_file.h"

namespace gpm {
namespace {

void RequireExchange(const Exchange* exchange) {
  if (exchange != nullptr) return;
  throw Error(ErrorCode::kInvalidArgument, "exchange: it is null; make one for each rank");
}

}  // namespace

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

DistributedStore::~DistributedStore() {
  try {
    Close();
  } catch (...) {
    // A destructor can't report it; Close can.
  }
}

template <class Make>
DistributedStore DistributedStore::MakeAndOpen(const std::string& folder,
                                               std::unique_ptr<Exchange> exchange,
                                               const OpenOptions& open, const ShardOptions& shards,
                                               const Make& make) {
  RequireExchange(exchange.get());
  const std::uint32_t wanted = GatherObjects(*exchange, shards.shards).front();
  // What some rank can't open is not made.
  Together(*exchange, [&] {
    ValidateForShards(open);
    if (wanted == 0 || shards.shards == 0 || shards.shards == wanted) return;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} shards, where rank 0 wants {}", folder, shards.shards, wanted));
  });
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
                                        std::unique_ptr<Exchange> exchange,
                                        const OpenOptions& given, const ShardOptions& shards) {
  RequireExchange(exchange.get());
  OpenOptions open = given;
  const std::shared_ptr<Log> log = KeepLog(&open);
  const Log::TellsAtEnd tells(*log);
  return DistributedStore(std::make_unique<Impl>(folder, std::move(exchange), open, shards, log));
}

DistributedStore::Impl& DistributedStore::Opened() const {
  if (impl_ == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "the store is empty: it was closed, moved from, or never opened");
  }
  impl_->process().Check();
  return *impl_;
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

std::uint64_t DistributedStore::Apply(const Batch& mine) {
  return Impl::Call(Opened())->Run(mine, CollectiveCall::kApply);
}

Ticket DistributedStore::ApplyAsync(const Batch& mine) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(*impl.log());
  return impl.Begin(mine);
}

std::uint64_t DistributedStore::BulkLoad(std::span<const std::byte> keys,
                                         std::span<const std::byte> values,
                                         std::span<Result> results) {
  return Impl::Call(Opened())->Run(
      {.op = Op::kInsert, .keys = keys, .values = values, .results = results},
      CollectiveCall::kBulkLoad);
}

void DistributedStore::Reserve(std::uint64_t items) {
  const Impl::Call impl(Opened());
  BeginTogether(impl->exchange(), CollectiveCall::kReserve, [] {});
  Together(impl->exchange(), [&] {
    impl->set().ForAll([&](std::uint32_t shard) {
      impl->set().store(shard).Reserve(ShareOfItems(items, shards()));
    });
  });
}

void DistributedStore::Compact() {
  const Impl::Call impl(Opened());
  BeginTogether(impl->exchange(), CollectiveCall::kCompact, [] {});
  Together(impl->exchange(), [&] {
    impl->set().ForAll([&](std::uint32_t shard) { impl->set().store(shard).Compact(); });
  });
}

SearchResult DistributedStore::Search(std::span<const Query> mine, const SearchOptions& options) {
  const Impl::Call impl(Opened());
  return SearchTogether(impl->exchange(), impl->set(), mine, options);
}

std::uint64_t DistributedStore::EraseWhere(const Query& query) {
  const Impl::Call impl(Opened());
  return ChangeTogether(impl->exchange(), impl->set(), CollectiveCall::kErase, query, [&] {
    return impl->set().SumAtOnce([&](Store& store) { return store.EraseWhere(query); });
  });
}

std::uint64_t DistributedStore::UpdateRowsWhere(const Query& query,
                                                const Store::RowsEditor& change) {
  const Impl::Call impl(Opened());
  return ChangeTogether(impl->exchange(), impl->set(), CollectiveCall::kUpdate, query, [&] {
    return impl->set().SumInTurn(
        [&](Store& store) { return store.UpdateRowsWhere(query, change); });
  });
}

std::uint64_t DistributedStore::UpdateWhere(const Query& query, const Store::ValueEditor& change) {
  const Impl::Call impl(Opened());
  return ChangeTogether(impl->exchange(), impl->set(), CollectiveCall::kUpdate, query, [&] {
    return impl->set().SumInTurn([&](Store& store) { return store.UpdateWhere(query, change); });
  });
}

SnapshotResult DistributedStore::Snapshot(const std::string& path) {
  const Impl::Call impl(Opened());
  Exchange& exchange = impl->exchange();
  std::vector<std::byte> place;
  BeginTogether(exchange, CollectiveCall::kSnapshot, [&] {
    const std::string absolute = AbsolutePath(path);
    const auto bytes = std::as_bytes(std::span(absolute));
    place.assign(bytes.begin(), bytes.end());
  });
  RequireSame(exchange, "folder", place);
  std::optional<ShardFolder> folder;  // of rank 0, for all
  try {
    Together(exchange, [&] {
      if (exchange.rank() != 0) return;
      RequireNoFile(path);
      folder.emplace(path, ShardFolder::Use::kCreate);
    });
    SnapshotResult mine;
    ShardSnapshots files(impl->set(), path);
    Together(exchange, [&] { mine = files.Write(); });
    const SnapshotResult sum = SumSnapshots(GatherObjects(exchange, mine));
    // With the manifest it is whole, and whether it has that only rank 0 knows for sure.
    if (!folder) files.Keep();
    Together(exchange, [&] {
      if (!folder) return;
      folder->SetManifest(impl->manifest());
      files.Keep();
      folder.reset();
    });
    return sum;
  } catch (...) {
    if (folder) {
      RemoveShardSnapshots(path, impl->set().partition().shards);
      folder->Abandon();
    }
    throw;
  }
}

StoreStats DistributedStore::Stats() const {
  const Impl::Call impl(Opened());
  std::vector<StoreStats> stats;
  impl->ForEachShard([&](std::uint32_t i) { stats.push_back(impl->set().store(i).Stats()); });
  return SumStats(stats);
}

ExchangeStats DistributedStore::Exchanged() const { return Impl::Call(Opened())->exchanged(); }

void DistributedStore::ForEach(const Store::Visitor& visit) {
  ForEachUntil([&](auto key, auto value) {
    visit(key, value);
    return true;
  });
}

bool DistributedStore::ForEachUntil(const Store::StoppableVisitor& visit) {
  const Impl::Call impl(Opened());
  ShardSet& set = impl->set();
  for (std::uint32_t i = set.first(); i < set.first() + set.count(); ++i) {
    if (!set.InShard(i, [&](Store& store) { return store.ForEach(visit); })) return false;
  }
  return true;
}

void DistributedStore::Close() {
  if (impl_ == nullptr) return;
  const std::shared_ptr<Log> log = impl_->log();
  std::optional<Log::TellsAtEnd> tells;
  if (impl_->process().IsThis()) tells.emplace(*log);
  const std::unique_ptr<Impl> impl = std::move(impl_);
  if (!tells) return;
  impl->in_flight().Await();
  impl->set().ForAll([&](std::uint32_t i) { impl->set().store(i).Close(); });
}

}  // namespace gpm
