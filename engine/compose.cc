// How many inserts into a store without items are carried out (StoreImpl::Compose).

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "engine/store_impl.h"

namespace gpm {
namespace {

/// So many pay where the levels would have to grow for them anyway.
constexpr std::uint64_t kFewestInserts = std::uint64_t{1} << 12;
/// So many pay where the levels are there, if those have at most so many slots for each.
constexpr std::uint64_t kManyInserts = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostSlots = 8;
/// Operations of a batch: enough to write ahead of the link's latency; more would only take more
/// memory.
constexpr std::uint64_t kBatch = std::uint64_t{1} << 22;
/// One more is begun while one runs.
constexpr std::size_t kAtOnce = 2;

Batch Part(const Batch& all, std::uint64_t first, std::uint64_t count) {
  const std::uint64_t n = all.results.size();
  const std::uint64_t key_bytes = all.keys.size() / n;
  const std::uint64_t value_bytes = all.values.size() / n;
  return {.op = all.op,
          .ops = {},
          .keys = all.keys.subspan(first * key_bytes, count * key_bytes),
          .values = all.values.subspan(first * value_bytes, count * value_bytes),
          .found = {},
          .results = all.results.subspan(first, count)};
}

}  // namespace

bool StoreImpl::MayCompose(std::uint64_t inserts) {
  if (inserts < kFewestInserts || bound_ != nullptr || snapshots_.exporting()) return false;
  const Admission::Entered entered(admission_);
  return !entered.HasOpenScope() && PaysToCompose(inserts);
}

bool StoreImpl::PaysToCompose(std::uint64_t inserts) const {
  // (Where a batch failed, there may be items that nobody counted.)
  if (space_.items() != 0 || admission_.left_behind() || inserts < kFewestInserts) return false;
  if (!executor_->Composes() || cache_.limited()) return false;
  const auto slots = static_cast<double>(space_.Capacity());
  return static_cast<double>(inserts) > Space::kComfortableLoad * slots ||
         (inserts >= kManyInserts && space_.Capacity() <= kMostSlots * inserts);
}

bool StoreImpl::Compose(const Batch& inserts, bool* results_on_host) {
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t n = inserts.results.size();
  snapshots_.AwaitCopied();
  const Admission::Alone alone(admission_);
  health_.Check();
  if (snapshots_.exporting()) return false;
  AwaitHeldCells();
  space_.Reclaim();
  resizer_.EndDraining();
  if (!PaysToCompose(n)) return false;
  admission_.CountChanger();
  const Superblock& superblock = pool_->superblock();
  const LevelSizes sizes = resizer_.growth().Reach(
      SizesOf(superblock), static_cast<double>(n) / Space::kComfortableLoad);
  const std::uint64_t cells = space_.MissingCells(n);
  if (UsedEnd(superblock) + LevelsBytes(superblock, sizes) + cells * CellBytes(value_size_) >
      pool_->mapping().PossibleBytes()) {
    return false;
  }
  if ((cells > 0 && !space_.AddCells(cells)) || !resizer_.BeginComposing(sizes)) {
    LogWantOfSpace();
    return false;
  }
  std::vector<std::unique_ptr<InFlight>> left;
  const auto give_up = [&]() GPM_REQUIRES(store_state) {
    left.clear();
    health_.AllOrUnusable("a bulk load was given up", [&]() GPM_REQUIRES(store_state) {
      resizer_.AbandonComposing();
      space_.Recount();
    });
    return space_.items() == 0;
  };
  try {
    left = RunComposing(inserts, results_on_host);
    resizer_.EndComposing();
  } catch (const Error& error) {
    // Where memory is short, smaller batches may do.
    if (give_up() && error.code() == ErrorCode::kGpu) return false;
    throw;
  } catch (...) {
    give_up();
    throw;
  }
  admission_.CountOperations(InFlight(DemandOf(inserts)));
  if (keeper_ != nullptr) keeper_->NoteChange();
  log_.Add(LogLevel::kInfo, [&] {
    return fmt::format(
        "{}: {} inserts composed levels of {} slots in {:.3f} s", pool_->mapping().path(), n,
        space_.Capacity(),
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  });
  for (const auto& in_flight : left) CarryOutRest(*in_flight);
  space_.Reclaim();
  return true;
}

std::vector<std::unique_ptr<InFlight>> StoreImpl::RunComposing(const Batch& inserts,
                                                               bool* results_on_host) {
  const ProfilerRange range("bulk load", inserts.results.size());
  std::vector<std::unique_ptr<InFlight>> left;
  std::deque<std::unique_ptr<InFlight>> running;
  const auto end_first = [&]() GPM_REQUIRES(store_state) {
    std::unique_ptr<InFlight> first = std::move(running.front());
    running.pop_front();
    Progress& progress = first->progress;
    progress = first->task->Await();
    const CellGrant& grant = first->grant;
    if (!space_.epochs().TakeBack(grant, progress.cells_left) && progress.cells_left > 0) {
      executor_->ReturnCells(
          {grant.first + grant.count - progress.cells_left, progress.cells_left});
    }
    admission_.Count(progress);
    if (progress.copy_failure) std::rethrow_exception(progress.copy_failure);
    if (progress.shortages() > 0) left.push_back(std::move(first));
  };
  for (std::uint64_t at = 0; at < inserts.results.size(); at += kBatch) {
    const Batch part = Part(inserts, at, std::min(kBatch, inserts.results.size() - at));
    auto in_flight = std::make_unique<InFlight>(DemandOf(part));
    try {
      in_flight->task = executor_->Prepare(part, nullptr);
    } catch (const Error&) {
      if (running.empty()) throw;
      end_first();  // whose memory it can have
      in_flight->task = executor_->Prepare(part, nullptr);
    }
    *results_on_host = in_flight->task->ResultsOnHost();
    in_flight->grant = space_.Grant(in_flight->demand.most.cells);
    in_flight->task->Start({}, in_flight->grant, {});
    running.push_back(std::move(in_flight));
    if (running.size() == kAtOnce) end_first();
  }
  while (!running.empty()) end_first();
  space_.epochs().Quiesced(executor_->Positions());
  return left;
}

}  // namespace gpm
