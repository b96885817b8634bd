#include "shard/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>

#include "gpmstore/error.h"
#include "pm/memory_nodes.h"
#include "pm/thread_pool.h"
#include "shard/manifest.h"
#include "table/hash.h"

namespace gpm {

std::uint64_t ShareOfItems(std::uint64_t items, std::uint32_t shards) {
  if (shards == 1 || items == 0) return items;
  const double mean = static_cast<double>(items) / shards;
  return std::min(items, static_cast<std::uint64_t>(std::ceil(mean + 4 * std::sqrt(mean))));
}

CreateOptions ShareOf(const CreateOptions& create, std::uint32_t shard, std::uint32_t shards) {
  CreateOptions share = create;
  share.initial_capacity = ShareOfItems(create.initial_capacity, shards);
  if (share.hash_seed) share.hash_seed = Scramble(*share.hash_seed + shard + 1);
  return share;
}

OpenOptions ShareOf(const OpenOptions& open, const ShardOptions& options, std::uint32_t shard,
                    const ShardRange& mine) {
  OpenOptions share = open;
  const std::uint32_t shards = mine.end - mine.first;
  if (shards > 1) share.threads = std::max(1u, ThreadsOf(open.threads) / shards);
  if (open.search_index_bytes > 0) {
    share.search_index_bytes = std::max<std::uint64_t>(open.search_index_bytes / shards, 1);
  }
  if (open.max_bytes > 0) share.max_bytes = std::max<std::uint64_t>(open.max_bytes / shards, 1);
  std::uint32_t beside = shards;  // shards on its device, and itself
  if (!options.devices.empty()) {
    const auto device_of = [&](std::uint32_t i) {
      return options.devices[i % options.devices.size()];
    };
    share.device = device_of(shard);
    // Its pool lies next to it, also if it is made by executor cpu.
    if (open.executor == ExecutorKind::kCpu && open.memory_node == kMemoryNearGpu) {
      share.memory_node = MemoryNodes::Here().NodeNear(share.device).value_or(kMemoryAnywhere);
    }
    beside = 0;
    for (std::uint32_t i = mine.first; i < mine.end; ++i) beside += device_of(i) == share.device;
  }
  if (open.cache.bytes > 0)
    share.cache.bytes = std::max<std::uint64_t>(open.cache.bytes / beside, 1);
  if (open.log && mine.all > 1) {
    share.log = [log = open.log, shard](LogLevel level, std::string_view message) {
      log(level, fmt::format("shard {}: {}", shard, message));
    };
  }
  return share;
}

unsigned ThreadsToDivide(const OpenOptions& open, std::uint32_t ranks) {
  constexpr unsigned kMost = 16;        // as many as the copying of one batch can use
  constexpr unsigned kMostAsked = 256;  // as many as a Store has
  return open.threads > 0 ? std::min(open.threads, kMostAsked)
                          : std::clamp(std::thread::hardware_concurrency() / ranks, 1u, kMost);
}

void ValidateForShards(const OpenOptions& open) {
  const auto refuse = [](const char* message) {
    throw Error(ErrorCode::kInvalidArgument, message);
  };
  if (open.capacity.items > 0 || open.capacity.bytes > 0) {
    refuse("a capacity can't be kept over several shards; open a store of one pool with it");
  }
  if (!open.snapshot.path.empty()) {
    refuse("several shards keep no snapshots by a schedule; call ShardedStore::Snapshot");
  }
}

void ValidateShardCount(std::uint32_t shards) {
  if (shards >= 1 && shards <= kMaxShards) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a store can't have {} shards: it has from 1 to {}", shards, kMaxShards));
}

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

}  // namespace gpm
