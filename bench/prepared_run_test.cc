// Prepared runs: their operations are those that the source generates in one piece, and what a
// store makes of them is what they must come to.

#include "bench/prepared_run.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "bench/subject.h"
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
        spec.record_shift = shift;
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

TEST(PreparedRunTest, RefusesOperationsOfTwoRows) {
  ThreadPool one(1);
  EXPECT_THROW(Prepare(Spec("f"), one), Error);
}

TEST(PreparedRunTest, VerifiesWhatAStoreDid) {
  ThreadPool threads(3);
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
  inserts.BulkLoad(store, 0);
  inserts.Settle(0, kRecords, contents);

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
