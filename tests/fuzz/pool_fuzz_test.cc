#include "tests/fuzz/pool_fuzz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/base_pools.h"
#include "tests/test_util.h"

/// Damaged pools, without a fuzzer: its corpus, and inputs from a seed. GPM_TEST_OPS scales the
/// number of the latter.
namespace gpm::fuzz {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::string Hex(const Bytes& input) {
  std::string text;
  for (const std::uint8_t byte : input) {
    const char* digits = "0123456789abcdef";
    text += {digits[byte >> 4], digits[byte & 15]};
  }
  return text;
}

/// @return whether what must hold of a damaged pool held
bool Passes(const Bytes& input, Tally* tally) {
  try {
    tally->Add(RunInput(input));
    return true;
  } catch (const std::exception& violation) {
    ADD_FAILURE() << violation.what() << "\ninput: " << Hex(input);
    return false;
  }
}

void Print(const char* what, std::uint64_t inputs, const Tally& tally) {
  std::printf("%llu %s: %s\n", static_cast<unsigned long long>(inputs), what,
              tally.ToString().c_str());
}

TEST(PoolFuzzTest, BasePoolsAreSound) {
  for (std::size_t i = 0; i < BasePools().size(); ++i) {
    for (const std::uint8_t flags : {0x00, 0x08, 0x10, 0x40, 0x80, 0xC0, 0xC8, 0xD8}) {
      SCOPED_TRACE(BasePools()[i].name);
      const Outcome outcome = RunInput(Bytes{static_cast<std::uint8_t>(i), flags});
      EXPECT_TRUE(outcome.opened);
      EXPECT_TRUE(outcome.sound);
      EXPECT_TRUE(outcome.table_intact);
    }
  }
}

TEST(PoolFuzzTest, Corpus) {
  Tally tally;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(GPM_FUZZ_CORPUS)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& path : files) {
    SCOPED_TRACE(path.filename());
    std::ifstream file(path, std::ios::binary);
    ASSERT_TRUE(Passes(Bytes(std::istreambuf_iterator<char>(file), {}), &tally));
  }
  Print("inputs of the corpus", files.size(), tally);
  EXPECT_GT(tally.opened(), 0u);
  EXPECT_GT(tally.refused(), 0u);
}

TEST(PoolFuzzTest, RandomInputs) {
  std::mt19937_64 random(test::TestSeed());
  const std::uint64_t inputs = test::EnvironmentNumber("GPM_TEST_OPS", 1'000'000) / 100;
  Tally tally;
  for (std::uint64_t i = 0; i < inputs; ++i) {
    Bytes input(4 + random() % 40);
    for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random());
    // Most keep their size and have right checksums: others do not get far.
    if (random() % 8 != 0) input[3] = 0;
    if (random() % 8 != 0) input[1] |= 3;
    ASSERT_TRUE(Passes(input, &tally));
  }
  Print("random inputs", inputs, tally);
  EXPECT_GT(tally.opened(), inputs / 10);
  EXPECT_GT(tally.refused(), inputs / 10);
}

}  // namespace
}  // namespace gpm::fuzz
