#ifndef GPM_TESTS_FAILURE_UTIL_H_
#define GPM_TESTS_FAILURE_UTIL_H_

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "engine/store_impl.h"
#include "tests/test_util.h"

/// What the tests of failures and of scopes share.
namespace gpm::test {

inline constexpr std::uint32_t kKeySize = 16;
inline constexpr std::uint32_t kValueSize = 40;

inline void ApplyTo(StoreImpl& store, TestBatch batch) {
  const Batch mixed = batch.Mixed();
  store.Wait(store.Start(mixed, nullptr));
}

class FailureTest : public PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    alarm(300);  // a hang is a failure, too
  }
  void TearDown() override {
    alarm(0);
    PoolTest::TearDown();
  }

  static OpenOptions Options(bool directory = false) {
    OpenOptions options;
    options.executor = ExecutorKind::kCpu;
    options.threads = 3;
    options.max_bytes = std::uint64_t{16} << 20;
    options.cache.directory = directory;
    options.cache.fraction = directory ? 0.5 : 0;
    return options;
  }
  Store NewStore(const std::string& path, bool directory = false) const {
    return Store::Create(path, {.key_size = kKeySize, .value_size = kValueSize},
                         Options(directory));
  }
  std::shared_ptr<StoreImpl> NewImpl(const std::string& path) const {
    return StoreImpl::Create(path, {.key_size = kKeySize, .value_size = kValueSize}, Options());
  }

  static TestBatch Inserts(std::uint64_t first, std::uint64_t count) {
    TestBatch batch(kKeySize, kValueSize);
    for (std::uint64_t key = first; key < first + count; ++key) batch.Add(Op::kInsert, key, key);
    return batch;
  }

  /// What a batch that threw may have done to a model of the store: each of its inserts of new keys
  /// has, or has not.
  static void ExpectItems(Store& store, std::uint64_t surely, std::uint64_t perhaps) {
    TestBatch finds(kKeySize, kValueSize);
    for (std::uint64_t key = 0; key < surely + perhaps; ++key) finds.Add(Op::kFind, key, 0);
    store.Apply(finds.Mixed());
    std::uint64_t lost = 0;
    std::uint64_t wrong = 0;
    for (std::uint64_t key = 0; key < finds.size(); ++key) {
      if (finds.result(key) == Result::kNotFound) {
        lost += key < surely;
      } else {
        wrong += AsString(finds.found(key)) != MakeValue(key, kValueSize);
      }
    }
    EXPECT_EQ(lost, 0u);
    EXPECT_EQ(wrong, 0u);
  }
  static void ExpectSoundPool(const std::string& path) {
    const CheckReport report = CheckPool(path);
    EXPECT_TRUE(report.defects.empty()) << report.defects.front();
  }
};

/// Stands for what a DeviceScope makes of the user's kernels, or for a batch that fails.
class FakeTask : public BatchTask {
 public:
  void Start(const Epochs::SlotRange& recycle, const CellGrant& grant,
             const BucketRange&) override {
    granted_ = grant.count;
    to_give_back = recycle.to - recycle.from;
    free_for_inserts = grant.count - grant.kept;
    if (on_start) on_start();
  }
  bool Touched() const override { return touched; }
  bool Complete() const override { return closed; }
  Progress Await() override {
    Progress progress;
    progress.cells_left = granted_;
    return progress;
  }
  Progress Resume(bool, const CellGrant&) override { return {}; }

  std::function<void()> on_start;
  bool touched = false;
  std::atomic<bool> closed{true};
  std::uint64_t free_for_inserts = 0;  ///< cells of the grant
  std::uint64_t to_give_back = 0;      ///< erased slots

 private:
  std::uint64_t granted_ = 0;
};

}  // namespace gpm::test

#endif  // GPM_TESTS_FAILURE_UTIL_H_
