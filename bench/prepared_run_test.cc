// Prepared runs: their operations are those that the source generates in one piece, and what a
// store makes of them is what they must come to.

#include "bench/prepared_run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "bench/kv_adapter.h"
#include "gpmstore/error.h"

namespace gpm::bench {
namespace {

constexpr std::uint64_t kRecords = 1000;
constexpr std::uint32_t kKeySize = 16;
constexpr std::uint32_t kValueSize = 12;
constexpr std::uint64_t kBatch = 4096;

/// Of several chunks, of which one ends within a part.
RunSpec Spec(const char* workload) {
  RunSpec spec;
  spec.workload = ycsb::PresetWorkload(workload);
  spec.workload.records = kRecords;
  spec.workload.seed = 7;
  spec.parts = {500'000, 1, 600'000};
  return spec;
}

PreparedRun Prepare(const RunSpec& spec, ThreadPool& threads) {
  return PreparedRun(spec, kKeySize, kValueSize, kBatch, ycsb::Memory::kHost, threads);
}

TEST(PreparedRunTest, IsWhatTheSourceGenerates) {
  for (const char* const workload : {"a", "c", "find-missing"}) {
    RunSpec spec = Spec(workload);
    std::uint64_t rows = 0;
    for (const std::uint64_t part : spec.parts) rows += part;
    spec.workload.operations = rows;
    ThreadPool one(1);
    ycsb::OperationSource source(spec.workload, ycsb::Phase::kRun, rows);
    ycsb::BatchBuffers buffers({.rows = source.RowsFor(1)});
    ycsb::OperationSource::Chunk chunk;
    source.Fill(buffers, one, chunk);
    ASSERT_EQ(chunk.rows, rows);
    for (const unsigned n : {1u, 3u}) {
      for (const std::uint64_t shift : {0, 123}) {
        spec.workload.record_shift = shift;
        ThreadPool threads(n);
        const PreparedRun run = Prepare(spec, threads);
        std::uint64_t row = 0;
        std::uint64_t wrong = 0;
        for (std::size_t part = 0; part < spec.parts.size(); ++part) {
          for (std::uint64_t i = 0; i < spec.parts[part]; ++i, ++row) {
            wrong += run.kinds(part)[i] != buffers.ops()[row];
            wrong += run.records(part)[i] != (chunk.row[row].record + shift) % kRecords;
          }
        }
        EXPECT_EQ(wrong, 0u) << workload << ", " << n << " threads, shift " << shift;
      }
    }
  }
}

TEST(PreparedRunTest, RefusesWhatItCannotPrepare) {
  ThreadPool one(1);
  RunSpec shifted = Spec("churn");
  shifted.workload.record_shift = 1;
  EXPECT_THROW(Prepare(shifted, one), Error);
  RunSpec mixed = Spec("c");
  mixed.workload.mix = {.find = 0.5, .missing = 0.5};
  EXPECT_THROW(Prepare(mixed, one), Error);
  RunSpec many = Spec("c");
  many.workload.records = ~0u - 1'000'000;
  EXPECT_THROW(Prepare(many, one), Error);
}

/// A store that holds the records as they are loaded.
Store LoadedStore(ThreadPool& threads) {
  const std::string path = TemporaryPoolPath();
  Store store = Store::Create(
      path, {.key_size = kKeySize, .value_size = kValueSize, .initial_capacity = kRecords},
      {.executor = ExecutorKind::kCpu});
  std::filesystem::remove(path);
  RunSpec load = Spec("load");
  load.phase = ycsb::Phase::kLoad;
  load.parts = {kRecords};
  Contents contents(kRecords);
  PreparedRun inserts = Prepare(load, threads);
  EXPECT_EQ(inserts.record_count(), kRecords);
  EXPECT_FALSE(inserts.changes_items());
  inserts.BulkLoad(store, 0);
  inserts.Settle(0, kRecords, contents);
  return store;
}

TEST(PreparedRunTest, KnowsTheItemsThatComeAndGo) {
  for (const char* const workload : {"d", "f", "churn", "erase"}) {
    SCOPED_TRACE(workload);
    ThreadPool threads(3);
    Store store = LoadedStore(threads);
    RunSpec spec = Spec(workload);
    spec.parts = {300, 100, 600};  // what erase may have at most
    if (std::string_view(workload) != "erase") spec.parts = {5'000, 1, 20'000};
    constexpr std::uint64_t kSmall = 999;
    PreparedRun run(spec, kKeySize, kValueSize, kSmall, ycsb::Memory::kHost, threads);
    EXPECT_TRUE(run.changes());
    Contents contents(kRecords);
    // The store's contents, kept beside it: record and version. (In "f" versions are those of
    // rows.)
    std::map<std::uint32_t, ycsb::Version> model;
    for (std::uint32_t record = 0; record < kRecords; ++record) model[record] = 0;
    ycsb::Version row = 0;
    std::uint64_t gone = 0;
    for (std::size_t part = 0; part < spec.parts.size(); ++part) {
      EXPECT_EQ(run.workload_operations(part), spec.parts[part]);
      run.Apply(store, part, kSmall);
      run.Settle(part, kSmall, contents);
      for (std::uint64_t i = 0; i < run.operations(part); ++i) {
        ++row;
        const std::uint32_t record = run.records(part)[i];
        const Op op = run.kinds(part)[i];
        gone += op != Op::kInsert && !model.contains(record);
        if (op == Op::kErase) model.erase(record);
        if (op == Op::kInsert || (op == Op::kUpdate && model.contains(record))) model[record] = row;
      }
    }
    // Few finds and updates come between the erase of a record and the insert that stands in.
    EXPECT_LE(gone, row / 10);
    EXPECT_EQ(store.Stats().items, model.size());
    EXPECT_EQ(kRecords + static_cast<std::uint64_t>(run.added_items()), model.size());
    EXPECT_EQ(run.changes_items(), std::string_view(workload) != "f");
    if (std::string_view(workload) == "erase") continue;  // nothing to read
    for (const auto& [record, version] : model) {
      ASSERT_LT(record, run.record_count());
      ASSERT_EQ(contents[record], version) << record;
      std::vector<std::byte> key(kKeySize);
      std::vector<std::byte> value(kValueSize);
      Result result{};
      ycsb::WriteKey(ycsb::KeyWord(record, spec.workload.order), key);
      store.Find(key, value, {&result, 1});
      ASSERT_EQ(result, Result::kOk) << record;
      ASSERT_TRUE(ycsb::CheckValue(record, version, value)) << record;
    }
    // Applied again, its inserts and erases fail, and that is seen.
    if (!run.changes_items()) continue;
    run.Apply(store, 2, kSmall);
    EXPECT_THROW(run.Settle(2, kSmall, contents), Error);
  }
}

TEST(PreparedRunTest, VerifiesWhatAStoreDid) {
  ThreadPool threads(3);
  Store store = LoadedStore(threads);
  Contents contents(kRecords);

  const RunSpec spec = Spec("a");
  PreparedRun run = Prepare(spec, threads);
  std::uint64_t operation = 0;
  Contents expected(kRecords);
  for (std::size_t part = 0; part < spec.parts.size(); ++part) {
    run.Apply(store, part, kBatch);
    run.Settle(part, kBatch, contents);
    for (std::uint64_t i = 0; i < spec.parts[part]; ++i) {
      ++operation;
      if (run.kinds(part)[i] == Op::kUpdate) {
        expected[run.records(part)[i]] = static_cast<ycsb::Version>(operation);
      }
    }
  }
  EXPECT_EQ(contents, expected);

  PreparedRun finds = Prepare(Spec("c"), threads);
  finds.Apply(store, 2, kBatch);
  finds.Settle(2, kBatch, contents);
  contents.assign(kRecords, 0);
  EXPECT_THROW(finds.Settle(2, kBatch, contents), Error);
  // What was found is of the part that was applied last.
  EXPECT_THROW(run.Settle(0, kBatch, contents), Error);
}

}  // namespace
}  // namespace gpm::bench
