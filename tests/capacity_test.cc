#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <set>
#include <thread>

#include "tests/bounded_model.h"
#include "tests/test_util.h"

/// Stores with a capacity: what they evict is what a model with the same policy does, batch by
/// batch.
namespace gpm::test {
namespace {

/// Arrays for what is evicted.
struct EvictedRows {
  EvictedRows(std::uint64_t rows, std::uint32_t key_size, std::uint32_t value_size)
      : keys(rows * key_size), values(rows * value_size), at{keys, values} {}
  std::vector<BoundedModel::Row> rows(std::uint32_t key_size, std::uint32_t value_size) const {
    std::vector<BoundedModel::Row> rows;
    for (std::uint64_t i = 0; i < at.count; ++i) {
      rows.emplace_back(AsString(std::span(keys).subspan(i * key_size, key_size)),
                        AsString(std::span(values).subspan(i * value_size, value_size)));
    }
    return rows;
  }
  Bytes keys;
  Bytes values;
  Evicted at;
};

OpenOptions WithCapacity(std::uint64_t items, EvictionPolicy policy) {
  OpenOptions open = TestOpenOptions();
  open.capacity = {.items = items, .policy = policy, .score_offset = kScoreAt, .score_bytes = 4};
  return open;
}

class CapacityTest : public PoolTest {
 protected:
  /// Inserts keys, in one batch.
  static void Put(Store& store, const std::vector<std::uint64_t>& numbers, Op kind = Op::kInsert) {
    TestBatch batch(store.key_size(), store.value_size());
    for (const std::uint64_t number : numbers) batch.Add(kind, number, number);
    EXPECT_EQ(batch.CallFor(store, kind), 0u);
  }
  static TestBatch Rows(Op kind, const std::vector<std::uint64_t>& numbers) {
    TestBatch batch(8, kValueSize);
    for (const std::uint64_t number : numbers) batch.Add(kind, number, number);
    return batch;
  }
  static Batch OfOneKind(TestBatch& batch, Op kind) {
    Batch call = batch.Mixed();
    call.op = kind;
    call.ops = {};
    return call;
  }
  /// Operations of one kind whose batches have ended.
  static std::uint64_t Ended(Store& store, Op kind) {
    return store.Stats().operations[static_cast<std::size_t>(kind)];
  }
  static std::set<std::uint64_t> KeysOf(Store& store) {
    std::set<std::uint64_t> keys;
    store.ForEach([&](auto key, auto) { keys.insert(KeyNumber(key)); });
    return keys;
  }
};

class CapacityPolicyTest : public CapacityTest,
                           public ::testing::WithParamInterface<EvictionPolicy> {};

INSTANTIATE_TEST_SUITE_P(Policies, CapacityPolicyTest,
                         ::testing::Values(EvictionPolicy::kLru, EvictionPolicy::kLfu,
                                           EvictionPolicy::kOldest, EvictionPolicy::kScore),
                         [](const auto& policy) {
                           return std::string(EvictionPolicyName(policy.param));
                         });

TEST_P(CapacityPolicyTest, EvictsWhatTheModelDoes) {
  std::mt19937_64 random(TestSeed() ^ Mix(static_cast<std::uint64_t>(GetParam())));
  for (const std::uint32_t key_size : {8u, 32u}) {
    const std::uint64_t items = 20 + random() % 2000;
    const OpenOptions open = WithCapacity(items, GetParam());
    const std::string path = NewPath();
    Store store = Store::Create(path, Shape(key_size, kValueSize), open);
    BoundedModel model(open.capacity);
    std::uint64_t evicted = 0;
    for (int round = 0; round < 120 && !HasFailure(); ++round) {
      TestBatch batch(key_size, kValueSize);
      const std::uint64_t n = 1 + random() % (items / 2);
      const bool mixed = random() % 2 == 0;
      const Op kinds[] = {Op::kFind,   Op::kInsert,       Op::kUpsert, Op::kInsert,
                          Op::kUpdate, Op::kFindOrInsert, Op::kErase};
      const Op one = kinds[random() % 6];  // not erase
      for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t key = random() % (2 * items);
        batch.Add(mixed ? kinds[random() % 7] : one, MakeKey(key, key_size),
                  ScoredValue(random(), static_cast<std::uint32_t>(random() % 100)));
      }
      Batch call = batch.Mixed();
      if (!mixed) {
        call.op = one;
        call.ops = {};
      }
      const std::vector<BoundedModel::Row> expected = model.MakeWay(batch);
      evicted += expected.size();
      switch (random() % 3) {
        case 0: {
          EvictedRows rows(items, key_size, kValueSize);
          store.ApplyAndEvict(call, &rows.at);
          EXPECT_EQ(rows.rows(key_size, kValueSize), expected);
          break;
        }
        case 1:
          store.ApplyAsync(call).Wait();
          break;
        default:
          store.Apply(call);
      }
      model.Apply(batch);
      const StoreStats stats = store.Stats();
      ASSERT_EQ(stats.items, model.items().size());
      EXPECT_LE(stats.items, items);
      EXPECT_EQ(stats.evicted, evicted);
      if (round == 60) {
        store.Close();
        ExpectSound(path, model.items().size());
        store = Store::Open(path, open);
        model.ForgetUses();
        evicted = 0;
      }
    }
    EXPECT_GT(evicted, 0u);
    ExpectContents(store, model.contents());
  }
}

/// Batches in flight at once, waited for in any order, as if each had been waited for.
TEST_P(CapacityPolicyTest, TimingDoesNotMatter) {
  constexpr std::uint64_t kItems = 400;
  for (const std::uint64_t different : {1000u, 430u}) {  // keys, of which most are missing, or few
    SCOPED_TRACE(different);
    std::vector<std::set<std::uint64_t>> contents;
    for (int way = 0; way < 3; ++way) {
      std::mt19937_64 random(17);
      Store store =
          Store::Create(NewPath(), Shape(8, kValueSize), WithCapacity(kItems, GetParam()));
      std::vector<std::unique_ptr<TestBatch>> batches;
      std::vector<Ticket> tickets;
      for (int i = 0; i < 60; ++i) {
        auto batch = std::make_unique<TestBatch>(8, kValueSize);
        const Op kind = i % 3 == 0 ? Op::kFind : Op::kUpsert;
        for (int k = 0; k < 50; ++k) batch->Add(kind, random() % different, random());
        tickets.push_back(store.ApplyAsync(OfOneKind(*batch, kind)));
        batches.push_back(std::move(batch));
        if (way == 0) tickets.back().Wait();
        if (way == 1 && tickets.size() == 4) {
          while (!tickets.empty()) tickets.pop_back();  // the last one first
        }
      }
      tickets.clear();
      contents.push_back(KeysOf(store));
      EXPECT_LE(contents.back().size(), kItems);
      EXPECT_GT(store.Stats().evicted, 0u);
    }
    EXPECT_EQ(contents[0], contents[1]);
    EXPECT_EQ(contents[0], contents[2]);
  }
}

/// Nobody waits for those in flight, which end when their tickets are waited for.
TEST_P(CapacityPolicyTest, ABatchThatFitsRunsBesideOthers) {
  Store store = Store::Create(NewPath(), Shape(8, kValueSize, 1000), WithCapacity(100, GetParam()));
  Put(store, Numbers(0, 95));
  TestBatch updates = Rows(Op::kUpdate, Numbers(0, 10));
  Ticket update = store.ApplyAsync(OfOneKind(updates, Op::kUpdate));
  Put(store, Numbers(0, 98), Op::kUpsert);  // adds 3
  EXPECT_EQ(Rows(Op::kFindOrInsert, Numbers(10, 90)).CallFor(store, Op::kFindOrInsert), 88u);
  Put(store, Numbers(0, 100), Op::kUpsert);  // adds none
  EXPECT_EQ(Ended(store, Op::kUpdate), 0u);
  // Nor for such as might add items, but add none.
  std::vector<TestBatch> upserts(3, Rows(Op::kUpsert, Numbers(0, 60)));
  std::vector<Ticket> in_flight;
  for (TestBatch& batch : upserts) {
    in_flight.push_back(store.ApplyAsync(OfOneKind(batch, Op::kUpsert)));
  }
  EXPECT_EQ(Ended(store, Op::kUpsert), 198u);
  EXPECT_EQ(Ended(store, Op::kUpdate), 0u);
  EXPECT_EQ(store.Stats().items, 100u);
  EXPECT_EQ(store.Stats().evicted, 0u);
  // One that doesn't fit waits, as what it evicts follows from those before.
  Put(store, Numbers(1000, 1));
  EXPECT_EQ(Ended(store, Op::kUpdate), 10u);
  EXPECT_EQ(Ended(store, Op::kUpsert), 198u + 3 * 60);
  EXPECT_EQ(store.Stats().evicted, 7u);
}

/// A batch in flight may find that what it did not miss is gone, and add it.
TEST_P(CapacityPolicyTest, WhatIsErasedBesideABatchMayComeBack) {
  Store store = Store::Create(NewPath(), Shape(8, kValueSize, 1000), WithCapacity(10, GetParam()));
  Put(store, Numbers(0, 10));
  TestBatch upserts = Rows(Op::kUpsert, Numbers(0, 5));
  Ticket upsert = store.ApplyAsync(OfOneKind(upserts, Op::kUpsert));
  TestBatch erases = Rows(Op::kErase, Numbers(0, 5));
  EXPECT_EQ(erases.CallFor(store, Op::kErase), 0u);
  EXPECT_EQ(Ended(store, Op::kUpsert), 0u);
  Put(store, Numbers(5, 10), Op::kUpsert);  // adds 5, for which the other might leave no room
  EXPECT_EQ(Ended(store, Op::kUpsert), 15u);
  EXPECT_EQ(store.Stats().evicted, 0u);
  // Nor is it known what one that erases leaves, before it has ended.
  TestBatch others = Rows(Op::kErase, Numbers(100, 5));
  Ticket erase = store.ApplyAsync(OfOneKind(others, Op::kErase));
  Put(store, Numbers(5, 10), Op::kUpsert);
  EXPECT_EQ(Ended(store, Op::kErase), 10u);
  // Afterwards it is.
  TestBatch updates = Rows(Op::kUpdate, Numbers(5, 5));
  Ticket update = store.ApplyAsync(OfOneKind(updates, Op::kUpdate));
  Put(store, Numbers(5, 10), Op::kUpsert);
  EXPECT_EQ(Ended(store, Op::kUpdate), 0u);
  EXPECT_EQ(store.Stats().items, 10u);
}

TEST_F(CapacityTest, UsedItemsStay) {
  Store store =
      Store::Create(NewPath(), Shape(8, kValueSize), WithCapacity(64, EvictionPolicy::kLru));
  Put(store, Numbers(0, 32));
  Put(store, Numbers(32, 32));
  TestBatch used(8, kValueSize);
  for (std::uint64_t key = 0; key < 16; ++key) used.Add(Op::kFind, key, 0);
  EXPECT_EQ(used.CallFor(store, Op::kFind), 0u);
  EXPECT_EQ(store.Stats().evicted, 0u);
  // 12 and 4 more go: those of the first batch that were not used since.
  Put(store, Numbers(100, 12));
  const std::set<std::uint64_t> keys = KeysOf(store);
  for (std::uint64_t key = 0; key < 16; ++key) EXPECT_TRUE(keys.contains(key));
  for (std::uint64_t key = 16; key < 32; ++key) EXPECT_FALSE(keys.contains(key));
  for (std::uint64_t key = 32; key < 64; ++key) EXPECT_TRUE(keys.contains(key));
  EXPECT_EQ(store.Stats().evictions, 1u);
  EXPECT_EQ(store.Stats().capacity_items, 64u);
}

TEST_F(CapacityTest, KeysOfTheBatchStay) {
  Store store =
      Store::Create(NewPath(), Shape(8, kValueSize), WithCapacity(10, EvictionPolicy::kOldest));
  Put(store, Numbers(0, 5));
  Put(store, Numbers(5, 5));
  std::vector<std::uint64_t> again = Numbers(0, 5);
  again.push_back(10);
  Put(store, again, Op::kUpsert);
  const std::set<std::uint64_t> keys = KeysOf(store);
  EXPECT_EQ(keys.size(), 10u);
  for (const std::uint64_t key : again) EXPECT_TRUE(keys.contains(key));
}

TEST_F(CapacityTest, ArraysThatAreTooSmallAreRefusedBeforeAnythingChanges) {
  Store store =
      Store::Create(NewPath(), Shape(8, kValueSize), WithCapacity(320, EvictionPolicy::kOldest));
  Put(store, Numbers(0, 320));
  TestBatch batch(8, kValueSize);
  for (std::uint64_t key = 1000; key < 1020; ++key) batch.Add(Op::kInsert, key, key);
  const Batch call = batch.Mixed();
  EvictedRows few(19, 8, kValueSize);
  std::string why;
  const auto insert = [&](Evicted* evicted) {
    return store.InsertAndEvict(call.keys, call.values, call.results, evicted);
  };
  EXPECT_EQ(ErrorOf([&] { insert(&few.at); }, &why), ErrorCode::kInvalidArgument);
  EXPECT_NE(why.find("20"), std::string::npos) << why;
  EXPECT_EQ(few.at.count, 0u);
  EXPECT_EQ(store.Stats().evicted, 0u);
  EXPECT_EQ(KeysOf(store).size(), 320u);
  // Room for what is needed, but not for all that goes beyond it.
  EvictedRows enough(23, 8, kValueSize);
  EXPECT_EQ(insert(&enough.at), 0u);
  EXPECT_EQ(enough.at.count, 23u);
  EXPECT_EQ(store.Stats().items, 317u);
  for (const auto& [key, value] : enough.rows(8, kValueSize)) {
    EXPECT_EQ(value, MakeValue(KeyNumber(std::as_bytes(std::span(key))), kValueSize));
  }
  // Keys alone.
  Put(store, Numbers(2000, 3));
  Bytes keys(8 * 100);
  Evicted only_keys{.keys = keys};
  TestBatch more(8, kValueSize);
  for (std::uint64_t key = 3000; key < 3020; ++key) more.Add(Op::kInsert, key, key);
  const Batch next = more.Mixed();
  EXPECT_EQ(store.InsertAndEvict(next.keys, next.values, next.results, &only_keys), 0u);
  EXPECT_EQ(only_keys.count, 40u);
  EXPECT_EQ(ErrorOf([&] {
              store.InsertAndEvict(next.keys.first(7), next.values, next.results, &only_keys);
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(only_keys.count, 0u) << "of the call before";
  // Arrays of other shapes.
  Evicted wrong{.keys = std::span(keys).first(12)};
  EXPECT_EQ(ErrorOf([&] { insert(&wrong); }), ErrorCode::kInvalidArgument);
  Evicted other{.keys = std::span(keys).first(16), .values = std::span(keys).first(40)};
  EXPECT_EQ(ErrorOf([&] { insert(&other); }), ErrorCode::kInvalidArgument);
}

/// Nothing goes for a batch that is refused.
TEST_F(CapacityTest, ARefusedBatchEvictsNothing) {
  if (TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "a GPU copies from such arrays";
  Store store =
      Store::Create(NewPath(), Shape(8, kValueSize), WithCapacity(50, EvictionPolicy::kLru));
  Put(store, Numbers(0, 50));
  TestBatch batch(8, kValueSize);
  for (std::uint64_t key = 100; key < 120; ++key) batch.Add(Op::kInsert, key, key);
  Batch arrays = batch.Mixed();
  // As memory of a GPU is to the host.
  const std::size_t bytes = arrays.values.size();
  void* const unreadable = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(unreadable, MAP_FAILED);
  arrays.values = {static_cast<const std::byte*>(unreadable), bytes};
  EXPECT_EQ(ErrorOf([&] { store.Apply(arrays); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(KeysOf(store).size(), 50u);
  EXPECT_EQ(store.Stats().evicted, 0u);
  munmap(unreadable, bytes);
}

TEST_F(CapacityTest, MoreKeysThanTheCapacity) {
  Store store =
      Store::Create(NewPath(), Shape(8, kValueSize), WithCapacity(50, EvictionPolicy::kLru));
  Put(store, Numbers(0, 40));
  TestBatch batch(8, kValueSize);
  for (std::uint64_t key = 10; key < 61; ++key) batch.Add(Op::kInsert, key, key);
  std::string why;
  EXPECT_EQ(ErrorOf([&] { batch.CallFor(store, Op::kInsert); }, &why), ErrorCode::kInvalidArgument);
  EXPECT_NE(why.find("51"), std::string::npos) << why;
  EXPECT_EQ(KeysOf(store).size(), 40u);
  // The same key many times is one.
  TestBatch same(8, kValueSize);
  for (int i = 0; i < 200; ++i) same.Add(Op::kUpsert, 7000, 7);
  EXPECT_EQ(same.CallFor(store, Op::kUpsert), 0u);
  EXPECT_EQ(store.Stats().evicted, 0u);
  // A bulk load takes parts that fit.
  TestBatch many(8, kValueSize);
  for (std::uint64_t key = 0; key < 500; ++key) many.Add(Op::kInsert, 10'000 + key, key);
  const Batch call = many.Mixed();
  EXPECT_EQ(store.BulkLoad(call.keys, call.values, call.results), 0u);
  EXPECT_EQ(store.Stats().items, 50u);
}

TEST_F(CapacityTest, APoolThatHasMoreKeepsThemUntilABatchAddsSome) {
  const std::string path = NewPath();
  {
    Store store = Store::Create(path, Shape(8, kValueSize), TestOpenOptions());
    Put(store, Numbers(0, 1000));
  }
  Store store = Store::Open(path, WithCapacity(100, EvictionPolicy::kOldest));
  EXPECT_EQ(store.Stats().items, 1000u);
  Put(store, Numbers(0, 10), Op::kUpdate);
  Put(store, Numbers(0, 200), Op::kUpsert);  // more than the capacity, all of them there
  TestBatch inserts(8, kValueSize);
  TestBatch finds(8, kValueSize);
  for (std::uint64_t key = 0; key < 200; ++key) {
    inserts.Add(Op::kInsert, key, key);
    finds.Add(Op::kFind, key + 900, 0);
  }
  EXPECT_EQ(inserts.CallFor(store, Op::kInsert), 200u);
  EXPECT_EQ(inserts.CallFor(store, Op::kFindOrInsert), 200u);
  EXPECT_EQ(store.Apply(finds.Mixed()), 100u);
  EXPECT_EQ(store.Stats().items, 1000u);
  TestBatch erase(8, kValueSize);
  erase.Add(Op::kErase, 999, 0);
  EXPECT_EQ(store.Apply(erase.Mixed()), 0u);
  EXPECT_EQ(store.Stats().items, 999u);
  EXPECT_EQ(store.Stats().evicted, 0u);
  EvictedRows rows(2000, 8, kValueSize);
  TestBatch batch(8, kValueSize);
  for (std::uint64_t key = 5000; key < 5010; ++key) batch.Add(Op::kInsert, key, key);
  const Batch call = batch.Mixed();
  EXPECT_EQ(store.InsertAndEvict(call.keys, call.values, call.results, &rows.at), 0u);
  EXPECT_EQ(rows.at.count, 915u);
  EXPECT_EQ(store.Stats().items, 94u);
  const std::set<std::uint64_t> keys = KeysOf(store);
  for (std::uint64_t key = 5000; key < 5010; ++key) EXPECT_TRUE(keys.contains(key));
}

/// Without values a mixed batch adds nothing, whatever its kinds: nothing makes way for it.
TEST_F(CapacityTest, AnInvalidInsertEvictsNothing) {
  Store store =
      Store::Create(NewPath(), Shape(8, kValueSize), WithCapacity(10, EvictionPolicy::kLru));
  Put(store, Numbers(0, 10));
  TestBatch batch(8, kValueSize);
  for (std::uint64_t key = 100; key < 120; ++key) batch.Add(Op::kInsert, key, key);
  Batch call = batch.Mixed();
  call.values = {};
  EXPECT_EQ(store.Apply(call), 20u);
  for (std::size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(batch.result(i), Result::kInvalid);
  EXPECT_EQ(store.Stats().evicted, 0u);
  EXPECT_EQ(store.Stats().items, 10u);
}

/// The batch that evicts them leaves fewer items (OpenOptions::compact_below).
TEST_F(CapacityTest, APoolThatHadMoreIsCompacted) {
  const std::string path = NewPath();
  {
    Store store = Store::Create(path, Shape(8, kValueSize), TestOpenOptions());
    Put(store, Numbers(0, 20'000));
  }
  OpenOptions open = WithCapacity(1000, EvictionPolicy::kOldest);
  open.compact_below = 0.3;
  Store store = Store::Open(path, open);
  const std::uint64_t slots = store.Stats().capacity_slots;
  Put(store, Numbers(50'000, 10));
  EXPECT_LT(store.Stats().capacity_slots * 4, slots);
  EXPECT_LE(store.Stats().items, 1000u);
}

/// A pool that is bounded does not grow for ever.
TEST_F(CapacityTest, ThePoolStopsGrowing) {
  constexpr std::uint64_t kItems = 2000;
  Store store = Store::Create(NewPath(), Shape(8, 100), WithCapacity(kItems, EvictionPolicy::kLru));
  std::uint64_t next = 0;
  const auto insert = [&](int batches) {
    for (int i = 0; i < batches; ++i, next += 200) Put(store, Numbers(next, 200));
  };
  insert(60);
  const StoreStats before = store.Stats();
  insert(200);
  const StoreStats after = store.Stats();
  EXPECT_EQ(after.capacity_slots, before.capacity_slots);
  EXPECT_EQ(after.value_cells, before.value_cells);
  EXPECT_LE(after.items, kItems);
}

/// A capacity in bytes is what the pool takes in the end, and not far less.
TEST_F(CapacityTest, OfBytes) {
  constexpr std::uint64_t kMiB = 1 << 20;
  struct Case {
    std::uint32_t key_size;
    std::uint32_t value_size;
    Geometry geometry;
    double growth;
    double grow_above = OpenOptions{}.grow_above;
    std::uint64_t least = 8;  ///< keys and values are at least this part of it
  };
  for (const Case& now :
       {Case{8, 128, {2, 2, 8}, 2}, Case{8, 8, {2, 2, 8}, 2}, Case{29, 1000, {2, 2, 8}, 1.25},
        Case{8, 24, {1, 2, 8}, 3}, Case{16, 8, {4, 2, 4}, 1.1}, Case{8, 8, {2, 2, 8}, 2, 0},
        Case{8, 8, {1, 2, 8}, 2, 0}, Case{8, 8, {2, 2, 4}, 2, 0, 10},
        Case{8, 8, {4, 4, 2}, 2, 0.89, 16}}) {
    for (const auto& [bytes, batches] :
         {std::pair{8 * kMiB, 32u}, std::pair{8 * kMiB, 8u}, std::pair{9 * kMiB + 4096, 32u},
          std::pair{5 * kMiB + 1, 32u}}) {
      SCOPED_TRACE(GeometryName(now.geometry) + ", values of " + std::to_string(now.value_size));
      CreateOptions create;
      create.key_size = now.key_size;
      create.value_size = now.value_size;
      create.geometry = now.geometry;
      OpenOptions open = TestOpenOptions();
      open.growth = now.growth;
      open.grow_above = now.grow_above;
      open.capacity = {.bytes = bytes};
      const std::string path = NewPath();
      Store store = Store::Create(path, create, open);
      const std::uint64_t items = store.Stats().capacity_items;
      const std::uint64_t item_bytes = now.key_size + now.value_size;
      EXPECT_GE(items * item_bytes, bytes / now.least);
      EXPECT_LE(items * item_bytes, bytes);
      const std::uint64_t batch = items / batches;
      for (std::uint64_t next = 1; next < 3 * items; next += batch) {
        Put(store, Numbers(next, batch));
        EXPECT_LE(store.Stats().pm_bytes, bytes);
      }
      EXPECT_GT(store.Stats().items, items / 2);
      EXPECT_LE(store.Stats().items, items);
      store.Close();
      EXPECT_LE(std::filesystem::file_size(path), bytes);
    }
  }
}

TEST_F(CapacityTest, AFullPoolEvictsToo) {
  OpenOptions open = WithCapacity(3000, EvictionPolicy::kLru);
  Store store = Store::Create(NewPath(), Shape(8, 100, 3200), open);
  open.max_bytes = store.Stats().pm_bytes;
  store = Store::Create(NewPath(), Shape(8, 100, 3200), open);
  for (std::uint64_t first = 0; first < 20'000; first += 100) Put(store, Numbers(first, 100));
  EXPECT_LE(store.Stats().items, 3000u);
  EXPECT_GE(store.Stats().items, 2700u);
}

TEST_F(CapacityTest, BadOptions) {
  const auto refused = [&](const Capacity& capacity, std::uint32_t value_size) {
    OpenOptions open = TestOpenOptions();
    open.capacity = capacity;
    const std::string path = NewPath();
    EXPECT_EQ(ErrorOf([&] { Store::Create(path, Shape(8, value_size), open); }),
              ErrorCode::kInvalidArgument);
    EXPECT_FALSE(std::filesystem::exists(path));
  };
  constexpr auto kScore = EvictionPolicy::kScore;
  refused({.items = 10, .policy = static_cast<EvictionPolicy>(9)}, 40);
  refused({.items = 10, .policy = kScore, .score_offset = 0, .score_bytes = 2}, 40);
  refused({.items = 10, .policy = kScore, .score_offset = 33, .score_bytes = 8}, 40);
  refused({.items = 10, .policy = kScore, .score_offset = 4, .score_bytes = 8}, 8);
  refused({.items = 10, .policy = kScore, .score_offset = ~0u, .score_bytes = 8}, 40);
  refused({.items = 10, .bytes = 1 << 20}, 40);
  refused({.bytes = 1}, 40);
  refused({.bytes = 1 << 20}, 1 << 20);
  refused({.bytes = 1 << 20, .policy = kScore, .score_offset = 33}, 40);
  for (const Geometry poor : {Geometry{1, 1, 16}, Geometry{1, 2, 2}}) {
    CreateOptions create = Shape(8, 40);
    create.geometry = poor;
    OpenOptions open = TestOpenOptions();
    open.capacity = {.bytes = 1 << 30};
    EXPECT_EQ(ErrorOf([&] { Store::Create(NewPath(), create, open); }),
              ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(ErrorOf([] { EvictionPolicyOf("fifo"); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(EvictionPolicyOf("lfu"), EvictionPolicy::kLfu);
  EXPECT_EQ(EvictionPolicyNames().size(), 4u);
}

TEST_F(CapacityTest, ScoresInInlineValues) {
  OpenOptions open = TestOpenOptions();
  open.capacity = {.items = 32, .policy = EvictionPolicy::kScore};
  Store store = Store::Create(NewPath(), Shape(8, 8), open);
  Put(store, Numbers(1, 32));  // the value is the score
  Put(store, Numbers(500, 4));
  const std::set<std::uint64_t> keys = KeysOf(store);
  for (std::uint64_t key = 1; key <= 6; ++key) EXPECT_FALSE(keys.contains(key));
  EXPECT_EQ(keys.size(), 30u);
}

TEST_F(CapacityTest, ARestoredStoreHasAllThatTheSnapshotHas) {
  const std::string file = NewPath();
  {
    Store store = Store::Create(NewPath(), Shape(8, kValueSize), TestOpenOptions());
    Put(store, Numbers(0, 300));
    store.Snapshot(file);
  }
  for (const std::string& path : {NewPath(), std::string("pinned:")}) {
    Store store = Store::Restore({&file, 1}, path, WithCapacity(100, EvictionPolicy::kLru));
    EXPECT_EQ(store.Stats().items, 300u);
    Put(store, Numbers(1000, 1));
    EXPECT_EQ(store.Stats().items, 94u);
  }
}

/// The log is told of what an eviction does, and may call the store.
TEST_F(CapacityTest, TheLogMayInsert) {
  Store* other = nullptr;
  OpenOptions open = WithCapacity(100, EvictionPolicy::kLru);
  int calls = 0;
  open.log = [&](LogLevel, std::string_view) {
    if (other == nullptr || ++calls > 3) return;
    Put(*other, {100'000u + static_cast<std::uint64_t>(calls)}, Op::kUpsert);
  };
  Store store = Store::Create(NewPath(), Shape(8, kValueSize), open);
  other = &store;
  for (std::uint64_t first = 0; first < 1000; first += 50) Put(store, Numbers(first, 50));
  other = nullptr;
  EXPECT_LE(store.Stats().items, 103u);
}

TEST_F(CapacityTest, ThreadsKeepWithinIt) {
  constexpr std::uint64_t kItems = 500;
  for (const std::uint64_t different : {2000u, 530u}) {  // keys, of which most are missing, or few
    SCOPED_TRACE(different);
    Store store =
        Store::Create(NewPath(), Shape(8, kValueSize), WithCapacity(kItems, EvictionPolicy::kLfu));
    std::atomic<bool> exceeded{false};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        for (int i = 0; i < 80; ++i) {
          TestBatch batch(8, kValueSize);
          const Op kind = i % 8 == 7 ? Op::kErase : i % 4 == 2 ? Op::kFind : Op::kUpsert;
          for (int k = 0; k < 60; ++k) batch.Add(kind, random() % different, random());
          batch.CallFor(store, kind);
          if (store.Stats().items > kItems) exceeded = true;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_FALSE(exceeded);
    EXPECT_LE(KeysOf(store).size(), kItems);
  }
}

/// A process that is killed leaves a pool within its capacity: what goes, goes first.
TEST_F(CapacityTest, AKilledProcessLeavesNoMore) {
  if (TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "a fork has no CUDA device";
  constexpr std::uint64_t kItems = 1000;
  constexpr int kBatches = 30;
  const std::string path = NewPath();
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Store store =
        Store::Create(path, Shape(8, kValueSize), WithCapacity(kItems, EvictionPolicy::kLru));
    for (std::uint64_t first = 0;; first += 100) {
      TestBatch batch(8, kValueSize);
      for (std::uint64_t key = first; key < first + 100; ++key) batch.Add(Op::kInsert, key, key);
      batch.CallFor(store, Op::kInsert);
      if (write(pipe_ends[1], "x", 1) != 1) _exit(1);
    }
  }
  close(pipe_ends[1]);
  char ended = 0;
  for (int i = 0; i < kBatches; ++i) ASSERT_EQ(read(pipe_ends[0], &ended, 1), 1);
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(pipe_ends[0]);
  Store store = Store::Open(path, WithCapacity(kItems, EvictionPolicy::kLru));
  EXPECT_LE(store.Stats().items, kItems);
  EXPECT_GE(store.Stats().items, kItems - kItems / 16 - 200);
  std::uint64_t items = 0;
  store.ForEach([&](auto key, auto value) {
    ++items;
    EXPECT_EQ(AsString(value), MakeValue(KeyNumber(key), kValueSize));
  });
  EXPECT_EQ(items, store.Stats().items);
  for (std::uint64_t first = 10'000'000; first < 10'002'000; first += 100) {
    Put(store, Numbers(first, 100));
  }
  EXPECT_LE(store.Stats().items, kItems);
  store.Close();
  const CheckReport report = CheckPool(path);
  EXPECT_TRUE(report.defects.empty());
}

}  // namespace
}  // namespace gpm::test
