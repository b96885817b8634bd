#include "gpmstore/sharded_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "engine/as_created.h"
#include "engine/export.h"
#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "pm/random_id.h"
#include "shard/export_gate.h"
#include "shard/folder.h"
#include "shard/merge_matches.h"
#include "shard/options.h"
#include "shard/shard_set.h"
#include "shard/shard_snapshots.h"
#include "shard/sharded_impl.h"
#include "shard/sum_stats.h"
#include "snapshot/new_file.h"
#include "snapshot/reader.h"

namespace gpm {
ShardedStore::ShardedStore() noexcept = default;
ShardedStore::ShardedStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShardedStore::ShardedStore(ShardedStore&&) noexcept = default;

ShardedStore& ShardedStore::operator=(ShardedStore&& other) noexcept {
  if (this != &other) {
    const ShardedStore closed(std::move(*this));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

ShardedStore::~ShardedStore() {
  try {
    Close();
  } catch (...) {
    // A destructor can't report it; Close can.
  }
}

ShardedStore ShardedStore::Create(const std::string& folder, const CreateOptions& create,
                                  const ShardOptions& options, const OpenOptions& given) {
  ValidateShardCount(options.shards);
  ValidateForShards(given);
  OpenOptions open = given;
  const std::shared_ptr<Log> log = KeepLog(&open);
  const Log::TellsAtEnd tells(*log);
  std::array<std::uint64_t, 2> seed{};
  std::random_device random;
  for (std::size_t i = 0; i < seed.size(); ++i) {
    seed[i] = create.hash_seed ? Scramble(~*create.hash_seed - i)
                               : std::uint64_t{random()} << 32 | random();
  }
  return ShardedStore(std::make_unique<Impl>(
      folder, options.shards, seed, open, log, [&](std::uint32_t shard, const std::string& path) {
        return Store::Create(path, ShareOf(create, shard, options.shards),
                             ShareOf(open, options, shard, ShardRange::All(options.shards)));
      }));
}

ShardedStore ShardedStore::Open(const std::string& folder, const OpenOptions& given,
                                const ShardOptions& options) {
  ValidateForShards(given);
  OpenOptions open = given;
  const std::shared_ptr<Log> log = KeepLog(&open);
  const Log::TellsAtEnd tells(*log);
  return ShardedStore(std::make_unique<Impl>(folder, open, options, log));
}

ShardedStore ShardedStore::OpenOrCreate(const std::string& folder, const CreateOptions& create,
                                        const ShardOptions& options, const OpenOptions& open) {
  ValidateShardCount(options.shards);
  for (int attempt = 1;; ++attempt) {
    try {
      ShardedStore store = Open(folder, open, options);
      RequireAsCreated(folder, "store", store, create);
      return store;
    } catch (const Error& error) {
      // (A pool that is missing is kNotFound, too; then to create it is kExists.)
      if (error.code() != ErrorCode::kNotFound || attempt == 3) throw;
    }
    try {
      return Create(folder, create, options, open);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kExists) throw;
    }
  }
}

ShardedStore::Impl& ShardedStore::Opened() const {
  if (impl_ == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "the store is empty: it was closed, moved from, or never opened");
  }
  impl_->set().process().Check();
  return *impl_;
}

std::uint32_t ShardedStore::key_size() const { return Opened().set().key_size(); }
std::uint32_t ShardedStore::value_size() const { return Opened().set().value_size(); }
const std::vector<Attribute>& ShardedStore::attributes() const {
  ShardSet& set = Opened().set();
  return set.store(set.first()).attributes();
}
std::uint32_t ShardedStore::shards() const { return Opened().shards(); }

std::uint32_t ShardedStore::ShardOf(std::span<const std::byte> key) const {
  const ShardSet& set = Opened().set();
  set.RequireKeySize(key);
  return set.ShardOf(key);
}

std::uint64_t ShardedStore::Apply(const Batch& batch) {
  return Impl::BatchCall(Opened())->Run(batch, ApplyTo);
}

Ticket ShardedStore::ApplyAsync(const Batch& batch) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  ShardSet& set = impl.set();
  if (set.count() == 1) return set.store(set.first()).ApplyAsync(batch);
  set.Validate(batch);
  return batch.results.empty() ? Ticket() : impl.Begin(batch);
}

std::uint64_t ShardedStore::Insert(std::span<const std::byte> keys,
                                   std::span<const std::byte> values, std::span<Result> results) {
  return Impl::BatchCall(Opened())->Run(
      {.op = Op::kInsert, .keys = keys, .values = values, .results = results}, InsertInto);
}

std::uint64_t ShardedStore::BulkLoad(std::span<const std::byte> keys,
                                     std::span<const std::byte> values, std::span<Result> results) {
  // (It makes room in each shard, for which that waits for the end of exports.)
  return Impl::WorkCall(Opened())->Run(
      {.op = Op::kInsert, .keys = keys, .values = values, .results = results}, BulkLoadInto);
}

bool ShardedStore::Get(std::span<const std::byte> key, std::span<std::byte> value) {
  return Impl::BatchCall(Opened())->InShard(ShardOf(key),
                                            [&](Store& store) { return store.Get(key, value); });
}

Result ShardedStore::Put(std::span<const std::byte> key, std::span<const std::byte> value) {
  return Impl::BatchCall(Opened())->InShard(ShardOf(key),
                                            [&](Store& store) { return store.Put(key, value); });
}

bool ShardedStore::Delete(std::span<const std::byte> key) {
  return Impl::BatchCall(Opened())->InShard(ShardOf(key),
                                            [&](Store& store) { return store.Delete(key); });
}

void ShardedStore::Reserve(std::uint64_t items) {
  const Impl::WorkCall set(Opened());
  set->ForAll(
      [&](std::uint32_t shard) { set->store(shard).Reserve(ShareOfItems(items, set->count())); });
}

void ShardedStore::Compact() {
  const Impl::WorkCall set(Opened());
  set->ForAll([&](std::uint32_t shard) { set->store(shard).Compact(); });
}

void ShardedStore::ForEach(const Store::Visitor& visit) {
  ForEachUntil([&](auto key, auto value) {
    visit(key, value);
    return true;
  });
}

bool ShardedStore::ForEachUntil(const Store::StoppableVisitor& visit) {
  const Impl::Call<Impl::Alone> set(Opened());
  for (std::uint32_t i = 0; i < set->count(); ++i) {
    if (!set->InShard(i, [&](Store& store) { return store.ForEach(visit); })) return false;
  }
  return true;
}

SearchResult ShardedStore::Search(std::span<const Query> queries, const SearchOptions& options) {
  const Impl::WorkCall set(Opened());
  std::vector<SearchResult> parts(set->count());
  set->ForAll(
      [&](std::uint32_t shard) { parts[shard] = set->store(shard).Search(queries, options); });
  if (parts.size() == 1) return std::move(parts.front());
  return MergeMatches(parts, options, set->key_size(), set->value_size());
}

std::uint64_t ShardedStore::EraseWhere(const Query& query) {
  const Impl::WorkCall set(Opened());
  return set->SumAtOnce([&](Store& store) { return store.EraseWhere(query); });
}

std::uint64_t ShardedStore::UpdateWhere(const Query& query, const Store::ValueEditor& change) {
  return Impl::WorkCall(Opened())->SumInTurn(
      [&](Store& store) { return store.UpdateWhere(query, change); });
}

std::uint64_t ShardedStore::UpdateRowsWhere(const Query& query, const Store::RowsEditor& change) {
  return Impl::WorkCall(Opened())->SumInTurn(
      [&](Store& store) { return store.UpdateRowsWhere(query, change); });
}

Exporter ShardedStore::Export(const ExportOptions& options) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  if (!options.changed_since.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "export: snapshots of several shards keep no track of changes");
  }
  std::shared_ptr<void> open = ExportGate::Begin(impl.exports());
  std::vector<ExportStatePtr> states;
  const Impl::Alone alone(impl);
  for (std::uint32_t i = 0; i < impl.shards(); ++i) {
    impl.set().InShard(i, [&](Store& store) {
      states.push_back(ExportStatePtr(new ExportState(store.impl(), options)));
    });
  }
  return Exporter(std::move(states), std::move(open));
}

SnapshotResult ShardedStore::Snapshot(const std::string& path) {
  Impl& impl = Opened();
  const Impl::Call<Impl::WithoutExport<Impl::Alone>> set(impl);
  RequireNoFile(path);
  ShardFolder folder(path, ShardFolder::Use::kCreate);
  try {
    ShardSnapshots files(impl.set(), path);
    const SnapshotResult result = files.Write();
    folder.SetManifest(impl.folder().manifest());
    files.Keep();
    return result;
  } catch (...) {
    folder.Abandon();
    throw;
  }
}

ShardedStore ShardedStore::Restore(const std::string& snapshot, const std::string& folder,
                                   const OpenOptions& given, const ShardOptions& options) {
  ValidateForShards(given);
  OpenOptions open = given;
  const std::shared_ptr<Log> log = KeepLog(&open);
  const Log::TellsAtEnd tells(*log);
  const ShardFolder from(snapshot, ShardFolder::Use::kRead);
  const Manifest& manifest = from.manifest();
  RequireShards(snapshot, manifest, options.shards);
  for (std::uint32_t i = 0; i < manifest.shards(); ++i) {
    const std::string file = ShardSnapshotPath(snapshot, i);
    if (HexOf(SnapshotFile(file).header().pool) == manifest.pools[i].uuid) continue;
    throw Error(
        ErrorCode::kDamaged,
        fmt::format("{}: not the snapshot of shard {}: it was taken of another pool", file, i));
  }
  return ShardedStore(std::make_unique<Impl>(
      folder, manifest.shards(), manifest.hash_seed, open, log,
      [&](std::uint32_t shard, const std::string& path) {
        const std::string files[] = {ShardSnapshotPath(snapshot, shard)};
        return Store::Restore(files, path,
                              ShareOf(open, options, shard, ShardRange::All(manifest.shards())));
      }));
}

StoreStats ShardedStore::ShardStats(std::uint32_t shard) const {
  return Opened().set().store(shard).Stats();
}

StoreStats ShardedStore::Stats() const {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  std::vector<StoreStats> stats;
  for (std::uint32_t i = 0; i < impl.shards(); ++i) stats.push_back(impl.set().store(i).Stats());
  return SumStats(stats);
}

void ShardedStore::Close() {
  if (impl_ == nullptr) return;
  const std::shared_ptr<Log> log = impl_->shared_log();
  const std::shared_ptr<ExportGate> exports = impl_->exports();
  std::optional<Log::TellsAtEnd> tells;
  std::optional<ExportGate::KeepsOut> no_export;
  const bool is_here = impl_->set().process().IsThis();
  if (is_here) {
    tells.emplace(*log);
    no_export.emplace(*exports);
  }
  const std::unique_ptr<Impl> impl = std::move(impl_);
  ShardSet& set = impl->set();
  if (!is_here) return;
  impl->in_flight().Await();
  set.ForAll([&](std::uint32_t i) { set.store(i).Close(); });
}

}  // namespace gpm
