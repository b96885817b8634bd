// YCSB's generators against theory and against traces that YCSB itself printed; property files;
// workloads; and runs against a store.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "tests/test_util.h"
#include "ycsb/generators.h"
#include "ycsb/histogram.h"
#include "ycsb/items.h"
#include "ycsb/operations.h"
#include "ycsb/properties.h"
#include "ycsb/report.h"
#include "ycsb/runner.h"
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
  for (int i = 0; i < 1'000'000; ++i) within += generator.Draw(random) < 800;
  EXPECT_NEAR(within / 1e6, 0.95, 0.003);
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

TEST(Items, KeysAndValues) {
  EXPECT_EQ(KeyWord(5, KeyOrder::kOrdered), 5u);
  EXPECT_EQ(KeyWord(5, KeyOrder::kHashed), FnvHash64(5));
  std::set<std::uint64_t> present;
  for (std::uint64_t i = 0; i < 10'000; ++i) present.insert(KeyWord(i, KeyOrder::kHashed));
  EXPECT_EQ(present.size(), 10'000u);
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    ASSERT_FALSE(present.contains(KeyWord(i, KeyOrder::kHashed, true)));
  }
  for (const std::size_t size : {1, 3, 7, 8, 9, 16, 100, 128}) {
    test::Bytes value(size);
    WriteValue(17, 3, value);
    EXPECT_TRUE(CheckValue(17, 3, value)) << size;
    EXPECT_TRUE(CheckValue(17, std::nullopt, value)) << size;
    EXPECT_FALSE(CheckValue(18, 3, value)) << size;
    EXPECT_FALSE(CheckValue(17, 4, value)) << size;
    for (std::size_t i = 0; i < size; ++i) {
      value[i] ^= std::byte{1};
      EXPECT_FALSE(CheckValue(17, 3, value)) << size << ", byte " << i;
      // Byte 0 of the version may be another, whole value's, but then the rest does not follow it.
      if (size > 8) {
        EXPECT_FALSE(CheckValue(17, std::nullopt, value)) << size << ", byte " << i;
      }
      value[i] ^= std::byte{1};
    }
  }
  test::Bytes key(32);
  WriteKey(1234, key);
  std::uint64_t word = 0;
  std::memcpy(&word, key.data(), 8);
  EXPECT_EQ(word, 1234u);
  std::memcpy(&word, key.data() + 24, 8);
  EXPECT_NE(word, 0u);
}

TEST(HistogramTest, PercentilesAreWithinABucket) {
  Histogram histogram;
  for (std::uint64_t i = 1; i <= 100'000; ++i) histogram.Add(i);
  for (const double fraction : {0.5, 0.95, 0.99, 0.999, 1.0}) {
    const double due = fraction * 100'000;
    EXPECT_NEAR(static_cast<double>(histogram.Percentile(fraction)), due, due / 128 + 1);
  }
  EXPECT_EQ(histogram.max(), 100'000u);
  Histogram weighted;
  weighted.Add(10, 99);
  weighted.Add(~std::uint64_t{0}, 1);
  EXPECT_EQ(weighted.Percentile(0.99), 10u);
  EXPECT_EQ(weighted.Percentile(0.999), ~std::uint64_t{0});
  weighted.Add(~std::uint64_t{0}, 0);
  EXPECT_EQ(weighted.count(), 100u);
  EXPECT_EQ(Histogram().Percentile(0.5), 0u);
}

class PropertiesTest : public test::PoolTest {
 protected:
  PropertyWorkload Read(const std::string& text) {
    if (path_.empty()) path_ = NewPath();
    std::ofstream(path_) << text;
    return ReadPropertyWorkload(Properties::Read(path_));
  }
  /// The message of the error that the text must give.
  std::string Refused(const std::string& text) {
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Read(text); }, &message), ErrorCode::kInvalidArgument) << text;
    return message;
  }

  std::string path_;
};

TEST_F(PropertiesTest, YcsbWorkloadIsRead) {
  const PropertyWorkload workload = Read(
      "# a comment\r\n! another\n\nrecordcount=1000\noperationcount = 2000\n"
      "workload=site.ycsb.workloads.CoreWorkload\nreadallfields=true\n"
      "readproportion: 0.5\nupdateproportion 0.25\nscanproportion=0\ninsertproportion=0\n"
      "readmodifywriteproportion=0.\\\n   25\nrequestdistribution=zipfian\nfieldcount=2\n"
      "fieldlength=50\ninsertorder=ordered\nunheard.of=whatever\n");
  EXPECT_EQ(workload.spec.records, 1000u);
  EXPECT_EQ(workload.spec.operations, 2000u);
  EXPECT_DOUBLE_EQ(workload.spec.mix.find, 0.5);
  EXPECT_DOUBLE_EQ(workload.spec.mix.update, 0.25);
  EXPECT_DOUBLE_EQ(workload.spec.mix.read_modify_write, 0.25);
  EXPECT_EQ(workload.spec.distribution, Distribution::kZipfian);
  EXPECT_EQ(workload.spec.order, KeyOrder::kOrdered);
  EXPECT_EQ(workload.value_size, 100u);
}

TEST_F(PropertiesTest, DefaultsAreYcsbs) {
  const PropertyWorkload workload = Read("recordcount=10\n");
  EXPECT_DOUBLE_EQ(workload.spec.mix.find, 0.95);
  EXPECT_DOUBLE_EQ(workload.spec.mix.update, 0.05);
  EXPECT_EQ(workload.spec.distribution, Distribution::kUniform);
  EXPECT_EQ(workload.spec.order, KeyOrder::kHashed);
  EXPECT_EQ(workload.value_size, 1000u);
}

TEST_F(PropertiesTest, WhatCannotBeHonouredNamesFileAndLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"recordcount=1\nscanproportion=0.1\n", "key order"},
      {"recordcount=1\nrequestdistribution=pareto\n", "pareto"},
      {"\nrecordcount=many\n", "whole number"},
      {"\nrecordcount=-1\n", "whole number"},
      {"\nreadproportion=2\n", "from 0 to 1"},
      {"\nreadproportion=half\n", "number"},
      {"\ninsertorder=backwards\n", "hashed or ordered"},
      {"\nfieldlength=100000\n", "65536"},
      {"\nfieldcount=0\n", "65536"},
      {"\nfieldlengthdistribution=zipfian\n", "constant"},
      {"\nmaxexecutiontime=10\n", "time"},
      {"\ninsertstart=10\n", "record 0"},
  };
  for (const auto& [text, reason] : cases) {
    const std::string message = Refused(text);
    EXPECT_NE(message.find(path_ + ":2:"), std::string::npos) << message;
    EXPECT_NE(message.find(reason), std::string::npos) << message;
  }
  EXPECT_NE(Refused("a=1\n\n=2\n").find(path_ + ":3:"), std::string::npos);
  Refused("readproportion=0\nupdateproportion=0\n");
  EXPECT_EQ(ErrorOf([] { Properties::Read("/nonexistent/properties"); }), ErrorCode::kNotFound);
  EXPECT_EQ(ErrorOf([] { Properties::Read("/"); }), ErrorCode::kIo);
}

TEST(Workload, PresetsAreYcsbs) {
  EXPECT_DOUBLE_EQ(PresetWorkload("a").mix.update, 0.5);
  EXPECT_DOUBLE_EQ(PresetWorkload("b").mix.find, 0.95);
  EXPECT_EQ(PresetWorkload("c").distribution, Distribution::kZipfian);
  EXPECT_EQ(PresetWorkload("d").distribution, Distribution::kLatest);
  EXPECT_DOUBLE_EQ(PresetWorkload("d").mix.insert, 0.05);
  EXPECT_DOUBLE_EQ(PresetWorkload("f").mix.read_modify_write, 0.5);
  EXPECT_TRUE(PresetWorkload("load").load_only());
  for (const char* name :
       {"a", "b", "c", "d", "f", "load", "find", "find-missing", "insert", "update", "erase"}) {
    ValidateWorkload(PresetWorkload(name));
  }
  std::string message;
  EXPECT_EQ(ErrorOf([] { PresetWorkload("e"); }, &message), ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("key order"), std::string::npos);
  EXPECT_EQ(ErrorOf([] { PresetWorkload("g"); }), ErrorCode::kInvalidArgument);
  WorkloadSpec spec = PresetWorkload("erase");
  spec.records = 10;
  spec.operations = 11;
  EXPECT_EQ(ErrorOf([&] { ValidateWorkload(spec); }), ErrorCode::kInvalidArgument);
  spec = PresetWorkload("a");
  spec.records = 0;
  EXPECT_EQ(ErrorOf([&] { ValidateWorkload(spec); }), ErrorCode::kInvalidArgument);
}

/// Everything that a source generates, one text a row.
std::vector<std::string> Generate(const WorkloadSpec& spec, Phase phase, std::size_t batch_rows,
                                  std::size_t batches_at_once, unsigned threads) {
  OperationSource source(spec, phase, batch_rows);
  BatchBuffers::Shape shape;
  shape.rows = source.RowsFor(batches_at_once);
  shape.value_size = 24;
  BatchBuffers buffers(shape);
  ThreadPool pool(threads);
  OperationSource::Chunk chunk;
  std::vector<std::string> rows;
  while (!source.done()) {
    source.Fill(buffers, pool, chunk);
    std::size_t batch_end = 0;
    for (const OperationSource::Range& range : chunk.batches) {
      EXPECT_EQ(range.first, batch_end);
      EXPECT_LE(range.rows, batch_rows + 1);
      batch_end += range.rows;
    }
    EXPECT_EQ(batch_end, chunk.rows);
    for (std::size_t i = 0; i < chunk.rows; ++i) {
      const Op op = buffers.ops()[i];
      std::string row(OpName(op));
      row += test::AsString(buffers.key(i));
      if (op == Op::kInsert || op == Op::kUpdate) row += test::AsString(buffers.value(i));
      rows.push_back(row);
      if (chunk.row[i].paired) {
        EXPECT_EQ(op, Op::kUpdate);
        EXPECT_EQ(test::AsString(buffers.key(i)), test::AsString(buffers.key(i - 1)));
      }
    }
  }
  return rows;
}

TEST(Operations, DoNotDependOnBatchesOrThreads) {
  std::vector<WorkloadSpec> specs;
  for (const char* name : {"a", "d", "f", "find-missing", "erase"}) {
    specs.push_back(PresetWorkload(name));
  }
  specs.push_back(PresetWorkload("d"));
  specs.back().name = "d, zipf";
  specs.back().distribution = Distribution::kZipf;
  for (WorkloadSpec& spec : specs) {
    const std::string& name = spec.name;
    spec.records = 20'000;
    spec.operations = 20'000;
    spec.seed = test::TestSeed();
    const std::vector<std::string> one = Generate(spec, Phase::kRun, 1, 1000, 1);
    EXPECT_EQ(one, Generate(spec, Phase::kRun, 7, 3, 1)) << name;
    EXPECT_EQ(one, Generate(spec, Phase::kRun, 1 << 20, 1, 4)) << name;
    WorkloadSpec other = spec;
    other.seed = spec.seed + 1;
    EXPECT_EQ(one == Generate(other, Phase::kRun, 4096, 1, 1), spec.name == "erase") << name;
  }
}

TEST(Operations, ZipfChoosesAmongTheRecordsThatWereLoaded) {
  WorkloadSpec spec = PresetWorkload("d");
  spec.distribution = ParseDistribution("zipf");
  ASSERT_EQ(spec.distribution, Distribution::kZipf);
  ASSERT_EQ(DistributionName(spec.distribution), "zipf");
  spec.records = 1000;
  spec.operations = 100'000;
  spec.theta = 1.2;
  spec.seed = test::TestSeed();
  OperationSource source(spec, Phase::kRun, 4096);
  BatchBuffers::Shape shape;
  shape.rows = source.RowsFor(100);
  BatchBuffers buffers(shape);
  ThreadPool pool(2);
  OperationSource::Chunk chunk;
  source.Fill(buffers, pool, chunk);
  double finds = 0;
  double hottest = 0;
  for (std::size_t i = 0; i < chunk.rows; ++i) {
    if (buffers.ops()[i] != Op::kFind) continue;
    ASSERT_LT(chunk.row[i].record, spec.records);
    ++finds;
    hottest += chunk.row[i].record == 0 ? 1 : 0;
  }
  EXPECT_NEAR(hottest / finds, 1 / Zeta(spec.records, 1.2), 0.01);
  spec.theta = 5.1;
  EXPECT_EQ(ErrorOf([&] { ValidateWorkload(spec); }), ErrorCode::kInvalidArgument);
}

TEST(Operations, MixAndRecordsAreAsAskedFor) {
  WorkloadSpec spec = PresetWorkload("d");
  spec.records = 1000;
  spec.operations = 100'000;
  spec.seed = test::TestSeed();
  OperationSource source(spec, Phase::kRun, 4096);
  BatchBuffers::Shape shape;
  shape.rows = source.RowsFor(100);
  BatchBuffers buffers(shape);
  ThreadPool pool(2);
  OperationSource::Chunk chunk;
  source.Fill(buffers, pool, chunk);
  ASSERT_EQ(chunk.operations, spec.operations);
  std::uint64_t next = spec.records;
  for (std::size_t i = 0; i < chunk.rows; ++i) {
    if (buffers.ops()[i] == Op::kInsert) {
      ASSERT_EQ(chunk.row[i].record, next);
      ++next;
    } else {
      ASSERT_EQ(buffers.ops()[i], Op::kFind);
      ASSERT_LT(chunk.row[i].record, next);
    }
  }
  EXPECT_NEAR(static_cast<double>(next - spec.records), 5000, 400);
}

/// A store and runner of its own for each run.
class RunnerTest : public test::PoolTest {
 protected:
  struct Outcome {
    PhaseReport load;
    PhaseReport run;
    std::uint64_t items = 0;
  };

  Outcome RunWorkload(const WorkloadSpec& spec, std::uint32_t key_size, std::uint32_t value_size,
                      std::size_t batch_rows) {
    CreateOptions create;
    create.key_size = key_size;
    create.value_size = value_size;
    Store store = Store::Create(NewPath(), create, test::TestOpenOptions());
    RunnerOptions options;
    options.batch_rows = batch_rows;
    options.verify = Verify::kAll;
    options.chunk_bytes = 1 << 20;
    Runner runner(store, spec, options);
    Outcome outcome;
    outcome.load = runner.Load();
    outcome.run = runner.Run();
    outcome.items = store.Stats().items;
    return outcome;
  }
};

TEST_F(RunnerTest, EveryWorkloadVerifies) {
  const std::pair<std::uint32_t, std::uint32_t> sizes[] = {{8, 128}, {8, 8}, {8, 3}, {32, 20}};
  for (const auto& [key_size, value_size] : sizes) {
    for (const char* name :
         {"a", "b", "c", "d", "f", "find", "find-missing", "insert", "update", "erase"}) {
      WorkloadSpec spec = PresetWorkload(name);
      spec.records = 3000;
      spec.operations = 3000;
      spec.seed = test::TestSeed();
      const Outcome outcome = RunWorkload(spec, key_size, value_size, 500);
      EXPECT_EQ(outcome.load.wrong, 0u) << name << ": " << outcome.load.first_wrong;
      EXPECT_EQ(outcome.run.wrong, 0u) << name << ": " << outcome.run.first_wrong;
      EXPECT_EQ(outcome.load.operations, 3000u);
      EXPECT_EQ(outcome.run.operations, 3000u);
      EXPECT_EQ(outcome.run.verified, outcome.run.store_operations);
      const std::uint64_t ok = outcome.run.outcome(Result::kOk);
      EXPECT_EQ(ok, name == std::string("find-missing") ? 0 : outcome.run.store_operations) << name;
      const std::uint64_t inserted = outcome.run.outcomes[static_cast<std::size_t>(Op::kInsert)][0];
      const std::uint64_t erased = outcome.run.outcomes[static_cast<std::size_t>(Op::kErase)][0];
      EXPECT_EQ(outcome.items, 3000 + inserted - erased) << name;
      EXPECT_EQ(outcome.run.batch_latency.count(), outcome.run.batches);
      EXPECT_GT(outcome.run.seconds, 0);
    }
  }
}

TEST_F(RunnerTest, ReadModifyWriteIsOneOperation) {
  WorkloadSpec spec = PresetWorkload("f");
  spec.records = 1000;
  spec.operations = 2000;
  for (const std::size_t batch : {1, 2, 7, 4096}) {
    const Outcome outcome = RunWorkload(spec, 8, 16, batch);
    const std::uint64_t updates = outcome.run.outcomes[static_cast<std::size_t>(Op::kUpdate)][0];
    EXPECT_EQ(outcome.run.operations, 2000u);
    EXPECT_EQ(outcome.run.store_operations, 2000 + updates);
    EXPECT_EQ(outcome.run.read_modify_write_latency.count(), updates);
    EXPECT_NEAR(static_cast<double>(updates), 1000, 150);
    EXPECT_EQ(outcome.run.wrong, 0u) << outcome.run.first_wrong;
  }
}

TEST_F(RunnerTest, VerificationSeesWrongValuesAndLostRecords) {
  WorkloadSpec spec = PresetWorkload("find");
  spec.records = 100;
  spec.operations = 2000;
  spec.distribution = Distribution::kSequential;
  CreateOptions create;
  create.value_size = 32;
  Store store = Store::Create(NewPath(), create, test::TestOpenOptions());
  RunnerOptions options;
  options.verify = Verify::kAll;
  Runner runner(store, spec, options);
  ASSERT_EQ(runner.Load().wrong, 0u);
  // Behind the runner's back: record 3 gets another value, record 5 goes.
  test::Bytes key(8);
  test::Bytes value(32);
  Result result;
  WriteKey(KeyWord(3, spec.order), key);
  WriteValue(3, 9, value);
  store.Update(key, value, {&result, 1});
  ASSERT_EQ(result, Result::kOk);
  WriteKey(KeyWord(5, spec.order), key);
  store.Erase(key, {&result, 1});
  ASSERT_EQ(result, Result::kOk);
  const PhaseReport run = runner.Run();
  EXPECT_EQ(run.wrong, 40u);  // 20 finds of each
  EXPECT_NE(run.first_wrong.find("record 3"), std::string::npos) << run.first_wrong;
  EXPECT_EQ(run.outcome(Result::kNotFound), 20u);

  // A runner that does not know the contents accepts any whole value of the record ...
  options.contents_known = false;
  EXPECT_EQ(Runner(store, spec, options).Run().wrong, 0u);
  // ... but not another record's.
  WriteKey(KeyWord(7, spec.order), key);
  WriteValue(8, 0, value);
  store.Update(key, value, {&result, 1});
  EXPECT_EQ(Runner(store, spec, options).Run().wrong, 20u);
}

TEST_F(RunnerTest, LoadingIntoAFullPoolFails) {
  WorkloadSpec spec = PresetWorkload("load");
  spec.records = 1'000'000;
  Store store = Store::Create(NewPath(), {}, test::TestOpenOptions(8 << 20));
  Runner runner(store, spec, {});
  std::string message;
  EXPECT_EQ(ErrorOf([&] { runner.Load(); }, &message), ErrorCode::kNoSpace);
  EXPECT_NE(message.find("--pool-max"), std::string::npos);
}

TEST_F(RunnerTest, BadBatchSizeIsRefused) {
  Store store = Store::Create(NewPath(), {}, test::TestOpenOptions());
  RunnerOptions options;
  options.batch_rows = 0;
  EXPECT_EQ(ErrorOf([&] { Runner runner(store, PresetWorkload("a"), options); }),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace gpm::ycsb
