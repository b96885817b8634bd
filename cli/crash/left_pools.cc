#include "cli/crash/left_pools.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>

#include "cli/crash/process.h"
#include "cli/pool_files.h"
#include "gpmstore/error.h"
#include "pm/format.h"
#include "pm/pool.h"
#include "recovery/check.h"
#include "shard/folder.h"

namespace gpm::cli {
namespace {

constexpr std::size_t kMaxMisplaced = 16;

/// @param text of a pool @return the same, saying which shard it is of, if it is one
std::string InShard(const PoolFiles& files, std::size_t shard, const std::string& text) {
  return files.folder() == nullptr ? text : fmt::format("shard {}: {}", shard, text);
}

}  // namespace

bool IsStoreThere(const std::string& path) {
  std::error_code ignored;
  return IsFolder(path) ? ShardFolder::HasManifest(path) : std::filesystem::exists(path, ignored);
}

void AwaitRelease(const std::string& path, std::chrono::seconds patience,
                  const std::atomic<bool>& stop) {
  using Clock = std::chrono::steady_clock;
  for (const Clock::time_point enough = Clock::now() + patience; Clock::now() < enough;) {
    if (stop) throw CrashStopped{};
    try {
      const PoolFiles files(path, ShardFolder::Use::kRead);
      for (const std::string& pool : files.paths()) Pool::Open(pool, {.read_only = true});
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBusy) return;  // it is looked at next
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

LeftPools CheckPools(const std::string& path) {
  const PoolFiles files(path, ShardFolder::Use::kRead);
  LeftPools left;
  for (std::size_t shard = 0; shard < files.paths().size(); ++shard) {
    const CheckReport report = CheckPool(files.paths()[shard]);
    left.items += report.items;
    left.half_inserted_pools += report.insert_slots > 0 ? 1 : 0;
    left.resizing_pools += report.resizing ? 1 : 0;
    left.clean = left.clean && report.clean;
    for (const std::string& defect : report.defects) {
      left.defects.push_back(InShard(files, shard, defect));
    }
  }
  if (files.folder() != nullptr) {
    left.unnamed_pools = ShardFolder::PoolsIn(path).size() - files.paths().size();
  }
  return left;
}

std::vector<std::string> VisitPools(const std::string& path, const Store::Visitor& visit) {
  const PoolFiles files(path, ShardFolder::Use::kRead);
  std::vector<std::string> misplaced;
  for (std::size_t shard = 0; shard < files.paths().size(); ++shard) {
    VisitPool(*Pool::Open(files.paths()[shard], {.read_only = true}), [&](auto key, auto value) {
      visit(key, value);
      const std::size_t right = files.ShardOf(key);
      if (right == shard || misplaced.size() == kMaxMisplaced) return;
      misplaced.push_back(
          InShard(files, shard, fmt::format("an item is in it that belongs to shard {}", right)));
    });
  }
  return misplaced;
}

ResizeWatch::ResizeWatch(const std::string& path) {
  const std::vector<std::string> pools =
      IsFolder(path) ? ShardFolder::PoolsIn(path) : std::vector<std::string>{path};
  for (const std::string& pool : pools) pools_.emplace_back(pool, std::ios::binary);
}

bool ResizeWatch::ResizeUnderWay() {
  return std::any_of(pools_.begin(), pools_.end(), [](std::ifstream& pool) {
    Superblock in_force{};
    for (int copy = 0; copy < 2; ++copy) {
      Superblock superblock{};
      pool.clear();
      pool.seekg(copy * static_cast<std::streamoff>(kSuperblockBytes));
      pool.read(reinterpret_cast<char*>(&superblock), sizeof superblock);
      if (superblock.sequence > in_force.sequence) in_force = superblock;
    }
    return in_force.level_count > in_force.geometry.levels;
  });
}

}  // namespace gpm::cli
