#include "cli/stress/round_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "crash_sim/linearizability.h"
#include "recovery/check.h"

namespace gpm::stress {
namespace {

std::vector<std::uint64_t> AllIds(const RoundState& round,
                                  const std::vector<std::unique_ptr<Lane>>& lanes) {
  std::vector<std::uint64_t> ids;
  for (std::uint64_t i = 0; i < round.plan.shared_keys; ++i) ids.push_back(IdIn(kShared, i));
  for (std::uint64_t i = 0; i < round.watched.keys(); ++i) ids.push_back(IdIn(kWatched, i));
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    for (std::uint64_t i = 0; i < lanes[lane]->model().keys(); ++i) {
      ids.push_back(IdIn(kFirstLane + lane, i));
    }
  }
  return ids;
}

std::string CompareModels(const Contents& contents,
                          const std::vector<std::unique_ptr<Lane>>& lanes) {
  Contents expected, actual;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const KeyModel& model = lanes[lane]->model();
    for (std::uint64_t i = 0; i < model.keys(); ++i) {
      if (!model[i].present) continue;
      expected.items.emplace_back(IdIn(kFirstLane + lane, i), model[i].token);
    }
  }
  for (const auto& item : contents.items) {
    if (OwnerOf(item.first) >= kFirstLane) actual.items.push_back(item);
  }
  return Difference(expected, actual);
}

/// @param contents what finds say now, which is the last read of each watched key
std::string CheckHistories(RoundState& round, const Contents& contents) {
  crash::History history = round.watched.Histories();
  std::set<std::uint64_t> keys;
  for (const crash::HistoryOp& op : history) keys.insert(op.key);
  std::map<std::uint64_t, std::uint64_t> held;
  for (const auto& [id, token] : contents.items) {
    if (OwnerOf(id) == kWatched) held.emplace(NumberOf(id), token);
  }
  const std::uint64_t now = Now();
  for (const std::uint64_t key : keys) {
    crash::HistoryOp last;
    last.key = key;
    const auto item = held.find(key);
    last.result = item == held.end() ? Result::kNotFound : Result::kOk;
    last.found = item == held.end() ? 0 : item->second;
    last.invoked_at = now;
    last.returned_at = now;
    last.batch = ~key;
    history.push_back(last);
  }
  round.totals.histories += keys.size();
  round.totals.history_operations += history.size();
  return crash::FindNonlinearizable(history);
}

/// Puts `when` before what is wrong, if anything is.
std::string When(const char* when, const std::string& wrong) {
  return wrong.empty() ? wrong : fmt::format("{}: {}", when, wrong);
}

}  // namespace

std::string CheckFigures(const StoreStats& stats, std::uint64_t items, std::uint32_t value_size) {
  if (stats.items != items) {
    return fmt::format("Stats counts {} items, and there are {}", stats.items, items);
  }
  const std::uint64_t in_cells = value_size > 8 ? items : 0;
  if (stats.free_cells + in_cells != stats.value_cells) {
    return fmt::format("{} cells, {} of them free, and {} items in cells: {} are lost",
                       stats.value_cells, stats.free_cells, in_cells,
                       static_cast<std::int64_t>(stats.value_cells) -
                           static_cast<std::int64_t>(stats.free_cells + in_cells));
  }
  return {};
}

std::string CheckFile(const std::string& path, std::uint64_t items, std::uint32_t value_size) {
  const CheckReport report = CheckPool(path);
  if (!report.defects.empty()) return "check: " + report.defects.front();
  const std::uint64_t in_cells = value_size > 8 ? items : 0;
  if (!report.clean || report.resizing || report.items != items ||
      report.cells_in_use != in_cells || report.insert_slots + report.duplicates != 0) {
    return fmt::format(
        "check: clean {}, resizing {}, {} items of {}, {} cells in use, {} half-inserted, {} "
        "duplicates",
        report.clean, report.resizing, report.items, items, report.cells_in_use,
        report.insert_slots, report.duplicates);
  }
  return {};
}

std::string CheckRoundEnd(RoundState& round, const std::vector<std::unique_ptr<Lane>>& lanes,
                          const std::string& path) {
  const Shape& shape = round.plan.shape;
  const std::vector<std::uint64_t> ids = AllIds(round, lanes);
  const Contents contents = FindAll(round.store, shape, ids);
  const std::uint64_t items = contents.items.size();
  std::string wrong = When("finds at the end", contents.defect);
  if (wrong.empty()) wrong = When("the lanes' keys at the end", CompareModels(contents, lanes));
  if (wrong.empty()) wrong = CheckHistories(round, contents);
  ++round.totals.steps;
  if (wrong.empty()) {
    wrong = When("a visit at the end", Difference(contents, VisitAll(round.store, shape)));
  }
  const StoreStats stats = round.store.Stats();
  round.totals.resizes += stats.resizes;
  round.totals.cache_loads += stats.cache.refreshes;
  if (wrong.empty()) wrong = When("at the end", CheckFigures(stats, items, shape.value_size));
  round.store.Close();
  ++round.totals.steps;
  if (wrong.empty()) wrong = When("closed", CheckFile(path, items, shape.value_size));
  return wrong.empty() ? CheckOpenedAgain(round, ids, contents, path) : wrong;
}

std::string CheckOpenedAgain(RoundState& round, std::span<const std::uint64_t> ids,
                             const Contents& contents, const std::string& path) {
  const Shape& shape = round.plan.shape;
  Store reopened = Store::Open(path, round.plan.reopen);
  ++round.totals.steps;
  const StoreStats again = reopened.Stats();
  std::string wrong;
  if (!again.recovery.was_clean) wrong = "opened again: recovery says that it was not closed";
  if (wrong.empty()) {
    wrong = When("opened again", CheckFigures(again, contents.items.size(), shape.value_size));
  }
  if (wrong.empty()) {
    wrong = When("finds, opened again", Difference(contents, FindAll(reopened, shape, ids)));
  }
  reopened.Close();
  return wrong;
}

std::string CheckUnusable(RoundState& round, const std::string& path) {
  const Shape& shape = round.plan.shape;
  ++round.totals.given_up;
  round.store.Close();
  const CheckReport report = CheckPool(path);
  if (!report.defects.empty()) return "given up: check: " + report.defects.front();
  OpenOptions open = round.plan.reopen;
  open.max_bytes *= 8;
  Store reopened = Store::Open(path, open);
  const Contents contents = VisitAll(reopened, shape);
  std::string wrong = When("given up, opened again", contents.defect);
  const std::uint64_t items = contents.items.size();
  if (wrong.empty()) {
    wrong = When("given up, opened again", CheckFigures(reopened.Stats(), items, shape.value_size));
  }
  reopened.Close();
  return wrong.empty() ? When("given up, closed again", CheckFile(path, items, shape.value_size))
                       : wrong;
}

}  // namespace gpm::stress
