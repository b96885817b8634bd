#ifndef GPM_CLI_KEY_LOG_H_
#define GPM_CLI_KEY_LOG_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gpm::cli {

/// What tests know of a key: whether it is there, and what stands for its value.
struct KeyState {
  bool present = false;
  std::uint64_t token = 0;
};

/// When something was under way, on a clock of all threads.
struct Interval {
  std::uint64_t invoked_at;
  std::uint64_t returned_at;
};

/// What the batches of somebody made of keys that nobody else has, while a snapshot was taken. A
/// snapshot has each batch as a whole or not at all: so the keys in it are as between two of them,
/// and that says when its instant was.
struct KeyLog {
  struct Change {
    std::uint64_t number;  ///< of the key
    KeyState state;        ///< from then on
  };
  struct Batch {
    Interval interval;
    std::size_t changes;  ///< of it and those before
  };
  std::vector<KeyState> before;
  std::vector<Change> changes;
  std::vector<Batch> batches;  ///< one after the other
};

/// A set of moments: intervals, in order, that do not touch.
using Moments = std::vector<Interval>;

Moments Common(const Moments& left, const Moments& right);

/// When the keys of a log may have been `held`.
/// @param wrong if there is no such moment, set to what is wrong
Moments MomentsOf(const KeyLog& log, std::span<const KeyState> held, std::string* wrong);

}  // namespace gpm::cli

#endif  // GPM_CLI_KEY_LOG_H_
