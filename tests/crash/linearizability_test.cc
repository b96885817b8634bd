#include "crash_sim/linearizability.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "table/operation.h"
#include "tests/test_util.h"

namespace gpm::crash {
namespace {

constexpr std::uint64_t kKey = 7;

/// Histories in a line an operation; each is a batch of its own unless it says otherwise.
class Writer {
 public:
  Writer& Add(Op op, Result result, std::uint64_t value, std::uint64_t invoked,
              std::uint64_t returned, std::uint64_t key = kKey) {
    HistoryOp entry;
    entry.key = key;
    entry.op = op;
    entry.result = result;
    entry.written = entry.found = value;
    entry.invoked_at = invoked;
    entry.returned_at = returned;
    entry.batch = ++batches_;
    history_.push_back(entry);
    return *this;
  }
  Writer& Insert(Result r, std::uint64_t v, std::uint64_t from, std::uint64_t to) {
    return Add(Op::kInsert, r, v, from, to);
  }
  Writer& Update(Result r, std::uint64_t v, std::uint64_t from, std::uint64_t to) {
    return Add(Op::kUpdate, r, v, from, to);
  }
  Writer& Upsert(std::uint64_t v, std::uint64_t from, std::uint64_t to) {
    return Add(Op::kUpsert, Result::kOk, v, from, to);
  }
  Writer& Erase(Result r, std::uint64_t from, std::uint64_t to) {
    return Add(Op::kErase, r, 0, from, to);
  }
  Writer& Find(std::uint64_t v, std::uint64_t from, std::uint64_t to) {
    return Add(Op::kFind, Result::kOk, v, from, to);
  }
  Writer& Miss(std::uint64_t from, std::uint64_t to) {
    return Add(Op::kFind, Result::kNotFound, 0, from, to);
  }
  /// The last one belongs to the batch of the one before it.
  Writer& SameBatch() {
    HistoryOp& last = history_.back();
    const HistoryOp& before = history_[history_.size() - 2];
    last.batch = before.batch;
    last.position = before.position + 1;
    return *this;
  }
  std::string Check(const KeyValues& before = {}) const {
    return FindNonlinearizable(history_, before);
  }
  bool Linearizable(const KeyValues& before = {}) const { return Check(before).empty(); }

 private:
  History history_;
  std::uint64_t batches_ = 0;
};

constexpr Result kOk = Result::kOk;

TEST(LinearizabilityTest, OneAfterTheOther) {
  EXPECT_TRUE(Writer().Linearizable());
  EXPECT_TRUE(Writer()
                  .Insert(kOk, 1, 0, 1)
                  .Insert(Result::kExists, 2, 2, 3)
                  .Find(1, 4, 5)
                  .Update(kOk, 3, 6, 7)
                  .Find(3, 8, 9)
                  .Erase(kOk, 10, 11)
                  .Erase(Result::kNotFound, 12, 13)
                  .Miss(14, 15)
                  .Update(Result::kNotFound, 4, 16, 17)
                  .Upsert(5, 18, 19)
                  .Find(5, 20, 21)
                  .Linearizable());
}

TEST(LinearizabilityTest, OverlappingOnesMayTakeEitherOrder) {
  EXPECT_TRUE(Writer().Upsert(1, 0, 10).Upsert(2, 0, 10).Find(1, 11, 12).Linearizable());
  EXPECT_TRUE(Writer().Upsert(1, 0, 10).Upsert(2, 0, 10).Find(2, 11, 12).Linearizable());
  EXPECT_TRUE(Writer().Insert(kOk, 1, 0, 10).Miss(0, 10).Find(1, 0, 10).Linearizable());
  EXPECT_TRUE(Writer().Erase(kOk, 0, 10).Find(9, 5, 6).Linearizable({{kKey, 9}}));
  EXPECT_TRUE(Writer().Insert(kOk, 1, 0, 10).Erase(kOk, 0, 10).Linearizable());
  // What took effect last need not have returned last.
  EXPECT_TRUE(Writer().Upsert(1, 0, 3).Upsert(2, 0, 2).Find(2, 4, 5).Linearizable());
}

TEST(LinearizabilityTest, TwoInsertsOfOneKey) {
  EXPECT_FALSE(Writer().Insert(kOk, 1, 0, 10).Insert(kOk, 2, 0, 10).Linearizable());
  EXPECT_TRUE(
      Writer().Insert(kOk, 1, 0, 10).Insert(kOk, 2, 0, 10).Erase(kOk, 0, 10).Linearizable());
  EXPECT_FALSE(
      Writer().Insert(kOk, 1, 0, 10).Insert(kOk, 2, 0, 10).Erase(kOk, 11, 12).Linearizable());
  EXPECT_FALSE(Writer().Insert(Result::kExists, 1, 0, 10).Linearizable());
  EXPECT_FALSE(Writer().Insert(kOk, 1, 0, 10).Linearizable({{kKey, 5}}));
}

TEST(LinearizabilityTest, TwoErasesOfOneItem) {
  EXPECT_FALSE(Writer().Erase(kOk, 0, 10).Erase(kOk, 0, 10).Linearizable({{kKey, 5}}));
  EXPECT_TRUE(Writer().Erase(kOk, 0, 10).Erase(Result::kNotFound, 0, 10).Linearizable({{kKey, 5}}));
}

TEST(LinearizabilityTest, LostUpdate) {
  const KeyValues five = {{kKey, 5}};
  EXPECT_FALSE(Writer().Update(kOk, 6, 0, 1).Find(5, 2, 3).Linearizable(five));
  EXPECT_FALSE(
      Writer().Update(kOk, 6, 0, 3).Update(kOk, 7, 4, 9).Find(6, 10, 11).Linearizable(five));
  EXPECT_FALSE(Writer().Insert(kOk, 1, 0, 1).Miss(2, 3).Linearizable());
  EXPECT_FALSE(Writer().Update(Result::kNotFound, 6, 0, 1).Linearizable(five));
}

TEST(LinearizabilityTest, StaleAndInventedReads) {
  const KeyValues five = {{kKey, 5}};
  // Read the new value, then the old one again.
  EXPECT_FALSE(Writer().Update(kOk, 6, 0, 20).Find(6, 1, 2).Find(5, 3, 4).Linearizable(five));
  EXPECT_TRUE(Writer().Update(kOk, 6, 0, 20).Find(5, 1, 2).Find(6, 3, 4).Linearizable(five));
  EXPECT_FALSE(Writer().Upsert(1, 0, 1).Find(99, 2, 3).Linearizable());
  // A key that was always there is always found.
  EXPECT_FALSE(Writer().Update(kOk, 6, 0, 9).Miss(3, 4).Linearizable(five));
  EXPECT_FALSE(Writer().Find(6, 0, 1).Upsert(6, 2, 3).Linearizable(five));
}

TEST(LinearizabilityTest, BatchesKeepTheirOrder) {
  EXPECT_TRUE(Writer().Upsert(1, 0, 9).Upsert(2, 0, 9).SameBatch().Find(2, 10, 11).Linearizable());
  EXPECT_FALSE(Writer().Upsert(1, 0, 9).Upsert(2, 0, 9).SameBatch().Find(1, 10, 11).Linearizable());
  // Others see what is between.
  EXPECT_TRUE(Writer().Upsert(1, 0, 9).Erase(kOk, 0, 9).SameBatch().Find(1, 3, 4).Linearizable());
  EXPECT_FALSE(Writer().Find(1, 0, 9).Upsert(1, 0, 9).SameBatch().Linearizable());
  EXPECT_TRUE(Writer().Upsert(1, 0, 9).Find(1, 0, 9).SameBatch().Linearizable());
}

TEST(LinearizabilityTest, NoSpaceAndInvalidHaveNoEffect) {
  EXPECT_TRUE(Writer().Insert(Result::kNoSpace, 1, 0, 1).Miss(2, 3).Linearizable());
  EXPECT_FALSE(Writer().Insert(Result::kNoSpace, 1, 0, 1).Find(1, 2, 3).Linearizable());
  EXPECT_TRUE(Writer().Update(Result::kNoSpace, 1, 0, 1).Find(5, 2, 3).Linearizable({{kKey, 5}}));
  EXPECT_TRUE(Writer().Insert(Result::kInvalid, 1, 0, 1).Miss(2, 3).Linearizable());
  // It would not have written.
  EXPECT_FALSE(Writer().Insert(Result::kNoSpace, 1, 0, 1).Linearizable({{kKey, 5}}));
  EXPECT_FALSE(Writer().Update(Result::kNoSpace, 1, 0, 1).Linearizable());
  EXPECT_FALSE(Writer().Add(Op::kErase, Result::kNoSpace, 0, 0, 1).Linearizable({{kKey, 5}}));
}

TEST(LinearizabilityTest, PendingOnesMayHaveTakenEffect) {
  const KeyValues five = {{kKey, 5}};
  for (const std::uint64_t found : {5, 6}) {
    EXPECT_TRUE(Writer().Update(kOk, 6, 0, kPending).Find(found, 10, 11).Linearizable(five));
  }
  EXPECT_FALSE(Writer().Update(kOk, 6, 0, kPending).Find(7, 10, 11).Linearizable(five));
  EXPECT_FALSE(Writer().Update(kOk, 6, 0, kPending).Miss(10, 11).Linearizable(five));
  EXPECT_TRUE(Writer().Erase(kOk, 0, kPending).Miss(10, 11).Linearizable(five));
  // Not before it was invoked, and not twice.
  EXPECT_FALSE(Writer().Update(kOk, 6, 4, kPending).Find(6, 2, 3).Linearizable(five));
  EXPECT_FALSE(Writer()
                   .Update(kOk, 6, 0, kPending)
                   .Find(6, 2, 3)
                   .Update(kOk, 7, 4, 5)
                   .Find(6, 6, 7)
                   .Linearizable(five));
  // Somebody saw it: it can't be gone.
  EXPECT_FALSE(
      Writer().Update(kOk, 6, 0, kPending).Find(6, 2, 3).Find(5, 10, 11).Linearizable(five));
}

TEST(LinearizabilityTest, APendingBatchTookEffectUpToSomePlace) {
  const KeyValues five = {{kKey, 5}};
  const auto batch = [] {
    return Writer().Update(kOk, 6, 0, kPending).Erase(kOk, 0, kPending).SameBatch();
  };
  EXPECT_TRUE(batch().Find(5, 10, 11).Linearizable(five));
  EXPECT_TRUE(batch().Find(6, 10, 11).Linearizable(five));
  EXPECT_TRUE(batch().Miss(10, 11).Linearizable(five));
  const auto replaced = [] {
    return Writer().Erase(kOk, 0, kPending).Insert(kOk, 6, 0, kPending).SameBatch();
  };
  EXPECT_TRUE(replaced().Find(6, 10, 11).Linearizable(five));
  EXPECT_FALSE(replaced().Find(6, 2, 3).Find(5, 10, 11).Linearizable(five));
  // An insert of its own, after an erase that did not happen.
  EXPECT_FALSE(Writer()
                   .Find(5, 0, kPending)
                   .Erase(kOk, 0, kPending)
                   .SameBatch()
                   .Upsert(6, 0, kPending)
                   .SameBatch()
                   .Find(6, 2, 3)
                   .Miss(4, 5)
                   .Linearizable(five));
}

TEST(LinearizabilityTest, KeysAreIndependentAndTheWrongOneIsNamed) {
  Writer writer;
  writer.Upsert(1, 0, 1).Find(1, 2, 3).Add(Op::kFind, kOk, 4, 2, 3, 0x99);
  const std::string text = writer.Check();
  EXPECT_NE(text.find("0x99"), std::string::npos) << text;
  EXPECT_EQ(text.find("upsert"), std::string::npos) << text;
  EXPECT_TRUE(writer.Linearizable({{0x99, 4}}));
}

/// What changes nothing multiplies no orders: else these would be 2^40 times as many.
TEST(LinearizabilityTest, ManyReadsAtOnceAreCheckedSoon) {
  Writer writer;
  for (std::uint64_t value = 1; value <= 8; ++value) {
    writer.Upsert(value, 1, 100);
    for (int i = 0; i < 5; ++i) writer.Find(value, 1, 100);
  }
  EXPECT_TRUE(writer.Linearizable());
  writer.Find(9, 1, 100);  // written by nobody
  EXPECT_FALSE(writer.Linearizable());
}

TEST(LinearizabilityTest, RefusesLongHistories) {
  Writer writer;
  for (int i = 0; i < 65; ++i) writer.Miss(0, 1);
  EXPECT_THROW(writer.Check(), std::invalid_argument);
}

/// Histories made by carrying operations out at random moments inside their intervals are
/// linearizable; with one found value changed to one that another operation wrote, they mostly are
/// not, and the search ends soon in either case.
TEST(LinearizabilityTest, RandomHistories) {
  std::mt19937_64 random(test::TestSeed());
  int rejected = 0;
  constexpr int kRounds = 500;
  for (int round = 0; round < kRounds; ++round) {
    History history;
    std::optional<std::uint64_t> value;
    for (std::uint64_t i = 0; i < 48; ++i) {
      HistoryOp op;
      op.op = static_cast<Op>(random() % kOpKinds);
      op.written = 100 + i;
      op.batch = i;
      op.invoked_at = 10 * i - std::min<std::uint64_t>(10 * i, random() % 60);
      op.returned_at = 10 * i + 1 + random() % 60;
      const bool present = value.has_value();
      const bool inserts = op.op == Op::kInsert || op.op == Op::kFindOrInsert;
      op.result = op.op == Op::kUpsert ? kOk
                  : inserts            ? (present ? Result::kExists : kOk)
                                       : (present ? kOk : Result::kNotFound);
      if (HasFound(op.op, op.result)) op.found = value.value_or(op.written);
      if (op.result == kOk) {
        if (op.op == Op::kErase) {
          value.reset();
        } else if (op.op == Op::kAccumulate) {
          value = value.value_or(0) + op.written;
        } else if (op.op != Op::kFind) {
          value = op.written;
        }
      }
      history.push_back(op);
    }
    EXPECT_EQ(FindNonlinearizable(history), "");
    for (HistoryOp& op : history) {
      if (op.op == Op::kFind && op.result == kOk && op.found > 120) {
        op.found = 100;
        rejected += !FindNonlinearizable(history).empty();
        break;
      }
    }
  }
  EXPECT_GT(rejected, kRounds / 2);
}

TEST(LinearizabilityTest, SumsAndInitialValues) {
  const auto op = [](Op kind, std::uint64_t written, Result result, std::uint64_t found,
                     std::uint64_t at) {
    return HistoryOp{.op = kind,
                     .written = written,
                     .result = result,
                     .found = found,
                     .invoked_at = at,
                     .returned_at = at + 1,
                     .batch = at};
  };
  History history = {op(Op::kFindOrInsert, 5, kOk, 5, 0), op(Op::kAccumulate, 7, kOk, 0, 10),
                     op(Op::kFindOrInsert, 9, Result::kExists, 12, 20)};
  EXPECT_EQ(FindNonlinearizable(history), "");
  for (auto [i, found] : {std::pair{0, 6}, {2, 5}, {2, 7}, {2, 9}}) {
    History wrong = history;
    wrong[static_cast<std::size_t>(i)].found = static_cast<std::uint64_t>(found);
    EXPECT_NE(FindNonlinearizable(wrong), "");
  }
  history[1].returned_at = kPending;  // then it may have been carried out, or not
  EXPECT_EQ(FindNonlinearizable(history), "");
  history[2].found = 5;
  EXPECT_EQ(FindNonlinearizable(history), "");
}

}  // namespace
}  // namespace gpm::crash
