// YCSB's generators against theory, and against traces that YCSB itself printed.

#include "ycsb/generators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/test_util.h"
#include "ycsb/items.h"
#include "ycsb/trace.h"

namespace gpm::ycsb {
namespace {

using test::ErrorOf;

std::string DataPath(const std::string& name) { return std::string(GPM_TEST_DATA "/") + name; }

/// Largest distance between the cumulative shares of `counts` and of `expected` (which sums to 1).
double LargestDeviation(const std::vector<std::uint64_t>& counts,
                        const std::vector<double>& expected) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), 0ull));
  double seen = 0;
  double due = 0;
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    seen += static_cast<double>(counts[i]) / total;
    due += expected[i];
    largest = std::max(largest, std::abs(seen - due));
  }
  return largest;
}

/// Pearson's statistic divided by its degrees of freedom: near 1 when the counts follow.
double ChiSquarePerDegree(const std::vector<std::uint64_t>& counts,
                          const std::vector<double>& expected) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), 0ull));
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double due = expected[i] * total;
    sum += (static_cast<double>(counts[i]) - due) * (static_cast<double>(counts[i]) - due) / due;
  }
  return sum / static_cast<double>(counts.size() - 1);
}

std::vector<double> ZipfShares(std::size_t items, double theta) {
  std::vector<double> shares(items);
  double zeta = 0;
  for (std::size_t i = 0; i < items; ++i) zeta += shares[i] = std::pow(i + 1.0, -theta);
  for (double& share : shares) share /= zeta;
  return shares;
}

/// Draws of YCSB's "zipfian" from `records` records, counted by record. Its modulus is one more
/// than the records (an inclusive bound), and draws beyond them are repeated.
std::vector<std::uint64_t> CountScrambled(std::uint64_t records, int draws) {
  const ScrambledZipfian generator(records + 1);
  Random random(test::TestSeed());
  std::vector<std::uint64_t> counts(records + 1);
  for (int i = 0; i < draws;) {
    const std::uint64_t record = generator.Draw(random);
    if (record == records) continue;
    ++counts[record];
    ++i;
  }
  return counts;
}

TEST(Generators, FnvIsThatOfYcsb) {
  // The first keys that every YCSB load with hashed keys prints.
  EXPECT_EQ(FnvHash64(0), 6284781860667377211u);
  EXPECT_EQ(FnvHash64(1), 8517097267634966620u);
  EXPECT_EQ(FnvHash64(2), 1820151046732198393u);
  for (std::uint64_t i = 0; i < 100'000; ++i) ASSERT_EQ(FnvHash64(i) >> 63, 0u) << i;
}

TEST(Generators, ZetaEqualsTheSum) {
  for (const double theta : {0.0, 0.5, 0.99, 1.0, 1.2, 5.0}) {
    double sum = 0;
    for (std::uint64_t n = 1; n <= 300'000; ++n) {
      sum += std::pow(static_cast<double>(n), -theta);
      if (n < 200 || n % 99'991 == 0) {
        ASSERT_NEAR(Zeta(n, theta) / sum, 1, 1e-11) << "theta " << theta << ", n " << n;
      }
    }
  }
  // YCSB sums 10^10 terms one by one, so its constant has rounding errors of its own.
  EXPECT_NEAR(Zeta(ScrambledZipfian::kRange, 0.99), ScrambledZipfian::kRangeZeta, 1e-9);
}

TEST(Generators, UniformIsUniform) {
  Random random(test::TestSeed());
  std::vector<std::uint64_t> counts(1000);
  for (int i = 0; i < 1'000'000; ++i) ++counts[random.NextBelow(counts.size())];
  const std::vector<double> shares(counts.size(), 1.0 / static_cast<double>(counts.size()));
  const double chi = ChiSquarePerDegree(counts, shares);
  EXPECT_GT(chi, 0.75);  // with 999 degrees the standard deviation is 0.045
  EXPECT_LT(chi, 1.25);
}

TEST(Generators, StreamsAreIndependent) {
  // One draw from each of many streams is as good as many from one.
  std::vector<std::uint64_t> counts(1000);
  for (std::uint64_t i = 0; i < 1'000'000; ++i) ++counts[Random(7, i).NextBelow(counts.size())];
  const std::vector<double> shares(counts.size(), 1.0 / static_cast<double>(counts.size()));
  EXPECT_NEAR(ChiSquarePerDegree(counts, shares), 1, 0.25);
  EXPECT_NE(Random(7, 1).Next(), Random(8, 1).Next());
  EXPECT_EQ(Random(7, 1).Next(), Random(7, 1).Next());
}

TEST(Generators, ZipfianFollowsTheory) {
  constexpr std::size_t kItems = 1000;
  constexpr int kDraws = 1'000'000;
  for (const double theta : {0.0, 0.5, 0.99, 1.0, 1.2, 2.0}) {
    const Zipfian generator(kItems, theta);
    Random random(test::TestSeed());
    std::vector<std::uint64_t> counts(kItems);
    for (int i = 0; i < kDraws; ++i) ++counts.at(generator.Draw(random));
    const std::vector<double> shares = ZipfShares(kItems, theta);
    // The formula is exact for the first two items; its error elsewhere is known to be small, and
    // a wrong exponent or constant would be an order of magnitude off.
    for (const std::size_t item : {std::size_t{0}, std::size_t{1}}) {
      const double due = shares[item] * kDraws;
      EXPECT_NEAR(static_cast<double>(counts[item]), due, 6 * std::sqrt(due) + 1)
          << "theta " << theta << ", item " << item;
    }
    EXPECT_LT(LargestDeviation(counts, shares), 0.025) << "theta " << theta;
  }
}

TEST(Generators, ZipfianOfFewItemsStaysInRange) {
  Random random(test::TestSeed());
  for (const double theta : {0.0, 0.99, 1.0, 3.0}) {
    for (std::uint64_t items = 1; items < 5; ++items) {
      Zipfian generator(1, theta);
      generator.SetItems(items);
      std::set<std::uint64_t> seen;
      for (int i = 0; i < 10'000; ++i) seen.insert(generator.Draw(random));
      EXPECT_EQ(seen.size(), items) << "theta " << theta;
      EXPECT_EQ(*seen.rbegin(), items - 1) << "theta " << theta;
    }
  }
}

TEST(Generators, ZipfianRefusesOtherSkews) {
  for (const double theta : {-0.1, 5.1, std::nan("")}) {
    EXPECT_EQ(ErrorOf([&] { Zipfian generator(10, theta); }), ErrorCode::kInvalidArgument);
  }
}

TEST(Generators, ScrambledZipfianSpreadsTheHotItems) {
  constexpr std::uint64_t kRecords = 5000;
  constexpr int kDraws = 2'000'000;
  const std::vector<std::uint64_t> counts = CountScrambled(kRecords, kDraws);
  // The k-th most popular of 10^10 goes to hash(k) mod (records + 1), beside a share of all others
  // that is about even.
  for (const std::uint64_t k : {0, 1, 2, 3}) {
    const double share = std::pow(k + 1.0, -0.99) / ScrambledZipfian::kRangeZeta;
    const double due = share * kDraws;
    const auto seen = static_cast<double>(counts[FnvHash64(k) % (kRecords + 1)]);
    EXPECT_GT(seen, 0.9 * due) << k;
    EXPECT_LT(seen, 1.35 * due) << k;
  }
}

TEST(Generators, RecordZipfianFollowsTheoryOverTheRecords) {
  constexpr std::size_t kRecords = 100'000;
  constexpr int kDraws = 2'000'000;
  for (const double theta : {0.5, 0.99, 1.2}) {
    const RecordZipfian generator(kRecords, theta);
    Random random(test::TestSeed());
    std::vector<std::uint64_t> counts(kRecords);
    for (int i = 0; i < kDraws; ++i) ++counts.at(generator.Draw(random));
    const std::vector<double> shares = ZipfShares(kRecords, theta);
    double seen = 0;
    double expected = 0;
    for (std::size_t rank = 0; rank < kRecords / 5; ++rank) {
      const double due = shares[rank] * kDraws;
      const auto count = static_cast<double>(counts[generator.RecordOf(rank)]);
      seen += count / kDraws;
      expected += shares[rank];
      if (rank >= 10) continue;
      // The formula of Zipfian is exact for ranks 0 and 1, and up to a fifth too high after them.
      const double noise = 6 * std::sqrt(due);
      EXPECT_GT(count, due - noise) << "theta " << theta << ", rank " << rank;
      EXPECT_LT(count, due * (rank < 2 ? 1.01 : 1.21) + noise)
          << "theta " << theta << ", rank " << rank;
    }
    EXPECT_NEAR(seen, expected, 0.005) << "theta " << theta;
  }
}

TEST(Generators, RecordZipfianIsABijectionOfRanks) {
  for (const std::uint64_t records : {1, 2, 3, 7, 1000, 1024, 9973}) {
    const RecordZipfian generator(records);
    std::set<std::uint64_t> seen;
    for (std::uint64_t rank = 0; rank < records; ++rank) seen.insert(generator.RecordOf(rank));
    EXPECT_EQ(seen.size(), records);
    EXPECT_EQ(*seen.rbegin(), records - 1);
  }
  // Products beyond 64 bits: 2^33 ranks later is the record that the remainders say.
  constexpr std::uint64_t kMany = (std::uint64_t{1} << 34) + 1;
  const RecordZipfian generator(kMany);
  const std::uint64_t far = std::uint64_t{1} << 33;
  EXPECT_EQ(generator.RecordOf(far), (generator.RecordOf(far - 1) + generator.RecordOf(1)) % kMany);
}

TEST(Generators, LatestPrefersTheNewest) {
  constexpr std::uint64_t kLast = 2000;
  Latest generator(kLast);
  Random random(test::TestSeed());
  std::vector<std::uint64_t> counts(kLast);  // by age
  for (int i = 0; i < 1'000'000; ++i) {
    const std::uint64_t record = generator.Draw(random, kLast);
    ASSERT_GE(record, 1u);  // record 0 is never drawn, as in YCSB
    ASSERT_LE(record, kLast);
    ++counts[kLast - record];
  }
  EXPECT_LT(LargestDeviation(counts, ZipfShares(kLast, 0.99)), 0.025);
  EXPECT_EQ(generator.Draw(random, 0), 0u);
  EXPECT_EQ(generator.Draw(random, 1), 1u);
}

TEST(Generators, HotspotKeepsItsShares) {
  const Hotspot generator(1000, 0.2, 0.8);
  Random random(test::TestSeed());
  int hot = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    const std::uint64_t record = generator.Draw(random);
    ASSERT_LT(record, 1000u);
    hot += record < 200;
  }
  EXPECT_NEAR(hot / 1e6, 0.8, 0.005);
  const Hotspot everything(10, 1, 0);
  EXPECT_LT(everything.Draw(random), 10u);
  const Hotspot nothing(10, 0, 1);
  EXPECT_LT(nothing.Draw(random), 10u);
}

TEST(Generators, ExponentialKeepsItsPercentile) {
  const Exponential generator(95, 800);
  Random random(test::TestSeed());
  int within = 0;
  constexpr std::uint64_t kFar = 1'000'000'000;
  for (int i = 0; i < 1'000'000; ++i) within += generator.Draw(random, kFar) < 800;
  EXPECT_NEAR(within / 1e6, 0.95, 0.003);
}

TEST(Generators, ExponentialEndsAtTheOldestRecord) {
  Random random(test::TestSeed());
  // As draws that are repeated until they are within it.
  const Exponential generator(95, 800);
  constexpr std::uint64_t kLast = 399;
  int near = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    const std::uint64_t distance = generator.Draw(random, kLast);
    ASSERT_LE(distance, kLast);
    near += distance < 200;
  }
  const double gamma = std::log(20.0) / 800;
  EXPECT_NEAR(near / 1e6, (1 - std::exp(-200 * gamma)) / (1 - std::exp(-400 * gamma)), 0.003);
  // Of values of which hardly a draw was within it, all.
  const std::pair<double, double> rules[] = {
      {95, 1e15}, {1e-300, 1000}, {95, 1e308}, {1e-300, 1e300}, {99.9999, 1e-300}};
  for (const auto& [percentile, range] : rules) {
    const Exponential even(percentile, range);
    int first_half = 0;
    for (int i = 0; i < 10'000; ++i) {
      const std::uint64_t distance = even.Draw(random, 999);
      ASSERT_LE(distance, 999u) << percentile << " " << range;
      first_half += distance < 500;
    }
    EXPECT_NEAR(first_half / 1e4, range < 1 ? 1 : 0.5, 0.03) << percentile << " " << range;
    EXPECT_EQ(even.Draw(random, 0), 0u);
  }
}

TEST(YcsbTraces, LoadsAreTheHashesInOrder) {
  for (const char* name : {"workloada", "workloadd", "workloadf"}) {
    const Trace trace = Trace::Read(DataPath(std::string(name) + ".load.txt.gz"));
    ASSERT_EQ(trace.lines().size(), 5000u);
    for (std::uint64_t i = 0; i < trace.lines().size(); ++i) {
      ASSERT_EQ(trace.lines()[i].key, KeyWord(i, KeyOrder::kHashed)) << name << ", line " << i + 1;
      ASSERT_EQ(trace.lines()[i].op, Op::kInsert);
    }
  }
}

TEST(YcsbTraces, ZipfianFrequenciesAgree) {
  constexpr std::uint64_t kRecords = 5000;
  constexpr int kDraws = 4'000'000;
  std::map<std::uint64_t, std::uint64_t> record_of;
  for (std::uint64_t i = 0; i < kRecords; ++i) record_of[FnvHash64(i)] = i;
  const std::vector<std::uint64_t> ours = CountScrambled(kRecords, kDraws);
  for (const char* name : {"workloada", "workloadf"}) {
    const Trace trace = Trace::Read(DataPath(std::string(name) + ".run.txt.gz"));
    std::vector<std::uint64_t> theirs(kRecords);
    std::uint64_t operations = 0;
    for (std::size_t i = 0; i < trace.lines().size(); ++i) {
      // In workload F an update is a read-modify-write's: its read was counted.
      const TraceLine& line = trace.lines()[i];
      if (name == std::string("workloadf") && line.op == Op::kUpdate) continue;
      ASSERT_TRUE(record_of.contains(line.key));
      ++theirs[record_of[line.key]];
      ++operations;
    }
    ASSERT_EQ(operations, 20'000u);
    // The ten hottest records are the same, each about as hot.
    std::vector<std::uint64_t> hottest(kRecords);
    std::iota(hottest.begin(), hottest.end(), 0ull);
    std::sort(hottest.begin(), hottest.end(),
              [&](std::uint64_t a, std::uint64_t b) { return ours[a] > ours[b]; });
    for (int i = 0; i < 10; ++i) {
      const std::uint64_t record = hottest[static_cast<std::size_t>(i)];
      const double due = static_cast<double>(ours[record]) * 20'000 / kDraws;
      EXPECT_NEAR(static_cast<double>(theirs[record]), due, 5 * std::sqrt(due))
          << name << ", record " << record;
    }
    // And so are all of them together: the two-sample chi-square statistic over the records with
    // enough expected draws.
    double chi = 0;
    int degrees = 0;
    for (std::uint64_t record = 0; record < kRecords; ++record) {
      const double due = static_cast<double>(ours[record]) * 20'000 / kDraws;
      if (due < 5) continue;
      const double difference = static_cast<double>(theirs[record]) - due;
      chi += difference * difference / due;
      ++degrees;
    }
    ASSERT_GT(degrees, 100);
    EXPECT_LT(chi / degrees, 1.5) << name << ", " << degrees << " records";
  }
}

TEST(YcsbTraces, LatestFrequenciesAgree) {
  const Trace trace = Trace::Read(DataPath("workloadd.run.txt.gz"));
  std::map<std::uint64_t, std::uint64_t> record_of;
  for (std::uint64_t i = 0; i < 8000; ++i) record_of[FnvHash64(i)] = i;
  // Ages of what is read, in YCSB's run and in ours over the same inserts.
  std::vector<std::uint64_t> theirs(20);
  std::vector<std::uint64_t> ours(20);
  std::uint64_t last = 4999;
  Latest generator(last);
  Random random(test::TestSeed());
  // The newest have a class each, older ones share one with all of the same magnitude.
  const auto bucket = [](std::uint64_t age) {
    return static_cast<std::size_t>(age < 8 ? age : 5 + std::bit_width(age));
  };
  for (const TraceLine& line : trace.lines()) {
    const std::uint64_t record = record_of.at(line.key);
    if (line.op == Op::kInsert) {
      ASSERT_EQ(record, last + 1);  // new records continue from the record count
      ++last;
      continue;
    }
    ASSERT_GE(record, 1u);
    ASSERT_LE(record, last);
    ++theirs[bucket(last - record)];
    for (int i = 0; i < 20; ++i) ++ours[bucket(last - generator.Draw(random, last))];
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double due = static_cast<double>(ours[i]) / 20;
    EXPECT_NEAR(static_cast<double>(theirs[i]), due, 5 * std::sqrt(due) + 5) << "class " << i;
  }
}

}  // namespace
}  // namespace gpm::ycsb
