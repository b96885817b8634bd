// gpmstore stress: what it says of a batch's answers. That it can say no is shown here, one wrong
// answer at a time; right ones pass.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cli/stress/answer_check.h"

namespace gpm::stress {
namespace {

constexpr Op kOps[] = {Op::kFind,  Op::kInsert,       Op::kUpdate,    Op::kUpsert,
                       Op::kErase, Op::kFindOrInsert, Op::kAccumulate};
static_assert(std::size(kOps) == kOpKinds);
constexpr Result kResults[] = {Result::kOk, Result::kNotFound, Result::kExists, Result::kNoSpace,
                               Result::kInvalid};

constexpr std::uint64_t kHeld = 3;  ///< a key of the lane that is there, with kToken
constexpr std::uint64_t kGone = 4;  ///< one that is not
constexpr std::uint64_t kToken = 0x1000;
constexpr std::uint64_t kVersion = 0x2000;  ///< of a batch's first operation
constexpr Interval kInterval{10, 20};

std::uint64_t Own(std::uint64_t number) { return IdIn(kFirstLane, number); }

/// Batches of a lane with eight keys, and answers to them. In values of 16 bytes a token is the
/// version that wrote it.
class CheckAnswersTest : public ::testing::Test {
 protected:
  struct Answered {
    Op op;
    std::uint64_t id;
    Result result;
    std::uint64_t token = 0;  ///< of the value that it gave back, if it did
  };

  CheckAnswersTest() {
    plan_.shape.value_size = 16;
    batch_.has_values = true;
    batch_.has_found = true;
    batch_.element = Element::kFloat32;
    batch_.first_version = kVersion;
  }

  /// What is said of a batch that answers this, when the lane's keys are as they are at first.
  std::string Check(const std::vector<Answered>& answered) {
    model_ = KeyModel(8);
    model_.Set(kHeld, {true, kToken});
    std::vector<std::uint64_t> operations, tokens;
    std::vector<std::uint8_t> results;
    for (const Answered& one : answered) {
      operations.push_back(Planned(one.op, one.id));
      tokens.push_back(one.token);
      results.push_back(static_cast<std::uint8_t>(one.result));
    }
    batch_.n = static_cast<std::uint32_t>(operations.size());
    batch_.operations = operations.data();
    return CheckAnswers({plan_, watched_, 0, 0}, batch_, {tokens.data(), results.data()}, kInterval,
                        &model_, &totals_);
  }

  /// One operation is answered wrongly, which is said, with `what`.
  void ExpectWrong(const Answered& one, const std::string& what = "") {
    const std::string wrong = Check({one});
    const std::string operation = std::string(OpName(one.op)) + " of " + KeyName(one.id);
    EXPECT_NE(wrong.find("1 of the answers are wrong"), std::string::npos) << operation;
    EXPECT_NE(wrong.find(operation), std::string::npos) << wrong;
    EXPECT_NE(wrong.find(what), std::string::npos) << wrong << "\nshould say: " << what;
  }

  RoundPlan plan_;
  WatchedKeys watched_{1, 64};
  BatchPlan batch_;
  KeyModel model_{8};
  Totals totals_;
};

TEST_F(CheckAnswersTest, OfOwnKeysEachOperationHasOneResult) {
  // By Op, of the key that is there and of the one that is not.
  constexpr Result kRight[][2] = {{Result::kOk, Result::kNotFound}, {Result::kExists, Result::kOk},
                                  {Result::kOk, Result::kNotFound}, {Result::kOk, Result::kOk},
                                  {Result::kOk, Result::kNotFound}, {Result::kExists, Result::kOk},
                                  {Result::kOk, Result::kNotFound}};
  for (const Op op : kOps) {
    for (const bool held : {true, false}) {
      const std::uint64_t number = held ? kHeld : kGone;
      for (const Result result : kResults) {
        Answered one{op, Own(number), result, held ? kToken : kVersion};
        const Result right = kRight[static_cast<int>(op)][held ? 0 : 1];
        if (result != right) {
          ExpectWrong(one, std::string(ResultName(result)) + ", and the key " +
                               (held ? "holds 0x1000" : "is not there"));
          EXPECT_EQ(model_[number].present, held);
          continue;
        }
        EXPECT_EQ(Check({one}), "") << OpName(op) << " " << ResultName(result);
      }
    }
  }
}

TEST_F(CheckAnswersTest, WhatABatchWroteIsWhatTheNextOneFinds) {
  EXPECT_EQ(Check({{Op::kFind, Own(kHeld), Result::kOk, kToken},
                   {Op::kUpdate, Own(kHeld), Result::kOk},
                   {Op::kFind, Own(kHeld), Result::kOk, kVersion + 1},
                   {Op::kErase, Own(kHeld), Result::kOk},
                   {Op::kFind, Own(kHeld), Result::kNotFound},
                   {Op::kFindOrInsert, Own(kHeld), Result::kOk, kVersion + 5},
                   {Op::kInsert, Own(kHeld), Result::kExists},
                   {Op::kInsert, Own(kGone), Result::kOk}}),
            "");
  EXPECT_TRUE(model_[kHeld].present);
  EXPECT_EQ(model_[kHeld].token, kVersion + 5);
  EXPECT_EQ(model_[kGone].token, kVersion + 7);
  // A lost update, and an erase without effect.
  const auto second = [&](const Answered& first, const Answered& then) {
    EXPECT_NE(Check({first, then}).find("operation 1"), std::string::npos);
  };
  second({Op::kUpdate, Own(kHeld), Result::kOk}, {Op::kFind, Own(kHeld), Result::kOk, kToken});
  second({Op::kErase, Own(kHeld), Result::kOk}, {Op::kFind, Own(kHeld), Result::kOk, kToken});
}

TEST_F(CheckAnswersTest, SeesWrongValuesOfOwnKeys) {
  const std::string holds = "and the key holds 0x1000";
  ExpectWrong({Op::kFind, Own(kHeld), Result::kOk, kToken + 1}, holds);
  ExpectWrong({Op::kFindOrInsert, Own(kHeld), Result::kExists, kVersion}, holds);
  ExpectWrong({Op::kFindOrInsert, Own(kGone), Result::kOk, kToken}, "which it did not write");
}

TEST_F(CheckAnswersTest, SeesRowsThatAreNoWholeValue) {
  for (const std::uint64_t id : {Own(kHeld), IdIn(kShared, 1), IdIn(kWatched, 1)}) {
    EXPECT_EQ(Check({{Op::kFind, id, Result::kOk, kToken}}), "");
    ExpectWrong({Op::kFind, id, Result::kOk, kWrongRow}, "not a whole value of this key");
    ExpectWrong({Op::kFind, id, Result::kOk, kPoisonRow}, "its row was never written");
    // A batch without `found` has no rows.
    batch_.has_found = false;
    EXPECT_EQ(Check({{Op::kFind, id, Result::kOk, kWrongRow}}), "");
    batch_.has_found = true;
  }
}

TEST_F(CheckAnswersTest, SeesResultsThatAreNone) {
  for (const std::uint64_t id : {Own(kHeld), IdIn(kShared, 1), IdIn(kWatched, 1)}) {
    ExpectWrong({Op::kFind, id, static_cast<Result>(kPoisonResult)}, "never written");
    ExpectWrong({Op::kFind, id, static_cast<Result>(5)}, "its result is 0x5");
  }
}

TEST_F(CheckAnswersTest, WithoutValuesWhatWritesIsInvalid) {
  batch_.has_values = false;
  for (const Op op : kOps) {
    const bool writes = op != Op::kFind && op != Op::kErase;
    for (const std::uint64_t id : {Own(kHeld), IdIn(kShared, 1)}) {
      const Answered ok{op, id, Result::kOk, kToken};
      const Answered invalid{op, id, Result::kInvalid};
      ExpectWrong(writes ? ok : invalid);
      EXPECT_EQ(Check({writes ? invalid : ok}), "") << OpName(op);
    }
  }
  // So is what adds where values consist of no element.
  batch_.has_values = true;
  batch_.element = Element::kNone;
  ExpectWrong({Op::kAccumulate, Own(kHeld), Result::kOk});
  EXPECT_EQ(Check({{Op::kAccumulate, Own(kHeld), Result::kInvalid}}), "");
}

TEST_F(CheckAnswersTest, OnlyWhatWouldHaveWrittenMayLackSpace) {
  // Of the key that is there and of the one that is not, by Op.
  constexpr bool kWrites[][2] = {{false, false}, {false, true}, {true, false}, {true, true},
                                 {false, false}, {false, true}, {true, false}};
  plan_.tight = true;
  for (const Op op : kOps) {
    for (const bool held : {true, false}) {
      const Answered lacks{op, Own(held ? kHeld : kGone), Result::kNoSpace};
      if (kWrites[static_cast<int>(op)][held ? 0 : 1]) {
        EXPECT_EQ(Check({lacks}), "") << OpName(op);
        EXPECT_EQ(model_[kHeld].token, kToken);
        EXPECT_FALSE(model_[kGone].present);
      } else {
        ExpectWrong(lacks, "no-space");
      }
    }
  }
  // In a pool that has room, nothing; but a scope has that of when it was opened.
  plan_.tight = false;
  ExpectWrong({Op::kUpsert, Own(kHeld), Result::kNoSpace}, "no-space");
  batch_.call = Call::kScope;
  totals_.no_space = 0;
  EXPECT_EQ(
      Check({{Op::kUpsert, Own(kHeld), Result::kNoSpace}, {Op::kErase, Own(kHeld), Result::kOk}}),
      "");
  EXPECT_EQ(totals_.no_space, 1u);
}

TEST_F(CheckAnswersTest, OfSharedKeysSeesWhatNoStateAllows) {
  for (const std::uint64_t owner : {kShared, kWatched}) {
    for (const Op op : kOps) {
      for (const Result result : kResults) {
        const bool finds_none =
            result == Result::kNotFound &&
            (op == Op::kFind || op == Op::kUpdate || op == Op::kErase || op == Op::kAccumulate);
        const bool exists =
            result == Result::kExists && (op == Op::kInsert || op == Op::kFindOrInsert);
        const Answered one{op, IdIn(owner, 7), result, kToken};
        if (result == Result::kOk || finds_none || exists) {
          EXPECT_EQ(Check({one}), "") << OpName(op) << " " << ResultName(result);
        } else {
          ExpectWrong(one, std::string(ResultName(result)) + ", which it can't be");
        }
      }
    }
  }
}

TEST_F(CheckAnswersTest, OperationsOnWatchedKeysAreRecorded) {
  EXPECT_EQ(Check({{Op::kFind, Own(kHeld), Result::kOk, kToken},
                   {Op::kUpsert, IdIn(kWatched, 5), Result::kOk},
                   {Op::kFind, IdIn(kWatched, 6), Result::kOk, 0x77}}),
            "");
  // (And none that is wrong.)
  ExpectWrong({Op::kFind, IdIn(kWatched, 5), Result::kExists, kToken});
  const crash::History history = watched_.Histories();
  ASSERT_EQ(history.size(), 2u);
  for (const crash::HistoryOp& op : history) {
    EXPECT_EQ(op.invoked_at, kInterval.invoked_at);
    EXPECT_EQ(op.returned_at, kInterval.returned_at);
    EXPECT_EQ(op.result, Result::kOk);
    EXPECT_EQ(op.batch, kVersion);
  }
  EXPECT_EQ(history[0].key, 5u);
  EXPECT_EQ(history[0].op, Op::kUpsert);
  EXPECT_EQ(history[0].written, kVersion + 1);
  EXPECT_EQ(history[0].position, 1u);
  EXPECT_EQ(history[1].key, 6u);
  EXPECT_EQ(history[1].op, Op::kFind);
  EXPECT_EQ(history[1].found, 0x77u);
}

TEST_F(CheckAnswersTest, CountsAllThatIsWrongAndNamesTheFirst) {
  const std::string wrong =
      Check(std::vector<Answered>(11, {Op::kFind, Own(kGone), Result::kOk, kToken}));
  EXPECT_NE(wrong.find("11 of the answers are wrong"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("operation 7:"), std::string::npos) << wrong;
  EXPECT_EQ(wrong.find("operation 8:"), std::string::npos) << wrong;
}

/// What a key of values of 16 bytes holds after rows of float32 were added to one another.
std::uint64_t SumToken(std::uint64_t id, const std::vector<std::uint64_t>& versions) {
  float sum[4] = {};
  for (std::size_t i = 0; i < versions.size(); ++i) {
    std::byte bytes[16];
    PutValueRow(bytes, sizeof bytes, id, versions[i]);
    float row[4];
    std::memcpy(row, bytes, sizeof row);
    for (int j = 0; j < 4; ++j) sum[j] = i == 0 ? row[j] : sum[j] + row[j];
  }
  std::byte bytes[16];
  std::memcpy(bytes, sum, sizeof bytes);
  return JudgeRow(bytes, sizeof bytes, id);
}

TEST_F(CheckAnswersTest, SumsAreOfAllRowsInOrder) {
  const std::uint64_t twice = SumToken(Own(kHeld), {kToken, kVersion, kVersion + 1});
  const auto answers = [&](std::uint64_t found) {
    return Check({{Op::kAccumulate, Own(kHeld), Result::kOk},
                  {Op::kAccumulate, Own(kHeld), Result::kOk},
                  {Op::kFind, Own(kHeld), Result::kOk, found}});
  };
  EXPECT_EQ(answers(twice), "");
  EXPECT_EQ(model_[kHeld].token, twice);
  for (const std::vector<std::uint64_t>& other :
       {std::vector<std::uint64_t>{kToken, kVersion},       // a lost one
        {kToken, kVersion, kVersion},                       // one twice
        {kToken, kVersion, kVersion + 1, kVersion + 1}}) {  // once too often
    EXPECT_NE(answers(SumToken(Own(kHeld), other)).find("operation 2"), std::string::npos);
  }
  EXPECT_NE(answers(kToken).find("operation 2"), std::string::npos);
}

TEST(KeyModelTest, WhatIsSetEndsTheSum) {
  KeyModel model(8);
  std::vector<cli::KeyLog::Change> changes;
  const auto accumulate = [&](std::uint64_t version) {
    model.Accumulate(Own(kHeld), Element::kFloat32, 16, version);
  };
  model.Set(kHeld, {true, 1});
  model.RecordTo(&changes);
  accumulate(2);
  EXPECT_EQ(model[kHeld].token, SumToken(Own(kHeld), {1, 2}));
  model.Set(kHeld, {true, 3});
  accumulate(4);
  EXPECT_EQ(model[kHeld].token, SumToken(Own(kHeld), {3, 4}));
  model.RecordTo(nullptr);
  model.Set(kHeld, {});
  EXPECT_FALSE(model[kHeld].present);
  // What it did while it was recorded.
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[1].number, kHeld);
  EXPECT_EQ(changes[1].state.token, 3u);
  EXPECT_EQ(changes[2].state.token, SumToken(Own(kHeld), {3, 4}));
}

}  // namespace
}  // namespace gpm::stress
