#ifndef GPM_CLI_STRESS_RANDOM_H_
#define GPM_CLI_STRESS_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "table/hash.h"

namespace gpm::stress {

/// Numbers from a seed, a few nanoseconds each (splitmix64): millions of operations a second are
/// drawn. The same on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(Scramble(seed)) {}

  std::uint64_t operator()() {
    state_ += 0x9E3779B97F4A7C15ull;
    return Scramble(state_);
  }
  /// Less than `n`, or 0.
  std::uint64_t Below(std::uint64_t n) { return n == 0 ? 0 : (*this)() % n; }
  /// True once in `n` times.
  bool OneIn(std::uint64_t n) { return Below(n) == 0; }
  template <class T>
  T Choose(std::initializer_list<T> choices) {
    return choices.begin()[Below(choices.size())];
  }

 private:
  std::uint64_t state_;
};

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_RANDOM_H_
