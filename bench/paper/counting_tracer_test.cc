#include "bench/paper/counting_tracer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/kv_adapter.h"
#include "engine/store_impl.h"
#include "support/signals.h"

namespace gpm::bench {
namespace {

constexpr std::uint32_t kValueBytes = 128;
constexpr std::uint64_t kValueWords = kValueBytes / 8;
constexpr std::uint64_t kValueLines = kValueBytes / 64;

/// A store of one thread whose accesses are counted, with items of keys 1 ... kItems.
class CountingTracerTest : public testing::TestWithParam<bool> {
 protected:
  static constexpr std::uint64_t kItems = 100;

  void SetUp() override {
    const std::string path = TemporaryPoolPath();
    const RemovedOnSignal name(path);
    OpenOptions open;
    open.executor = ExecutorKind::kCpu;
    open.threads = 1;
    open.cache.directory = GetParam();
    open.cache.fraction = GetParam() ? 1 : 0;
    // (The default policy would have what is inserted in the cache at once.)
    if (GetParam()) open.cache.policy = CachePolicy::kLfu;
    open.cache.refresh_interval = 0;
    store_ = StoreImpl::Create(
        path, {.value_size = kValueBytes, .initial_capacity = 2 * kItems, .hash_seed = 1}, open,
        &tracer_);
    std::filesystem::remove(path);
    for (std::uint64_t key = 1; key <= kItems; ++key) Apply(Op::kInsert, {key});
  }

  Result Apply(Op op, std::vector<std::uint64_t> keys) {
    std::vector<std::byte> values(keys.size() * kValueBytes, std::byte{7});
    std::vector<Result> results(keys.size());
    Batch batch{.op = op, .keys = std::as_bytes(std::span(keys)), .results = results};
    if (op == Op::kFind) batch.found = values;
    if (op == Op::kInsert || op == Op::kUpdate) batch.values = values;
    store_->Wait(store_->Start(batch, nullptr));
    return results.front();
  }

  /// Counts one operation, and says the same about each.
  void Count(Op op, std::uint64_t key, Result expected) {
    const auto start = std::chrono::steady_clock::now();
    tracer_.Start();
    EXPECT_EQ(Apply(op, {key}), expected);
    tracer_.Stop();
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
    double seconds = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(Phase::kCount); ++i) {
      const PhaseCounts& counts = tracer_.of(static_cast<Phase>(i));
      EXPECT_GE(counts.seconds, 0);
      seconds += counts.seconds;
    }
    EXPECT_LE(seconds, all.count() + 1e-9) << "some time was counted twice";
    EXPECT_EQ(tracer_.of(Phase::kManage).reads + tracer_.of(Phase::kManage).writes, 0u);
    EXPECT_EQ(tracer_.of(Phase::kSearch).reads > 0, !directory());
  }
  void ExpectNoWrites() {
    EXPECT_EQ(tracer_.of(Phase::kWriteValue).writes, 0u);
    EXPECT_EQ(tracer_.of(Phase::kPublish).writes, 0u);
    EXPECT_EQ(tracer_.of(Phase::kPersist).flushes, 0u);
    EXPECT_EQ(tracer_.of(Phase::kPersist).fences, 0u);
  }
  void ExpectValueWritten() {
    EXPECT_EQ(tracer_.of(Phase::kWriteValue).writes, kValueWords);
    EXPECT_EQ(tracer_.of(Phase::kWriteValue).written_lines, kValueLines);
    EXPECT_EQ(tracer_.met(Step::kCellFlush), 1u);
  }
  bool directory() const { return GetParam(); }

  CountingTracer tracer_;
  std::unique_ptr<StoreImpl> store_;
};

TEST_P(CountingTracerTest, AFindReadsItsValue) {
  Count(Op::kFind, 5, Result::kOk);
  EXPECT_EQ(tracer_.of(Phase::kReadValue).reads, kValueWords);
  EXPECT_EQ(tracer_.of(Phase::kReadValue).read_lines, kValueLines);
  ExpectNoWrites();
}

TEST_P(CountingTracerTest, AFindOfAMissingKeyReadsNoValue) {
  Count(Op::kFind, kItems + 5, Result::kNotFound);
  EXPECT_EQ(tracer_.of(Phase::kReadValue).reads, 0u);
  ExpectNoWrites();
}

TEST_P(CountingTracerTest, AFindReadsNothingThatTheCacheHas) {
  for (int i = 0; i < 2; ++i) {
    Apply(Op::kFind, {5});
    store_->AwaitCacheRefresh(store_->RefreshCache());
  }
  Count(Op::kFind, 5, Result::kOk);
  EXPECT_EQ(tracer_.of(Phase::kReadValue).reads, directory() ? 0u : kValueWords);
  ExpectNoWrites();
}

TEST_P(CountingTracerTest, AnInsertWritesItsValueAndThenItsSlot) {
  Count(Op::kInsert, kItems + 5, Result::kOk);
  ExpectValueWritten();
  // Without a directory a claim comes first; then state word and reference are written apart.
  EXPECT_EQ(tracer_.of(Phase::kPublish).writes, directory() ? 2u : 3u);
  EXPECT_EQ(tracer_.of(Phase::kPublish).swaps, directory() ? 0u : 1u);
  EXPECT_EQ(tracer_.of(Phase::kPersist).flushes, directory() ? 2u : 3u);
  EXPECT_EQ(tracer_.of(Phase::kPersist).flushed_lines,
            tracer_.of(Phase::kPersist).flushes + kValueLines - 1);
  EXPECT_EQ(tracer_.of(Phase::kPersist).fences, 2u);
  EXPECT_EQ(tracer_.met(Step::kInsertContentsFence), 1u);
  EXPECT_EQ(tracer_.met(Step::kInsertDoneFence), 1u);
}

TEST_P(CountingTracerTest, AnUpdateWritesItsValueAndOneWord) {
  Count(Op::kUpdate, 5, Result::kOk);
  ExpectValueWritten();
  EXPECT_EQ(tracer_.of(Phase::kPublish).writes, 1u);
  EXPECT_EQ(tracer_.of(Phase::kPersist).flushes, 2u);
  EXPECT_EQ(tracer_.of(Phase::kPersist).fences, 2u);
  EXPECT_EQ(tracer_.met(Step::kUpdateReferenceCas), directory() ? 0u : 1u);
}

TEST_P(CountingTracerTest, AnEraseWritesOneWord) {
  Count(Op::kErase, 5, Result::kOk);
  EXPECT_EQ(tracer_.of(Phase::kWriteValue).writes, 0u);
  EXPECT_EQ(tracer_.of(Phase::kPublish).writes, 1u);
  EXPECT_EQ(tracer_.of(Phase::kPersist).flushes, 1u);
  EXPECT_EQ(tracer_.of(Phase::kPersist).fences, 1u);
}

TEST_P(CountingTracerTest, NothingIsCountedBeforeAndBehind) {
  tracer_.Start();
  tracer_.Stop();
  Apply(Op::kInsert, {kItems + 5});
  ExpectNoWrites();
  EXPECT_EQ(tracer_.met(Step::kInsertDoneFence), 0u);
}

INSTANTIATE_TEST_SUITE_P(, CountingTracerTest, testing::Bool(), [](const auto& which) {
  return which.param ? "Directory" : "NoDirectory";
});

}  // namespace
}  // namespace gpm::bench
