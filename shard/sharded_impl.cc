#include "shard/sharded_impl.h"

#include <utility>
#include <vector>

#include "engine/store_impl.h"
#include "pm/random_id.h"
#include "shard/create.h"
#include "shard/divided_batch.h"
#include "shard/options.h"

namespace gpm {
namespace {

std::vector<std::string> PathsOf(const ShardFolder& folder, std::uint64_t generation,
                                 std::uint32_t shards) {
  std::vector<std::string> paths;
  for (std::uint32_t i = 0; i < shards; ++i) paths.push_back(folder.PathOf(generation, i));
  return paths;
}

}  // namespace

std::unique_ptr<ShardSet> MakeShards(
    const ShardFolder& folder, std::uint32_t shards, const OpenOptions& open, Manifest* manifest,
    const std::function<Store(std::uint32_t, const std::string&)>& make) {
  manifest->pools.resize(shards);
  auto set = std::make_unique<ShardSet>(manifest->partition(), 0,
                                        PathsOf(folder, manifest->generation, shards),
                                        ThreadsToDivide(open, 1), make);
  manifest->key_size = set->key_size();
  manifest->value_size = set->value_size();
  for (std::uint32_t i = 0; i < shards; ++i) {
    manifest->pools[i] = {PoolFileName(manifest->generation, i),
                          HexOf(set->store(i).impl()->PoolId())};
  }
  return set;
}

ShardedStore::Impl::Impl(const std::string& path, const OpenOptions& open,
                         const ShardOptions& options, std::shared_ptr<Log> log)
    : log_(std::move(log)), folder_(path, ShardFolder::Use::kWrite) {
  const std::uint32_t shards = folder_.manifest().shards();
  RequireShards(path, folder_.manifest(), options.shards);
  folder_.RequirePools();
  set_ = std::make_unique<ShardSet>(
      folder_.manifest().partition(), 0, PathsOf(folder_, folder_.manifest().generation, shards),
      ThreadsToDivide(open, 1), [&](std::uint32_t shard, const std::string& pool) {
        return Store::Open(pool, ShareOf(open, options, shard, ShardRange::All(shards)));
      });
  folder_.RemoveOthers();
  in_flight_ = std::make_unique<BatchQueue>(set_->process(), log_);
}

ShardedStore::Impl::Impl(const std::string& path, std::uint32_t shards,
                         std::array<std::uint64_t, 2> seed, const OpenOptions& open,
                         std::shared_ptr<Log> log,
                         const std::function<Store(std::uint32_t, const std::string&)>& make)
    : log_(std::move(log)), folder_(path, ShardFolder::Use::kCreate) {
  try {
    Manifest manifest;
    manifest.uuid = HexOf(NewId());
    manifest.hash_seed = seed;
    manifest.generation = 1;
    set_ = MakeShards(folder_, shards, open, &manifest, make);
    folder_.SetManifest(manifest);
    in_flight_ = std::make_unique<BatchQueue>(set_->process(), log_);
  } catch (...) {
    set_.reset();
    folder_.Abandon();
    throw;
  }
}

ShardedStore::Impl::~Impl() {
  // In a child of the process, the queue's thread does not run.
  if (!set_->process().IsThis()) static_cast<void>(in_flight_.release());
}

Ticket ShardedStore::Impl::Begin(const Batch& batch) {
  return in_flight_->Begin([&] {
    auto divided = std::make_shared<DividedBatch>(*set_, batch);
    return [this, divided = std::move(divided)](std::uint64_t) {
      const Beside beside = Beside::InFlight(*this);
      divided->CarryOut(ApplyTo);
    };
  });
}

}  // namespace gpm
