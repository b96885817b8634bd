#include "crash_sim/crash_states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <stdexcept>
#include <vector>

#include "crash_sim/machine.h"
#include "crash_sim/scratch_pool.h"

namespace gpm::crash {
namespace {

/// Builds a trace by hand on an image of zeros. Word n is at offset 64 * n, in a line of its own.
class Script {
 public:
  Script& Store(std::uint32_t thread, std::uint64_t word, std::uint64_t value) {
    return StoreAt(thread, 64 * word, value);
  }
  Script& StoreAt(std::uint32_t thread, std::uint64_t offset, std::uint64_t value) {
    trace_.Add({.kind = Event::Kind::kStore,
                .thread = thread,
                .offset = offset,
                .before = now_[offset / 8],
                .after = value});
    now_[offset / 8] = value;
    return *this;
  }
  Script& Flush(std::uint32_t thread, std::uint64_t word, std::uint64_t bytes = 8) {
    trace_.Add(
        {.kind = Event::Kind::kFlush, .thread = thread, .offset = 64 * word, .after = bytes});
    return *this;
  }
  Script& Fence(std::uint32_t thread) {
    trace_.Add({.kind = Event::Kind::kFence, .thread = thread});
    return *this;
  }
  Script& Mark(std::uint64_t number) {
    trace_.Add({.kind = Event::Kind::kMark, .offset = number});
    return *this;
  }
  Script& Grow(std::uint64_t bytes) {
    trace_.Add({.kind = Event::Kind::kGrow, .offset = bytes});
    now_.resize(bytes / 8);
    return *this;
  }
  const Trace& trace() const { return trace_; }
  const Image& before() const { return before_; }
  const Image& now() const { return now_; }

 private:
  Trace trace_;
  Image before_ = Image(64);
  Image now_ = Image(64);
};

/// The image that a state leaves, as the words at 0, 64, 128 ...
using Words = std::vector<std::uint64_t>;

Words WordsOf(Image image, const CrashState& state, std::uint64_t count, std::uint64_t stride) {
  for (const WordValue& word : state) image[word.offset / 8] = word.value;
  Words words;
  for (std::uint64_t i = 0; i < count; ++i) words.push_back(image[i * stride / 8]);
  return words;
}

struct Point {
  std::size_t event;
  std::uint64_t mark;
  std::set<Words> states;
};

/// All states of all points; checks on the way that no state comes twice at a point, that their
/// number is the one announced, and that the hashes are those of the images.
std::vector<Point> AllPoints(const Script& script, std::uint64_t count, std::uint64_t stride = 64) {
  std::vector<Point> points;
  CrashPoints walk(script.trace(), script.before());
  while (walk.Next()) {
    Point point{walk.event(), walk.last_mark(), {}};
    double visited = 0;
    VisitStates(walk, 1000, 1, [&](const CrashState& state, std::uint64_t hash) {
      Image image = walk.durable();
      for (const WordValue& word : state) image[word.offset / 8] = word.value;
      EXPECT_EQ(hash, HashImage(image));
      EXPECT_TRUE(point.states.insert(WordsOf(walk.durable(), state, count, stride)).second);
      ++visited;
      return true;
    });
    EXPECT_EQ(visited, walk.states());
    points.push_back(std::move(point));
  }
  return points;
}

TEST(CrashStatesTest, AnEmptyTraceHasOneState) {
  const auto points = AllPoints(Script(), 1);
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].states, (std::set<Words>{{0}}));
}

TEST(CrashStatesTest, StoresOfDifferentWordsPersistInAnyOrder) {
  const auto points = AllPoints(Script().Store(0, 0, 1).Store(0, 1, 2), 2);
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].event, 2u);
  EXPECT_EQ(points[0].states, (std::set<Words>{{0, 0}, {1, 0}, {0, 2}, {1, 2}}));
}

TEST(CrashStatesTest, StoresOfOneWordPersistInOrder) {
  const auto points = AllPoints(Script().Store(0, 0, 1).Store(0, 0, 2).Store(0, 0, 3), 1);
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].states, (std::set<Words>{{0}, {1}, {2}, {3}}));
}

TEST(CrashStatesTest, AFlushedWordIsDurableAfterItsFlushersFence) {
  const auto points = AllPoints(Script().Store(0, 0, 1).Flush(0, 0).Fence(0).Store(0, 1, 2), 2);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].event, 2u);
  EXPECT_EQ(points[0].states, (std::set<Words>{{0, 0}, {1, 0}}));
  EXPECT_EQ(points[1].states, (std::set<Words>{{1, 0}, {1, 2}}));
}

TEST(CrashStatesTest, AFlushAloneOrAFenceAloneMakesNothingDurable) {
  const std::set<Words> both{{0}, {1}};
  for (const Script& script :
       {Script().Store(0, 0, 1).Flush(0, 0), Script().Store(0, 0, 1).Fence(0)}) {
    const auto points = AllPoints(script, 1);
    ASSERT_EQ(points.size(), 1u);
    EXPECT_EQ(points[0].states, both);
  }
}

TEST(CrashStatesTest, AStoreAfterTheFlushIsNotCovered) {
  const auto points =
      AllPoints(Script().Store(0, 0, 1).Flush(0, 0).Store(0, 0, 2).Fence(0).Store(0, 1, 9), 2);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].states, (std::set<Words>{{0, 0}, {1, 0}, {2, 0}}));
  EXPECT_EQ(points[1].states, (std::set<Words>{{1, 0}, {2, 0}, {1, 9}, {2, 9}}));
}

TEST(CrashStatesTest, AnyThreadsFlushCoversWhatIsVisible) {
  const auto points = AllPoints(Script().Store(1, 0, 7).Flush(2, 0).Fence(2).Store(1, 1, 8), 2);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[1].states, (std::set<Words>{{7, 0}, {7, 8}}));
}

TEST(CrashStatesTest, AnotherThreadsFenceIsNotTheFlushers) {
  const auto points =
      AllPoints(Script().Store(1, 0, 7).Flush(1, 0).Fence(2).Store(2, 1, 8).Fence(1), 2);
  ASSERT_EQ(points.size(), 1u);  // just before thread 1's fence, which leaves nothing new
  EXPECT_EQ(points[0].event, 4u);
  EXPECT_EQ(points[0].states, (std::set<Words>{{0, 0}, {7, 0}, {0, 8}, {7, 8}}));
}

TEST(CrashStatesTest, AFlushCoversWholeLines) {
  Script script;  // words 0 and 1 of a line, and one of the next
  script.StoreAt(0, 0, 1).StoreAt(0, 8, 2).StoreAt(0, 64, 3).Flush(0, 0).Fence(0);
  script.StoreAt(0, 16, 4);
  const auto points = AllPoints(script, 9, 8);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].states.size(), 8u);
  EXPECT_EQ(points[1].states, (std::set<Words>{{1, 2, 0, 0, 0, 0, 0, 0, 0},
                                               {1, 2, 4, 0, 0, 0, 0, 0, 0},
                                               {1, 2, 0, 0, 0, 0, 0, 0, 3},
                                               {1, 2, 4, 0, 0, 0, 0, 0, 3}}));
}

TEST(CrashStatesTest, AFlushOfManyBytesCoversEveryLineOfThem) {
  Script script;
  script.Store(0, 0, 1).Store(0, 1, 2).Store(0, 2, 3).Flush(0, 0, 72).Fence(0).Mark(1);
  const auto points = AllPoints(script, 3);
  EXPECT_EQ(points.back().states, (std::set<Words>{{1, 2, 0}, {1, 2, 3}}));
}

TEST(CrashStatesTest, MarksSeparateWhatIsAllowed) {
  const auto points = AllPoints(Script().Store(0, 0, 1).Mark(5).Store(0, 1, 2), 2);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].mark, 0u);
  EXPECT_EQ(points[0].states, (std::set<Words>{{0, 0}, {1, 0}}));
  EXPECT_EQ(points[1].mark, 5u);
  EXPECT_EQ(points[1].states, (std::set<Words>{{0, 0}, {1, 0}, {0, 2}, {1, 2}}));
}

TEST(CrashStatesTest, GrowthIsDurableAndZero) {
  const Script script = Script().Store(0, 0, 1).Grow(1024);
  CrashPoints points(script.trace(), script.before());
  ASSERT_TRUE(points.Next());
  EXPECT_EQ(points.durable().size(), 64u);
  ASSERT_TRUE(points.Next());
  EXPECT_EQ(points.durable(), Image(128));
  EXPECT_FALSE(points.Next());
}

TEST(CrashStatesTest, AFenceThatLeavesNothingNewIsNoPoint) {
  Script script;
  script.Store(0, 0, 1).Flush(0, 0).Flush(1, 0).Fence(0).Fence(1).Fence(0);
  EXPECT_EQ(AllPoints(script, 1).size(), 1u);
}

/// The points' states are all that any instant allows: compared with a model that applies the
/// definition, word by word, after each prefix of random traces.
TEST(CrashStatesTest, RandomTracesAgreeWithTheDefinition) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    Script script;
    constexpr std::uint64_t kWords = 4;  // two in each of two lines
    const auto offset = [](std::uint64_t word) { return 64 * (word / 2) + 8 * (word % 2); };
    const int events = 12;
    for (int i = 0; i < events; ++i) {
      const auto thread = static_cast<std::uint32_t>(random() % 2);
      const std::uint64_t word = random() % kWords;
      switch (random() % 4) {
        case 0:
        case 1:
          script.StoreAt(thread, offset(word), random() % 3);
          break;
        case 2:
          script.Flush(thread, word / 2);
          break;
        case 3:
          script.Fence(thread);
          break;
      }
    }
    std::set<Words> expected;
    for (int instant = 0; instant <= events; ++instant) {
      std::vector<std::vector<std::uint64_t>> choices(kWords);
      for (std::uint64_t word = 0; word < kWords; ++word) {
        std::vector<std::uint64_t> values{0};
        std::size_t durable = 0;          // index into values
        std::size_t flushed[2] = {0, 0};  // the same, by thread, not fenced yet
        for (int i = 0; i < instant; ++i) {
          const Event& event = script.trace().events()[static_cast<std::size_t>(i)];
          if (event.kind == Event::Kind::kStore && event.offset == offset(word)) {
            values.push_back(event.after);
          } else if (event.kind == Event::Kind::kFlush && event.offset / 64 == word / 2) {
            flushed[event.thread] = values.size() - 1;
          } else if (event.kind == Event::Kind::kFence) {
            durable = std::max(durable, flushed[event.thread]);
          }
        }
        choices[word].assign(values.begin() + static_cast<std::ptrdiff_t>(durable), values.end());
      }
      for (const std::uint64_t a : choices[0]) {
        for (const std::uint64_t b : choices[1]) {
          for (const std::uint64_t c : choices[2]) {
            for (const std::uint64_t d : choices[3]) expected.insert({a, b, c, d});
          }
        }
      }
    }
    std::set<Words> found;
    CrashPoints walk(script.trace(), script.before());
    while (walk.Next()) {
      VisitStates(walk, 100000, 1, [&](const CrashState& state, std::uint64_t) {
        const Words line0 = WordsOf(walk.durable(), state, 10, 8);
        found.insert({line0[0], line0[1], line0[8], line0[9]});
        return true;
      });
    }
    EXPECT_EQ(found, expected) << "seed " << seed;
  }
}

TEST(CrashStatesTest, SamplesHoldTheExtremesAndRepeatBySeed) {
  Script script;
  script.Store(0, 0, 1).Store(0, 1, 2).Store(0, 0, 3).Store(0, 2, 4).Store(0, 3, 5);
  CrashPoints walk(script.trace(), script.before());
  ASSERT_TRUE(walk.Next());
  EXPECT_EQ(walk.states(), 24);
  const auto sample = [&](std::uint64_t limit, std::uint64_t seed) {
    std::vector<Words> states;
    VisitStates(walk, limit, seed, [&](const CrashState& state, std::uint64_t) {
      states.push_back(WordsOf(walk.durable(), state, 4, 64));
      return true;
    });
    return states;
  };
  const auto states = sample(22, 1);
  EXPECT_GE(states.size(), 22u);
  const std::set<Words> distinct(states.begin(), states.end());
  for (const Words& extreme : std::vector<Words>{{0, 0, 0, 0},  // nothing, everything
                                                 {3, 2, 4, 5},
                                                 {1, 0, 0, 0},  // prefixes
                                                 {1, 2, 0, 0},
                                                 {3, 2, 0, 0},
                                                 {3, 2, 4, 0},
                                                 {3, 0, 0, 0},  // one word alone
                                                 {0, 2, 0, 0},
                                                 {0, 0, 4, 0},
                                                 {0, 0, 0, 5},
                                                 {0, 2, 4, 5},  // all but one
                                                 {1, 2, 4, 5},
                                                 {3, 0, 4, 5},
                                                 {3, 2, 0, 5}}) {
    EXPECT_TRUE(distinct.contains(extreme)) << testing::PrintToString(extreme);
  }
  EXPECT_EQ(sample(200, 7).size(), 24u) << "as many as that are all of them";
  EXPECT_EQ(sample(22, 1), states);
}

TEST(MachineTest, RecordsWhatItDoesAndLeavesOutAStep) {
  alignas(8) std::uint64_t words[8] = {};
  Machine machine;
  machine.Begin(sizeof words);
  machine.Mapped(reinterpret_cast<std::byte*>(words), sizeof words);
  machine.Store(&words[1], 5);
  EXPECT_TRUE(machine.Cas(Step::kInsertClaimCas, &words[2], 0, 6));
  EXPECT_FALSE(machine.Cas(Step::kInsertClaimCas, &words[2], 0, 7));
  machine.Flush(Step::kInsertStateFlush, &words[1], 8);
  machine.Fence(Step::kInsertDoneFence);
  EXPECT_EQ(machine.trace().events().size(), 5u);
  Image image(8);
  machine.trace().ApplyTo(image);
  EXPECT_EQ(image, Image(words, words + 8));
  EXPECT_EQ(machine.trace().FirstDifference(Image(8), image), "");
  words[3] = 1;  // behind its back
  EXPECT_NE(machine.trace().FirstDifference(Image(8), Image(words, words + 8)), "");

  machine.Begin(sizeof words);
  machine.LeaveOut(Step::kInsertClaimCas);
  EXPECT_TRUE(machine.Cas(Step::kInsertClaimCas, &words[2], 0, 7)) << "without comparing";
  EXPECT_EQ(words[2], 7u);
  EXPECT_FALSE(machine.Cas(Step::kEraseStateCas, &words[2], 0, 8));
  EXPECT_EQ(machine.met(Step::kInsertClaimCas), 3u);
  machine.LeaveOut(Step::kInsertDoneFence);
  machine.Fence(Step::kInsertDoneFence);
  machine.Fence(Step::kUpdateDoneFence);
  EXPECT_EQ(machine.trace().events().size(), 3u);
}

TEST(MachineTest, KillsTheProcess) {
  alignas(8) std::uint64_t words[8] = {};
  Machine machine;
  machine.Begin(sizeof words);
  machine.Mapped(reinterpret_cast<std::byte*>(words), sizeof words);
  machine.KillAt(1);
  machine.Store(&words[0], 1);
  EXPECT_THROW(machine.Store(&words[1], 1), Machine::Killed);
  EXPECT_THROW(machine.Store(&words[2], 1), Machine::Killed);
  EXPECT_EQ(words[1] + words[2], 0u);
  machine.Revive();
  machine.Store(&words[1], 1);
  EXPECT_EQ(machine.trace().events().size(), 2u);
}

TEST(MachineTest, RefusesAccessOutsideThePool) {
  alignas(8) std::uint64_t words[8] = {};
  Machine machine;
  machine.Begin(32);
  machine.Mapped(reinterpret_cast<std::byte*>(words), 32);
  machine.Store(&words[3], 1);
  EXPECT_THROW(machine.Store(&words[4], 1), std::logic_error);
  EXPECT_THROW(machine.Flush(Step::kOther, &words[3], 16), std::logic_error);
  EXPECT_THROW(
      machine.Load(reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::byte*>(words) + 4)),
      std::logic_error);
  machine.Mapped(reinterpret_cast<std::byte*>(words), 64);
  machine.Store(&words[4], 1);
  EXPECT_EQ(machine.trace().FirstDifference(Image(4), Image(words, words + 8)), "");
}

TEST(MachineTest, PartsHaveThreadNumbersOfTheirOwn) {
  alignas(8) std::uint64_t words[8] = {};
  Machine machine;
  machine.Begin(sizeof words);
  machine.Mapped(reinterpret_cast<std::byte*>(words), sizeof words);
  for (int round = 0; round < 2; ++round) {
    machine.RunParts(3, [&](std::size_t part) { machine.Store(&words[part], 1); });
  }
  machine.Store(&words[7], 1);
  std::set<std::uint32_t> threads;
  for (const Event& event : machine.trace().events()) threads.insert(event.thread);
  EXPECT_EQ(threads.size(), 7u);
}

TEST(MachineTest, LocksExclude) {
  std::uint32_t lock = 0;
  Machine machine;
  machine.Acquire(Step::kKeyLock, &lock);
  EXPECT_EQ(lock, 1u);
  EXPECT_THROW(machine.Acquire(Step::kKeyLock, &lock), std::logic_error);
  machine.Release(Step::kKeyLock, &lock);
  EXPECT_EQ(lock, 0u);
}

TEST(ScratchPoolTest, HoldsWhatItIsSetTo) {
  ScratchPool pool(1 << 16);
  EXPECT_TRUE(pool.Read().empty());
  Image image(512, 3);
  pool.Set(image, std::vector<WordValue>{{8, 4}, {64, 5}});
  image[1] = 4;
  image[8] = 5;
  EXPECT_EQ(pool.Read(), image);
  pool.Set(Image(1024, 1));
  EXPECT_EQ(pool.Read(), Image(1024, 1));
  pool.Set(image);
  EXPECT_EQ(pool.Read(), image);
  pool.Remove();
  EXPECT_TRUE(pool.Read().empty());
  pool.Set(image);
  EXPECT_EQ(pool.Read(), image);
}

}  // namespace
}  // namespace gpm::crash
