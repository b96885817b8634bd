// Turns in the order in which they were asked for, and long work that lets others have theirs.

#include "pm/fair_turns.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace gpm::test {
namespace {

/// Returns when so many wait.
void AwaitWaiting(FairTurns& turns, std::uint64_t count) {
  while (turns.waiting() < count) std::this_thread::yield();
}

TEST(FairTurns, AreInTheOrderInWhichTheyWereAskedFor) {
  constexpr int kThreads = 8;
  FairTurns turns;
  std::vector<int> order;  // by who has the turn
  std::vector<std::thread> threads;
  {
    const FairTurns::Turn first(turns);
    EXPECT_FALSE(first.IsAwaited());
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const FairTurns::Turn turn(turns);
        order.push_back(t);
      });
      AwaitWaiting(turns, static_cast<std::uint64_t>(t) + 1);
    }
    EXPECT_TRUE(first.IsAwaited());
    EXPECT_TRUE(order.empty());
  }
  const FairTurns::Turn last(turns);  // behind all of them, though it asks at once
  std::vector<int> expected(kThreads);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_EQ(turns.waiting(), 0u);
  for (std::thread& thread : threads) thread.join();
}

TEST(FairTurns, OneHasItAtATime) {
  FairTurns turns;
  int inside = 0;  // as is the count, by who has the turn
  int count = 0;
  bool wrong = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        const FairTurns::Turn turn(turns);
        wrong |= ++inside > 1;
        ++count;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(wrong);
  EXPECT_EQ(count, 4000);
}

/// Takes pieces until the turn is over. @param most so many, if it is not before
std::uint64_t TakeAll(PiecesOfTurn& pieces, std::uint64_t most = ~0ull) {
  std::uint64_t count = 0;
  while (count < most && pieces.Take()) ++count;
  return count;
}

TEST(PiecesOfTurn, AreAllThatThereAreIfNobodyWaits) {
  FairTurns turns;
  const FairTurns::Turn turn(turns);
  PiecesOfTurn pieces(turn, 100, 1001, 10, 160);
  EXPECT_EQ(pieces.Take(), 100u);
  EXPECT_EQ(pieces.Take(), 110u);
  EXPECT_EQ(TakeAll(pieces), 89u);
  EXPECT_GE(pieces.next(), 1001u);
  PiecesOfTurn none(turn, 7, 7, 10, 160);
  EXPECT_EQ(none.Take(), std::nullopt);
}

TEST(PiecesOfTurn, EndForWhoWaits) {
  FairTurns turns;
  std::thread other;
  auto turn = std::make_unique<FairTurns::Turn>(turns);
  const auto wait = [&] {
    other = std::thread([&] { const FairTurns::Turn its(turns); });
    AwaitWaiting(turns, 1);
  };
  {
    PiecesOfTurn pieces(*turn, 0, 1000, 10, 155);
    wait();
    EXPECT_EQ(TakeAll(pieces), 16u) << "as many as it has, though another waits";
    EXPECT_EQ(pieces.next(), 160u);
    EXPECT_EQ(pieces.Take(), std::nullopt);
  }
  turn.reset();
  turn = std::make_unique<FairTurns::Turn>(turns);  // the other has had its own
  other.join();
  {
    PiecesOfTurn pieces(*turn, 160, 1000, 10, 155);
    EXPECT_EQ(TakeAll(pieces, 30), 30u);
    wait();
    EXPECT_EQ(TakeAll(pieces), 0u) << "at the next piece, of one that had its part";
    EXPECT_EQ(pieces.next(), 460u);
  }
  turn.reset();
  other.join();
}

/// Whoever takes pieces beside others leaves no gap for the next turn.
TEST(PiecesOfTurn, ThreadsLeaveNoGap) {
  constexpr std::uint64_t kLast = 20'000;
  FairTurns turns;
  std::vector<std::uint64_t> taken(kLast);  // times, of each piece
  const auto copy = [&] {
    for (std::uint64_t first = 0; first < kLast;) {
      const FairTurns::Turn turn(turns);
      PiecesOfTurn pieces(turn, first, kLast, 1, 16);
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
          while (const auto at = pieces.Take()) ++taken[*at];
        });
      }
      for (std::thread& thread : threads) thread.join();
      first = pieces.next();
    }
  };
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) const FairTurns::Turn turn(turns);
  });
  copy();
  other.join();
  EXPECT_EQ(taken, std::vector<std::uint64_t>(kLast, 1));
}

}  // namespace
}  // namespace gpm::test
