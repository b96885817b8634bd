// Commands that check something, and find it wrong: exit status 1, and what they say.

#include <cstddef>
#include <string>

#include "tests/cli_test_util.h"

namespace gpm {
namespace {

TEST_F(CliTest, YcsbSeesWrongValues) {
  const std::string pool = NewPath();
  const std::string load = "ycsb -w load --records 100 --value-size 40 --keep --pool " + pool;
  ASSERT_EQ(Run(load + OnExecutor()).status, 0);
  const std::string finds =
      "ycsb -w c --operations 1000 --verify all --pool " + pool + OnExecutor();
  ASSERT_EQ(Run(finds).status, 0);
  const std::string items = Run("dump " + pool).out;
  for (std::size_t at = 0; at < items.size(); at = items.find('\n', at) + 1) {
    const std::string key = items.substr(at, items.find('\t', at) - at);
    ASSERT_EQ(Run("put " + pool + " " + key + " other").status, 0);
  }
  const Ran wrong = Run(finds + " --json -");
  EXPECT_EQ(wrong.status, 1);
  EXPECT_EQ(wrong.err.rfind("gpmstore: run: 1000 of 1000 verified results were wrong, first ", 0),
            0u)
      << wrong.err;
  EXPECT_EQ(Json::parse(wrong.out)["run"]["wrong"], 1000);
  // Nobody is told of what nobody compared.
  EXPECT_EQ(Run("ycsb -w c --operations 100 --verify none --pool " + pool + OnExecutor()).status,
            0);
}

TEST_F(CliTest, StressThatFindsSomethingIsStatus1) {
  const Ran no_pool = Run("stress --executor cpu --seed 7", "TMPDIR=/nonexistent");
  EXPECT_EQ(no_pool.status, 1);
  for (const std::string line :
       {"FAILED with seed 7:", "the round can't begin: ", "replay: gpmstore stress --seed 7 "}) {
    EXPECT_NE(no_pool.out.find("\n" + line), std::string::npos) << no_pool.out;
  }
}

}  // namespace
}  // namespace gpm
