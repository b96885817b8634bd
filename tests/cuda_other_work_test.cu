// No call waits for what others have the GPU do, as a training step or a refresh of the cache: only
// for the store's own work that it depends on. And none ends a capture.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/launch.h"
#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::CudaTest;
using test::kValueSize;
using test::OnDevice;
using test::Value;
using test::ValueOf;

/// Runs until `end` is set, or for ten seconds: then it sets `gave_up`.
__global__ void RunUntil(const volatile int* end, volatile int* gave_up) {
  const auto nanoseconds = [] {
    std::uint64_t now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  };
  const std::uint64_t begun = nanoseconds();
  while (*end == 0) {
    if (nanoseconds() - begun > 10'000'000'000u) {
      *gave_up = 1;
      return;
    }
  }
}

__global__ void Nothing() {}

/// What takes long on a stream of its own, while this lives.
class OtherWork {
 public:
  OtherWork() { Launch("RunUntil", RunUntil, 1, 1, stream_, end_.get(), gave_up_.get()); }
  ~OtherWork() { End(); }
  /// @return false: somebody waited for it
  bool End() {
    *static_cast<volatile int*>(end_.get()) = 1;
    cudaStreamSynchronize(stream_);
    return *gave_up_.get() == 0;
  }
  bool runs() const { return *static_cast<volatile int*>(gave_up_.get()) == 0; }

 private:
  const PinnedBox<int> end_, gave_up_;
  const CudaStream stream_;
};

/// Upserts of keys 1 to n, in GPU memory. (0 is one of those that no cache has.)
class Upserts {
 public:
  explicit Upserts(std::size_t n)
      : size_(n), keys_(Numbers(n)), values_(ValuesOf(n)), results_(n), kinds_(KindsOf(n)) {}
  /// @param with_finds only one operation in 20 upserts, the others find
  void Apply(Store& store, std::size_t first, std::size_t n, bool with_finds = false) {
    store.Apply(
        {.op = Op::kUpsert,
         .ops = {kinds_.data() + first, with_finds ? n : 0},
         .keys = keys_.In().subspan(first * sizeof(std::uint64_t), n * sizeof(std::uint64_t)),
         .values = values_.In().subspan(first * sizeof(Value), n * sizeof(Value)),
         .results = {results_.data() + first, n}});
  }
  std::vector<Result> Results() const { return results_.Host(); }
  /// What a store finds of all of them.
  std::vector<Value> Find(Store& store) {
    const OnDevice<Value> found(size_);
    Find(store, found);
    return found.Host();
  }
  void Find(Store& store, const OnDevice<Value>& found) {
    store.Apply({.op = Op::kFind,
                 .keys = keys_.In(),
                 .found = found.Out(),
                 .results = {results_.data(), size_}});
  }
  static std::vector<Value> ValuesOf(std::size_t n) {
    std::vector<Value> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = ValueOf(i + 1);
    return values;
  }

 private:
  static std::vector<std::uint64_t> Numbers(std::size_t n) {
    std::vector<std::uint64_t> numbers(n);
    std::iota(numbers.begin(), numbers.end(), 1);
    return numbers;
  }
  static std::vector<Op> KindsOf(std::size_t n) {
    std::vector<Op> kinds(n, Op::kFind);
    for (std::size_t i = 0; i < n; i += 20) kinds[i] = Op::kUpsert;
    return kinds;
  }

  const std::size_t size_;
  const OnDevice<std::uint64_t> keys_;
  const OnDevice<Value> values_;
  const OnDevice<Result> results_;
  const OnDevice<Op> kinds_;
};

/// A capture that goes on while this lives: of a CUDA graph, as torch makes one.
class OtherCapture {
 public:
  OtherCapture() {
    CheckCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
  }
  ~OtherCapture() { End(); }
  /// @return false: somebody has ended it
  bool End() {
    if (std::exchange(ended_, true)) return true;
    cudaGraph_t graph = nullptr;
    const bool whole = cudaStreamEndCapture(stream_, &graph) == cudaSuccess;
    if (whole) cudaGraphDestroy(graph);
    cudaGetLastError();
    return whole;
  }

 private:
  const CudaStream stream_;
  bool ended_ = false;
};

class OtherWorkTest : public CudaTest {
 protected:
  /// What runs on a new store, three times: first, so that all kernels are loaded; then beside
  /// other work, which begins when `run` calls what it is given; then while a graph is captured.
  void Beside(const CreateOptions& create, const OpenOptions& open,
              const std::function<void(Store&, const std::function<void()>&)>& run) {
    const auto run_on_new = [&](const std::function<void()>& begin) {
      Store store = Store::Create(PoolPath(), create, open);
      run(store, begin);
      return store;
    };
    const auto remove = [&](Store store) {
      store.Close();
      std::filesystem::remove(PoolPath());
    };
    const CudaStream stream;
    const auto do_nothing = [&] {  // (Memory is not taken: to give it back would wait.)
      Launch("Nothing", Nothing, 1, 1, stream);
      CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    };
    do_nothing();  // which loads it
    remove(run_on_new([] {}));
    {
      std::optional<OtherWork> other;
      bool runs = true;
      Store store = run_on_new([&] {
        other.emplace();
        do_nothing();
        runs = other->runs();
      });
      if (!runs) GTEST_SKIP() << "here nothing runs beside a kernel";
      EXPECT_TRUE(other->End());
      remove(std::move(store));
    }
    std::optional<OtherCapture> capture;
    Store store = run_on_new([&] { capture.emplace(); });
    EXPECT_TRUE(capture->End());
    remove(std::move(store));
  }
  static CreateOptions Shape(std::uint64_t capacity) {
    CreateOptions create;
    create.value_size = kValueSize;
    create.initial_capacity = capacity;
    return create;
  }
};

TEST_F(OtherWorkTest, QueuesGrow) {
  constexpr std::size_t kOperations = 300'000;
  Upserts upserts(kOperations);
  Beside(Shape(2 * kOperations), test::TestOpenOptions(),
         [&](Store& store, const std::function<void()>& begin) {
           upserts.Apply(store, 0, kOperations / 5);
           const std::uint64_t before = store.Stats().gpu_bytes;
           begin();
           upserts.Apply(store, 0, kOperations);
           EXPECT_GT(store.Stats().gpu_bytes, before);  // by the queue of erased slots
         });
  EXPECT_EQ(upserts.Results(), std::vector(kOperations, Result::kOk));
}

TEST_F(OtherWorkTest, TheTableGrows) {
  constexpr std::size_t kBatch = 20'000;
  constexpr std::size_t kBatches = 30;
  Upserts upserts(kBatch * kBatches);
  Beside(Shape(0), test::TestOpenOptions(), [&](Store& store, const std::function<void()>& begin) {
    upserts.Apply(store, 0, kBatch);
    begin();
    for (std::size_t b = 0; b < kBatches; ++b) upserts.Apply(store, b * kBatch, kBatch);
    EXPECT_GT(store.Stats().resizes, 2u);
  });
  EXPECT_EQ(upserts.Results(), std::vector(kBatch * kBatches, Result::kOk));
}

// The second part grows what the first one took.
TEST_F(OtherWorkTest, SearchesFollowChanges) {
  constexpr std::size_t kItems = 200'000;
  Upserts upserts(kItems);
  CreateOptions create = Shape(2 * kItems);
  create.attributes = {{.name = "first"}, {.name = "second", .offset = 8, .bytes = 4}};
  OpenOptions open = test::TestOpenOptions();
  open.search_index_bytes = std::uint64_t{1} << 30;
  const std::vector<Query> queries = {{{.attribute = 0, .least = 31 * 20, .most = 31 * 119}},
                                      {{.attribute = 1, .least = 1, .most = 31 * 50'000 + 1}}};
  const auto search = [&](Store& store) {
    return store.Search(queries, {.keys = true, .values = true}).counts;
  };
  Beside(create, open, [&](Store& store, const std::function<void()>& begin) {
    upserts.Apply(store, 0, kItems / 10);
    for (int i = 0; i < 3; ++i) search(store);
    upserts.Apply(store, 0, 10);
    search(store);
    begin();
    upserts.Apply(store, 0, 5000);
    search(store);
    upserts.Apply(store, 0, kItems / 2);
    EXPECT_EQ(search(store), (std::vector<std::uint64_t>{100, 50'000}));
  });
}

TEST_F(OtherWorkTest, SmallBatchesThatWriteRun) {
  constexpr std::size_t kItems = 30'000;
  Upserts upserts(kItems);
  const OnDevice<Value> found(kItems);
  Beside(Shape(2 * kItems), test::TestOpenOptions(),
         [&](Store& store, const std::function<void()>& begin) {
           upserts.Apply(store, 0, kItems);
           begin();
           for (const std::size_t n : {1, 100, 4096, 4097, 8192, 8193, 16'384}) {
             upserts.Apply(store, 0, n);
             upserts.Apply(store, 0, n, true);
           }
           upserts.Find(store, found);
         });
  EXPECT_EQ(found.Host(), Upserts::ValuesOf(kItems));
}

TEST_F(OtherWorkTest, ItemsAreEvicted) {
  constexpr std::size_t kBatch = 10'000;
  constexpr std::size_t kBatches = 30;
  Upserts upserts(kBatch * kBatches);
  OpenOptions open = test::TestOpenOptions();
  open.capacity.items = 4 * kBatch;
  Beside(Shape(0), open, [&](Store& store, const std::function<void()>& begin) {
    for (std::size_t b = 0; b < 6; ++b) upserts.Apply(store, b * kBatch, kBatch);
    begin();
    for (std::size_t b = 6; b < kBatches; ++b) upserts.Apply(store, b * kBatch, kBatch);
    EXPECT_LE(store.Stats().items, 4 * kBatch);
  });
}

TEST_F(OtherWorkTest, SnapshotsAreTaken) {
  constexpr std::size_t kItems = 50'000;
  Upserts upserts(kItems);
  Beside(Shape(kItems), test::TestOpenOptions(),
         [&](Store& store, const std::function<void()>& begin) {
           upserts.Apply(store, 0, kItems);
           const std::string path = NewPath();
           store.Snapshot(path + ".0");
           begin();
           upserts.Apply(store, 0, kItems / 10);
           EXPECT_EQ(store.Snapshot(path + ".1", {.base = path + ".0"}).items, kItems);
           store.Snapshot(path + ".2");
         });
}

TEST_F(OtherWorkTest, TheHostReads) {
  constexpr std::size_t kItems = 60'000;
  Upserts upserts(kItems);
  const OnDevice<Value> found(kItems);
  OpenOptions open = test::TestOpenOptions();
  open.access.dealt_up_to = 1;  // every pool is a large one
  open.cache.fraction = 0;
  Beside(Shape(kItems), open, [&](Store& store, const std::function<void()>& begin) {
    upserts.Apply(store, 0, kItems);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (store.Stats().read_by_host == 0) {  // its threads are started meanwhile
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      upserts.Find(store, found);
    }
    begin();
    const std::uint64_t before = store.Stats().read_by_host;
    upserts.Find(store, found);
    EXPECT_GT(store.Stats().read_by_host, before);
  });
  EXPECT_EQ(found.Host(), Upserts::ValuesOf(kItems));
}

TEST_F(OtherWorkTest, RefreshesEndWhileTheTableGrows) {
  constexpr std::size_t kBatch = 20'000;
  constexpr std::size_t kBatches = 40;
  Store store = Make();
  Upserts upserts(kBatch * kBatches);
  std::vector<Ticket> refreshes;
  for (std::size_t b = 0; b < kBatches; ++b) {
    upserts.Apply(store, b * kBatch, kBatch);
    refreshes.push_back(store.RefreshCache());
  }
  EXPECT_EQ(upserts.Results(), std::vector(kBatch * kBatches, Result::kOk));
  EXPECT_GT(store.Stats().resizes, 2u);
  while (store.Stats().buckets_to_drain > 0) upserts.Apply(store, 0, kBatch);
  refreshes.push_back(store.RefreshCache());
  for (Ticket& refresh : refreshes) refresh.Wait();
  const CacheStats before = store.Stats().cache;
  EXPECT_EQ(upserts.Find(store), Upserts::ValuesOf(kBatch * kBatches));
  EXPECT_EQ(store.Stats().cache.hits - before.hits, kBatch * kBatches);
}

}  // namespace
}  // namespace gpm
