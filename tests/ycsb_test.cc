// YCSB's items, property files, workloads and operations; and runs against a store.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "gpmstore/sharded_store.h"
#include "tests/test_util.h"
#include "ycsb/generators.h"
#include "ycsb/histogram.h"
#include "ycsb/items.h"
#include "ycsb/operations.h"
#include "ycsb/properties.h"
#include "ycsb/report.h"
#include "ycsb/runner.h"

namespace gpm::ycsb {
namespace {

using test::ErrorOf;

TEST(Items, KeysAndValues) {
  EXPECT_EQ(KeyWord(5, KeyOrder::kOrdered), 5u);
  EXPECT_EQ(KeyWord(5, KeyOrder::kHashed), FnvHash64(5));
  std::set<std::uint64_t> present;
  for (std::uint64_t i = 0; i < 10'000; ++i) present.insert(KeyWord(i, KeyOrder::kHashed));
  EXPECT_EQ(present.size(), 10'000u);
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    ASSERT_FALSE(present.contains(KeyWord(i, KeyOrder::kHashed, true)));
  }
  for (const std::size_t size : {1, 3, 7, 8, 9, 16, 24, 100, 128}) {
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

TEST_F(PropertiesTest, DeletesAreAProportionToo) {
  const PropertyWorkload workload = Read(
      "recordcount=10\nreadproportion=0.3\nupdateproportion=0.1\ninsertproportion=0.2\n"
      "deleteproportion=0.2\n");
  EXPECT_DOUBLE_EQ(workload.spec.mix.erase, 0.25);
  EXPECT_DOUBLE_EQ(workload.spec.mix.find, 0.375);
  EXPECT_TRUE(workload.warnings.empty());
  EXPECT_NE(Refused("\ndeleteproportion=2\n").find("from 0 to 1"), std::string::npos);
}

TEST_F(PropertiesTest, SearchesAreAProportionToo) {
  const PropertyWorkload workload = Read(
      "recordcount=10\nreadproportion=0\nupdateproportion=0.1\ninsertproportion=0.1\n"
      "deleteproportion=0.1\nsearchproportion=0.7\n");
  EXPECT_NEAR(workload.spec.mix.search, 0.7, 1e-12);
  EXPECT_TRUE(workload.warnings.empty());
  EXPECT_NE(Refused("\nsearchproportion=2\n").find("from 0 to 1"), std::string::npos);
}

TEST_F(PropertiesTest, NamesThatNobodyKnowsWarn) {
  const std::vector<std::string> warnings =
      Read("recordcount=10\noperationcuont=20\nRequestDistribution=uniform\nredis.host=here\n" +
           std::string(1000, 'x') + "=1\n")
          .warnings;
  ASSERT_EQ(warnings.size(), 4u);
  const auto expect = [&](const std::string& place, const std::string& text, bool meant) {
    for (const std::string& warning : warnings) {
      if (!warning.starts_with(path_ + place)) continue;
      EXPECT_NE(warning.find(text), std::string::npos) << warning;
      EXPECT_EQ(warning.find("did you mean") != std::string::npos, meant) << warning;
      EXPECT_LT(warning.size(), path_.size() + 200);
      return;
    }
    ADD_FAILURE() << place;
  };
  expect(":2: ", "operationcount?", true);
  expect(":3: ", "requestdistribution?", true);
  expect(":4: ", "'redis.host'", false);
  expect(":5: ", "(1000 bytes)", false);
  // What YCSB knows and this does not use is no mistake.
  EXPECT_TRUE(Read("recordcount=1\nworkload=site.ycsb.workloads.CoreWorkload\nreadallfields=true\n"
                   "maxscanlength=100\nscanlengthdistribution=uniform\nthreadcount=8\n"
                   "measurementtype=hdrhistogram\ntable=usertable\nwriteallfields=false\n")
                  .warnings.empty());
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
      {"\nfieldlength=10000000\n", "16777216"},
      {"\nfieldcount=0\n", "16777216"},
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
  for (const char* name : {"a", "b", "c", "d", "f", "load", "find", "find-missing", "insert",
                           "update", "erase", "churn", "ghsh1", "ghsh2", "ghsh3"}) {
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
  for (const char* name : {"a", "d", "f", "find-missing", "erase", "churn"}) {
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

/// All operations of a run, at most 100 batches of 4096.
struct WholeRun {
  explicit WholeRun(const WorkloadSpec& spec)
      : source(spec, Phase::kRun, 4096), buffers(BatchBuffers::Shape{.rows = source.RowsFor(100)}) {
    ThreadPool pool(2);
    source.Fill(buffers, pool, chunk);
  }
  OperationSource source;
  BatchBuffers buffers;
  OperationSource::Chunk chunk;
};

TEST(Operations, ZipfChoosesAmongTheRecordsThatWereLoaded) {
  WorkloadSpec spec = PresetWorkload("d");
  spec.distribution = ParseDistribution("zipf");
  ASSERT_EQ(spec.distribution, Distribution::kZipf);
  ASSERT_EQ(DistributionName(spec.distribution), "zipf");
  spec.records = 1000;
  spec.operations = 100'000;
  spec.theta = 1.2;
  spec.seed = test::TestSeed();
  WholeRun run(spec);
  double finds = 0;
  double hottest = 0;
  for (std::size_t i = 0; i < run.chunk.rows; ++i) {
    if (run.buffers.ops()[i] != Op::kFind) continue;
    ASSERT_LT(run.chunk.row[i].record, spec.records);
    ++finds;
    hottest += run.chunk.row[i].record == 0 ? 1 : 0;
  }
  EXPECT_NEAR(hottest / finds, 1 / Zeta(spec.records, 1.2), 0.01);
  spec.theta = 5.1;
  EXPECT_EQ(ErrorOf([&] { ValidateWorkload(spec); }), ErrorCode::kInvalidArgument);
}

TEST(Operations, ShiftedRecordsAreThoseSoManyFurtherOn) {
  WorkloadSpec spec = PresetWorkload("a");
  spec.distribution = Distribution::kZipf;
  spec.records = 1000;
  spec.operations = 10'000;
  spec.seed = test::TestSeed();
  const WholeRun plain(spec);
  spec.record_shift = 501;
  WholeRun shifted(spec);
  ASSERT_EQ(shifted.chunk.rows, plain.chunk.rows);
  for (std::size_t i = 0; i < plain.chunk.rows; ++i) {
    const std::uint64_t record = (plain.chunk.row[i].record + 501) % spec.records;
    ASSERT_EQ(shifted.chunk.row[i].record, record);
    std::array<std::byte, 8> key;
    WriteKey(KeyWord(record, spec.order), key);
    ASSERT_TRUE(std::ranges::equal(shifted.buffers.key(i), key));
  }
  spec.mix = {.find = 0.9, .insert = 0.1};
  EXPECT_EQ(ErrorOf([&] { ValidateWorkload(spec); }), ErrorCode::kInvalidArgument);
}

TEST(Operations, MixAndRecordsAreAsAskedFor) {
  WorkloadSpec spec = PresetWorkload("d");
  spec.records = 1000;
  spec.operations = 100'000;
  spec.seed = test::TestSeed();
  WholeRun run(spec);
  ASSERT_EQ(run.chunk.operations, spec.operations);
  std::uint64_t next = spec.records;
  for (std::size_t i = 0; i < run.chunk.rows; ++i) {
    if (run.buffers.ops()[i] == Op::kInsert) {
      ASSERT_EQ(run.chunk.row[i].record, next);
      ++next;
    } else {
      ASSERT_EQ(run.buffers.ops()[i], Op::kFind);
      ASSERT_LT(run.chunk.row[i].record, next);
    }
  }
  EXPECT_NEAR(static_cast<double>(next - spec.records), 5000, 400);
}

TEST(Operations, ErasesTakeRecordsInOrderAndOthersThoseThatAreThere) {
  WorkloadSpec spec = PresetWorkload("churn");
  spec.records = 5000;
  spec.operations = 50'000;
  spec.seed = test::TestSeed();
  for (const Distribution distribution :
       {Distribution::kUniform, Distribution::kZipf, Distribution::kLatest}) {
    spec.distribution = distribution;
    WholeRun run(spec);
    std::uint64_t oldest = 0;
    std::uint64_t next = spec.records;
    std::uint64_t gone = 0;
    std::uint64_t erases = 0;
    for (std::size_t i = 0; i < run.chunk.rows; ++i) {
      const OperationSource::Row& row = run.chunk.row[i];
      ASSERT_EQ(row.gone(), row.record < oldest);
      if (run.buffers.ops()[i] == Op::kInsert) {
        ASSERT_EQ(row.record, next++);
        continue;
      }
      ASSERT_LT(row.record, next);
      if (run.buffers.ops()[i] != Op::kErase) {
        gone += row.gone();
        continue;
      }
      ++erases;
      ASSERT_EQ(row.record, std::min(oldest, next - 1));
      oldest = std::min(oldest + 1, next);
    }
    EXPECT_NEAR(static_cast<double>(erases), 10'000, 500);
    EXPECT_NEAR(static_cast<double>(next - spec.records), 10'000, 500);
    // Inserts and erases are as many but for chance: a record's stead is rarely empty.
    EXPECT_LT(gone, run.chunk.rows / 4) << DistributionName(distribution);
  }
}

TEST(Operations, ErasesThatFindNoRecordLeftFindNothing) {
  WorkloadSpec spec = PresetWorkload("churn");
  spec.mix = {.find = 0.5, .erase = 0.5};
  spec.records = 100;
  spec.operations = 1000;
  spec.seed = test::TestSeed();
  WholeRun run(spec);
  std::uint64_t erased = 0;
  for (std::size_t i = 0; i < run.chunk.rows; ++i) {
    ASSERT_LT(run.chunk.row[i].record, spec.records);
    erased += run.buffers.ops()[i] == Op::kErase && !run.chunk.row[i].gone();
  }
  EXPECT_EQ(erased, spec.records);
  EXPECT_TRUE(run.chunk.row[run.chunk.rows - 1].gone());
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
  const std::pair<std::uint32_t, std::uint32_t> sizes[] = {
      {8, 128}, {8, 8}, {8, 3}, {32, 20}, {36, 20}};
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

TEST_F(RunnerTest, ErasesInAMixVerify) {
  WorkloadSpec spec = PresetWorkload("churn");
  spec.records = 1000;
  spec.operations = 10'000;
  spec.seed = test::TestSeed();
  const Outcome outcome = RunWorkload(spec, 8, 20, 500);
  EXPECT_EQ(outcome.run.wrong, 0u) << outcome.run.first_wrong;
  EXPECT_EQ(outcome.run.verified, spec.operations);
  const auto ok = [&](Op op) { return outcome.run.outcomes[static_cast<std::size_t>(op)][0]; };
  EXPECT_GT(ok(Op::kErase), 1500u);
  EXPECT_GT(ok(Op::kFind), 3000u);
  EXPECT_EQ(outcome.items, spec.records + ok(Op::kInsert) - ok(Op::kErase));
}

/// Of a pool that has the attribute, and others.
Store SearchedStore(const std::string& path) {
  CreateOptions create;
  create.value_size = 32;
  create.attributes = {{"first", 0, 8}, RecordAttribute()};
  OpenOptions open = test::TestOpenOptions();
  open.search_index_bytes = 64 << 20;
  return Store::Create(path, create, open);
}

/// Changes records of a workload's store without its runner.
class BehindTheRunnersBack {
 public:
  struct As {
    std::uint64_t record;
    Version version = 0;
  };

  BehindTheRunnersBack(Store& store, const WorkloadSpec& spec, std::size_t value_size)
      : store_(store), order_(spec.order), key_(8), value_(value_size) {}

  /// The record's value becomes that of another, or of another version.
  void Update(std::uint64_t record, As as) {
    WriteValue(as.record, as.version, value_);
    Result result;
    store_.Update(KeyOf(record), value_, {&result, 1});
    EXPECT_EQ(result, Result::kOk);
  }

  void Erase(std::uint64_t record) {
    Result result;
    store_.Erase(KeyOf(record), {&result, 1});
    EXPECT_EQ(result, Result::kOk);
  }

 private:
  const test::Bytes& KeyOf(std::uint64_t record) {
    WriteKey(KeyWord(record, order_), key_);
    return key_;
  }

  Store& store_;
  const KeyOrder order_;
  test::Bytes key_;
  test::Bytes value_;
};

TEST_F(RunnerTest, SearchesVerify) {
  for (const char* name : {"ghsh2", "ghsh3"}) {
    for (const std::size_t batch : {1, 7, 500, 4096}) {
      WorkloadSpec spec = PresetWorkload(name);
      spec.records = 500;
      spec.operations = batch == 1 ? 500 : 5000;
      spec.seed = test::TestSeed();
      Store store = SearchedStore(NewPath());
      RunnerOptions options;
      options.batch_rows = batch;
      options.verify = Verify::kAll;
      options.chunk_bytes = 1 << 18;
      Runner runner(store, spec, options);
      ASSERT_EQ(runner.Load().wrong, 0u);
      const PhaseReport run = runner.Run();
      EXPECT_EQ(run.wrong, 0u) << run.first_wrong;
      EXPECT_EQ(run.verified, spec.operations);
      EXPECT_EQ(run.store_operations, spec.operations);
      EXPECT_EQ(run.batches, (spec.operations + batch - 1) / batch);
      const auto& searches = run.outcomes[kSearchKind];
      const double share = static_cast<double>(searches[0] + searches[1]);
      EXPECT_NEAR(share, static_cast<double>(spec.operations) * spec.mix.search,
                  static_cast<double>(spec.operations) / 10);
      EXPECT_EQ(run.op_latency[kSearchKind].count(), searches[0] + searches[1]);
      EXPECT_GT(searches[0], 0u);
      // Some are of records that the batch erased.
      EXPECT_GE(searches[1], batch == 4096 ? 1u : 0u);
    }
  }
}

TEST_F(RunnerTest, VerificationSeesWrongMatches) {
  WorkloadSpec spec = PresetWorkload("find");
  spec.mix = {.search = 1};
  spec.records = 100;
  spec.operations = 2000;
  spec.distribution = Distribution::kSequential;
  Store store = SearchedStore(NewPath());
  RunnerOptions options;
  options.batch_rows = 300;
  Runner runner(store, spec, options);
  ASSERT_EQ(runner.Load().wrong, 0u);
  ASSERT_EQ(runner.Run().wrong, 0u);
  // 3 and 4 change places, 5 goes, and 7 becomes a second 8.
  BehindTheRunnersBack back(store, spec, 32);
  back.Update(3, {.record = 4});
  back.Update(4, {.record = 3});
  back.Update(7, {.record = 8});
  back.Erase(5);
  const PhaseReport run = runner.Run();
  EXPECT_GE(run.wrong, 5 * 20u);  // what follows a second match may lack room
  EXPECT_EQ(run.outcomes[kSearchKind][1], 2 * 20u);
  EXPECT_NE(run.first_wrong.find("search of record 3: it found another key"), std::string::npos)
      << run.first_wrong;
}

TEST_F(RunnerTest, SearchesNeedTheAttributeAndOnePool) {
  Store store = Store::Create(NewPath(), {}, test::TestOpenOptions());
  std::string message;
  EXPECT_EQ(ErrorOf([&] { Runner(store, PresetWorkload("ghsh2"), {}); }, &message),
            ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("record:8:8"), std::string::npos) << message;
  Runner(store, PresetWorkload("ghsh1"), {});
  CreateOptions create;
  create.attributes = {RecordAttribute()};
  ShardedStore shards =
      ShardedStore::Create(NewPath(), create, {.shards = 2}, test::TestOpenOptions());
  EXPECT_EQ(ErrorOf([&] { Runner(shards, PresetWorkload("ghsh2"), {}); }), ErrorCode::kUnsupported);
  Runner(shards, PresetWorkload("ghsh1"), {});
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
  BehindTheRunnersBack back(store, spec, 32);
  back.Update(3, {.record = 3, .version = 9});
  back.Erase(5);
  const PhaseReport run = runner.Run();
  EXPECT_EQ(run.wrong, 40u);  // 20 finds of each
  EXPECT_EQ(run.values_compared, 1980u);
  EXPECT_NE(run.first_wrong.find("record 3"), std::string::npos) << run.first_wrong;
  EXPECT_EQ(run.outcome(Result::kNotFound), 20u);

  // A runner that does not know the contents accepts any whole value of the record ...
  options.contents_known = false;
  EXPECT_EQ(Runner(store, spec, options).Run().wrong, 0u);
  // ... but not another record's.
  back.Update(7, {.record = 8});
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
