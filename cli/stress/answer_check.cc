#include "cli/stress/answer_check.h"

#include <fmt/format.h>

#include "table/elements.h"
#include "table/group.h"
#include "table/operation.h"

namespace gpm::stress {
namespace {

constexpr std::size_t kMaxShown = 8;

/// Whether an operation may have had this result.
bool IsLegal(Op op, bool present, bool has_value, bool may_lack, Result result) {
  if (result == ResultOf(op, present, has_value)) return true;
  if (result != Result::kNoSpace || !may_lack || !IsValid(op, has_value)) return false;
  if (!present && op == Op::kFindOrInsert) return true;
  if (present && op == Op::kAccumulate) return true;
  return op == Op::kUpsert || op == (present ? Op::kUpdate : Op::kInsert);
}

class Check {
 public:
  Check(const Drawer& drawer, const BatchPlan& batch, const Answers& answers,
        const Interval& interval, KeyModel* model)
      : drawer_(drawer),
        batch_(batch),
        answers_(answers),
        interval_(interval),
        model_(*model),
        // A scope has the room that there was when it was opened.
        may_lack_(drawer.round.tight || batch.call == Call::kScope) {}

  void Run() {
    for (std::uint32_t i = 0; i < batch_.n; ++i) Answer(i);
  }
  std::string Text() const {
    if (wrong_ == 0) return {};
    return fmt::format("{} of the answers are wrong:\n{}", wrong_, text_);
  }
  std::uint64_t no_space() const { return no_space_; }

 private:
  bool HasValue(Op op) const {
    return batch_.has_values && (op != Op::kAccumulate || batch_.element != Element::kNone);
  }

  void Wrong(std::uint32_t i, const std::string& what) {
    if (++wrong_ > kMaxShown) return;
    text_ += fmt::format("    operation {}: {} of {} (version {:#x}): {}\n", i,
                         OpName(OpOf(batch_.operations[i])), KeyName(IdOf(batch_.operations[i])),
                         batch_.first_version + i, what);
  }

  void Answer(std::uint32_t i) {
    const Op op = OpOf(batch_.operations[i]);
    const std::uint64_t id = IdOf(batch_.operations[i]);
    if (answers_.results[i] > static_cast<std::uint8_t>(Result::kInvalid)) {
      const bool poison = answers_.results[i] == kPoisonResult;
      Wrong(i, fmt::format("its result is {:#x}{}", answers_.results[i],
                           poison ? ": never written" : ""));
      return;
    }
    const auto result = static_cast<Result>(answers_.results[i]);
    if (result == Result::kNoSpace) ++no_space_;
    const bool has_token = HasFound(op, result) && batch_.has_found;
    const std::uint64_t token = has_token ? answers_.tokens[i] : 0;
    if (has_token && token == kPoisonRow)
      return Wrong(i, "answered, and its row was never written");
    if (has_token && token == kWrongRow) {
      return Wrong(i, "answered, and its row is not a whole value of this key");
    }
    if (OwnerOf(id) >= kFirstLane) {
      Own(i, op, id, result, has_token, token);
    } else if (!IsLegal(op, true, HasValue(op), may_lack_, result) &&
               !IsLegal(op, false, HasValue(op), may_lack_, result)) {
      Wrong(i, fmt::format("{}, which it can't be", ResultName(result)));
    } else if (OwnerOf(id) == kWatched) {
      Record(i, op, id, result, token);
    }
  }

  void Own(std::uint32_t i, Op op, std::uint64_t id, Result result, bool has_token,
           std::uint64_t token) {
    KeyModel::State state = model_[NumberOf(id)];
    if (!IsLegal(op, state.present, HasValue(op), may_lack_, result)) {
      return Wrong(
          i, fmt::format("{}, and the key {}", ResultName(result),
                         state.present ? fmt::format("holds {:#x}", state.token) : "is not there"));
    }
    const std::uint64_t written = TokenOf(drawer_.round.shape.value_size, batch_.first_version + i);
    if (op == Op::kFindOrInsert && result == Result::kOk) {
      if (has_token && token != written) {
        return Wrong(i, fmt::format("ok with {:#x}, which it did not write", token));
      }
    } else if (has_token && token != state.token) {
      return Wrong(i, fmt::format("ok with {:#x}, and the key holds {:#x}", token, state.token));
    }
    if (result != Result::kOk || op == Op::kFind) return;
    if (op == Op::kAccumulate) {
      return model_.Accumulate(id, batch_.element, drawer_.round.shape.value_size,
                               batch_.first_version + i);
    }
    state.present = op != Op::kErase;
    if (state.present) state.token = written;
    model_.Set(NumberOf(id), state);
  }

  void Record(std::uint32_t i, Op op, std::uint64_t id, Result result, std::uint64_t token) {
    crash::HistoryOp record;
    record.key = NumberOf(id);
    record.op = op;
    record.written = TokenOf(drawer_.round.shape.value_size, batch_.first_version + i);
    record.result = result;
    record.found = token;
    record.invoked_at = interval_.invoked_at;
    record.returned_at = interval_.returned_at;
    // Finds of a batch that only finds have no order among each other (gpmstore/batch.h).
    record.batch = batch_.finds_only ? batch_.first_version + i : batch_.first_version;
    record.position = i;
    drawer_.watched.Record(drawer_.thread, record);
  }

  const Drawer& drawer_;
  const BatchPlan& batch_;
  const Answers& answers_;
  const Interval& interval_;
  KeyModel& model_;
  const bool may_lack_;
  std::uint64_t wrong_ = 0;
  std::uint64_t no_space_ = 0;
  std::string text_;
};

}  // namespace

void KeyModel::Accumulate(std::uint64_t id, Element element, std::uint32_t value_size,
                          std::uint64_t version) {
  const auto [sum, written] = sums_.try_emplace(NumberOf(id), value_size);
  if (written) PutValueRow(sum->second.data(), value_size, id, states_[NumberOf(id)].token);
  std::vector<std::byte> row(value_size);
  PutValueRow(row.data(), value_size, id, TokenOf(value_size, version));
  AddRows(ThreadGroup{}, {.element = element, .sum = sum->second.data(), .rows = row.data()},
          value_size);
  Change(NumberOf(id), {true, JudgeRow(sum->second.data(), value_size, id)});
}

std::string CheckAnswers(const Drawer& drawer, const BatchPlan& batch, const Answers& answers,
                         const Interval& interval, KeyModel* model, Totals* totals) {
  Check check(drawer, batch, answers, interval, model);
  check.Run();
  totals->no_space += check.no_space();
  return check.Text();
}

}  // namespace gpm::stress
