#ifndef GPM_TESTS_FAULT_STORIES_H_
#define GPM_TESTS_FAULT_STORIES_H_

#include <cstdint>
#include <span>

#include "tests/fault_session.h"
#include "tests/test_util.h"

/// What happens to the stores of which each call fails once.
namespace gpm::test {

/// How a story finds its pool.
enum class Before : std::uint8_t { kNothing, kClosed, kCrashed, kResizing };

struct Story {
  const char* name;
  Before before;
  std::uint64_t max_bytes;
  void (*tell)(FaultSession& session);
};
std::span<const Story> Stories();

/// Keys that a pool has which is there when its story begins, from 0.
inline constexpr std::uint64_t kLoaded = 600;

/// All kinds, several operations on a key.
TestBatch MixedOperations(const FaultSession& session, std::uint64_t keys, std::uint64_t count);
void Insert(FaultSession& session, std::uint64_t first, std::uint64_t count);

}  // namespace gpm::test

#endif  // GPM_TESTS_FAULT_STORIES_H_
