#ifndef GPM_TESTS_DISTRIBUTED_TEST_H_
#define GPM_TESTS_DISTRIBUTED_TEST_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpmstore/distributed_store.h"
#include "gpmstore/error.h"
#include "tests/ranks.h"
#include "tests/test_util.h"

namespace gpm::test {

/// Ranks that are threads of this process.
class DistributedTest : public PoolTest {
 protected:
  /// @param create of stores that Open makes
  explicit DistributedTest(CreateOptions create) : create_(std::move(create)) {}

  using Errors = std::vector<std::optional<ErrorCode>>;

  Errors OnAll(const std::function<void(std::uint32_t)>& action) {
    return OnAllRanks(ranks_, action, &messages_);
  }
  /// Opens, or creates, with so many ranks; stores of those that threw are empty.
  Errors Open(const std::string& folder, std::uint32_t ranks, std::uint32_t shards = 0,
              bool create = false) {
    ranks_ = ranks;
    stores_.clear();
    stores_.resize(ranks);
    auto exchanges = MakeThreadExchanges(ranks);
    return OnAll([&](std::uint32_t i) {
      const OpenOptions open = TestOpenOptions();
      stores_[i] = create ? DistributedStore::Create(folder, std::move(exchanges[i]), create_,
                                                     {.shards = shards}, open)
                          : DistributedStore::Open(folder, std::move(exchanges[i]), open,
                                                   {.shards = shards});
    });
  }
  void ExpectNoErrors(const Errors& errors) {
    for (std::uint32_t i = 0; i < ranks_; ++i) EXPECT_FALSE(errors[i]) << messages_[i];
  }
  void ExpectAll(ErrorCode code, const Errors& errors, const std::string& word) {
    for (std::uint32_t i = 0; i < ranks_; ++i) {
      EXPECT_EQ(errors[i], code);
      EXPECT_NE(messages_[i].find(word), std::string::npos) << messages_[i];
    }
  }

  std::uint32_t ranks_ = 0;
  std::vector<DistributedStore> stores_;
  std::vector<std::string> messages_;  ///< of what the last call threw, on each rank

 private:
  const CreateOptions create_;
};

}  // namespace gpm::test

#endif  // GPM_TESTS_DISTRIBUTED_TEST_H_
