#ifndef GPM_CLI_STRESS_ANSWER_CHECK_H_
#define GPM_CLI_STRESS_ANSWER_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cli/key_log.h"
#include "cli/stress/batch_plan.h"
#include "cli/stress/round_state.h"

namespace gpm::stress {

/// What a lane knows of its own keys.
class KeyModel {
 public:
  using State = cli::KeyState;
  explicit KeyModel(std::uint32_t keys) : states_(keys) {}

  const State& operator[](std::uint64_t number) const { return states_[number]; }
  void Set(std::uint64_t number, const State& state) {
    if (!sums_.empty()) sums_.erase(number);
    Change(number, state);
  }
  /// Adds the row that an operation with key `id` and this version wrote to what the key holds.
  void Accumulate(std::uint64_t id, Element element, std::uint32_t value_size,
                  std::uint64_t version);
  std::uint64_t keys() const { return states_.size(); }
  const std::vector<State>& states() const { return states_; }
  /// What Set does is added to `changes`; null: no more.
  void RecordTo(std::vector<cli::KeyLog::Change>* changes) { changes_ = changes; }

 private:
  void Change(std::uint64_t number, const State& state) {
    states_[number] = state;
    if (changes_ != nullptr) changes_->push_back({number, state});
  }

  std::vector<State> states_;
  std::unordered_map<std::uint64_t, std::vector<std::byte>> sums_;  ///< of keys that hold one
  std::vector<cli::KeyLog::Change>* changes_ = nullptr;
};

using cli::Interval;

/// Compares what a batch answered with what it may answer: of the lane's own keys exactly one
/// thing, of others what no state of the key rules out. Operations on watched keys are recorded.
///
/// @param model of the lane; becomes that after the batch
/// @return empty, or what is wrong
std::string CheckAnswers(const Drawer& drawer, const BatchPlan& batch, const Answers& answers,
                         const Interval& interval, KeyModel* model, Totals* totals);

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_ANSWER_CHECK_H_
