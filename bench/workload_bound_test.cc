// What a workload's bound rests on: the counting of operations, and the accesses they must make.

#include "bench/workload_bound.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace gpm::bench {
namespace {

constexpr Op kF = Op::kFind;
constexpr Op kU = Op::kUpdate;

TEST(CountWorkloadTest, CountsAKeyOnceABatch) {
  const std::vector<std::uint32_t> records = {7, 7, 3, 7, /* next */ 7, 3, 3, 1, /* next */ 3};
  const std::vector<Op> kinds = {kF, kU, kU, kF, /* next */ kU, kF, kF, kF, /* next */ kU};
  for (const unsigned n : {1u, 3u}) {
    ThreadPool threads(n);
    const WorkloadCounts counts = CountWorkload(records, kinds, 8, 4, 0, threads);
    EXPECT_EQ(counts.operations, 9u);
    EXPECT_EQ(counts.finds, 5u);
    EXPECT_EQ(counts.keys, 2u + 3u + 1u);
    EXPECT_EQ(counts.read, 1 + 2);  // 7; 3 and 1: what an update comes before need not be read
    EXPECT_EQ(counts.written, 2u + 1u + 1u);
    EXPECT_EQ(counts.cached, 0);
  }
}

TEST(CountWorkloadTest, TellsInsertsErasesAndUpdatesApart) {
  const std::vector<std::uint32_t> records = {8, 8, 0, 9, 1, /* next */ 8, 1};
  const std::vector<Op> kinds = {Op::kInsert,   kU,        Op::kErase, Op::kInsert, kF,
                                 /* next */ kU, Op::kErase};
  ThreadPool threads(2);
  const WorkloadCounts counts = CountWorkload(records, kinds, 10, 5, 0, threads);
  EXPECT_EQ(counts.keys, 4u + 2u);
  EXPECT_EQ(counts.written, 2u + 1u);
  EXPECT_EQ(counts.inserted, 2u);
  EXPECT_EQ(counts.erased, 2u);
}

TEST(CountWorkloadTest, TakesTheMostUsedForCached) {
  // Record 0 has half of the finds, 1 a quarter, 2 and 3 an eighth each.
  const std::vector<std::uint32_t> records = {0, 0, 0, 0, 1, 1, 2, 3};
  const std::vector<Op> kinds(records.size(), kF);
  ThreadPool threads(2);
  const auto cached = [&](double hit_rate) {
    return CountWorkload(records, kinds, 4, 8, hit_rate, threads).cached;
  };
  EXPECT_DOUBLE_EQ(cached(0), 0);
  EXPECT_DOUBLE_EQ(cached(0.25), 0.5);
  EXPECT_DOUBLE_EQ(cached(0.5), 1);
  EXPECT_DOUBLE_EQ(cached(0.75), 2);
  EXPECT_DOUBLE_EQ(cached(0.875), 3);  // half of each of the last two
  EXPECT_DOUBLE_EQ(cached(1), 4);
}

TEST(CountWorkloadTest, CountsWhatSetsCount) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<std::uint32_t> records(10'000);
  std::vector<Op> kinds(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    records[i] = random() % 500;
    kinds[i] = random() % 2 == 0 ? kF : kU;
  }
  for (const std::uint64_t batch : {1u, 64u, 999u, 20'000u}) {
    std::uint64_t keys = 0;
    std::uint64_t written = 0;
    for (std::size_t first = 0; first < records.size(); first += batch) {
      std::set<std::uint32_t> all;
      std::set<std::uint32_t> writes;
      for (std::size_t i = first; i < std::min(records.size(), first + batch); ++i) {
        all.insert(records[i]);
        if (kinds[i] == kU) writes.insert(records[i]);
      }
      keys += all.size();
      written += writes.size();
    }
    ThreadPool threads(4);
    const WorkloadCounts counts = CountWorkload(records, kinds, 500, batch, 0.5, threads);
    EXPECT_EQ(counts.keys, keys) << batch;
    EXPECT_EQ(counts.written, written) << batch;
    EXPECT_GT(counts.cached, 0);
    EXPECT_LE(counts.cached, counts.read);
    EXPECT_LE(counts.read, static_cast<double>(counts.keys));
  }
}

/// 1000 operations on 800 keys.
WorkloadCounts Finds(double cached) {
  return {
      .operations = 1000, .finds = 1000, .keys = 800, .read = 800, .cached = cached, .written = 0};
}

TEST(AccessesTest, OfFinds) {
  WorkloadShape shape{.gpu = true, .directory = true};
  const Accesses found = AccessesOf(Finds(600), shape);
  EXPECT_DOUBLE_EQ(found.ordered_reads, 0.2);
  EXPECT_DOUBLE_EQ(found.read_bytes, 0.2 * 128);
  EXPECT_DOUBLE_EQ(found.gpu_sectors, 0.8 * (4 + 2) + 9.0 / 32);
  EXPECT_DOUBLE_EQ(found.gpu_lines, 0.6 + 1);
  EXPECT_EQ(LinkAccesses(found), found.ordered_reads);
  EXPECT_EQ(found.write_bytes, 0);
  EXPECT_EQ(found.gpu_cas, 0);

  shape.missing = true;
  const Accesses missing = AccessesOf(Finds(0), shape);
  EXPECT_EQ(LinkAccesses(missing), 0);
  EXPECT_EQ(missing.read_bytes, 0);
  EXPECT_DOUBLE_EQ(missing.gpu_sectors, 0.8 * 4 + 9.0 / 32);
  EXPECT_EQ(missing.gpu_lines, 0);
}

TEST(AccessesTest, OfFindsWithoutDirectory) {
  WorkloadShape shape{.gpu = true};
  const Accesses found = AccessesOf(Finds(600), shape);
  EXPECT_DOUBLE_EQ(found.ordered_touches, 0.8);  // one bucket each
  EXPECT_DOUBLE_EQ(found.ordered_reads, 0.8);    // and no cache either
  EXPECT_DOUBLE_EQ(found.read_bytes, 0.8 * (128 + 128));
  shape.missing = true;
  const Accesses missing = AccessesOf(Finds(0), shape);
  EXPECT_DOUBLE_EQ(missing.ordered_touches, 0.8 * 4);
  EXPECT_EQ(missing.ordered_reads, 0);
}

TEST(AccessesTest, OfLongKeysAndValuesInSlots) {
  const WorkloadShape shape{.key_size = 32, .value_size = 8, .gpu = true, .directory = true};
  const Accesses found = AccessesOf(Finds(0), shape);
  EXPECT_EQ(found.ordered_reads, 0);
  EXPECT_DOUBLE_EQ(found.ordered_touches, 0.8);
  EXPECT_DOUBLE_EQ(found.read_bytes, 0.8 * 32);
  EXPECT_DOUBLE_EQ(found.gpu_sectors, 0.8 * (4 + 1) + 33.0 / 32);
}

TEST(AccessesTest, OfWrites) {
  const WorkloadShape shape{.gpu = true, .directory = true};
  const WorkloadCounts updates{.operations = 1000, .keys = 500, .written = 500};
  const Accesses update = AccessesOf(updates, shape);
  EXPECT_DOUBLE_EQ(update.write_bytes, 0.5 * 128);
  EXPECT_DOUBLE_EQ(update.ordered_writes, 0.5);
  EXPECT_DOUBLE_EQ(update.small_writes, 0.5);  // the reference
  EXPECT_EQ(update.read_bytes, 0);
  EXPECT_DOUBLE_EQ(update.gpu_sectors, 0.5 * (4 + 2 + 1) + 9.0 / 32);

  const WorkloadCounts inserts{.operations = 1000, .keys = 1000, .written = 1000, .inserted = 1000};
  const Accesses insert = AccessesOf(inserts, shape);
  EXPECT_DOUBLE_EQ(insert.write_bytes, 128);
  EXPECT_DOUBLE_EQ(insert.ordered_writes, 1);
  EXPECT_DOUBLE_EQ(insert.small_writes, 1);  // state and reference together
  EXPECT_EQ(insert.read_bytes, 0);
  EXPECT_DOUBLE_EQ(insert.gpu_sectors, 4 + 3 + 9.0 / 32);
  EXPECT_DOUBLE_EQ(insert.gpu_lines, 1);
  EXPECT_DOUBLE_EQ(insert.gpu_cas, 1);
  EXPECT_DOUBLE_EQ(AccessesOf(inserts, WorkloadShape{.gpu = true}).small_writes, 2);
}

TEST(AccessesTest, OfMixedWritesOfLongKeysAndOfValuesInSlots) {
  // Half of the keys are written: only those make small writes.
  const WorkloadCounts mixed{
      .operations = 1000, .finds = 500, .keys = 800, .read = 400, .written = 400};
  const WorkloadShape shape{.gpu = true, .directory = true};
  const Accesses update = AccessesOf(mixed, shape);
  EXPECT_DOUBLE_EQ(update.small_writes, 0.4);
  EXPECT_DOUBLE_EQ(update.write_bytes, 0.4 * 128);

  // A long key is a small write of its own, and only inserts write it.
  const WorkloadShape inline_values{
      .key_size = 32, .value_size = 8, .gpu = true, .directory = true};
  WorkloadCounts writes{.operations = 1000, .keys = 1000, .written = 1000};
  EXPECT_DOUBLE_EQ(AccessesOf(writes, inline_values).small_writes, 1);
  writes.inserted = 1000;
  const Accesses insert = AccessesOf(writes, inline_values);
  EXPECT_DOUBLE_EQ(insert.small_writes, 3);
  EXPECT_DOUBLE_EQ(insert.ordered_writes, 3);
  EXPECT_EQ(insert.write_bytes, 0);
}

TEST(AccessesTest, OfItemsThatComeAndGo) {
  // Of 1000 operations on as many keys 500 are finds, 100 updates, 200 inserts and 200 erases.
  const WorkloadCounts churn{.operations = 1000,
                             .finds = 500,
                             .keys = 1000,
                             .read = 500,
                             .written = 300,
                             .inserted = 200,
                             .erased = 200};
  const Accesses a = AccessesOf(churn, {.gpu = true, .directory = true});
  EXPECT_DOUBLE_EQ(a.write_bytes, 0.3 * 128);
  EXPECT_DOUBLE_EQ(a.small_writes, 0.1 + 0.2 + 0.2);
  EXPECT_DOUBLE_EQ(a.gpu_cas, 0.2);
  EXPECT_DOUBLE_EQ(a.gpu_sectors, 4 + 0.8 * 2 + 0.1 + 0.2 + 0.2 * 3 + 9.0 / 32);
  const Accesses plain = AccessesOf(churn, {.gpu = true});
  EXPECT_DOUBLE_EQ(plain.ordered_touches, 0.8 + 0.2 * 4);
  EXPECT_DOUBLE_EQ(plain.small_writes, 0.1 + 0.2 * 2 + 0.2);
}

TEST(AccessesTest, OnCpuAreOfOneMemory) {
  const Accesses found = AccessesOf(Finds(600), WorkloadShape{.directory = true});
  EXPECT_DOUBLE_EQ(found.ordered_reads, 0.8);  // cached or not
  EXPECT_DOUBLE_EQ(found.ordered_touches, 0.8 * 6);
  EXPECT_EQ(found.gpu_sectors + found.gpu_lines + found.gpu_cas, 0);
}

}  // namespace
}  // namespace gpm::bench
