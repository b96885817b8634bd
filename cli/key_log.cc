#include "cli/key_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace gpm::cli {
namespace {

constexpr std::uint64_t kEver = std::numeric_limits<std::uint64_t>::max();

bool Same(const KeyState& left, const KeyState& right) {
  return left.present == right.present && (!left.present || left.token == right.token);
}

std::string Text(const KeyState& state) {
  return state.present ? fmt::format("{:#x}", state.token) : "nothing";
}

void Add(const Interval& interval, Moments* moments) {
  if (!moments->empty() && interval.invoked_at <= moments->back().returned_at) {
    moments->back().returned_at = std::max(moments->back().returned_at, interval.returned_at);
  } else {
    moments->push_back(interval);
  }
}

}  // namespace

Moments Common(const Moments& left, const Moments& right) {
  Moments common;
  for (std::size_t l = 0, r = 0; l < left.size() && r < right.size();) {
    const Interval both{std::max(left[l].invoked_at, right[r].invoked_at),
                        std::min(left[l].returned_at, right[r].returned_at)};
    if (both.invoked_at <= both.returned_at) common.push_back(both);
    (left[l].returned_at < right[r].returned_at ? l : r)++;
  }
  return common;
}

Moments MomentsOf(const KeyLog& log, std::span<const KeyState> held, std::string* wrong) {
  std::vector<KeyState> states = log.before;
  std::uint64_t different = 0;
  for (std::size_t i = 0; i < states.size(); ++i) different += !Same(states[i], held[i]);
  std::uint64_t fewest = different;
  std::vector<KeyState> closest = states;
  Moments moments;
  std::uint64_t since = 0;
  std::size_t change = 0;
  for (std::size_t batch = 0;; ++batch) {
    const bool last = batch == log.batches.size();
    if (different == 0) {
      Add({since, last ? kEver : log.batches[batch].interval.returned_at}, &moments);
    } else if (different < fewest) {
      fewest = different;
      closest = states;
    }
    if (last) break;
    since = log.batches[batch].interval.invoked_at;
    for (; change < log.batches[batch].changes; ++change) {
      const auto& [number, state] = log.changes[change];
      different -= !Same(states[number], held[number]);
      states[number] = state;
      different += !Same(state, held[number]);
    }
  }
  if (!moments.empty()) return moments;
  for (std::size_t i = 0; i < closest.size(); ++i) {
    if (Same(closest[i], held[i])) continue;
    *wrong = fmt::format(
        "its keys are as after none of {} batches: at best {} are not, the first of them key {}, "
        "with {} and not {}",
        log.batches.size(), fewest, i, Text(held[i]), Text(closest[i]));
    break;
  }
  return moments;
}

}  // namespace gpm::cli
