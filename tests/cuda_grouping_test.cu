// How the cuda executor finds the key runs of a batch: GroupByKey, and PartCollidedRuns, against a
// sequential grouping.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "engine/cuda/graphs.h"
#include "engine/cuda/kernels/collided_runs.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/load_kernels.h"
#include "pm/pool.h"
#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::OnDevice;

bool operator==(const KeyRunEffect& a, const KeyRunEffect& b) {
  return a.if_absent == b.if_absent && a.if_present == b.if_present && a.first == b.first &&
         a.find_and_collided == b.find_and_collided;
}

/// The arrays of a batch whose key runs are looked for.
struct RunsOnDevice {
  OnDevice<std::uint64_t> keys;
  OnDevice<Op> ops;
  OnDevice<std::uint32_t> hashes, order;
  OnDevice<KeyRunEffect> effects;
  OnDevice<KeyRunRecord> records;
  OnDevice<BatchSums> sums;

  /// @param accumulates kAccumulate is valid
  DeviceBatch Batch(std::uint32_t count, bool accumulates = true) const {
    DeviceBatch batch{};
    batch.count = count;
    batch.ops = ops.data();
    batch.keys = keys.data();
    batch.values = reinterpret_cast<const std::byte*>(keys.data());
    batch.added = accumulates ? reinterpret_cast<std::byte*>(keys.data()) : nullptr;
    batch.hashes = hashes.data();
    batch.order = order.data();
    batch.effects = effects.data();
    batch.records = records.data();
    batch.sums = sums.data();
    return batch;
  }
};

class GroupByKeyTest : public test::CudaTest {
 protected:
  static constexpr std::uint64_t kSeed[2] = {0x1234567, 0x89ABCDF};

  /// Groups operations on keys that `key_of(i)` numbers, and checks what comes out.
  /// @param may_share_runs keys may find no room in their bin's table
  /// @param op_of null: any byte, now and then
  void Check(std::uint32_t count, std::uint32_t words, unsigned blocks,
             const std::function<std::uint64_t(std::uint32_t)>& key_of, bool may_share_runs = false,
             const std::function<Op(std::uint32_t)>& op_of = nullptr, bool accumulates = true) {
    SCOPED_TRACE(testing::Message()
                 << count << " operations, keys of " << words << " words, " << blocks << " blocks");
    std::mt19937_64 random(count);
    std::vector<std::uint64_t> keys(std::size_t{count} * words, 7);
    std::vector<Op> ops(count);
    std::vector<std::uint64_t> names(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      names[i] = key_of(i);
      keys[std::size_t{i} * words + words - 1] = names[i];
      ops[i] = op_of != nullptr ? op_of(i)
                                : static_cast<Op>(random() % (random() % 4 == 0 ? 256 : kOpKinds));
    }
    const RunsOnDevice device{.keys = OnDevice<std::uint64_t>(keys),
                              .ops = OnDevice<Op>(ops),
                              .hashes = OnDevice<std::uint32_t>(count),
                              .order = OnDevice<std::uint32_t>(count),
                              .effects = OnDevice<KeyRunEffect>(count),
                              .records = OnDevice<KeyRunRecord>(count),
                              .sums = OnDevice<BatchSums>(std::vector<BatchSums>(1))};
    const OnDevice<std::uint64_t> digests(count), clear(1000);
    const OnDevice<std::uint32_t> operations(count), ranks(count);
    const OnDevice<std::uint16_t> counts(std::size_t{blocks} * KeyGroups::kMaxBins);
    TableContext context{};
    context.table.hash_seed[0] = kSeed[0];
    context.table.hash_seed[1] = kSeed[1];
    context.table.key_words = words;
    const KeyGroups groups{
        device.hashes.data(), device.order.data(), counts.data(), operations.data(),
        digests.data(),       ranks.data(),        clear.data(),  999};
    CudaStream stream;
    KernelGraph graph;
    graph.Launch(
        {GroupByKey, blocks, kGroupThreads, context, device.Batch(count, accumulates), groups},
        stream);
    CheckCuda(cudaStreamSynchronize(stream), "GroupByKey");

    const auto got_order = device.order.Host(), got_firsts = device.hashes.Host();
    const auto got_effects = device.effects.Host();
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
      const bool has_value = accumulates || ops[i] != Op::kAccumulate;
      const KeyRunEffect one = EffectOf(ops[i], has_value, p, begins, other_key);
      so_far = p == 0 ? one : ComposeEffects{}(so_far, one);
      ASSERT_TRUE(so_far == got_effects[p]) << "at " << p;
    }
    EXPECT_TRUE(may_share_runs || !shared);
    EXPECT_TRUE(shared || !may_share_runs) << "the table had room for all";
    for (const KeyRunRecord& record : device.records.Host()) {
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

/// Runs that go on from one warp's share to the next, whose operations accumulate, or none does, or
/// few change anything.
TEST_F(GroupByKeyTest, LongRunsOfSomeKinds) {
  std::mt19937_64 random(1);
  const std::function<Op(std::uint32_t)> kinds[] = {
      [](std::uint32_t) { return Op::kAccumulate; },
      [&](std::uint32_t) { return static_cast<Op>(random() % kOpKinds % 6); },
      [&](std::uint32_t) {
        return random() % 10000 != 0 ? Op::kFind : static_cast<Op>(random() % kOpKinds);
      },
      [&](std::uint32_t i) {
        return i % 2 != 0 ? Op::kAccumulate : static_cast<Op>(random() % kOpKinds % 6);
      }};
  static_assert(static_cast<Op>(6) == Op::kAccumulate);
  for (const auto& op_of : kinds) {
    for (const std::uint32_t count : {700u, 65537u, 131072u}) {
      for (const bool accumulates : {true, false}) {
        Check(
            count, 1, 132, [](std::uint32_t) { return 5; }, false, op_of, accumulates);
        Check(
            count, 1, 132, [](std::uint32_t i) { return i % 2; }, false, op_of, accumulates);
        if (HasFatalFailure()) return;
      }
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

class CollidedRunsTest : public test::CudaTest {
 protected:
  /// Parts the runs of a sorted batch with keys `key_of(i)` that have equal hashes where
  /// `hash_of(key)` has, and checks what comes out.
  /// @param room for meetings; where there is too little, or there are too many runs, some stay
  void Check(std::uint32_t count, std::uint32_t words,
             const std::function<std::uint64_t(std::uint32_t)>& key_of,
             const std::function<std::uint32_t(std::uint64_t)>& hash_of, std::uint32_t room = ~0u,
             bool some_stay = false) {
    SCOPED_TRACE(testing::Message() << count << " operations, keys of " << words << " words");
    std::mt19937_64 random(count + words);
    std::vector<std::uint64_t> names(count), keys(std::size_t{count} * words, 7);
    std::vector<Op> ops(count);
    std::vector<std::uint32_t> order(count), hashes(count);
    std::vector<KeyRunRecord> records(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      names[i] = key_of(i);
      keys[std::size_t{i} * words + words - 1] = names[i];
      ops[i] = static_cast<Op>(random() % kOpKinds);
      order[i] = i;
      records[i] = KeyRunRecord{0, 0, KeyRunStatus::kPending, i};
    }
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return hash_of(names[a]) < hash_of(names[b]);
    });
    for (std::uint32_t p = 0; p < count; ++p) hashes[p] = hash_of(names[order[p]]);
    const auto begins = [](const auto& of, std::uint32_t p) {
      return p == 0 || of[p - 1] != of[p];
    };
    std::vector<KeyMeeting> meetings;
    const auto effects_of = [&](const std::vector<std::uint32_t>& at,
                                const std::vector<std::uint32_t>& hash, auto meet) {
      std::vector<KeyRunEffect> effects;
      for (std::uint32_t p = 0; p < count; ++p) {
        const bool other_key = !begins(hash, p) && names[at[p - 1]] != names[at[p]];
        if (other_key) meet(p);
        const KeyRunEffect one = EffectOf(ops[at[p]], true, p, begins(hash, p), other_key);
        effects.push_back(p == 0 ? one : ComposeEffects{}(effects.back(), one));
      }
      return effects;
    };
    const std::vector<KeyRunEffect> effects = effects_of(order, hashes, [&](std::uint32_t p) {
      meetings.push_back(KeyMeeting{p, hashes[p]});
    });
    std::shuffle(meetings.begin(), meetings.end(), random);
    std::vector<BatchSums> sums(1);
    sums[0].meetings = meetings.size();
    meetings.resize(meetings.size() + 1);
    const RunsOnDevice device{.keys = OnDevice<std::uint64_t>(keys),
                              .ops = OnDevice<Op>(ops),
                              .hashes = OnDevice<std::uint32_t>(hashes),
                              .order = OnDevice<std::uint32_t>(order),
                              .effects = OnDevice<KeyRunEffect>(effects),
                              .records = OnDevice<KeyRunRecord>(records),
                              .sums = OnDevice<BatchSums>(sums)};
    const OnDevice<std::uint32_t> scratch(count);
    const OnDevice<KeyMeeting> device_meetings(meetings);
    TableContext context{};
    context.table.key_words = words;
    const CollidedRuns runs{device.hashes.data(), device.order.data(), scratch.data(),
                            device_meetings.data(),
                            std::min(room, static_cast<std::uint32_t>(meetings.size()))};
    CudaStream stream;
    Launch("PartCollidedRuns", PartCollidedRuns, kPartBlocks, kPartThreads, stream, context,
           device.Batch(count), runs);
    CheckCuda(cudaStreamSynchronize(stream), "PartCollidedRuns");

    const auto got_order = device.order.Host(), got_hashes = device.hashes.Host();
    const auto got_effects = device.effects.Host();
    std::uint32_t stayed = 0;
    for (std::uint32_t first = 0, end = 0; first < count; first = end) {
      while (end < count && hashes[end] == hashes[first]) ++end;
      ASSERT_TRUE(begins(got_hashes, first)) << "two runs became one at " << first;
      const std::vector<std::uint32_t> before(order.begin() + first, order.begin() + end);
      std::vector<std::uint32_t> after(got_order.begin() + first, got_order.begin() + end);
      std::set<std::uint64_t> its_keys;
      for (const std::uint32_t i : before) its_keys.insert(names[i]);
      if (some_stay && end - first > kFewOfRun && its_keys.size() > 1 && before == after &&
          got_hashes[end - 1] == hashes[first]) {
        ++stayed;
        continue;
      }
      std::sort(after.begin(), after.end());
      ASSERT_EQ(after, before) << "batch order is that of their numbers";
      const std::uint32_t next = end < count ? hashes[end] - 1 : ~0u;
      const std::uint32_t parts = std::min(kMostParts, next - hashes[first]);
      std::set<std::uint64_t> done;
      std::uint32_t runs_begun = 0;
      for (std::uint32_t p = first; p < end; ++p) {
        const bool same_run = !begins(got_hashes, p);
        runs_begun += same_run ? 0 : 1;
        if (end - first <= kFewOfRun) {
          ASSERT_EQ(got_order[p], order[p]) << "a short run was touched";
          ASSERT_EQ(got_hashes[p], hashes[p]);
          continue;
        }
        const std::uint64_t name = names[got_order[p]];
        if (same_run) ASSERT_LT(got_order[p - 1], got_order[p]) << "not in batch order";
        ASSERT_LE(got_hashes[p] - hashes[first], next - hashes[first]) << "out of order";
        if (runs_begun > parts) {
          ASSERT_EQ(runs_begun, parts + 1) << "the rest is one run";
          ASSERT_FALSE(done.contains(name)) << "in two runs";
        } else if (same_run) {
          ASSERT_EQ(name, names[got_order[p - 1]]) << "two keys in a run at " << p;
        } else {
          ASSERT_TRUE(done.insert(name).second) << "in two runs";
        }
      }
    }
    EXPECT_EQ(stayed > 0, some_stay);
    const auto wanted = effects_of(got_order, got_hashes, [](std::uint32_t) {});
    for (std::uint32_t p = 0; p < count; ++p) ASSERT_TRUE(got_effects[p] == wanted[p]) << p;
    const auto got_records = device.records.Host();
    for (std::uint32_t p = 0; p < count; ++p) ASSERT_EQ(got_records[p].next, p);
  }
};

TEST_F(CollidedRunsTest, ArePartedByKeyInBatchOrder) {
  for (const std::uint32_t words : {1u, 3u}) {
    for (const std::uint32_t count : {2u, 5u, 255u, 257u, 5000u, 70000u}) {
      std::mt19937_64 random(words);
      const auto few = [&](std::uint32_t) { return random() % (count / 8 + 2); };
      const auto skewed = [&](std::uint32_t) { return random() % (1u << random() % 12); };
      const auto pairs = [](std::uint64_t key) { return static_cast<std::uint32_t>(key / 2 * 67); };
      Check(count, words, few, pairs);
      Check(count, words, skewed, pairs);
      // Hashes between which there is room for none, one and two parts.
      Check(count, words, skewed, [](std::uint64_t key) {
        constexpr std::uint32_t kAt[] = {0, 1, 3};
        const auto run = static_cast<std::uint32_t>(key / 5);
        return run / 3 * 6 + kAt[run % 3];
      });
      for (const std::uint32_t hash : {0u, ~0u - 2, ~0u}) {
        Check(count, words, skewed, [hash](std::uint64_t) { return hash; });
      }
      Check(count, words, skewed,
            [](std::uint64_t key) { return static_cast<std::uint32_t>(key); });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CollidedRunsTest, WhatThereIsNoRoomForStays) {
  const std::uint32_t count = 70000;
  std::mt19937_64 random(5);
  const auto few = [&](std::uint32_t) { return random() % (count / 8); };
  // All of one block, and more than it parts; and more meetings than are noted.
  const auto of_one = [](std::uint64_t key) {
    return static_cast<std::uint32_t>(key / 2 * 4 * kPartBlocks);
  };
  Check(count, 1, few, of_one, ~0u, true);
  Check(
      count, 1, few, [](std::uint64_t key) { return static_cast<std::uint32_t>(key / 2 * 67); },
      500, true);
}

TEST_F(CollidedRunsTest, ABatchWithHotKeysOfEqualHashesIsSequential) {
  CreateOptions create;
  create.value_size = test::kValueSize;
  create.initial_capacity = 1 << 16;
  create.hash_seed = 11;
  std::vector<std::uint64_t> pair;
  {
    Store::Create(PoolPath(), create, test::TestOpenOptions()).Close();
    const auto pool = Pool::Open(PoolPath(), Pool::Options{.read_only = true});
    std::map<std::uint32_t, std::uint64_t> by_hash;
    for (std::uint64_t key = 0; pair.empty(); ++key) {
      const KeyHash hash = HashKey(pool->superblock().hash_seed, &key, 1);
      const auto [at, is_new] = by_hash.emplace(static_cast<std::uint32_t>(hash.h >> 32), key);
      if (!is_new) pair = {at->second, key};
    }
  }
  constexpr std::uint32_t kCount = (1u << 18) + 500;
  std::mt19937_64 random(test::TestSeed());
  std::map<std::uint64_t, test::Value> model;
  for (std::uint32_t round = 0; round < 4; ++round) {
    OpenOptions open = test::TestOpenOptions();
    if (round % 2 == 1) open.cache.directory = false;
    Store store = Store::Open(PoolPath(), open);
    std::vector<std::uint64_t> keys(kCount);
    std::vector<Op> ops(kCount);
    std::vector<test::Value> values(kCount), found(kCount), wanted(kCount);
    std::vector<Result> expected(kCount);
    for (std::uint32_t i = 0; i < kCount; ++i) {
      keys[i] = i % 2 == 0 ? pair[random() % 3 == 0 ? 1 : 0] : random() % 20000;
      ops[i] = static_cast<Op>(random() % 5);  // find, insert, update, upsert, erase
      values[i] = test::ValueOf(random());
      found[i] = wanted[i] = test::ValueOf(1);
      const auto at = model.find(keys[i]);
      const bool present = at != model.end();
      expected[i] = ResultOf(ops[i], present, true);
      if (ops[i] == Op::kFind && present) wanted[i] = at->second;
      const Plan plan = PlanOf(ops[i], reinterpret_cast<const std::byte*>(1));
      const Action action = present ? plan.if_present : plan.if_absent;
      if (action == Action::kErase) model.erase(at);
      if (action == Action::kWrite) model[keys[i]] = values[i];
    }
    const OnDevice<std::uint64_t> device_keys(keys);
    const OnDevice<Op> device_ops(ops);
    const OnDevice<test::Value> device_values(values), device_found(found);
    const OnDevice<Result> device_results(kCount);
    store.Apply({.ops = {device_ops.data(), kCount},
                 .keys = device_keys.In(),
                 .values = device_values.In(),
                 .found = device_found.Out(),
                 .results = {device_results.data(), kCount}});
    const auto got = device_results.Host();
    const auto got_found = device_found.Host();
    for (std::uint32_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(got[i], expected[i]) << i << " in round " << round;
      ASSERT_EQ(got_found[i], wanted[i]) << i << " in round " << round;
    }
    EXPECT_EQ(store.Stats().items, model.size());
    store.Close();
  }
}

}  // namespace
}  // namespace gpm
