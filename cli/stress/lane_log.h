#ifndef GPM_CLI_STRESS_LANE_LOG_H_
#define GPM_CLI_STRESS_LANE_LOG_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/stress/answer_check.h"

namespace gpm::stress {

/// What a lane's batches made of its own keys while a snapshot was taken. A snapshot has each of
/// them as a whole or not at all: so the lane's keys in it are as between two of them, and that
/// says when its instant was.
struct LaneLog {
  struct Batch {
    Interval interval;
    std::size_t changes;  ///< of it and those before
  };
  std::vector<KeyModel::State> before;
  std::vector<KeyModel::Change> changes;
  std::vector<Batch> batches;  ///< one after the other
};

/// A set of moments: intervals, in order, that do not touch.
using Moments = std::vector<Interval>;

Moments Common(const Moments& left, const Moments& right);

/// When a lane's keys may have been `held`.
/// @param wrong if there is no such moment, what is wrong
Moments MomentsOf(const LaneLog& log, std::span<const KeyModel::State> held, std::string* wrong);

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_LANE_LOG_H_
