#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "gpmstore/store.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

struct Ranges {
  std::map<std::string, int> begun;  ///< by domain and name
  std::map<std::string, std::uint64_t> counts;
  std::map<std::uint64_t, int> open;  ///< by id: 1 while it is
};

Ranges ReadLog(const std::string& path) {
  Ranges ranges;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string what, domain, name;
    std::uint64_t id = 0, count = 0;
    words >> what >> id;
    ranges.open[id] += what == "start" ? 1 : -1;
    if (what != "start") continue;
    words >> domain >> name >> count;
    ++ranges.begun[domain + " " + name];
    ranges.counts[domain + " " + name] += count;
  }
  return ranges;
}

class ProfilerTest : public PoolTest {};

TEST_F(ProfilerTest, ShowsBatchesResizesRefreshesAndRecovery) {
  const std::string log = NewPath();
  ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", GPM_NVTX_PROBE, 1), 0);
  ASSERT_EQ(setenv("GPM_NVTX_LOG", log.c_str(), 1), 0);
  const std::string path = NewPath();
  OpenOptions open = TestOpenOptions();
  open.cache.directory = true;
  open.cache.fraction = 0.5;
  {
    Store store = Store::Create(path, {.key_size = 8, .value_size = 16}, open);
    const auto insert = [&](std::uint64_t first, std::uint64_t last) {
      TestBatch batch(8, 16);
      for (std::uint64_t key = first; key < last; ++key) batch.Add(Op::kInsert, key, key);
      batch.ApplySingle(store, Op::kInsert);
    };
    insert(0, 1);  // (Many into an empty store are a bulk load.)
    insert(1, 5000);
    store.RefreshCache().Wait();
    ASSERT_GT(store.Stats().resizes, 0u);
  }
  { const Store store = Store::Open(path, open); }
  const Ranges ranges = ReadLog(log);
  EXPECT_EQ(ranges.begun.at("gpmstore batch"), 2);
  EXPECT_EQ(ranges.counts.at("gpmstore batch"), 5000u);
  EXPECT_GE(ranges.begun.at("gpmstore resize"), 1);
  EXPECT_GE(ranges.begun.at("gpmstore refresh"), 1);
  EXPECT_EQ(ranges.begun.at("gpmstore recovery"), 1);
  for (const auto& [id, open_ranges] : ranges.open) EXPECT_EQ(open_ranges, 0) << "range " << id;
}

}  // namespace
}  // namespace gpm::test
