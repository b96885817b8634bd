// The oracle of gpmstore crash-test, which says what processes that were killed in the middle of
// their batches may leave: that it can say no, one broken promise at a time; and the batches and
// moments that it judges by.

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <stdexcept>

#include "cli/crash/oracle.h"
#include "cli/key_log.h"
#include "tests/test_util.h"

namespace gpm::cli {
namespace {

using test::Bytes;

/// An oracle with batches and items at hand, for keys of 16 bytes.
class CrashOracleTest : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  static constexpr std::uint64_t kKey = 17;

  CrashOracleTest() : items_(16, GetParam()), oracle_(items_) {}

  Bytes Key(std::uint64_t number) const {
    Bytes key(items_.key_size());
    items_.PutKey(number, key.data());
    return key;
  }
  Bytes Value(std::uint64_t key, std::uint64_t version) const {
    Bytes value(items_.value_size());
    items_.PutValue(key, version, value.data());
    return value;
  }

  void Start(std::vector<CrashOperation> operations, unsigned thread = 0) {
    oracle_.Start(thread, 0, CrashBatch{false, std::move(operations)});
  }
  /// Starts a batch of one operation and acknowledges it as ok.
  void Acknowledged(const CrashOperation& operation) {
    Start({operation});
    CrashDigest answer;
    answer.Add(Result::kOk, {});
    oracle_.Acknowledge(0, answer);
    ExpectNoDefect();
  }
  /// The pool holds these values of kKey, and nothing else.
  void Holds(const std::vector<Bytes>& values) {
    oracle_.BeginItems();
    for (const Bytes& value : values) oracle_.Found(Key(kKey), value);
    oracle_.EndItems();
  }
  void ExpectNoDefect() { EXPECT_EQ(oracle_.defects(), std::vector<std::string>{}); }
  /// There is one defect, and it names `what`.
  void ExpectDefect(const std::string& what) {
    ASSERT_EQ(oracle_.defects().size(), 1u) << ::testing::PrintToString(oracle_.defects());
    EXPECT_NE(oracle_.defects()[0].find(what), std::string::npos) << oracle_.defects()[0];
  }

  CrashItems items_;
  CrashOracle oracle_;
};

/// Cells, a value that ends inside a word, and values in the slot.
INSTANTIATE_TEST_SUITE_P(ValueSizes, CrashOracleTest, ::testing::Values(128u, 21u, 8u, 4u));

constexpr std::uint64_t kOld = 1000;
constexpr std::uint64_t kNew = 1001;
constexpr std::uint64_t kNewer = 1002;

TEST_P(CrashOracleTest, AcknowledgedItemsStay) {
  Acknowledged({Op::kInsert, kKey, kOld});
  Holds({Value(kKey, kOld)});
  EXPECT_EQ(oracle_.items(), 1u);
  oracle_.CheckFind(kKey, Result::kOk, Value(kKey, kOld));
  oracle_.CheckFind(kKey + 1, Result::kNotFound, {});
  Acknowledged({Op::kErase, kKey, kNew});
  Holds({});
  EXPECT_EQ(oracle_.items(), 0u);
  ExpectNoDefect();
}

TEST_P(CrashOracleTest, SeesALostInsert) {
  Acknowledged({Op::kInsert, kKey, kOld});
  Holds({});
  ExpectDefect("key 17 is absent");
}

TEST_P(CrashOracleTest, SeesALostUpdate) {
  Acknowledged({Op::kInsert, kKey, kOld});
  Acknowledged({Op::kUpdate, kKey, kNew});
  Holds({Value(kKey, kOld)});
  ExpectDefect("key 17 is there with");
}

TEST_P(CrashOracleTest, SeesAResurrectedKey) {
  Acknowledged({Op::kUpsert, kKey, kOld});
  Acknowledged({Op::kErase, kKey, kNew});
  Holds({Value(kKey, kOld)});
  ExpectDefect("but must be: absent");
}

TEST_P(CrashOracleTest, SeesATornValue) {
  Acknowledged({Op::kInsert, kKey, kOld});
  Start({{Op::kUpdate, kKey, kNew}});
  // As before the batch or as after it is fine; half of each is not.
  Bytes torn = Value(kKey, kNew);
  const Bytes old = Value(kKey, kOld);
  const auto half = static_cast<std::ptrdiff_t>(torn.size() / 2);
  std::copy(old.begin() + half, old.end(), torn.begin() + half);
  if (torn == Value(kKey, kNew)) torn.back() ^= std::byte{1};  // the versions differ below only
  Holds({torn});
  ExpectDefect(GetParam() > 8 ? "torn" : "key 17 is there with");
}

TEST_P(CrashOracleTest, SeesAValueOfAnotherKey) {
  Acknowledged({Op::kInsert, kKey, kOld});
  Holds({Value(kKey + 1, kNew)});
  ExpectDefect("key 17 is there with");
}

TEST_P(CrashOracleTest, SeesKeysThatNobodyInserted) {
  oracle_.BeginItems();
  oracle_.Found(Key(kKey), Value(kKey, kOld));
  oracle_.EndItems();
  ExpectDefect("must be: absent");
}

TEST_P(CrashOracleTest, SeesKeysThatNoOperationHas) {
  Bytes key = Key(kKey);
  key[0] ^= std::byte{1};
  oracle_.BeginItems();
  oracle_.Found(key, Value(kKey, kOld));
  oracle_.EndItems();
  ExpectDefect("which no operation has");
}

TEST_P(CrashOracleTest, SeesAKeyThatIsThereTwice) {
  Acknowledged({Op::kInsert, kKey, kOld});
  Holds({Value(kKey, kOld), Value(kKey, kOld)});
  ExpectDefect("key 17 is there twice");
}

TEST_P(CrashOracleTest, SeesWrongFinds) {
  Acknowledged({Op::kInsert, kKey, kOld});
  Holds({Value(kKey, kOld)});
  oracle_.CheckFind(kKey, Result::kNotFound, {});
  ExpectDefect("find of key 17 answers not-found");
  oracle_.CheckFind(kKey + 1, Result::kOk, Value(kKey + 1, kOld));
  oracle_.CheckFind(kKey, Result::kOk, Value(kKey, kNew));
  EXPECT_EQ(oracle_.defects().size(), 3u);
}

TEST_P(CrashOracleTest, ABatchInFlightAllowsEachOfItsStatesAndNoOther) {
  const std::vector<CrashOperation> batch = {
      {Op::kFind, kKey, 1},        {Op::kUpdate, kKey, kNew},  // one of two that are as before
      {Op::kErase, kKey, 2},       {Op::kUpdate, kKey, 3},     // finds nothing to update
      {Op::kInsert, kKey, kNewer}, {Op::kInsert, kKey, 4},     // exists
  };
  for (const std::uint64_t left : {kOld, kNew, std::uint64_t{0}, kNewer}) {
    oracle_.Renew();
    Acknowledged({Op::kInsert, kKey, kOld});
    Start(batch);
    EXPECT_EQ(oracle_.batches_in_flight(), 1u);
    Holds(left == 0 ? std::vector<Bytes>{} : std::vector<Bytes>{Value(kKey, left)});
    ExpectNoDefect();
    EXPECT_EQ(oracle_.batches_in_flight(), 0u);
    // What was found is what must be there from now on.
    oracle_.CheckFind(kKey, left == 0 ? Result::kNotFound : Result::kOk, Value(kKey, left));
    ExpectNoDefect();
  }
  for (const std::uint64_t never : {3u, 4u}) {
    CrashOracle oracle(items_);
    oracle.Start(1, 0, CrashBatch{false, batch});
    oracle.BeginItems();
    oracle.Found(Key(kKey), Value(kKey, never));
    oracle.EndItems();
    EXPECT_EQ(oracle.defects().size(), 1u);
  }
}

TEST_P(CrashOracleTest, ABatchInFlightAllowsNothingElsewhere) {
  Acknowledged({Op::kInsert, kKey, kOld});
  Start({{Op::kErase, kKey + 1, 1}, {Op::kUpsert, kKey + 2, 2}});
  Holds({});
  ExpectDefect("key 17 is absent");
}

TEST_P(CrashOracleTest, AnswersMustBeThoseOfOneByOne) {
  const std::vector<CrashOperation> batch = {
      {Op::kFind, kKey, 1},   {Op::kUpsert, kKey, kOld}, {Op::kFind, kKey, 2},
      {Op::kInsert, kKey, 3}, {Op::kUpdate, kKey, 4},    {Op::kErase, kKey, 5},
      {Op::kErase, kKey, 6},  {Op::kInsert, kKey, kNew}, {Op::kUpdate, 18, kNewer}};
  const std::vector<Result> right = {Result::kNotFound, Result::kOk, Result::kOk,
                                     Result::kExists,   Result::kOk, Result::kOk,
                                     Result::kNotFound, Result::kOk, Result::kNotFound};
  const auto answer = [&](const std::vector<Result>& results, std::uint64_t found) {
    oracle_.Renew();
    Start(batch);
    CrashDigest digest;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      digest.Add(results[i], i == 2 ? Value(kKey, found) : Bytes{});
    }
    oracle_.Acknowledge(0, digest);
  };
  answer(right, kOld);
  ExpectNoDefect();
  Holds({Value(kKey, kNew)});
  ExpectNoDefect();

  std::vector<Result> wrong = right;
  wrong[6] = Result::kOk;
  answer(wrong, kOld);
  ExpectDefect("operation 6, erase of key 17");
  answer(right, kNew);  // an old find that sees what comes later
  ASSERT_EQ(oracle_.defects().size(), 2u);
  EXPECT_NE(oracle_.defects()[1].find("operation 2, find of key 17"), std::string::npos);
  wrong[8] = Result::kOk;
  answer(wrong, kOld);
  ASSERT_EQ(oracle_.defects().size(), 3u);
  EXPECT_NE(oracle_.defects()[2].find("several operations"), std::string::npos);
}

TEST_P(CrashOracleTest, SumsHaveRowsAddedInBatchOrder) {
  const std::uint32_t value_size = GetParam();
  const Element element = value_size % 4 == 0 ? Element::kFloat32 : Element::kNone;
  const auto sum = [&](std::initializer_list<std::uint64_t> versions) {
    Bytes total = Value(kKey, *versions.begin());
    for (auto version = versions.begin() + 1; version != versions.end(); ++version) {
      Bytes row = Value(kKey, *version);
      for (std::size_t at = 0; at < total.size(); at += 4) {
        float numbers[2];
        std::memcpy(&numbers[0], &total[at], 4);
        std::memcpy(&numbers[1], &row[at], 4);
        numbers[0] += numbers[1];
        std::memcpy(&total[at], &numbers[0], 4);
      }
    }
    return total;
  };
  const auto holds = [&](const Bytes& value) {
    CrashOracle oracle(items_);
    CrashDigest ok;
    ok.Add(Result::kOk, {});
    oracle.Start(0, 0, CrashBatch{false, {{Op::kInsert, kKey, kOld}}});
    oracle.Acknowledge(0, ok);
    oracle.Start(0, 1,
                 CrashBatch{false,
                            {{Op::kAccumulate, kKey, kNew},
                             {Op::kAccumulate, kKey + 1, 1},
                             {Op::kAccumulate, kKey, kNewer},
                             {Op::kAccumulate, kKey, 1003}},
                            element});
    for (int looks = 0; looks < 2; ++looks) {  // before recovery, and after it
      oracle.BeginItems();
      oracle.Found(Key(kKey), value);
      oracle.EndItems();
      oracle.CheckFind(kKey, Result::kOk, value);
    }
    return oracle.defects().empty();
  };
  EXPECT_TRUE(holds(sum({kOld})));
  if (element == Element::kNone) {
    EXPECT_FALSE(holds(Value(kKey, kNew)));
    return;
  }
  const Bytes once = sum({kOld, kNew});
  const Bytes thrice = sum({kOld, kNew, kNewer, 1003});
  EXPECT_TRUE(holds(once));
  EXPECT_TRUE(holds(sum({kOld, kNew, kNewer})));
  EXPECT_TRUE(holds(thrice));
  EXPECT_FALSE(holds(sum({kOld, kNewer})));
  EXPECT_FALSE(holds(sum({kOld, kNew, kNew})));
  EXPECT_FALSE(holds(Value(kKey, kNew)));
  if (value_size == 128) {  // in another order; in part
    EXPECT_FALSE(holds(sum({kOld, 1003, kNewer, kNew})));
    Bytes part = once;
    std::copy(thrice.begin() + 64, thrice.end(), part.begin() + 64);
    EXPECT_FALSE(holds(part));
  }
}

TEST_P(CrashOracleTest, FindsOfSumsMustBeTheSums) {
  if (GetParam() % 8 != 0) return;
  Bytes sum = Value(kKey, kOld);
  const Bytes row = Value(kKey, kNew);
  for (std::size_t at = 0; at < sum.size(); at += 8) {
    std::uint64_t words[2];
    std::memcpy(&words[0], &sum[at], 8);
    std::memcpy(&words[1], &row[at], 8);
    words[0] += words[1];
    std::memcpy(&sum[at], &words[0], 8);
  }
  const auto answer = [&](Result missing, const Bytes& found) {
    oracle_.Renew();
    oracle_.Start(0, 0,
                  CrashBatch{false,
                             {{Op::kAccumulate, kKey, 1},
                              {Op::kUpsert, kKey, kOld},
                              {Op::kAccumulate, kKey, kNew},
                              {Op::kFind, kKey, 2}},
                             Element::kUInt64});
    CrashDigest digest;
    digest.Add(missing, {});
    digest.Add(Result::kOk, {});
    digest.Add(Result::kOk, {});
    digest.Add(Result::kOk, found);
    oracle_.Acknowledge(0, digest);
  };
  answer(Result::kNotFound, sum);
  ExpectNoDefect();
  answer(Result::kOk, sum);
  ExpectDefect("operation 0, accumulate of key 17");
  answer(Result::kNotFound, row);
  EXPECT_EQ(oracle_.defects().size(), 2u);
}

TEST_P(CrashOracleTest, OperationsOfAScopeMayBeAnsweredByThemselves) {
  const auto poison = static_cast<Result>(kCrashPoison);
  const std::vector<CrashOperation> batch = {
      {Op::kUpdate, kKey, kNew}, {Op::kErase, kKey + 1, 1}, {Op::kFind, kKey + 2, 2}};
  struct Case {
    Result update;
    std::uint64_t left;
    bool right;
  };
  for (const Case& now :
       {Case{poison, kOld, true}, Case{poison, kNew, true}, Case{Result::kOk, kNew, true},
        Case{Result::kOk, kOld, false}, Case{Result::kNoSpace, kOld, true},
        Case{Result::kNoSpace, kNew, true}, Case{Result::kNotFound, kNew, false}}) {
    CrashOracle oracle(items_);
    CrashDigest ok;
    ok.Add(Result::kOk, {});
    oracle.Start(0, 0, CrashBatch{false, {{Op::kInsert, kKey, kOld}}});
    oracle.Acknowledge(0, ok);
    oracle.Start(0, 1, CrashBatch{false, batch});
    const std::vector<Result> answers = {now.update, Result::kNotFound, poison};
    const bool answered = now.update != poison && now.update != Result::kNoSpace;
    EXPECT_EQ(oracle.AcknowledgeSome(0, answers), answered ? 2u : 1u);
    oracle.BeginItems();
    oracle.Found(Key(kKey), Value(kKey, now.left));
    oracle.EndItems();
    EXPECT_EQ(oracle.defects().empty(), now.right) << ResultName(now.update);
  }
}

TEST_P(CrashOracleTest, SeesReportsThatMakeNoSense) {
  oracle_.Acknowledge(0, CrashDigest());
  ExpectDefect("had not started");
  Start({{Op::kFind, kKey, 1}});
  Start({{Op::kFind, kKey, 2}});
  EXPECT_EQ(oracle_.defects().size(), 2u);
}

TEST(CrashWorkloadTest, BatchesFollowFromTheirNumbers) {
  CrashRound round;
  round.seed = test::TestSeed();
  round.age = 2;
  round.threads = 3;
  std::set<std::uint64_t> versions;
  std::set<std::uint64_t> reserved;
  std::size_t operations = 0;
  std::size_t again = 0;  // met in the same batch before
  std::size_t of_one_kind = 0;
  std::set<Element> accumulated;
  for (unsigned thread = 0; thread < round.threads; ++thread) {
    for (std::uint64_t number = 0; number < 200; ++number) {
      const CrashBatch batch = MakeCrashBatch(round, thread, number);
      const CrashBatch same = MakeCrashBatch(round, thread, number);
      ASSERT_EQ(batch.operations.size(), same.operations.size());
      ASSERT_GE(batch.operations.size(), 1u);
      ASSERT_LE(batch.operations.size(), round.max_batch);
      if (batch.one_kind) ++of_one_kind;
      std::set<std::uint64_t> keys;
      for (std::size_t i = 0; i < batch.operations.size(); ++i) {
        const CrashOperation& operation = batch.operations[i];
        EXPECT_EQ(operation.key, same.operations[i].key);
        EXPECT_EQ(operation.op, same.operations[i].op);
        EXPECT_EQ(operation.version, same.operations[i].version);
        EXPECT_EQ(operation.key % round.threads, thread);
        EXPECT_LT(operation.key, round.keys());
        EXPECT_NE(operation.version, 0u);
        EXPECT_TRUE(!batch.one_kind || operation.op == batch.operations[0].op);
        versions.insert(operation.version);
        if (operation.op == Op::kAccumulate) accumulated.insert(batch.element);
        if (operation.key < 2) reserved.insert(operation.key);
        if (!keys.insert(operation.key).second) ++again;
        ++operations;
      }
    }
  }
  EXPECT_EQ(versions.size(), operations);
  EXPECT_EQ(reserved.size(), 2u);
  EXPECT_GT(again, 0u);
  EXPECT_GT(of_one_kind, 0u);
  EXPECT_EQ(accumulated, (std::set<Element>{Element::kFloat32, Element::kFloat16,
                                            Element::kBFloat16, Element::kUInt64}));
}

TEST(CrashWorkloadTest, OperationsOfAScopeAreOnDifferentKeys) {
  CrashRound round;
  round.seed = test::TestSeed();
  round.threads = 2;
  round.tickets = 3;
  round.scopes = true;
  round.max_batch = kMaxCrashBatch;
  ASSERT_EQ(round.writers(), 7u);
  EXPECT_FALSE(round.IsInScope(5));
  ASSERT_TRUE(round.IsInScope(6));
  std::size_t largest = 0;
  for (round.age = 0; round.age < 5; ++round.age) {
    for (std::uint64_t number = 0; number < 40; ++number) {
      const CrashBatch batch = MakeCrashBatch(round, 6, number);
      std::set<std::uint64_t> keys;
      for (const CrashOperation& operation : batch.operations) {
        EXPECT_EQ(operation.key % round.writers(), 6u);
        EXPECT_LT(operation.key, round.keys());
        EXPECT_TRUE(keys.insert(operation.key).second);
      }
      largest = std::max(largest, batch.operations.size());
    }
  }
  EXPECT_GT(largest, 10000u);
}

TEST(CrashWorkloadTest, SomeRoundsHaveADirectoryAndSomeACache) {
  CrashRound round;
  round.seed = test::TestSeed();
  std::set<std::pair<bool, bool>> seen;
  for (; round.number < 100; ++round.number) {
    const CacheOptions cache = MakeCrashOpening(round).cache;
    seen.emplace(cache.directory.value(), cache.fraction.value() > 0);
  }
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_FALSE(seen.contains({false, true}));
}

TEST(CrashWorkloadTest, KeysHaveNumbers) {
  for (const std::uint32_t key_size : {1u, 2u, 3u, 7u, 8u, 9u, 16u, 32u, 36u, 64u, 128u, 255u}) {
    const CrashItems items(key_size, 8);
    CrashRound round;
    round.key_size = key_size;
    const std::uint64_t numbers = std::min<std::uint64_t>(round.keys(), 1000);
    EXPECT_EQ(numbers, key_size == 1 ? 255u : 1000u);
    std::set<Bytes> keys;
    for (std::uint64_t number = 0; number < numbers; ++number) {
      Bytes key(key_size);
      items.PutKey(number, key.data());
      EXPECT_EQ(items.KeyNumber(key), number);
      keys.insert(key);
    }
    EXPECT_EQ(keys.size(), numbers);
    EXPECT_TRUE(keys.contains(Bytes(key_size, std::byte{0x00})));
    EXPECT_TRUE(keys.contains(Bytes(key_size, std::byte{0xFF})));
  }
}

KeyLog TwoBatches() {
  KeyLog log;
  log.before = {{true, 1}, {}};
  log.changes = {{0, {true, 2}}, {1, {true, 3}}, {0, {}}, {0, {true, 1}}};
  log.batches = {{{10, 20}, 2}, {{30, 40}, 4}};
  return log;
}

TEST(KeyLogTest, SaysWhenTheKeysWereSo) {
  std::string wrong;
  const auto moments = [&](const std::vector<KeyState>& held) {
    std::vector<std::uint64_t> bounds;
    for (const Interval& interval : MomentsOf(TwoBatches(), held, &wrong)) {
      bounds.insert(bounds.end(), {interval.invoked_at, interval.returned_at});
    }
    return bounds;
  };
  constexpr std::uint64_t kEver = std::numeric_limits<std::uint64_t>::max();
  using Bounds = std::vector<std::uint64_t>;
  EXPECT_EQ(moments({{true, 1}, {}}), (Bounds{0, 20}));
  EXPECT_EQ(moments({{true, 2}, {true, 3}}), (Bounds{10, 40}));
  EXPECT_EQ(moments({{true, 1}, {true, 3}}), (Bounds{30, kEver}));
  EXPECT_EQ(wrong, "");
  // In the middle of a batch; what never was.
  EXPECT_TRUE(moments({{true, 2}, {}}).empty());
  EXPECT_NE(wrong.find("none of 2 batches"), std::string::npos) << wrong;
  EXPECT_TRUE(moments({{}, {true, 3}}).empty());
  EXPECT_TRUE(moments({{true, 9}, {true, 3}}).empty());
}

TEST(KeyLogTest, MomentsOfAFindOnlyBatchAreOneInterval) {
  KeyLog log = TwoBatches();
  log.changes.clear();
  log.batches[0].changes = log.batches[1].changes = 0;
  std::string wrong;
  const Moments moments = MomentsOf(log, log.before, &wrong);
  ASSERT_EQ(moments.size(), 1u);
  EXPECT_EQ(moments[0].invoked_at, 0u);
}

TEST(KeyLogTest, CommonMoments) {
  const Moments left{{0, 10}, {20, 30}, {50, 60}};
  const Moments right{{10, 22}, {25, 26}, {55, 70}};
  const Moments common = Common(left, right);
  ASSERT_EQ(common.size(), 4u);
  const std::uint64_t expected[4][2] = {{10, 10}, {20, 22}, {25, 26}, {55, 60}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(common[i].invoked_at, expected[i][0]);
    EXPECT_EQ(common[i].returned_at, expected[i][1]);
  }
  EXPECT_TRUE(Common({{0, 10}}, {{11, 20}}).empty());
}

}  // namespace
}  // namespace gpm::cli
