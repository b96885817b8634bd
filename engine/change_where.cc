// How what a query matches is erased and changed (StoreImpl::EraseWhere, UpdateRowsWhere;
// docs/SEARCH.md).

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/query_plan.h"
#include "engine/store_impl.h"
#include "gpmstore/error.h"

namespace gpm {
namespace {

/// Rows that are looked at, or changed, while no batch runs, and bytes of their values: what that
/// takes is short.
constexpr std::uint64_t kMostAtOnce = std::uint64_t{1} << 14;
constexpr std::uint64_t kRowsBytes = std::uint64_t{16} << 20;

std::uint64_t CountOk(const std::vector<Result>& results) {
  return static_cast<std::uint64_t>(std::count(results.begin(), results.end(), Result::kOk));
}

}  // namespace

std::uint64_t StoreImpl::RowsAtOnce() const {
  return std::clamp<std::uint64_t>(kRowsBytes / value_size_, 1, kMostAtOnce);
}

template <class Change>
std::uint64_t StoreImpl::ChangeWhere(const Query& query, const Change& change) {
  const Log::TellsAtEnd tells(log_);
  const std::span<const Query> queries(&query, 1);
  const QueryPlan plan(queries, attributes_);
  const SearchResult found = Search(queries, {});
  const std::uint64_t at_once = RowsAtOnce();
  std::uint64_t changed = 0;
  for (std::uint64_t first = 0; first < found.counts[0]; first += at_once) {
    const std::uint64_t n = std::min(at_once, found.counts[0] - first);
    const auto keys = std::span(found.keys).subspan(first * key_size_, n * key_size_);
    // Nobody comes between looking and changing.
    const Admission::Alone alone(admission_, Admission::Telling::kLater);
    health_.Check();
    FinishBatches();
    changed += change(FindMatching(keys, plan));
  }
  return changed;
}

StoreImpl::MatchingItems StoreImpl::FindMatching(std::span<const std::byte> keys,
                                                 const QueryPlan& plan) {
  const std::uint64_t n = keys.size() / key_size_;
  MatchingItems items;
  items.values.resize(n * value_size_);
  items.keys.reserve(keys.size());
  std::vector<Result> results(n);
  RunAlone({.op = Op::kFind, .keys = keys, .found = items.values, .results = results});
  for (std::uint64_t i = 0; i < n; ++i) {
    if (results[i] != Result::kOk) continue;
    const std::byte* const value = items.values.data() + i * value_size_;
    plan.Ask(value, [&](std::uint32_t) {
      const auto key = keys.subspan(i * key_size_, key_size_);
      items.keys.insert(items.keys.end(), key.begin(), key.end());
      std::memmove(items.values.data() + items.count++ * value_size_, value, value_size_);
    });
  }
  items.values.resize(items.count * value_size_);
  return items;
}

std::uint64_t StoreImpl::EraseWhere(const Query& query) {
  const std::uint64_t erased =
      ChangeWhere(query, [&](const MatchingItems& items) GPM_REQUIRES(store_state) {
        std::vector<Result> results(items.count);
        RunAlone({.op = Op::kErase, .keys = items.keys, .results = results});
        return CountOk(results);
      });
  if (compact_below_ > 0 && erased > 0) CompactIfSparse();
  return erased;
}

std::uint64_t StoreImpl::UpdateRowsWhere(const Query& query, const Store::RowsEditor& change) {
  std::uint64_t without = 0;
  const std::uint64_t updated = ChangeWhere(query, [&](MatchingItems items) GPM_REQUIRES(
                                                       store_state) {
    if (items.count > 0) change(items.keys, items.values);
    process_.Check();  // where `change` forked, and its child returns, the pool is not the child's
    std::vector<Result> results(items.count);
    RunAlone({.op = Op::kUpdate, .keys = items.keys, .values = items.values, .results = results});
    const std::uint64_t ok = CountOk(results);
    without += items.count - ok;
    return ok;
  });
  if (without > 0) {
    throw Error(ErrorCode::kNoSpace,
                fmt::format("an update by a query found no space for the new values of {} items; "
                            "{} were changed",
                            without, updated));
  }
  return updated;
}

std::uint64_t StoreImpl::RunAlone(const Batch& batch) {
  if (batch.results.empty()) return 0;
  InFlight in_flight(DemandOf(batch));
  if (bound_ != nullptr && batch.op != Op::kFind) in_flight.watch = bound_->Watch(&batch, {});
  if (batch.op != Op::kFind) admission_.CountChanger();
  space_.Reclaim();
  space_.MakeRoomForSlots(in_flight.demand.most.slots);
  in_flight.task = executor_->Prepare(batch, nullptr, Answers::kWhenAwaited);
  if (keeper_ != nullptr && batch.op != Op::kFind) keeper_->NoteChange();
  try {
    in_flight.task->Start({}, {}, {});
    in_flight.progress = in_flight.task->Await();
  } catch (...) {
    if (in_flight.task->Touched()) admission_.SetLeftBehind();
    throw;
  }
  admission_.Count(in_flight);
  admission_.CountOperations(in_flight);
  if (in_flight.progress.copy_failure) std::rethrow_exception(in_flight.progress.copy_failure);
  const std::uint64_t found = in_flight.progress.found;
  CarryOutRest(in_flight);
  space_.Reclaim();
  if (in_flight.watch != nullptr) in_flight.watch->Ended();
  return found;
}

}  // namespace gpm
