#include "gpmstore/sharded_store.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <random>
#include <shared_mutex>
#include <thread>
#include <utility>

#include "engine/export.h"
#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "shard/batch_queue.h"
#include "shard/create.h"
#include "shard/export_gate.h"
#include "shard/folder.h"
#include "shard/merge_matches.h"
#include "shard/options.h"
#include "shard/shard_set.h"
#include "shard/sum_stats.h"
#include "snapshot/new_file.h"
#include "snapshot/reader.h"

namespace gpm {
namespace {

/// Threads that divide batches: as many as the copying of one can use.
unsigned ThreadsOf(const OpenOptions& open) {
  constexpr unsigned kMost = 16;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  return open.threads > 0 ? open.threads : std::min(cores, kMost);
}

std::vector<std::string> PathsOf(const ShardFolder& folder, std::uint64_t generation,
                                 std::uint32_t shards) {
  std::vector<std::string> paths;
  for (std::uint32_t i = 0; i < shards; ++i) paths.push_back(folder.PathOf(generation, i));
  return paths;
}

/// The user's log, and what shards get in its place, who tell it while this store holds locks: it
/// keeps what they say until the user's can be told.
std::shared_ptr<Log> KeepLog(OpenOptions* open) {
  auto log = std::make_shared<Log>(std::move(open->log));
  open->log = nullptr;
  if (log->enabled()) {
    open->log = [log](LogLevel level, std::string_view message) {
      log->Add(level, [&] { return std::string(message); });
    };
  }
  return log;
}

std::string SnapshotPath(const std::string& folder, std::uint32_t shard) {
  return fmt::format("{}/{:04}.snap", folder, shard);
}

}  // namespace

std::unique_ptr<ShardSet> MakeShards(
    const ShardFolder& folder, std::uint32_t shards, const OpenOptions& open, Manifest* manifest,
    const std::function<Store(std::uint32_t, const std::string&)>& make) {
  manifest->pools.resize(shards);
  auto set = std::make_unique<ShardSet>(manifest->partition(), 0,
                                        PathsOf(folder, manifest->generation, shards),
                                        ThreadsOf(open), make);
  manifest->key_size = set->key_size();
  manifest->value_size = set->value_size();
  for (std::uint32_t i = 0; i < shards; ++i) {
    manifest->pools[i] = {PoolFileName(manifest->generation, i),
                          UuidText(set->store(i).impl()->PoolId())};
  }
  return set;
}

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

  /// Opens the store in a folder.
  Impl(const std::string& path, const OpenOptions& open, const ShardOptions& options,
       std::shared_ptr<Log> log)
      : log_(std::move(log)), folder_(path, ShardFolder::Use::kWrite) {
    const std::uint32_t shards = folder_.manifest().shards();
    RequireShards(path, folder_.manifest(), options.shards);
    folder_.RequirePools();
    set_ = std::make_unique<ShardSet>(
        folder_.manifest().partition(), 0, PathsOf(folder_, folder_.manifest().generation, shards),
        ThreadsOf(open), [&](std::uint32_t shard, const std::string& pool) {
          return Store::Open(pool, ShareOf(open, options, shard, shards));
        });
    folder_.RemoveOthers();
    MakeQueue();
  }

  /// Creates one of pools that `make` makes. @param seed of the partition
  Impl(const std::string& path, std::uint32_t shards, std::array<std::uint64_t, 2> seed,
       const OpenOptions& open, std::shared_ptr<Log> log,
       const std::function<Store(std::uint32_t, const std::string&)>& make)
      : log_(std::move(log)), folder_(path, ShardFolder::Use::kCreate) {
    try {
      Manifest manifest;
      manifest.uuid = NewUuid();
      manifest.hash_seed = seed;
      manifest.generation = 1;
      set_ = MakeShards(folder_, shards, open, &manifest, make);
      folder_.SetManifest(manifest);
      MakeQueue();
    } catch (...) {
      set_.reset();
      folder_.Abandon();
      throw;
    }
  }

  ~Impl() {
    // In a child of the process, the queue's thread does not run.
    if (!set_->process().IsThis()) static_cast<void>(in_flight_.release());
  }

  ShardSet& set() { return *set_; }
  BatchQueue& in_flight() { return *in_flight_; }
  Log& log() { return *log_; }
  const std::shared_ptr<Log>& shared_log() const { return log_; }
  const ShardFolder& folder() const { return folder_; }
  std::uint32_t shards() const { return folder_.manifest().shards(); }
  const std::shared_ptr<ExportGate>& exports() const { return exports_; }

 private:
  void MakeQueue() {
    in_flight_ = std::make_unique<BatchQueue>(*set_, log_, [this](DividedBatch& batch) {
      const Beside beside = Beside::InFlight(*this);
      batch.CarryOut(ApplyTo);
    });
  }

  // First: where there is no memory for it, there is nothing yet that has to be removed.
  const std::shared_ptr<ExportGate> exports_ = std::make_shared<ExportGate>();
  const std::shared_ptr<Log> log_;
  ShardFolder folder_;
  std::unique_ptr<ShardSet> set_;
  std::mutex turn_;
  std::shared_mutex use_;
  std::unique_ptr<BatchQueue> in_flight_;  ///< goes first: its batches use all of the others
};

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
                             ShareOf(open, options, shard, options.shards));
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
      if (!create.attributes.empty() && store.attributes() != create.attributes) {
        throw Error(ErrorCode::kInvalidArgument,
                    folder + ": the store has other attributes, which stay as it was created");
      }
      if (store.key_size() == create.key_size && store.value_size() == create.value_size) {
        return store;
      }
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: the store has keys of {} bytes and values of {}, not of {} and {}",
                      folder, store.key_size(), store.value_size(), create.key_size,
                      create.value_size));
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
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const Impl::Beside beside(impl);
  return impl.set().Run(batch, ApplyTo);
}

Ticket ShardedStore::ApplyAsync(const Batch& batch) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  ShardSet& set = impl.set();
  if (set.count() == 1) return set.store(set.first()).ApplyAsync(batch);
  set.Validate(batch);
  return batch.results.empty() ? Ticket() : impl.in_flight().Begin(batch);
}

std::uint64_t ShardedStore::Find(std::span<const std::byte> keys, std::span<std::byte> found,
                                 std::span<Result> results) {
  return Apply({.op = Op::kFind, .keys = keys, .found = found, .results = results});
}

std::uint64_t ShardedStore::Insert(std::span<const std::byte> keys,
                                   std::span<const std::byte> values, std::span<Result> results) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const Impl::Beside beside(impl);
  return impl.set().Run({.op = Op::kInsert, .keys = keys, .values = values, .results = results},
                        InsertInto);
}

std::uint64_t ShardedStore::BulkLoad(std::span<const std::byte> keys,
                                     std::span<const std::byte> values, std::span<Result> results) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const Impl::Beside beside(impl);
  return impl.set().Run({.op = Op::kInsert, .keys = keys, .values = values, .results = results},
                        BulkLoadInto);
}

std::uint64_t ShardedStore::Update(std::span<const std::byte> keys,
                                   std::span<const std::byte> values, std::span<Result> results) {
  return Apply({.op = Op::kUpdate, .keys = keys, .values = values, .results = results});
}

std::uint64_t ShardedStore::Upsert(std::span<const std::byte> keys,
                                   std::span<const std::byte> values, std::span<Result> results) {
  return Apply({.op = Op::kUpsert, .keys = keys, .values = values, .results = results});
}

std::uint64_t ShardedStore::Erase(std::span<const std::byte> keys, std::span<Result> results) {
  return Apply({.op = Op::kErase, .keys = keys, .results = results});
}

std::uint64_t ShardedStore::FindOrInsert(std::span<const std::byte> keys,
                                         const InitialValue& initial, Element element,
                                         std::span<const std::byte> values,
                                         std::span<std::byte> found, std::span<Result> results) {
  return Apply({.op = Op::kFindOrInsert,
                .keys = keys,
                .values = values,
                .found = found,
                .results = results,
                .element = element,
                .initial = initial});
}

std::uint64_t ShardedStore::Accumulate(std::span<const std::byte> keys, Element element,
                                       std::span<const std::byte> rows, std::span<Result> results) {
  return Apply({.op = Op::kAccumulate,
                .keys = keys,
                .values = rows,
                .results = results,
                .element = element});
}

bool ShardedStore::Get(std::span<const std::byte> key, std::span<std::byte> value) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const Impl::Beside beside(impl);
  return impl.set().InShard(ShardOf(key), [&](Store& store) { return store.Get(key, value); });
}

Result ShardedStore::Put(std::span<const std::byte> key, std::span<const std::byte> value) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const Impl::Beside beside(impl);
  return impl.set().InShard(ShardOf(key), [&](Store& store) { return store.Put(key, value); });
}

bool ShardedStore::Delete(std::span<const std::byte> key) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const Impl::Beside beside(impl);
  return impl.set().InShard(ShardOf(key), [&](Store& store) { return store.Delete(key); });
}

void ShardedStore::Reserve(std::uint64_t items) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const ExportGate::KeepsOut no_export(*impl.exports());
  const Impl::Beside beside(impl);
  impl.set().ForAll([&](std::uint32_t shard) {
    impl.set().store(shard).Reserve(ShareOfItems(items, impl.shards()));
  });
}

void ShardedStore::Compact() {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const ExportGate::KeepsOut no_export(*impl.exports());
  const Impl::Beside beside(impl);
  impl.set().ForAll([&](std::uint32_t shard) { impl.set().store(shard).Compact(); });
}

void ShardedStore::ForEach(const Store::Visitor& visit) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const Impl::Alone alone(impl);
  for (std::uint32_t i = 0; i < impl.shards(); ++i) {
    impl.set().InShard(i, [&](Store& store) { store.ForEach(visit); });
  }
}

SearchResult ShardedStore::Search(std::span<const Query> queries, const SearchOptions& options) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const ExportGate::KeepsOut no_export(*impl.exports());
  const Impl::Beside beside(impl);
  std::vector<SearchResult> parts(impl.shards());
  impl.set().ForAll([&](std::uint32_t shard) {
    parts[shard] = impl.set().store(shard).Search(queries, options);
  });
  if (parts.size() == 1) return std::move(parts.front());
  return MergeMatches(parts, options, key_size(), value_size());
}

std::uint64_t ShardedStore::EraseWhere(const Query& query) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(impl.log());
  const ExportGate::KeepsOut no_export(*impl.exports());
  const Impl::Beside beside(impl);
  std::atomic<std::uint64_t> erased{0};
  impl.set().ForAll(
      [&](std::uint32_t shard) { erased += impl.set().store(shard).EraseWhere(query); });
  return erased;
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
  const Log::TellsAtEnd tells(impl.log());
  const ExportGate::KeepsOut no_export(*impl.exports());
  const Impl::Alone alone(impl);
  RequireNoFile(path);
  ShardFolder folder(path, ShardFolder::Use::kCreate);
  std::vector<SnapshotResult> results(impl.shards());
  try {
    impl.set().ForAll([&](std::uint32_t shard) {
      results[shard] =
          impl.set().store(shard).Snapshot(SnapshotPath(path, shard), {.track_changes = false});
    });
    folder.SetManifest(impl.folder().manifest());
  } catch (...) {
    for (std::uint32_t i = 0; i < impl.shards(); ++i) RemoveFile(SnapshotPath(path, i));
    folder.Abandon();
    throw;
  }
  SnapshotResult sum;
  for (const SnapshotResult& result : results) {
    sum.items += result.items;
    sum.written += result.written;
    sum.bytes += result.bytes;
    sum.seconds = std::max(sum.seconds, result.seconds);
  }
  sum.pause_seconds = sum.seconds;
  return sum;
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
    const std::string file = SnapshotPath(snapshot, i);
    if (UuidText(SnapshotFile(file).header().pool) == manifest.pools[i].uuid) continue;
    throw Error(
        ErrorCode::kDamaged,
        fmt::format("{}: not the snapshot of shard {}: it was taken of another pool", file, i));
  }
  return ShardedStore(std::make_unique<Impl>(
      folder, manifest.shards(), manifest.hash_seed, open, log,
      [&](std::uint32_t shard, const std::string& path) {
        const std::string files[] = {SnapshotPath(snapshot, shard)};
        return Store::Restore(files, path, ShareOf(open, options, shard, manifest.shards()));
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
