#ifndef GPM_TESTS_RANKS_H_
#define GPM_TESTS_RANKS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpmstore/error.h"
#include "tests/test_util.h"

namespace gpm::test {

/// Calls action(rank) on a thread for each rank.
/// @param messages of what each threw, or empty
/// @return the code of the gpm::Error that each threw, or nothing
inline std::vector<std::optional<ErrorCode>> OnAllRanks(
    std::uint32_t ranks, const std::function<void(std::uint32_t)>& action,
    std::vector<std::string>* messages) {
  std::vector<std::optional<ErrorCode>> errors(ranks);
  messages->assign(ranks, "");
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < ranks; ++i) {
    threads.emplace_back([&, i] { errors[i] = ErrorOf([&] { action(i); }, &(*messages)[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace gpm::test

#endif  // GPM_TESTS_RANKS_H_
