// How a store's shards are made other ones (ShardedStore::Reshard).

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpmstore/error.h"
#include "gpmstore/pool_reader.h"
#include "gpmstore/sharded_store.h"
#include "pm/file_access.h"
#include "shard/create.h"
#include "shard/folder.h"
#include "shard/options.h"
#include "shard/shard_set.h"
#include "snapshot/new_file.h"

namespace gpm {
namespace {

/// Of keys and values that are inserted at a time: enough for large batches.
constexpr std::size_t kPageBytesOfItems = std::size_t{64} << 20;

/// Inserts items, some at a time.
class Inserter {
 public:
  /// @param from folder of the store, for errors
  Inserter(const std::string& from, ShardSet& to, std::uint64_t items)
      : from_(from),
        to_(to),
        rows_(std::clamp<std::uint64_t>(
            kPageBytesOfItems / (std::uint64_t{to.key_size()} + to.value_size()), 1,
            std::max<std::uint64_t>(items, 1))) {
    keys_.reserve(rows_ * to.key_size());
    values_.reserve(rows_ * to.value_size());
  }
  void Add(std::span<const std::byte> key, std::span<const std::byte> value) {
    keys_.insert(keys_.end(), key.begin(), key.end());
    values_.insert(values_.end(), value.begin(), value.end());
    if (keys_.size() == rows_ * key.size()) Flush();
  }
  void Flush() {
    results_.resize(keys_.size() / to_.key_size());
    const Batch batch{.op = Op::kInsert, .keys = keys_, .values = values_, .results = results_};
    const std::uint64_t not_ok = to_.Run(batch, ApplyTo);
    if (not_ok > 0) {
      if (std::find(results_.begin(), results_.end(), Result::kExists) != results_.end()) {
        throw Error(ErrorCode::kDamaged,
                    from_ + ": a key is in more than one shard; `gpmstore check` says where");
      }
      throw Error(ErrorCode::kNoSpace,
                  "no room for the new pools beside the old ones; use a medium with more space");
    }
    keys_.clear();
    values_.clear();
  }

 private:
  const std::string& from_;
  ShardSet& to_;
  const std::size_t rows_;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
  std::vector<Result> results_;
};

/// Makes the new pools. @return the manifest that names them
Manifest MakePools(const ShardFolder& folder, const ShardOptions& options,
                   const OpenOptions& open) {
  Manifest manifest = folder.manifest();
  ++manifest.generation;
  std::vector<PoolReader> old;
  std::uint64_t items = 0;
  CreateOptions create;
  for (std::uint32_t i = 0; i < folder.manifest().shards(); ++i) {
    old.emplace_back(folder.PathOf(i));
    const StoreStats stats = old.back().Stats();
    items += stats.items;
    create = {.key_size = stats.key_size,
              .value_size = stats.value_size,
              .geometry = stats.geometry,
              .initial_capacity = items,
              .attributes = stats.attributes};
  }
  const auto set = MakeShards(
      folder, options.shards, open, &manifest, [&](std::uint32_t shard, const std::string& path) {
        Store store = Store::Create(path, ShareOf(create, shard, options.shards),
                                    ShareOf(open, options, shard, ShardRange::All(options.shards)));
        CopyAccess(folder.PathOf(0), path);  // before there is an item in it
        return store;
      });
  Inserter inserter(folder.path(), *set, items);
  for (const PoolReader& pool : old) {
    pool.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      inserter.Add(key, value);
    });
  }
  inserter.Flush();
  set->ForAll([&](std::uint32_t shard) {
    set->store(shard).Close();
    SyncFile(folder.PathOf(manifest.generation, shard));
  });
  return manifest;
}

}  // namespace

void ShardedStore::Reshard(const std::string& path, const ShardOptions& options,
                           const OpenOptions& open) {
  ValidateShardCount(options.shards);
  ValidateForShards(open);
  ShardFolder folder(path, ShardFolder::Use::kWrite);
  folder.RequirePools();
  folder.RemoveOthers();
  if (options.shards == folder.manifest().shards()) return;
  Manifest manifest;
  try {
    manifest = MakePools(folder, options, open);
  } catch (...) {
    folder.RemoveOthers();
    throw;
  }
  folder.SetManifest(manifest);  // if it throws, either may be in force: nothing is removed yet
  folder.RemoveOthers();
}

}  // namespace gpm
