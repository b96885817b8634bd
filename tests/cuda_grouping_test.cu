// How the cuda executor finds the key runs of a batch: GroupByKey against a sequential grouping.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "engine/cuda/graphs.h"
#include "engine/cuda/kernels/group_by_key.cuh"
#include "engine/cuda/load_kernels.h"
#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::OnDevice;

bool operator==(const KeyRunEffect& a, const KeyRunEffect& b) {
  return a.if_absent == b.if_absent && a.if_present == b.if_present && a.first == b.first &&
         a.find_and_collided == b.find_and_collided;
}

class GroupByKeyTest : public test::CudaTest {
 protected:
  static constexpr std::uint64_t kSeed[2] = {0x1234567, 0x89ABCDF};

  /// Groups operations on keys that `key_of(i)` numbers, and checks what comes out.
  /// @param may_share_runs keys may find no room in their bin's table
  void Check(std::uint32_t count, std::uint32_t words, unsigned blocks,
             const std::function<std::uint64_t(std::uint32_t)>& key_of,
             bool may_share_runs = false) {
    SCOPED_TRACE(testing::Message()
                 << count << " operations, keys of " << words << " words, " << blocks << " blocks");
    std::mt19937_64 random(count);
    std::vector<std::uint64_t> keys(std::size_t{count} * words, 7);
    std::vector<Op> ops(count);
    std::vector<std::uint64_t> names(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      names[i] = key_of(i);
      keys[std::size_t{i} * words + words - 1] = names[i];
      ops[i] = static_cast<Op>(random() % 4 == 0 ? random() % 256 : random() % kOpKinds);
    }
    const OnDevice<std::uint64_t> device_keys(keys), digests(count);
    const OnDevice<Op> device_ops(ops);
    const OnDevice<std::uint32_t> firsts(count), order(count), operations(count), ranks(count);
    const OnDevice<std::uint16_t> counts(std::size_t{blocks} * KeyGroups::kMaxBins);
    const OnDevice<KeyRunEffect> effects(count);
    const OnDevice<KeyRunRecord> records(count);
    const OnDevice<std::uint64_t> clear(1000);
    const OnDevice<BatchSums> sums(std::vector<BatchSums>(1));
    TableContext context{};
    context.table.hash_seed[0] = kSeed[0];
    context.table.hash_seed[1] = kSeed[1];
    context.table.key_words = words;
    DeviceBatch batch{};
    batch.count = count;
    batch.ops = device_ops.data();
    batch.keys = device_keys.data();
    batch.values = reinterpret_cast<const std::byte*>(device_keys.data());
    batch.added = reinterpret_cast<std::byte*>(digests.data());  // so that kAccumulate is valid
    batch.hashes = firsts.data();
    batch.order = order.data();
    batch.effects = effects.data();
    batch.records = records.data();
    batch.sums = sums.data();
    const KeyGroups groups{firsts.data(),  order.data(), counts.data(), operations.data(),
                           digests.data(), ranks.data(), clear.data(),  999};
    CudaStream stream;
    KernelGraph graph;
    graph.Launch({GroupByKey, blocks, kGroupThreads, context, batch, groups}, stream);
    CheckCuda(cudaStreamSynchronize(stream), "GroupByKey");

    const auto got_order = order.Host(), got_firsts = firsts.Host();
    const auto got_effects = effects.Host();
    std::vector<bool> seen(count, false);
    std::set<std::uint64_t> done;  // keys of runs that have ended
    KeyRunEffect so_far{};
    bool shared = false;
    for (std::uint32_t p = 0; p < count; ++p) {
      const std::uint32_t i = got_order[p];
      ASSERT_LT(i, count);
      ASSERT_FALSE(seen[i]) << "twice in the order";
      seen[i] = true;
      const bool begins = p == 0 || got_firsts[p] != got_firsts[p - 1];
      if (begins) {
        ASSERT_EQ(got_firsts[p], p);
      } else {
        ASSERT_LT(got_order[p - 1], i) << "not in batch order";
      }
      const bool other_key = !begins && names[got_order[p - 1]] != names[i];
      shared |= other_key;
      if (begins || other_key) {
        // (A run of several keys may come back to one of them, but no other run may.)
        ASSERT_TRUE(shared || done.insert(names[i]).second) << "in two runs";
      }
      const KeyRunEffect one = EffectOf(ops[i], true, p, begins, other_key);
      so_far = p == 0 ? one : ComposeEffects{}(so_far, one);
      ASSERT_TRUE(so_far == got_effects[p]) << "at " << p;
    }
    EXPECT_TRUE(may_share_runs || !shared);
    EXPECT_TRUE(shared || !may_share_runs) << "the table had room for all";
    for (const KeyRunRecord& record : records.Host()) {
      ASSERT_EQ(record.status, KeyRunStatus::kPending);
    }
    const auto cleared = clear.Host();
    EXPECT_EQ(std::set<std::uint64_t>(cleared.begin(), cleared.end() - 1),
              std::set<std::uint64_t>{0});
    EXPECT_EQ(cleared.back(), 0xA5A5A5A5A5A5A5A5ull) << "cleared too much";
  }
};

TEST_F(GroupByKeyTest, SizesAndSkews) {
  for (const std::uint32_t words : {1u, 2u, 16u}) {
    for (const std::uint32_t count : {1u, 31u, 4097u, 8192u, 65536u, 65537u, 131072u}) {
      std::mt19937_64 random(words);
      const auto uniform = [&](std::uint32_t) { return random(); };
      const auto few = [&](std::uint32_t) { return random() % (count / 8 + 1); };
      const auto skewed = [&](std::uint32_t) {
        const std::uint64_t bits = random() % 16;
        return random() % (std::uint64_t{1} << bits);
      };
      Check(count, words, 132, uniform);
      Check(count, words, 132, few);
      Check(count, words, 132, skewed);
      Check(count, words, 132, [](std::uint32_t) { return 5; });
      Check(count, words, 132, [](std::uint32_t i) { return i % 2; });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(GroupByKeyTest, FewBlocks) {
  for (const unsigned blocks : {1u, 2u, 67u}) {
    std::mt19937_64 random(blocks);
    Check(blocks * kGroupTurns * kGroupThreads, 1, blocks,
          [&](std::uint32_t) { return random() % 700; });
  }
}

TEST_F(GroupByKeyTest, ADigestThatMarksFreePlacesIsAKeysToo) {
  Check(5000, 1, 132, [](std::uint32_t i) {
    return i % 3 == 0 ? BinTable::kNobody : i % 3 == 1 ? i : std::uint64_t{9};
  });
}

TEST_F(GroupByKeyTest, KeysForWhichABinHasNoRoomAreOneRun) {
  std::vector<std::uint64_t> of_one_bin;
  for (std::uint64_t key = 0; of_one_bin.size() < BinTable::kPlaces + 500; ++key) {
    const KeyHash hash = HashKey(kSeed, &key, 1);
    if ((hash.h >> 32) * 132 >> 32 == 77) of_one_bin.push_back(key);
  }
  for (const std::uint32_t count : {5000u, 131072u}) {
    std::mt19937_64 random(3);
    Check(
        count, 1, 132, [&](std::uint32_t) { return of_one_bin[random() % of_one_bin.size()]; },
        true);
  }
}

TEST_F(GroupByKeyTest, AllKernelsOfAFileAreLoadedAtOnce) {
  EXPECT_TRUE(LoadKernelsBeside(reinterpret_cast<const void*>(GroupByKey)));
}

}  // namespace
}  // namespace gpm
