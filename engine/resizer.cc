#include "engine/resizer.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>

namespace gpm {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Resizer::Resizer(Pool& pool, Executor& executor, Health& health, Space& space, CacheManager& cache,
                 Log& log)
    : pool_(pool), executor_(executor), health_(health), space_(space), cache_(cache), log_(log) {
  RefreshTable();
}

void Resizer::RefreshTable() {
  cache_.SetTable(executor_, MakeTableView(pool_.base(), pool_.superblock()));
  accelerated_ = false;
}

void Resizer::MakeAccelerators(std::uint32_t new_levels) {
  if (accelerated_) return;
  cache_.Reset(executor_, MakeTableView(pool_.base(), pool_.superblock()), new_levels);
  accelerated_ = true;
}

void Resizer::DropAccelerators() {
  cache_.Drop(executor_);
  accelerated_ = false;
}

void Resizer::AddLevel() {
  const Clock::time_point start = Clock::now();
  pool_.AddLevel();
  growth_seconds_ += SecondsSince(start);
}

bool Resizer::Resize(std::uint32_t levels) {
  const ProfilerRange range("resize", levels);
  const Clock::time_point start = Clock::now();
  std::uint32_t added = 0;
  std::exception_ptr failure;
  try {
    for (; added < levels; ++added) {
      space_.ReleaseCellsForLevel();
      AddLevel();
    }
  } catch (const Error& error) {
    if (!MeansFull(error)) failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  if (added > 0) {
    log_.Add(LogLevel::kInfo, [&] {
      return fmt::format("{}: resize begun, by {} levels to top level {}", pool_.mapping().path(),
                         added, pool_.superblock().top);
    });
    health_.AllOrUnusable("the table was resized", [&]() GPM_REQUIRES(store_state) {
      RefreshTable();
      Drain(added);
    });
    MakeAccelerators();
    ++resizes_;
    resize_seconds_ += SecondsSince(start);
    log_.Add(LogLevel::kInfo, [&] {
      return fmt::format("{}: resize ended after {:.3f} s, top level {}", pool_.mapping().path(),
                         SecondsSince(start), pool_.superblock().top);
    });
  }
  if (failure) std::rethrow_exception(failure);
  return added == levels;
}

void Resizer::Drain(std::uint32_t new_levels) {
  const Superblock& superblock = pool_.superblock();
  while (superblock.top - superblock.bottom + 1 > superblock.geometry.levels) {
    // It is made by reading the levels that items go to: not for a level far smaller.
    if (superblock.top - superblock.bottom < superblock.geometry.levels + 2u) {
      MakeAccelerators(new_levels);
    }
    new_levels = 0;
    if (executor_.DrainLevel(superblock.bottom) == 0) {
      pool_.DropBottomLevel();
      cache_.KeepTable(executor_, MakeTableView(pool_.base(), superblock));
    } else {
      space_.ReleaseCellsForLevel();
      AddLevel();  // even the larger top has no slot for some item: one more level
      new_levels = 1;
      RefreshTable();
    }
  }
}

void Resizer::AddTo(StoreStats* stats) const {
  stats->resizes = resizes_;
  stats->resize_seconds = resize_seconds_;
  stats->growth_seconds = growth_seconds_;
}

}  // namespace gpm
