// The store on a medium that needs flushing, without one: libpmem's calls come here first
// (-Wl,--wrap), which keep what a power loss would leave of the pool, a line being durable once it
// was flushed and the flushing thread has drained. What that holds is written to a file now and
// then, and opened.
#include <sys/mman.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "gpmstore/snapshot.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

/// What survives of one pool. Everything that it does not watch is no persistent memory.
class Durable {
 public:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

  Durable() {
    void* const bytes = mmap(nullptr, kMostBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) throw std::bad_alloc();
    bytes_ = static_cast<std::byte*>(bytes);
    current_ = this;
  }
  ~Durable() {
    current_ = nullptr;
    munmap(bytes_, kMostBytes);
  }
  Durable(const Durable&) = delete;
  Durable& operator=(const Durable&) = delete;

  /// The one that there is, or null.
  static Durable* Current() { return current_; }

  /// The pool is what is mapped last during `open`. (What opens it may look at it before.)
  template <class Open>
  auto Watch(const std::string& path, const Open& open) {
    path_ = path;
    looks_ = true;
    auto opened = open();
    looks_ = false;
    return opened;
  }
  /// @return whether it is persistent memory
  bool Map(const void* base) {
    if (looks_) base_ = static_cast<const std::byte*>(base);
    return looks_;
  }
  /// A file was cut: what the pool had behind is gone.
  void Cut(int file, std::uint64_t bytes) {
    std::error_code error;
    if (std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file), error) == path_) {
      Cut(bytes);
    }
  }
  void Cut(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    madvise(bytes_ + bytes, kMostBytes - bytes, MADV_DONTNEED);
  }

  void Flush(const void* address, std::uint64_t bytes) {
    const std::uint64_t from = reinterpret_cast<std::uintptr_t>(address) / 64;
    const std::uint64_t to = (reinterpret_cast<std::uintptr_t>(address) + bytes + 63) / 64;
    const std::uint64_t base = reinterpret_cast<std::uintptr_t>(base_.load()) / 64;
    if (base == 0 || loses_flushes_ || from < base || to > base + kMostBytes / 64) return;
    const std::lock_guard lock(mutex_);
    for (std::uint64_t line = from - base; line < to - base; ++line) {
      pending_.push_back({line, ++flushes_, {}});
      std::memcpy(pending_.back().bytes, base_ + 64 * line, 64);
    }
  }
  void Drain() {
    const std::lock_guard lock(mutex_);
    for (const Line& line : pending_) {
      // (Another thread may have flushed it since, and drained before.)
      if (last_[line.at] > line.flush) continue;
      last_[line.at] = line.flush;
      std::memcpy(bytes_ + 64 * line.at, line.bytes, 64);
    }
    pending_.clear();
  }

  /// Writes what there would be of the pool, which is open, after a power loss now.
  void Write(const std::string& path) {
    const std::lock_guard lock(mutex_);
    std::FILE* const file = std::fopen(path.c_str(), "wb");
    ASSERT_NE(file, nullptr);
    const std::uint64_t bytes = std::filesystem::file_size(path_);
    EXPECT_EQ(std::fwrite(bytes_, 1, bytes, file), bytes);
    EXPECT_EQ(std::fclose(file), 0);
  }

  /// From now on, or not: that tests of this test see it.
  void LoseFlushes(bool loses) { loses_flushes_ = loses; }

 private:
  static inline std::atomic<Durable*> current_ = nullptr;
  struct Line {
    std::uint64_t at, flush;  ///< number of the line, and of the flush
    std::byte bytes[64];
  };
  /// Flushed, but not drained, by this thread.
  static thread_local inline std::vector<Line> pending_;

  std::mutex mutex_;
  std::uint64_t flushes_ = 0;
  std::vector<std::uint64_t> last_ = std::vector<std::uint64_t>(kMostBytes / 64);  // of each line
  std::byte* bytes_ = nullptr;
  std::atomic<const std::byte*> base_ = nullptr;
  std::string path_;
  std::atomic<bool> looks_ = false, loses_flushes_ = false;
};

struct Sizes {
  std::uint32_t key_size;
  std::uint32_t value_size;
};

class PowerLossTest : public PoolTest, public ::testing::WithParamInterface<Sizes> {
 protected:
  ModelledStore NewStore(double growth_pause = OpenOptions{}.growth_pause) {
    const std::string path = NewPath();
    OpenOptions options = Options();
    options.growth_pause = growth_pause;
    return durable_.Watch(path, [&] {
      return ModelledStore(path, Shape(GetParam().key_size, GetParam().value_size), options);
    });
  }
  static OpenOptions Options() { return TestOpenOptions(Durable::kMostBytes); }

  /// Opens what a power loss now would leave. @param use use(opened, path of it)
  template <class Use>
  void AfterPowerLoss(const Use& use) {
    const std::string path = NewPath();
    durable_.Write(path);
    OpenOptions options;
    options.executor = ExecutorKind::kCpu;
    use(options, path);
    std::filesystem::remove(path);
  }
  void ExpectAllSurvives(ModelledStore& store) {
    AfterPowerLoss([&](const OpenOptions& options, const std::string& path) {
      Store opened = Store::Open(path, options);
      ExpectContents(opened, store.model());
      opened.Close();
      ExpectSound(path, store.model().size());
    });
  }

  Durable durable_;
};

INSTANTIATE_TEST_SUITE_P(Sizes, PowerLossTest,
                         ::testing::Values(Sizes{8, 128}, Sizes{32, 100}, Sizes{8, 8},
                                           Sizes{36, 24}),
                         [](const auto& shape) {
                           return "key" + std::to_string(shape.param.key_size) + "_value" +
                                  std::to_string(shape.param.value_size);
                         });

TEST_P(PowerLossTest, EveryBatchThatEndedIsThere) {
  ModelledStore store = NewStore(0);  // levels are drained beside batches
  std::mt19937_64 random(TestSeed());
  EXPECT_TRUE(store.store().Stats().medium.needs_flush);
  // Of each way to carry out a batch on a GPU (engine/cuda/strategy.h), with growth between.
  for (const std::uint64_t size : {1, 300, 4096, 5000, 12000, 20000, 140000, 3000}) {
    SCOPED_TRACE(size);
    store.Apply(Op::kInsert, Numbers(size, size));
    ExpectAllSurvives(store);
    TestBatch batch = store.NewBatch();
    for (std::uint64_t i = 0; i < size; ++i) {
      const Op op = static_cast<Op>(random() % (static_cast<int>(Op::kAccumulate) + 1));
      batch.Add(op, random() % (3 * size), random());
    }
    store.Apply(batch);
    ExpectAllSurvives(store);
    store.Apply(Op::kUpdate, Numbers(0, size / 2), random());
    ExpectAllSurvives(store);
    if (HasFailure()) return;
  }
}

TEST_P(PowerLossTest, SoIsWhatWasLoadedGrewAndShrank) {
  ModelledStore store = NewStore();
  {
    TestBatch batch = store.NewBatch();
    for (std::uint64_t i = 0; i < 60000; ++i) batch.Add(Op::kInsert, i, i);
    const Batch arrays = batch.Mixed();
    EXPECT_EQ(store.store().BulkLoad(arrays.keys, arrays.values, arrays.results), 0u);
    batch.Compare(store.model());
  }
  ExpectAllSurvives(store);
  store.store().Reserve(200000);
  ExpectAllSurvives(store);
  store.Apply(Op::kInsert, Numbers(60000, 30000));
  store.Apply(Op::kErase, Numbers(100, 84900));
  // (What was reserved stays until a store is opened again.)
  durable_.Watch(store.path(), [&] {
    store.Reopen();
    return 0;
  });
  const std::uint64_t bytes = store.store().Stats().pm_bytes;
  store.store().Compact();
  EXPECT_LT(store.store().Stats().pm_bytes, bytes);
  ExpectAllSurvives(store);
  store.Apply(Op::kUpsert, Numbers(80000, 20000), 7);
  ExpectAllSurvives(store);
}

TEST_P(PowerLossTest, WhatIsRestoredIsThere) {
  const std::string snapshot = NewPath();
  ModelledStore store = NewStore();
  store.Apply(Op::kInsert, Numbers(0, 20000));
  store.store().Snapshot(snapshot);
  store.store().Close();
  const std::string path = NewPath();
  durable_.Cut(0);
  const Store restored =
      durable_.Watch(path, [&] { return Store::Restore(std::vector{snapshot}, path, Options()); });
  AfterPowerLoss([&](const OpenOptions& options, const std::string& left) {
    Store opened = Store::Open(left, options);
    ExpectContents(opened, store.model());
  });
}

/// On executor cpu a batch that is under way may be there in part, too, and each operation as a
/// whole. (On executor cuda its lines become durable in any order: docs/CRASH_CONSISTENCY.md.)
TEST_P(PowerLossTest, InTheMiddleOfBatches) {
  if (TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "of executor cpu alone";
  ModelledStore store = NewStore();
  const std::uint32_t key_size = GetParam().key_size;
  constexpr std::uint64_t kBatch = 2000;
  std::atomic<std::uint64_t> ended = 0;  // batches: key k of batch b is b * kBatch + k
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint64_t b = 0; !stop; ++b) {
      store.Apply(Op::kInsert, Numbers(b * kBatch, kBatch));
      ended = b + 1;
    }
  });
  for (int losses = 0; losses < 10; ++losses) {
    const std::uint64_t least = ended;
    AfterPowerLoss([&](const OpenOptions& options, const std::string& path) {
      const std::uint64_t most = ended + 1;
      Store opened = Store::Open(path, options);
      std::vector<bool> seen(most * kBatch);
      std::uint64_t wrong = 0;
      opened.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
        const std::uint64_t number = KeyNumber(key);
        const bool right = number < seen.size() && !seen[number] &&
                           AsString(key) == MakeKey(number, key_size) && ValueTag(value) == number;
        if (right) seen[number] = true;
        wrong += right ? 0 : 1;
      });
      EXPECT_EQ(wrong, 0u);
      EXPECT_EQ(std::count(seen.begin(), seen.begin() + least * kBatch, false), 0);
    });
  }
  stop = true;
  writer.join();
  EXPECT_GT(ended, 0u);
}

TEST_P(PowerLossTest, SeesWhatIsNotFlushed) {
  ModelledStore store = NewStore();
  store.Apply(Op::kInsert, Numbers(0, 1000));
  durable_.LoseFlushes(true);
  TestBatch batch = store.NewBatch();
  batch.Add(Op::kUpdate, 7, 8);
  const Batch arrays = batch.Mixed();
  EXPECT_EQ(store.store().Apply(arrays), 0u);
  durable_.LoseFlushes(false);
  ExpectAllSurvives(store);  // as it was without that batch
}

}  // namespace
}  // namespace gpm::test

extern "C" {
int __real_ftruncate(int file, off_t bytes);
int __wrap_pmem_is_pmem(const void* base, std::size_t) {
  auto* const durable = gpm::test::Durable::Current();
  return durable != nullptr && durable->Map(base) ? 1 : 0;
}
int __wrap_pmem_has_auto_flush() { return 0; }
void __wrap_pmem_flush(const void* address, std::size_t bytes) {
  if (auto* const durable = gpm::test::Durable::Current()) durable->Flush(address, bytes);
}
void __wrap_pmem_drain() {
  if (auto* const durable = gpm::test::Durable::Current()) durable->Drain();
}
int __wrap_ftruncate(int file, off_t bytes) {
  const int outcome = __real_ftruncate(file, bytes);
  auto* const durable = gpm::test::Durable::Current();
  if (outcome == 0 && durable != nullptr) durable->Cut(file, static_cast<std::uint64_t>(bytes));
  return outcome;
}
}
