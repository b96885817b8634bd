#include "gpmstore/store.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "tests/test_util.h"

namespace gpm::test {
namespace {

static_assert(!std::is_copy_constructible_v<Store> && !std::is_copy_assignable_v<Store>);
static_assert(std::is_nothrow_move_constructible_v<Store>);
static_assert(std::is_nothrow_move_assignable_v<Store>);

constexpr std::uint32_t kKeySizes[] = {8, 16, 32, 64, 128};
/// Not whole words: their rows are padded.
constexpr std::uint32_t kPaddedKeySizes[] = {1, 7, 9, 33, 36, 100, 129, 255};
constexpr std::uint32_t kValueSizes[] = {1, 7, 8, 9, 16, 100, 128, 1000, 5000, 65536};

/// Geometry, key size.
class StoreShapeTest
    : public PoolTest,
      public ::testing::WithParamInterface<std::tuple<const char*, std::uint32_t>> {
 protected:
  CreateOptions Shape(std::uint32_t value_size) const {
    CreateOptions create;
    create.geometry = ParseGeometry(std::get<0>(GetParam()));
    create.key_size = std::get<1>(GetParam());
    create.value_size = value_size;
    // Where each bucket has one slot, two keys with equal high hash bits double the table until
    // they differ: once in a thousand runs beyond 24 GiB, with a cache of long values.
    if (create.geometry.candidates() == 1) create.hash_seed = 1;
    return create;
  }
  /// Keys of a test: few for large values, and where each bucket has one slot.
  std::uint64_t KeyCount(const CreateOptions& create) const {
    if (create.geometry.candidates() == 1) return 14;
    return create.value_size > 1000 ? 20 : 150;
  }
};

std::string NameOfShape(const ::testing::TestParamInfo<StoreShapeTest::ParamType>& shape) {
  std::string name = std::get<0>(shape.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_key" + std::to_string(std::get<1>(shape.param));
}

INSTANTIATE_TEST_SUITE_P(Shapes, StoreShapeTest,
                         ::testing::Combine(::testing::Values("2L-2H-8S", "1L-2H-16S", "4L-2H-4S",
                                                              "2L-4H-4S", "1L-1H-32S", "1L-1H-1S"),
                                            ::testing::ValuesIn(kKeySizes)),
                         NameOfShape);
INSTANTIATE_TEST_SUITE_P(Padded, StoreShapeTest,
                         ::testing::Combine(::testing::Values("2L-2H-8S", "1L-2H-16S"),
                                            ::testing::ValuesIn(kPaddedKeySizes)),
                         NameOfShape);

TEST_P(StoreShapeTest, EveryOutcomeOfEveryKind) {
  for (const std::uint32_t value_size : kValueSizes) {
    SCOPED_TRACE("value size " + std::to_string(value_size));
    const CreateOptions create = Shape(value_size);
    ModelledStore store(NewPath(), create, TestOpenOptions());
    EXPECT_EQ(store.store().key_size(), create.key_size);
    EXPECT_EQ(store.store().value_size(), value_size);
    std::vector<std::uint64_t> keys = Numbers(0, KeyCount(create));  // 0: the all-zero key
    keys.push_back(kAllOnes);
    const std::vector<std::uint64_t> half(keys.begin(), keys.begin() + keys.size() / 2);
    const std::vector<std::uint64_t> other_half(keys.begin() + keys.size() / 2, keys.end());

    for (const Op kind : {Op::kFind, Op::kUpdate, Op::kErase}) store.Apply(kind, keys);  // no key
    store.Apply(Op::kInsert, keys);
    store.Apply(Op::kFind, keys);
    store.Apply(Op::kInsert, keys, 1000);  // exist: values stay
    store.Apply(Op::kFind, keys);
    store.Apply(Op::kUpdate, keys, 2000);
    store.Apply(Op::kFind, keys);
    store.Apply(Op::kErase, other_half);  // with the all-one key
    store.Apply(Op::kFind, keys);
    store.Apply(Op::kErase, other_half);   // gone
    store.Apply(Op::kUpsert, keys, 3000);  // half updates, half inserts
    store.Apply(Op::kFind, keys);
    store.Apply(Op::kErase, half);  // with the all-zero key
    store.ExpectContents();
    store.Reopen();
    store.Apply(Op::kFind, keys);
    store.Apply(Op::kInsert, keys, 4000);
    store.Reopen();
    store.Apply(Op::kErase, keys);
    store.ExpectContents();
    EXPECT_EQ(store.store().Stats().items, 0u);
    store.Reopen();
  }
}

TEST_P(StoreShapeTest, MixedBatchesOnFewKeys) {
  std::mt19937_64 random(TestSeed());
  for (const std::uint32_t value_size : {8u, 100u}) {
    const CreateOptions create = Shape(value_size);
    ModelledStore store(NewPath(), create, TestOpenOptions());
    std::vector<std::uint64_t> keys = Numbers(0, KeyCount(create) / 2);
    keys.push_back(kAllOnes);
    for (int round = 0; round < 8; ++round) {
      TestBatch batch = store.NewBatch();
      for (int i = 0; i < 600; ++i) {
        batch.Add(static_cast<Op>(random() % kOpKinds), keys[random() % keys.size()], random());
      }
      store.Apply(batch);
    }
    store.ExpectContents();
    store.Reopen();
  }
}

class StoreTest : public PoolTest {};

TEST_F(StoreTest, OperationsOnOneKeyTakeEffectInBatchOrder) {
  for (const std::uint32_t value_size : {4u, 128u}) {
    for (const std::uint64_t key : {std::uint64_t{5}, std::uint64_t{0}, kAllOnes}) {
      SCOPED_TRACE(key);
      ModelledStore store(NewPath(), Shape(8, value_size), TestOpenOptions());
      TestBatch batch = store.NewBatch();
      std::uint64_t tag = 1;
      for (const Op op : {Op::kFind,   Op::kUpdate, Op::kErase,  Op::kInsert, Op::kFind,
                          Op::kInsert, Op::kFind,   Op::kUpdate, Op::kFind,   Op::kUpsert,
                          Op::kFind,   Op::kErase,  Op::kFind,   Op::kErase,  Op::kUpdate,
                          Op::kUpsert, Op::kFind,   Op::kErase,  Op::kInsert, Op::kFind}) {
        batch.Add(op, key, tag++);
      }
      store.Apply(batch);
      EXPECT_EQ(store.model().size(), 1u);
      store.Apply(batch);  // now the key exists at first
      store.ExpectContents();
      TestBatch gone = store.NewBatch();  // ends with no key
      for (const Op op : {Op::kFind, Op::kErase, Op::kInsert, Op::kUpdate, Op::kErase, Op::kFind}) {
        gone.Add(op, key, tag++);
      }
      store.Apply(gone);
      EXPECT_TRUE(store.model().empty());
      store.ExpectContents();
      store.Reopen();
    }
  }
}

TEST_F(StoreTest, HotKeysEqualOneByOneApplication) {
  std::mt19937_64 random(TestSeed());
  for (const std::uint32_t key_size : kKeySizes) {
    for (const std::uint32_t value_size : {8u, 100u}) {
      ModelledStore batched(NewPath(), Shape(key_size, value_size), TestOpenOptions());
      ModelledStore single(NewPath(), Shape(key_size, value_size), TestOpenOptions());
      const std::uint64_t keys[] = {1, 0, 2};
      TestBatch batch = batched.NewBatch();
      constexpr int kOperations = 10000;
      constexpr int kAlone = 300;  // as many are applied one by one too
      for (int i = 0; i < kOperations; ++i) {
        batch.Add(static_cast<Op>(random() % kOpKinds), keys[random() % 3], random());
        if (i == kAlone - 1) {
          batched.Apply(batch);
          for (int j = 0; j < kAlone; ++j) {
            TestBatch one = single.NewBatch();
            one.Add(batch.op(j), AsString(batch.key(j)), AsString(batch.value(j)));
            single.Apply(one);
            EXPECT_EQ(one.result(0), batch.result(j));
          }
          EXPECT_EQ(batched.model(), single.model());
          batch.Clear();
        }
      }
      batched.Apply(batch);
      batched.ExpectContents();
      single.ExpectContents();
    }
  }
}

TEST_F(StoreTest, EmptyBatchesDoNothing) {
  ModelledStore store(NewPath(), Shape(16, 100), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 10));
  TestBatch empty = store.NewBatch();
  store.Apply(empty);
  for (int kind = 0; kind < kOpKinds; ++kind) store.Apply(static_cast<Op>(kind), {});
  store.store().ApplyAsync(Batch{}).Wait();
  store.ExpectContents();
}

TEST_F(StoreTest, FindWithoutAnArrayAsksOnlyForExistence) {
  ModelledStore store(NewPath(), Shape(8, 100), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(10, 10));
  TestBatch batch = store.NewBatch();
  for (std::uint64_t key = 5; key < 25; ++key) batch.Add(Op::kFind, key, 0);
  Batch find = batch.Mixed();
  store.store().Find(find.keys, {}, find.results);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(batch.result(i), i >= 5 && i < 15 ? Result::kOk : Result::kNotFound) << i;
  }
  // Finds and erases need no values either.
  find = batch.Mixed();
  find.values = {};
  store.store().Apply(find);
  batch.Compare(store.model());
}

TEST_F(StoreTest, UnknownKindIsInvalidAndChangesNothing) {
  ModelledStore store(NewPath(), Shape(8, 100), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 10));
  TestBatch batch = store.NewBatch();
  for (std::uint64_t key = 0; key < 20; ++key) {
    batch.Add(static_cast<Op>(key % 2 == 0 ? kOpKinds + key : 0), key, 77);
  }
  store.store().Apply(batch.Mixed());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Result otherwise = i < 10 ? Result::kOk : Result::kNotFound;
    EXPECT_EQ(batch.result(i), i % 2 == 0 ? Result::kInvalid : otherwise) << i;
  }
  store.ExpectContents();
}

TEST_F(StoreTest, WritesOfAMixedBatchWithoutValuesAreInvalid) {
  ModelledStore store(NewPath(), Shape(8, 100), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 10));
  TestBatch batch = store.NewBatch();
  for (std::uint64_t key = 0; key < 20; ++key) {
    for (const Op op : {Op::kInsert, Op::kUpdate, Op::kUpsert, Op::kFind}) batch.Add(op, key, 77);
  }
  Batch without = batch.Mixed();
  without.values = {};
  store.store().Apply(without);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Result found = i < 40 ? Result::kOk : Result::kNotFound;
    EXPECT_EQ(batch.result(i), batch.op(i) == Op::kFind ? found : Result::kInvalid) << i;
  }
  store.ExpectContents();
}

TEST_F(StoreTest, AFindOrInsertThatIsInvalidFindsNothing) {
  ModelledStore store(NewPath(), Shape(8, 100), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 100));
  std::uint64_t finds = 0;
  for (const std::uint64_t size : {2u, 5000u, 40'000u}) {  // each way to carry them out
    TestBatch batch = store.NewBatch();
    for (std::uint64_t i = 0; i < size; ++i) {
      batch.Add(i % 2 == 0 ? Op::kFindOrInsert : Op::kFind, i / 4 % 100, 77);
    }
    Batch without = batch.Mixed();
    without.values = {};
    for (const bool wants_values : {true, false}) {
      if (!wants_values) without.found = {};
      store.store().Apply(without);
      finds += size / 2;
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(batch.result(i), i % 2 == 0 ? Result::kInvalid : Result::kOk) << i;
      }
      EXPECT_EQ(store.store().Stats().finds_found, finds);
    }
  }
  store.ExpectContents();
}

TEST_F(StoreTest, AsyncBatchesCompleteInOrder) {
  ModelledStore store(NewPath(), Shape(8, 100, 100000), TestOpenOptions());
  std::mt19937_64 random(TestSeed());
  constexpr int kBatches = 10;
  std::vector<TestBatch> batches(kBatches, store.NewBatch());
  std::vector<Ticket> tickets;
  for (TestBatch& batch : batches) {
    for (int i = 0; i < 1000; ++i) {
      batch.Add(static_cast<Op>(random() % kOpKinds), random() % 500, random());
    }
    tickets.push_back(store.store().ApplyAsync(batch.Mixed()));
  }
  for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) {
    ticket->Wait();
    ticket->Wait();  // idempotent
  }
  for (const TestBatch& batch : batches) batch.Compare(store.model());
  store.ExpectContents();
}

TEST_F(StoreTest, TicketsWaitWhenDestroyedAndMove) {
  ModelledStore store(NewPath(), Shape(8, 100), TestOpenOptions());
  TestBatch first = store.NewBatch();
  TestBatch second = store.NewBatch();
  for (std::uint64_t i = 0; i < 5000; ++i) {  // needs several resizes
    first.Add(Op::kInsert, i, i);
    second.Add(Op::kInsert, 5000 + i, i);
  }
  { const Ticket dropped = store.store().ApplyAsync(first.Mixed()); }
  first.Compare(store.model());
  Ticket ticket;
  ticket.Wait();  // of nothing
  {
    Ticket moved = store.store().ApplyAsync(second.Mixed());
    ticket = std::move(moved);
  }
  ticket.Wait();
  second.Compare(store.model());
  store.ExpectContents();
}

TEST_F(StoreTest, StatsDescribeTheStore) {
  const std::string path = NewPath();
  CreateOptions create = Shape(32, 100, 5000);
  create.geometry = ParseGeometry("4L-2H-4S");
  ModelledStore store(path, create, TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 3000));
  store.Apply(Op::kErase, Numbers(0, 500));
  const StoreStats stats = store.store().Stats();
  EXPECT_EQ(stats.items, 2500u);
  EXPECT_EQ(stats.key_size, 32u);
  EXPECT_EQ(stats.value_size, 100u);
  EXPECT_EQ(stats.geometry, create.geometry);
  EXPECT_EQ(stats.capacity_slots, SlotsOf(create.geometry, stats.level_buckets));
  EXPECT_DOUBLE_EQ(stats.load_factor, 2500.0 / static_cast<double>(stats.capacity_slots));
  EXPECT_GE(stats.value_cells, 2500u);
  EXPECT_LE(stats.free_cells, stats.value_cells - 2500);
  EXPECT_GE(stats.pm_bytes, stats.value_cells * CellBytes(100));
  EXPECT_EQ(stats.pm_bytes % kPageBytes, 0u);
  EXPECT_EQ(stats.executor, TestExecutor());
  EXPECT_TRUE(stats.medium.survives_process_crash);
  EXPECT_FALSE(stats.medium.survives_power_loss);
  EXPECT_TRUE(stats.recovery.was_clean);
  if (TestExecutor() == ExecutorKind::kCuda) {
    EXPECT_GT(stats.gpu_bytes, 0u);
    EXPECT_EQ(stats.medium.medium, Medium::kTmpfs);
  } else {
    EXPECT_EQ(stats.gpu_bytes, 0u);
    EXPECT_GE(stats.threads, 1u);
  }
  store.Reopen();
  const StoreStats reopened = store.store().Stats();
  EXPECT_EQ(reopened.free_cells, reopened.value_cells - 2500);  // what was retired came back
}

TEST_F(StoreTest, InlineValuesTakeNoCells) {
  ModelledStore store(NewPath(), Shape(8, 8), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 1000));
  EXPECT_EQ(store.store().Stats().value_cells, 0u);
  EXPECT_EQ(store.store().Stats().free_cells, 0u);
}

TEST_F(StoreTest, PinnedPoolWorksAndPromisesNothing) {
  ModelledStore store("pinned:", Shape(8, 100), TestOpenOptions(std::uint64_t{256} << 20));
  store.Apply(Op::kInsert, Numbers(0, 5000));
  store.Apply(Op::kFind, Numbers(0, 6000));
  store.ExpectContents();
  const StoreStats stats = store.store().Stats();
  EXPECT_EQ(stats.medium.medium, Medium::kHostPinned);
  EXPECT_FALSE(stats.medium.survives_process_crash);
  EXPECT_FALSE(stats.medium.survives_power_loss);
}

TEST_F(StoreTest, AutoPicksAnExecutorThatWorks) {
  OpenOptions open;
  open.executor = ExecutorKind::kAuto;
  ModelledStore store(NewPath(), Shape(8, 100), open);
  store.Apply(Op::kInsert, Numbers(0, 1000));
  store.Apply(Op::kFind, Numbers(500, 1000));
  EXPECT_EQ(store.store().Stats().executor,
            GpuCount() > 0 && store.store().Stats().medium.gpu_can_register ? ExecutorKind::kCuda
                                                                            : ExecutorKind::kCpu);
}

TEST_F(StoreTest, MovingKeepsTheStore) {
  const std::string first_path = NewPath();
  const std::string second_path = NewPath();
  Store first = Store::Create(first_path, Shape(8, 100), TestOpenOptions());
  Store second = Store::Create(second_path, Shape(16, 8), TestOpenOptions());
  TestBatch batch(8, 100);
  for (std::uint64_t i = 0; i < 100; ++i) batch.Add(Op::kInsert, i, i);
  first.Apply(batch.Mixed());
  Model model;
  batch.Compare(model);

  Store moved = std::move(first);
  ExpectContents(moved, model);
  second = std::move(moved);  // closes the second pool
  EXPECT_EQ(second.key_size(), 8u);
  ExpectContents(second, model);
  ExpectSound(second_path, 0);
  second.Close();
  ExpectSound(first_path, 100);
}

TEST_F(StoreTest, DestructionCloses) {
  const std::string path = NewPath();
  {
    Store store = Store::Create(path, Shape(8, 100), TestOpenOptions());
    TestBatch batch(8, 100);
    for (std::uint64_t i = 0; i < 100; ++i) batch.Add(Op::kInsert, i, i);
    store.Apply(batch.Mixed());
    EXPECT_EQ(ErrorOf([&] { Store::Open(path, TestOpenOptions()); }), ErrorCode::kBusy);
  }
  ExpectSound(path, 100);
  Store again = Store::Open(path, TestOpenOptions());
  EXPECT_EQ(again.Stats().items, 100u);
}

TEST_F(StoreTest, SeededLayoutIsReproducible) {
  std::string files[2];
  for (std::string& bytes : files) {
    CreateOptions create = Shape(32, 8);
    create.hash_seed = 42;
    ModelledStore store(NewPath(), create, TestOpenOptions());
    for (std::uint64_t i = 0; i < 50; ++i) store.Apply(Op::kInsert, {i});
    store.store().Close();
    const auto pool = Pool::Open(store.path(), Pool::Options{0, true});
    const Superblock& superblock = pool->superblock();
    for (std::uint32_t i = 0; i < superblock.level_count; ++i) {
      const LevelEntry& level = superblock.levels[i];
      bytes += AsString({pool->base() + level.offset, pool->bucket_bytes() * level.buckets});
    }
  }
  EXPECT_TRUE(files[0] == files[1]);
}

TEST_F(StoreTest, UpdatesReuseCells) {
  ModelledStore store(NewPath(), Shape(8, 1000), TestOpenOptions());
  const auto keys = Numbers(0, 512);
  store.Apply(Op::kInsert, keys);
  std::uint64_t settled = 0;
  for (std::uint64_t round = 1; round <= 300; ++round) {
    store.Apply(Op::kUpdate, keys, round);
    if (round == 20) settled = store.store().Stats().pm_bytes;
  }
  EXPECT_EQ(store.store().Stats().pm_bytes, settled);
  EXPECT_LT(store.store().Stats().value_cells, 10 * keys.size());
  store.Apply(Op::kFind, keys);
  store.Reopen();
  const StoreStats stats = store.store().Stats();
  EXPECT_EQ(stats.free_cells, stats.value_cells - keys.size());
}

TEST_F(StoreTest, OneItemUpdatedManyTimesInABatchTakesFewCells) {
  ModelledStore store(NewPath(), Shape(8, 1000), TestOpenOptions());
  TestBatch batch = store.NewBatch();
  for (std::uint64_t i = 0; i < 2000; ++i) batch.Add(Op::kUpsert, 7, i);
  std::uint64_t settled = 0;
  for (int round = 0; round < 100; ++round) {
    store.Apply(batch);
    if (round == 10) settled = store.store().Stats().pm_bytes;
  }
  EXPECT_EQ(store.store().Stats().pm_bytes, settled);
}

TEST_F(StoreTest, InsertsReuseErasedSlotsAndCells) {
  ModelledStore store(NewPath(), Shape(32, 200), TestOpenOptions());
  std::uint64_t settled = 0;
  std::uint64_t resizes = 0;
  for (std::uint64_t round = 0; round < 200; ++round) {
    const auto keys = Numbers(round * 1000, 1000);  // new keys every time
    store.Apply(Op::kInsert, keys);
    store.Apply(Op::kErase, keys);
    if (round == 20) {
      settled = store.store().Stats().pm_bytes;
      resizes = store.store().Stats().resizes;
    }
  }
  EXPECT_EQ(store.store().Stats().pm_bytes, settled);
  EXPECT_LE(store.store().Stats().resizes, resizes + 1);  // chance may still crowd a bucket
  EXPECT_EQ(store.store().Stats().items, 0u);
  store.Reopen();
}

TEST_F(StoreTest, NoSpaceLosesNothing) {
  for (const std::uint32_t value_size : {8u, 1000u}) {
    SCOPED_TRACE("value size " + std::to_string(value_size));
    const OpenOptions open = TestOpenOptions(std::uint64_t{4} << 20);
    ModelledStore store(NewPath(), Shape(8, value_size), open);
    std::uint64_t next = 0;
    bool full = false;
    while (!full) {
      ASSERT_LT(next, 1000000u) << "4 MiB can't hold that much";
      TestBatch batch = store.NewBatch();
      for (int i = 0; i < 500; ++i, ++next) {
        batch.Add(i % 2 == 0 ? Op::kInsert : Op::kUpsert, next, next);
      }
      store.Apply(batch, true);
      for (std::size_t i = 0; i < batch.size(); ++i) full |= batch.result(i) == Result::kNoSpace;
    }
    const std::uint64_t items = store.model().size();
    EXPECT_GT(items * (8 + value_size), std::uint64_t{1} << 20);  // at least a quarter is items
    EXPECT_LE(store.store().Stats().pm_bytes, std::uint64_t{4} << 20);
    store.ExpectContents();
    store.Apply(Op::kFind, Numbers(0, next));

    // Still full; finds, updates one by one and erases work.
    TestBatch more = store.NewBatch();
    for (std::uint64_t i = 0; i < 5000; ++i) more.Add(Op::kInsert, next + i, i);
    store.Apply(more, true);
    store.ExpectContents();
    store.Reopen();

    std::vector<std::uint64_t> present;
    for (const auto& [key, value] : store.model()) {
      present.push_back(KeyNumber(std::as_bytes(std::span(key))));
    }
    std::sort(present.begin(), present.end());
    present.resize(present.size() / 2);
    store.Apply(Op::kErase, present);  // makes room again
    store.ExpectContents();
    TestBatch again = store.NewBatch();
    for (std::uint64_t i = 0; i < present.size() / 2; ++i) {
      again.Add(Op::kInsert, present[i], 5 * i);
    }
    store.Apply(again);  // none may fail for space
    store.ExpectContents();
    store.Reopen();
  }
}

TEST_F(StoreTest, UpdatesOfAFullStore) {
  // Batch updates of everything in a pool that can't grow: each is done or reports that it is not.
  ModelledStore store(NewPath(), Shape(8, 1000), TestOpenOptions(std::uint64_t{4} << 20));
  std::uint64_t next = 0;
  for (bool full = false; !full;) {
    TestBatch batch = store.NewBatch();
    for (int i = 0; i < 100; ++i, ++next) batch.Add(Op::kInsert, next, next);
    store.Apply(batch, true);
    for (std::size_t i = 0; i < batch.size(); ++i) full |= batch.result(i) == Result::kNoSpace;
  }
  for (std::uint64_t round = 1; round < 5; ++round) {
    TestBatch updates = store.NewBatch();
    for (std::uint64_t i = 0; i < next; ++i) updates.Add(Op::kUpdate, i, i + round);
    store.Apply(updates, true);
    TestBatch finds = store.NewBatch();
    for (std::uint64_t i = 0; i < next; ++i) finds.Add(Op::kFind, i, 0);
    store.Apply(finds);
  }
  store.ExpectContents();
  store.Reopen();
}

TEST_F(StoreTest, ForEachVisitsEachItemOnce) {
  Store store = Store::Create(NewPath(), Shape(64, 100), TestOpenOptions());
  std::uint64_t visits = 0;
  store.ForEach([&](auto, auto) { ++visits; });
  EXPECT_EQ(visits, 0u);
  TestBatch batch(64, 100);
  for (std::uint64_t i = 0; i < 1000; ++i) batch.Add(Op::kInsert, i, i);
  store.Apply(batch.Mixed());
  std::map<std::uint64_t, int> seen;
  store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    EXPECT_EQ(key.size(), 64u);
    EXPECT_EQ(value.size(), 100u);
    const std::uint64_t number = KeyNumber(key);
    EXPECT_EQ(AsString(key), MakeKey(number, 64));
    EXPECT_EQ(ValueTag(value), number);
    ++seen[number];
  });
  EXPECT_EQ(seen.size(), 1000u);
  for (const auto& [number, times] : seen) EXPECT_EQ(times, 1) << number;
}

TEST_F(StoreTest, ThreadCountsGiveTheSameResults) {
  if (TestExecutor() != ExecutorKind::kCpu) GTEST_SKIP() << "threads are the cpu executor's";
  std::mt19937_64 random(TestSeed());
  TestBatch batch(16, 24);
  for (int i = 0; i < 20000; ++i) {
    batch.Add(static_cast<Op>(random() % kOpKinds), random() % 5000, random());
  }
  for (const unsigned threads : {1u, 2u, 7u}) {
    OpenOptions open = TestOpenOptions();
    open.threads = threads;
    Store store = Store::Create(NewPath(), Shape(16, 24), open);
    EXPECT_EQ(store.Stats().threads, threads);
    store.Apply(batch.Mixed());
    Model model;
    batch.Compare(model);
    ExpectContents(store, model);
  }
}

TEST_F(StoreTest, UnalignedArrays) {
  // Of host arrays nothing has to be aligned.
  ModelledStore store(NewPath(), Shape(16, 24), TestOpenOptions());
  constexpr std::size_t kItems = 100;
  std::string keys = "x";
  std::string values = "xyz";
  for (std::uint64_t i = 0; i < kItems; ++i) {
    keys += MakeKey(i, 16);
    values += MakeValue(i, 24);
  }
  std::vector<Result> results(kItems, Result::kInvalid);
  store.store().Insert(std::as_bytes(std::span(keys)).subspan(1),
                       std::as_bytes(std::span(values)).subspan(3), results);
  std::string found(values.size() + 2, '?');
  store.store().Find(std::as_bytes(std::span(keys)).subspan(1),
                     std::as_writable_bytes(std::span(found)).subspan(5), results);
  EXPECT_TRUE(found.substr(5) == values.substr(3));
  for (const Result result : results) EXPECT_EQ(result, Result::kOk);
}

/// Values that are larger than a step of growth, a segment and a block of a snapshot.
TEST_F(StoreTest, LargeValues) {
  OpenOptions open = TestOpenOptions();
  open.cache.fraction = 0;  // some gigabytes, of so few items
  for (const auto& [value_size, items] : {std::pair{(64u << 10) + 1, 40u},
                                          {1u << 20, 20u},
                                          {(5u << 20) - 3, 5u},
                                          {kMaxValueBytes, 3u}}) {
    ModelledStore store(NewPath(), Shape(8, value_size), open);
    store.Apply(Op::kInsert, Numbers(1, items), 5);
    store.Apply(Op::kFind, Numbers(0, items + 2));
    store.Apply(Op::kUpdate, Numbers(2, items), 9);
    store.Apply(Op::kErase, {1, 3});
    store.Apply(Op::kFindOrInsert, {1, 2, 1}, 11);
    if (value_size % 4 == 0) store.Apply(Op::kAccumulate, {1, 2, 1, 99}, 13);
    store.Reopen(open);
    store.store().Compact();
    store.ExpectContents();
    const std::string file = NewPath();
    store.store().Snapshot(file);
    Store restored = Store::Restore(std::span(&file, 1), NewPath(), open);
    ExpectContents(restored, store.model());
  }
}

}  // namespace
}  // namespace gpm::test
