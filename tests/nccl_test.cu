// Ranks with a GPU each that exchange GPU memory by NCCL: threads of this process. One GPU is one
// rank; what needs two skips.

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "gpmstore/distributed_store.h"
#include "gpmstore/nccl_exchange.h"
#include "tests/cuda_shard_test_util.cuh"
#include "tests/ranks.h"

namespace gpm {
namespace {

using test::Model;
using test::Placed;
using test::PlacedBatch;
using test::TestBatch;
using namespace std::chrono_literals;

class NcclTest : public test::PoolTest {
 protected:
  void Connect(std::uint32_t ranks, std::chrono::milliseconds timeout = kExchangeTimeout) {
    exchanges_.clear();
    exchanges_.resize(ranks);
    auto hosts = MakeThreadExchanges(ranks, timeout);
    const auto errors = OnAll([&](std::uint32_t i) {
      exchanges_[i] = MakeNcclExchange(std::move(hosts[i]), static_cast<int>(i), timeout);
    });
    for (std::uint32_t i = 0; i < ranks; ++i) ASSERT_FALSE(errors[i]) << messages_[i];
  }
  std::vector<std::optional<ErrorCode>> OnAll(const std::function<void(std::uint32_t)>& action) {
    return test::OnAllRanks(
        static_cast<std::uint32_t>(exchanges_.size()),
        [&](std::uint32_t i) {
          UseGpu(static_cast<int>(i));
          action(i);
        },
        &messages_);
  }
  static std::uint32_t Gpus() { return static_cast<std::uint32_t>(GpuCount()); }

  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<std::string> messages_;
};

TEST_F(NcclTest, ArraysOfAllSizes) {
  const std::uint32_t ranks = Gpus();
  Connect(ranks);
  if (HasFatalFailure()) return;
  std::mt19937_64 random(test::TestSeed());
  constexpr std::size_t kArrays = 3;
  for (int round = 0; round < 20; ++round) {
    // bytes[i][k * ranks + j]: the k-th array from i to j.
    std::vector<std::vector<std::vector<std::byte>>> bytes(ranks);
    for (auto& from : bytes) {
      for (std::size_t at = 0; at < kArrays * ranks; ++at) {
        auto& part = from.emplace_back(random() % 3 == 0 ? 0 : random() % (1u << random() % 23));
        const std::uint64_t first = random();
        for (std::size_t b = 0; b < part.size(); ++b) {
          part[b] = static_cast<std::byte>(first + b * 7);
        }
      }
    }
    const auto errors = OnAll([&](std::uint32_t rank) {
      const CudaStream stream;
      std::vector<std::unique_ptr<Placed>> sent, received;
      std::vector<std::span<const std::byte>> send;
      std::vector<std::span<std::byte>> receive;
      for (std::size_t at = 0; at < kArrays * ranks; ++at) {
        const std::size_t peer = at % ranks;
        sent.push_back(std::make_unique<Placed>(Placed::kDevice, bytes[rank][at]));
        received.push_back(
            std::make_unique<Placed>(Placed::kDevice, bytes[peer][at - peer + rank].size()));
        send.push_back(sent.back()->bytes());
        receive.push_back(received.back()->bytes());
      }
      ASSERT_TRUE(exchanges_[rank]->TakesGpuMemory(static_cast<int>(rank)));
      exchanges_[rank]->AllToAllOnGpu(send, receive, stream);
      for (std::size_t at = 0; at < kArrays * ranks; ++at) {
        const std::size_t peer = at % ranks;
        EXPECT_TRUE(received[at]->Contents<std::byte>() == bytes[peer][at - peer + rank]);
      }
    });
    for (std::uint32_t i = 0; i < ranks; ++i) EXPECT_FALSE(errors[i]) << messages_[i];
  }
}

TEST_F(NcclTest, AStoreOfAllGpus) {
  constexpr std::uint32_t kKeySize = 16;
  constexpr std::uint32_t kValueSize = 40;
  const std::uint32_t ranks = Gpus();
  Connect(ranks);
  if (HasFatalFailure()) return;
  std::vector<DistributedStore> stores(ranks);
  const std::string folder = NewPath();
  auto errors = OnAll([&](std::uint32_t i) {
    OpenOptions open = test::TestOpenOptions();
    open.device = static_cast<int>(i);
    stores[i] =
        DistributedStore::Create(folder, std::move(exchanges_[i]),
                                 test::Shape(kKeySize, kValueSize), {.shards = ranks}, open);
  });
  for (std::uint32_t i = 0; i < ranks; ++i) ASSERT_FALSE(errors[i]) << messages_[i];
  std::mt19937_64 random(test::TestSeed());
  Model model;
  for (int round = 0; round < 20; ++round) {
    std::vector<TestBatch> parts(ranks, TestBatch(kKeySize, kValueSize));
    std::vector<PlacedBatch> placed;
    for (std::uint32_t i = 0; i < ranks; ++i) {
      for (std::uint64_t j = random() % 5000; j > 0; --j) {
        parts[i].Add(static_cast<Op>(random() % kOpKinds), random() % 2000, random());
      }
      placed.push_back(PlacedBatch::OnDevice(parts[i].Mixed(), static_cast<int>(i)));
    }
    errors = OnAll([&](std::uint32_t i) { stores[i].Apply(placed[i].batch()); });
    for (std::uint32_t i = 0; i < ranks; ++i) {
      ASSERT_FALSE(errors[i]) << messages_[i];
      placed[i].CopyBack();
      parts[i].Compare(model);
    }
  }
  std::uint64_t items = 0;
  for (DistributedStore& store : stores) items += store.Stats().items;
  EXPECT_EQ(items, model.size());
  errors = OnAll([&](std::uint32_t i) { stores[i].Close(); });
  for (std::uint32_t i = 0; i < ranks; ++i) EXPECT_FALSE(errors[i]) << messages_[i];
}

TEST_F(NcclTest, ARankThatDoesNotComeEndsTheOthersCalls) {
  if (Gpus() < 2) GTEST_SKIP() << "one GPU: no other rank";
  Connect(2, 500ms);
  if (HasFatalFailure()) return;
  const auto errors = OnAll([&](std::uint32_t i) {
    if (i == 1) return;
    const CudaStream stream;
    Placed rows(Placed::kDevice, std::size_t{1} << 20);
    const std::vector<std::span<const std::byte>> send(2, rows.bytes());
    Placed room(Placed::kDevice, std::size_t{2} << 20);
    const std::span<std::byte> to = room.bytes();
    const std::vector<std::span<std::byte>> receive = {to.first(to.size() / 2),
                                                       to.last(to.size() / 2)};
    EXPECT_EQ(test::ErrorOf([&] { exchanges_[i]->AllToAllOnGpu(send, receive, stream); }),
              ErrorCode::kIo);
    // And the GPU can be used.
    CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    EXPECT_EQ(rows.Contents<std::byte>().size(), std::size_t{1} << 20);
    exchanges_[i]->AllToAllOnGpu(send, receive, stream);
  });
  EXPECT_EQ(errors[0], ErrorCode::kIo);
  exchanges_[0].reset();
  exchanges_[1].reset();
}

TEST_F(NcclTest, ADeviceThatIsNotThereIsToldToAll) {
  exchanges_.resize(2);
  auto hosts = MakeThreadExchanges(2);
  const auto errors = test::OnAllRanks(
      2, [&](std::uint32_t i) { MakeNcclExchange(std::move(hosts[i]), i == 0 ? 0 : GpuCount()); },
      &messages_);
  EXPECT_EQ(errors[0], ErrorCode::kUnsupported);
  EXPECT_EQ(errors[1], ErrorCode::kUnsupported);
  EXPECT_NE(messages_[0].find("rank 1"), std::string::npos) << messages_[0];
  EXPECT_EQ(test::ErrorOf([] { MakeNcclExchange(nullptr, 0); }), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace gpm
