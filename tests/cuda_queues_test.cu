// Work that is dealt out to multiprocessors by address: nothing is lost, nothing is done twice.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/cuda/io/sm_queues.cuh"
#include "engine/cuda/memory.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using Lists = SmQueues<std::uint32_t>;
constexpr unsigned kThreads = 256;
constexpr std::uint32_t kGroups = 32;  // of 8 threads

/// Adds items [0, count), about addresses `stride` apart.
__global__ void AddItems(Lists lists, std::uint32_t count, std::uint64_t stride) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) lists.Add(i * stride, i);
}

/// Counts how often each item is handed out, and how many blocks are told that they are the last.
/// @param takers blocks that take items
__global__ void VisitItems(Lists lists, std::uint32_t takers, std::uint32_t* visits,
                           std::uint32_t* last_blocks) {
  __shared__ SmQueueConsumer<std::uint32_t> items;
  if (blockIdx.x >= takers) return;
  items.ForEach<kGroups>(lists, [&](std::uint32_t item, bool has_one) {
    __syncthreads();  // all threads come here
    if (has_one && threadIdx.x % (kThreads / kGroups) == 0) atomicAdd(&visits[item], 1u);
  });
  if (!items.IsLast(lists, takers)) return;
  lists.Clear();
  if (threadIdx.x == 0) atomicAdd(last_blocks, 1u);
}

/// The same for few items.
template <class Team>
__global__ void VisitFewItems(Lists lists, std::uint32_t count, std::uint32_t* visits,
                              std::uint32_t* last_blocks) {
  __shared__ FewItemsConsumer<std::uint32_t, Team> items;
  if (Team::Rank() >= Team::Size()) return;  // of the other half of the block
  items.Begin(lists, count);
  std::uint32_t item = 0;
  for (bool has_one = false; items.template Next<kGroups>(lists, &item, &has_one);) {
    Team::Sync();  // all threads come here
    if (has_one && Team::Rank() % (kThreads / kGroups) == 0) atomicAdd(&visits[item], 1u);
  }
  if (items.IsLast() && Team::Rank() == 0) atomicAdd(last_blocks, 1u);
  if (items.IsLast()) lists.template Clear<Team>();
}

/// Each half of a block asks in turns whether any of its threads is the one; `wrong` counts answers
/// that are not right.
template <class Team>
__device__ void AskTeam(std::uint32_t* wrong) {
  for (std::uint32_t one = 0; one < 2 * kThreads; ++one) {
    if (Team::Or(threadIdx.x == one) != (one - threadIdx.x + Team::Rank() < Team::Size())) {
      atomicAdd(wrong, 1u);
    }
  }
}
__global__ void AskHalves(std::uint32_t* wrong) {
  if (threadIdx.x < kThreads) {
    AskTeam<BlockSlice<0, kThreads>>(wrong);
  } else {
    AskTeam<BlockSlice<kThreads, kThreads>>(wrong);
  }
}

/// Takes items as they come, some at a time, for which it asks before it looks at those before.
__global__ void TakeItems(Lists lists, std::uint32_t most, std::uint32_t* visits) {
  __shared__ SmQueueCursor<std::uint32_t> cursor;
  if (threadIdx.x == 0) cursor.Begin(lists);
  __syncthreads();
  std::uint32_t asked = cursor.Ask(lists, most);
  while (const std::uint32_t some = cursor.TakeSome(lists, most, asked)) {
    asked = cursor.Ask(lists, most);
    if (threadIdx.x < some) atomicAdd(&visits[cursor.At(lists, cursor.first + threadIdx.x)], 1u);
  }
}

/// Items in GPU memory, of which each was visited once so far.
class PartListsTest : public test::PoolTest {
 protected:
  void Make(std::uint32_t items, std::uint32_t queues) {
    count_ = items;
    lists_.queues = queues;
    lists_.room = Lists::RoomFor(items, queues);
    items_.Reserve(lists_.SizeFor(items));
    counts_.Reserve(Lists::kCounts);
    visits_.Reserve(items + 1);
    lists_.items = items_.data();
    lists_.counts = counts_.data();
    CheckCuda(cudaMemset(items_.data(), 0xA5, 4 * items_.size()), "cudaMemset");
    CheckCuda(cudaMemset(counts_.data(), 0, 4 * Lists::kCounts), "cudaMemset");
  }
  /// Adds all, far apart or side by side, and has them visited.
  void Add(std::uint64_t stride) {
    CheckCuda(cudaMemset(visits_.data(), 0, 4 * (count_ + 1)), "cudaMemset");
    AddItems<<<(count_ + kThreads - 1) / kThreads, kThreads>>>(lists_, count_, stride);
    CheckCuda(cudaGetLastError(), "AddItems");
  }
  template <class T>
  static std::vector<T> Host(const DeviceArray<T>& array, std::size_t size) {
    std::vector<T> host(size);
    CheckCuda(cudaMemcpy(host.data(), array.data(), size * sizeof(T), cudaMemcpyDeviceToHost),
              "cudaMemcpy");
    return host;
  }
  void ExpectEachVisitedOnce() {
    const std::vector<std::uint32_t> visits = Host(visits_, count_);
    EXPECT_EQ(visits, std::vector<std::uint32_t>(count_, 1));
  }
  void ExpectEmpty() {
    EXPECT_EQ(Host(counts_, Lists::kCounts), std::vector<std::uint32_t>(Lists::kCounts, 0));
  }

  std::uint32_t count_ = 0;
  Lists lists_;
  DeviceArray<std::uint32_t> items_, counts_, visits_;
};

constexpr std::uint64_t kRegion = std::uint64_t{1} << Lists::kRegionBits;

TEST_F(PartListsTest, EachItemIsVisitedOnceAndTheListsAreEmptyThen) {
  for (const std::uint32_t items : {1u, 31u, 4096u, 30000u}) {
    for (const std::uint32_t parts : {1u, 7u, 66u, Lists::kMaxQueues}) {
      // One block leaves most parts to be taken over; more than fit run one after another.
      for (const unsigned blocks : {1u, 132u, 1000u}) {
        for (const std::uint64_t stride : {kRegion / 64, kRegion + 64, std::uint64_t{8}}) {
          SCOPED_TRACE(testing::Message() << items << " items, " << parts << " parts, " << blocks
                                          << " blocks, " << stride << " bytes apart");
          Make(items, parts);
          for (int round = 0; round < 3; ++round) {
            Add(stride);
            std::uint32_t* const visits = visits_.data();
            if (round == 0) {
              VisitItems<<<blocks + 5, kThreads>>>(lists_, blocks, visits, visits + items);
            } else if (round == 1) {
              VisitFewItems<WholeBlock>
                  <<<blocks, kThreads>>>(lists_, items, visits, visits + items);
            } else {
              VisitFewItems<BlockSlice<kThreads, kThreads>>
                  <<<blocks, 2 * kThreads>>>(lists_, items, visits, visits + items);
            }
            CheckCuda(cudaGetLastError(), "a kernel that visits items");
            ExpectEachVisitedOnce();
            ExpectEmpty();
            EXPECT_EQ(Host(visits_, items + 1).back(), 1u);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(PartListsTest, HalvesOfABlockAskApart) {
  Make(1, 1);
  CheckCuda(cudaMemset(visits_.data(), 0, 4), "cudaMemset");
  AskHalves<<<132, 2 * kThreads>>>(visits_.data());
  CheckCuda(cudaGetLastError(), "AskHalves");
  EXPECT_EQ(Host(visits_, 1).front(), 0u);
}

TEST_F(PartListsTest, NothingIsVisitedWhereNothingWasAdded) {
  Make(1000, 132);
  CheckCuda(cudaMemset(visits_.data(), 0, 4 * 1001), "cudaMemset");
  VisitItems<<<264, kThreads>>>(lists_, 264, visits_.data(), visits_.data() + 1000);
  CheckCuda(cudaGetLastError(), "VisitItems");
  std::vector<std::uint32_t> expected(1001, 0);
  expected.back() = 1;
  EXPECT_EQ(Host(visits_, 1001), expected);
  ExpectEmpty();
}

TEST_F(PartListsTest, ACursorTakesWhatIsLeftAnywhere) {
  for (const std::uint32_t most : {1u, 5u, 256u}) {
    for (const std::uint64_t stride : {kRegion + 64, std::uint64_t{8}}) {
      SCOPED_TRACE(testing::Message() << most << " at most, " << stride << " bytes apart");
      Make(3000, 132);
      Add(stride);
      TakeItems<<<40, kThreads>>>(lists_, most, visits_.data());
      CheckCuda(cudaGetLastError(), "TakeItems");
      ExpectEachVisitedOnce();
    }
  }
}

}  // namespace
}  // namespace gpm
