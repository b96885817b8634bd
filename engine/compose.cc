// How many inserts into a store without items are carried out (StoreImpl::Compose).

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "engine/store_impl.h"
#include "pm/clock.h"

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
/// So many inserts pay to copy their values beside the kernels.
constexpr std::uint64_t kFewestCopied = std::uint64_t{1} << 17;

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

std::optional<LevelSizes> StoreImpl::SizesToCompose(std::uint64_t inserts) {
  health_.Check();
  if (snapshots_.exporting()) return {};
  AwaitHeldCells();
  space_.Reclaim();
  resizer_.EndDraining();
  if (!PaysToCompose(inserts)) return {};
  admission_.CountChanger();
  const Superblock& superblock = pool_->superblock();
  const LevelSizes sizes = resizer_.growth().Reach(
      SizesOf(superblock), static_cast<double>(inserts) / Space::kComfortableLoad);
  if (EndOfComposed(sizes, inserts) > pool_->mapping().PossibleBytes()) return {};
  return sizes;
}

std::uint64_t StoreImpl::EndOfComposed(const LevelSizes& sizes, std::uint64_t inserts) const {
  const Superblock& superblock = pool_->superblock();
  return UsedEnd(superblock) + LevelsBytes(superblock, sizes) +
         space_.MissingCells(inserts) * CellBytes(value_size_);
}

bool StoreImpl::ComposeLevels(const LevelSizes& sizes, std::uint64_t inserts,
                              const std::function<void()>& run) {
  const ProfilerRange range("bulk load", inserts);
  const Clock::time_point start = Clock::now();
  if (!resizer_.BeginComposing(sizes)) return false;
  try {
    // (A refresh would read the values of items that may not have come yet.)
    cache_.WithoutRefresh(run);
    resizer_.EndComposing();
  } catch (...) {
    health_.AllOrUnusable("a bulk load was given up", [&]() GPM_REQUIRES(store_state) {
      resizer_.AbandonComposing();
      space_.Recount();
    });
    throw;
  }
  if (keeper_ != nullptr) keeper_->NoteChange();
  log_.Add(LogLevel::kInfo, [&] {
    return fmt::format("{}: {} inserts composed levels of {} slots in {:.3f} s",
                       pool_->mapping().path(), inserts, space_.Capacity(), SecondsSince(start));
  });
  return true;
}

bool StoreImpl::Compose(const Batch& inserts, bool* results_on_host) {
  const std::uint64_t n = inserts.results.size();
  if (!snapshots_.AwaitSnapshotCopied()) return false;
  const Admission::Alone alone(admission_, Admission::Telling::kAtEnd, Admission::Scopes::kYield);
  if (!alone.holds()) return false;
  const std::optional<LevelSizes> sizes = SizesToCompose(n);
  if (!sizes) return false;
  const std::uint64_t cells = space_.MissingCells(n);
  if (cells > 0 && !space_.AddCells(cells)) {
    LogWantOfSpace();
    return false;
  }
  std::vector<std::unique_ptr<InFlight>> left;
  try {
    if (!ComposeLevels(*sizes, n, [&]() GPM_REQUIRES(store_state) {
          left = RunComposing(inserts, results_on_host);
        })) {
      LogWantOfSpace();
      return false;
    }
  } catch (const Error& error) {
    // Where memory is short, smaller batches may do.
    if (space_.items() == 0 && error.code() == ErrorCode::kGpu) return false;
    throw;
  }
  admission_.CountOperations(InFlight(DemandOf(inserts)));
  for (const auto& in_flight : left) CarryOutRest(*in_flight);
  space_.Reclaim();
  return true;
}

bool StoreImpl::ComposeParts(std::uint64_t inserts, const NextPart& next) {
  if (!snapshots_.AwaitSnapshotCopied()) return false;
  const Admission::Alone alone(admission_, Admission::Telling::kAtEnd, Admission::Scopes::kYield);
  if (!alone.holds()) return false;
  const std::optional<LevelSizes> sizes = SizesToCompose(inserts);
  if (!sizes) return false;
  pool_->mapping().MakeReady(EndOfComposed(*sizes, inserts), true);
  return ComposeLevels(*sizes, inserts, [&]() GPM_REQUIRES(store_state) { RunParts(next); });
}

void StoreImpl::RunParts(const NextPart& next) {
  while (const std::optional<Batch> part = next()) {
    InFlight in_flight(DemandOf(*part));
    const std::uint64_t cells = space_.MissingCells(in_flight.demand.most.cells);
    if (cells > 0 && !space_.AddCells(cells)) {
      LogWantOfSpace();
      throw Error(ErrorCode::kNoSpace, fmt::format("{}: no room for the values of {} items more",
                                                   pool_->mapping().path(), part->results.size()));
    }
    in_flight.task = executor_->Prepare(*part, nullptr, Answers::kWhenAwaited);
    in_flight.grant = space_.Grant(in_flight.demand.most.cells);
    in_flight.task->Start({}, in_flight.grant, {});
    EndComposed(in_flight);
    if (in_flight.progress.shortages() > 0) Resume(in_flight, true);
    admission_.CountOperations(in_flight);
  }
  space_.epochs().Quiesced(executor_->Positions());
}

void StoreImpl::EndComposed(InFlight& in_flight) {
  Progress& progress = in_flight.progress;
  progress = in_flight.task->Await();
  const CellGrant& grant = in_flight.grant;
  if (!space_.epochs().TakeBack(grant, progress.cells_left) && progress.cells_left > 0) {
    executor_->ReturnCells({grant.first + grant.count - progress.cells_left, progress.cells_left});
  }
  admission_.Count(in_flight);
  if (progress.copy_failure) std::rethrow_exception(progress.copy_failure);
}

std::unique_ptr<CellFilling> StoreImpl::FillCells(const Batch& inserts, CellGrant* grant) {
  const std::uint64_t n = inserts.results.size();
  if (n < kFewestCopied || !executor_->TakesFilledCells()) return nullptr;
  *grant = space_.GrantToFill(n);
  if (!grant->filled()) return nullptr;
  auto filling = executor_->FillCells(inserts.values, {grant->filled_from, grant->filled_from + n});
  if (filling == nullptr) space_.epochs().TakeBack(*grant, n);
  return filling;
}

std::vector<std::unique_ptr<InFlight>> StoreImpl::RunComposing(const Batch& inserts,
                                                               bool* results_on_host) {
  const std::uint64_t n = inserts.results.size();
  CellGrant filled;
  const std::unique_ptr<CellFilling> filling = FillCells(inserts, &filled);
  std::vector<std::unique_ptr<InFlight>> left;
  std::deque<std::unique_ptr<InFlight>> running;
  const auto end_first = [&]() GPM_REQUIRES(store_state) {
    std::unique_ptr<InFlight> first = std::move(running.front());
    running.pop_front();
    EndComposed(*first);
    if (first->progress.shortages() > 0) left.push_back(std::move(first));
  };
  // (Of equal parts none is small.)
  const std::uint64_t parts = (n + kBatch - 1) / kBatch;
  const std::uint64_t most = (n + parts - 1) / parts;
  // (Beside the filling, which takes longer, one at a time is as good, and takes less memory.)
  const std::size_t at_once = filling != nullptr ? 1 : kAtOnce;
  for (std::uint64_t at = 0; at < n; at += most) {
    const Batch part = Part(inserts, at, std::min(most, n - at));
    auto in_flight = std::make_unique<InFlight>(DemandOf(part));
    try {
      in_flight->task = executor_->Prepare(part, nullptr, Answers::kWhenAwaited);
    } catch (const Error&) {
      if (running.empty()) throw;
      end_first();  // whose memory it can have
      in_flight->task = executor_->Prepare(part, nullptr, Answers::kWhenAwaited);
    }
    *results_on_host = in_flight->task->ResultsOnHost();
    const std::uint64_t cells = in_flight->demand.most.cells;
    if (filling == nullptr) {
      in_flight->grant = space_.Grant(cells);
    } else {
      in_flight->grant.count = cells;
      in_flight->grant.filled_from = filled.filled_from + static_cast<std::uint32_t>(at);
    }
    in_flight->task->Start({}, in_flight->grant, {});
    running.push_back(std::move(in_flight));
    if (running.size() == at_once) end_first();
  }
  while (!running.empty()) end_first();
  if (filling != nullptr) filling->Await();
  space_.epochs().Quiesced(executor_->Positions());
  return left;
}

}  // namespace gpm
