#include "crash_sim/linearizability.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <unordered_set>

#include "table/operation.h"

namespace gpm::crash {
namespace {

using Value = std::optional<std::uint64_t>;

/// Searches an order for the operations on one key.
class KeySearch {
 public:
  explicit KeySearch(const History& operations) : operations_(operations) {
    if (operations.size() > 64) {
      throw std::invalid_argument(
          fmt::format("a history of {} operations on one key; at most 64", operations.size()));
    }
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const HistoryOp& op = operations[i];
      if (!op.pending()) required_ |= Bit(i);
      std::uint64_t before = 0;
      for (std::size_t j = 0; j < operations.size(); ++j) {
        const HistoryOp& other = operations[j];
        if (other.returned_at < op.invoked_at ||
            (other.batch == op.batch && other.position < op.position)) {
          before |= Bit(j);
        }
      }
      before_.push_back(before);
    }
  }

  bool Orders(const Value& value) { return Orders(0, value); }

 private:
  struct State {
    std::uint64_t done;
    Value value;
    friend bool operator==(const State&, const State&) = default;
  };
  struct HashState {
    std::size_t operator()(const State& state) const {
      return Scramble(state.done + 0x9E3779B97F4A7C15ull * state.value.value_or(~0ull));
    }
  };

  static std::uint64_t Bit(std::size_t i) { return std::uint64_t{1} << i; }

  /// Whether the operations not in `done` can follow, the key holding `value`.
  bool Orders(std::uint64_t done, const Value& value) {
    if ((required_ & ~done) == 0) return true;
    if (!tried_.insert(State{done, value}).second) return false;
    // One that fits here and changes nothing may be the next one: if there is an order in which it
    // comes later, there is one in which it comes now.
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      if (CanBeNext(i, done) && !operations_[i].pending() &&
          ChangesNothing(operations_[i], value)) {
        return Orders(done | Bit(i), value);
      }
    }
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      if (!CanBeNext(i, done)) continue;
      const HistoryOp& op = operations_[i];
      const Action action = ActionOf(op, value);
      if (op.pending() || (action != Action::kKeep && Fits(op, value))) {
        const Value after = action == Action::kKeep    ? value
                            : action == Action::kErase ? Value()
                            : action == Action::kAdd   ? Value(*value + op.written)
                                                       : Value(op.written);
        if (Orders(done | Bit(i), after)) return true;
      }
      // Without effect: of a pending one it is not known that it was not refused.
      if (op.pending() && WritesValue(action) && Orders(done | Bit(i), value)) return true;
    }
    return false;
  }

  bool CanBeNext(std::size_t i, std::uint64_t done) const {
    return (done & Bit(i)) == 0 && (before_[i] & ~done) == 0;
  }
  static Action ActionOf(const HistoryOp& op, const Value& value) {
    const Plan plan = PlanOf(op.op, reinterpret_cast<const std::byte*>(&op.written));
    return value ? plan.if_present : plan.if_absent;
  }
  /// Whether it has the result that it has when it meets this value and is not refused.
  static bool Fits(const HistoryOp& op, const Value& value) {
    if (op.result != ResultOf(op.op, value.has_value())) return false;
    return !HasFound(op.op, op.result) || op.found == value.value_or(op.written);
  }
  static bool ChangesNothing(const HistoryOp& op, const Value& value) {
    switch (ActionOf(op, value)) {
      case Action::kKeep:
        return op.result == Result::kInvalid || Fits(op, value);
      case Action::kWrite:
      case Action::kAdd:
        return op.result == Result::kInvalid || op.result == Result::kNoSpace;
      default:
        return op.result == Result::kInvalid;
    }
  }

  const History& operations_;
  std::uint64_t required_ = 0;         ///< those that took effect
  std::vector<std::uint64_t> before_;  ///< by operation: those that must be done first
  std::unordered_set<State, HashState> tried_;
};

}  // namespace

std::string FindNonlinearizable(const History& history, const KeyValues& before) {
  std::map<std::uint64_t, History> by_key;
  for (const HistoryOp& op : history) by_key[op.key].push_back(op);
  for (auto& [key, operations] : by_key) {
    // What returned first was mostly first: the search then hardly turns back.
    std::stable_sort(
        operations.begin(), operations.end(), [](const HistoryOp& a, const HistoryOp& b) {
          return std::tie(a.returned_at, a.position) < std::tie(b.returned_at, b.position);
        });
    const auto item = before.find(key);
    const Value value = item == before.end() ? Value() : Value(item->second);
    if (!KeySearch(operations).Orders(value)) {
      return fmt::format("no order explains the operations on key {:#x}, which held {} first:\n{}",
                         key, value ? fmt::format("{:#x}", *value) : "nothing",
                         Describe(operations));
    }
  }
  return {};
}

std::string Describe(History history) {
  std::stable_sort(history.begin(), history.end(), [](const HistoryOp& a, const HistoryOp& b) {
    return std::tie(a.invoked_at, a.batch, a.position) <
           std::tie(b.invoked_at, b.batch, b.position);
  });
  std::string text;
  for (const HistoryOp& op : history) {
    text += fmt::format("  [{} .. {}] batch {}.{}: {} key {:#x}", op.invoked_at,
                        op.pending() ? "crash" : std::to_string(op.returned_at), op.batch,
                        op.position, OpName(op.op), op.key);
    if (Writes(op.op)) text += fmt::format(" value {:#x}", op.written);
    if (!op.pending()) {
      text += fmt::format(" -> {}", ResultName(op.result));
      if (HasFound(op.op, op.result)) text += fmt::format(" {:#x}", op.found);
    }
    text += '\n';
  }
  return text;
}

}  // namespace gpm::crash
