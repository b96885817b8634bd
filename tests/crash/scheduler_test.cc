#include "crash_sim/scheduler.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>

#include "tests/test_util.h"

namespace gpm::crash {
namespace {

using Strategy = Scheduler::Strategy;

Scheduler::Options Seeded(std::uint64_t seed, Strategy strategy = Strategy::kRandom) {
  Scheduler::Options options;
  options.seed = seed;
  options.strategy = strategy;
  options.expected_steps = 12;
  options.max_steps = 10'000;
  return options;
}

/// Three fibers that write their number four times each.
std::string Letters(Scheduler& scheduler, const Scheduler::Options& options) {
  std::string letters;
  std::vector<std::function<void()>> bodies;
  for (int i = 0; i < 3; ++i) {
    bodies.push_back([&] {
      for (int k = 0; k < 4; ++k) {
        scheduler.Yield();
        letters += static_cast<char>('0' + scheduler.current());
      }
    });
  }
  scheduler.SetOptions(options);
  scheduler.Run(std::move(bodies));
  return letters;
}

TEST(SchedulerTest, SameSeedSameSchedule) {
  Scheduler scheduler;
  for (const Strategy strategy : {Strategy::kRandom, Strategy::kPct}) {
    std::set<std::string> different;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      const std::string letters = Letters(scheduler, Seeded(seed, strategy));
      const std::uint64_t choices = scheduler.choices();
      EXPECT_EQ(scheduler.steps(), 12u);
      EXPECT_EQ(std::count(letters.begin(), letters.end(), '2'), 4) << letters;
      Scheduler other;
      EXPECT_EQ(Letters(other, Seeded(seed, strategy)), letters);
      EXPECT_EQ(other.choices(), choices);
      different.insert(letters);
    }
    EXPECT_GT(different.size(), 50u);
  }
}

TEST(SchedulerTest, PctChangesAtMostDepthLessOneTimes) {
  Scheduler scheduler;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Scheduler::Options options = Seeded(seed, Strategy::kPct);
    options.depth = 1;
    const std::string letters = Letters(scheduler, options);
    int changes = 0;
    for (std::size_t i = 1; i < letters.size(); ++i) changes += letters[i] != letters[i - 1];
    EXPECT_EQ(changes, 2) << letters;
  }
}

TEST(SchedulerTest, FindsALostUpdate) {
  Scheduler scheduler;
  for (const Strategy strategy : {Strategy::kRandom, Strategy::kPct}) {
    int lost = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      int counter = 0;
      const auto increment = [&] {
        scheduler.Yield();
        const int read = counter;
        scheduler.Yield();
        counter = read + 1;
      };
      scheduler.SetOptions(Seeded(seed, strategy));
      scheduler.Run({increment, increment});
      lost += counter == 1;
    }
    EXPECT_GT(lost, 5);
    EXPECT_LT(lost, 95);
  }
}

TEST(SchedulerTest, PauseLetsTheOthersGoFirst) {
  Scheduler scheduler;
  for (const Strategy strategy : {Strategy::kRandom, Strategy::kPct}) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      bool ready = false;
      bool answered = false;
      scheduler.SetOptions(Seeded(seed, strategy));
      scheduler.Run({[&] {
                       while (!ready) scheduler.Pause();
                       answered = true;
                     },
                     [&] {
                       for (int k = 0; k < 20; ++k) scheduler.Yield();
                       ready = true;
                       while (!answered) scheduler.Pause();
                     }});
      EXPECT_TRUE(answered);
    }
  }
}

TEST(SchedulerTest, DeadlockIsReportedAndUnwound) {
  Scheduler scheduler;
  auto witness = std::make_shared<int>();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    scheduler.SetOptions(Seeded(seed));
    const auto wait = [&scheduler, witness] {
      const auto copy = witness;
      for (;;) scheduler.Pause();
    };
    EXPECT_THROW(scheduler.Run({wait, wait, [&] { scheduler.Yield(); }}), ScheduleError);
    EXPECT_FALSE(scheduler.running());
  }
  EXPECT_EQ(witness.use_count(), 1);
  EXPECT_THROW(scheduler.Pause(), ScheduleError);
  EXPECT_EQ(Letters(scheduler, Seeded(1)).size(), 12u);  // it can be used again
}

TEST(SchedulerTest, EndlessLoopIsReported) {
  Scheduler scheduler;
  scheduler.SetOptions(Seeded(1));
  const auto forever = [&] {
    for (;;) {
      try {
        scheduler.Yield();
      } catch (const std::exception&) {  // as code under test may do
      }
    }
  };
  EXPECT_THROW(scheduler.Run({forever, [] {}}), ScheduleError);
}

TEST(SchedulerTest, ABodysExceptionIsCarriedOut) {
  Scheduler scheduler;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    scheduler.SetOptions(Seeded(seed));
    bool other_ended = false;
    const auto fails = [&] {
      scheduler.Yield();
      throw std::invalid_argument("no");
    };
    EXPECT_THROW(scheduler.Run({fails,
                                [&] {
                                  for (int k = 0; k < 5; ++k) scheduler.Yield();
                                  other_ended = true;
                                }}),
                 std::invalid_argument);
    EXPECT_TRUE(other_ended);
    // Where the others can't end without it, its exception is the one to report.
    EXPECT_THROW(scheduler.Run({fails,
                                [&] {
                                  for (;;) scheduler.Pause();
                                }}),
                 std::invalid_argument);
  }
}

/// Switches while it is destroyed, as it may be by an exception.
struct YieldsAtEnd {
  Scheduler& scheduler;
  ~YieldsAtEnd() { scheduler.Yield(); }
};

TEST(SchedulerTest, ExceptionsStayWithTheirFiber) {
  Scheduler scheduler;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    scheduler.SetOptions(Seeded(seed));
    const auto body = [&](const std::string& mine) {
      for (int k = 0; k < 3; ++k) {
        try {
          const YieldsAtEnd yields{scheduler};
          throw std::runtime_error(mine);
        } catch (const std::runtime_error& error) {
          scheduler.Yield();
          EXPECT_EQ(error.what(), mine);
          try {
            throw;
          } catch (const std::runtime_error& again) {
            scheduler.Yield();
            EXPECT_EQ(again.what(), mine);
          }
        }
        EXPECT_EQ(std::current_exception(), nullptr);
        EXPECT_EQ(std::uncaught_exceptions(), 0);
      }
    };
    scheduler.Run({[&] { body("a"); }, [&] { body("b"); }, [&] { body("c"); }});
  }
}

TEST(SchedulerTest, PartsAreFibersOfTheirOwn) {
  Scheduler scheduler;
  for (const Strategy strategy : {Strategy::kRandom, Strategy::kPct}) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      std::set<std::uint32_t> numbers;
      int parts_ended = 0;
      const auto body = [&] {
        const std::uint32_t mine = scheduler.current();
        for (int round = 0; round < 3; ++round) {
          int joined = 0;
          scheduler.RunParts(2, [&](std::size_t) {
            EXPECT_TRUE(numbers.insert(scheduler.current()).second);
            scheduler.Yield();
            scheduler.RunParts(1, [&](std::size_t) { ++parts_ended; });
            ++joined;
          });
          EXPECT_EQ(joined, 2);
          EXPECT_EQ(scheduler.current(), mine);
        }
      };
      scheduler.SetOptions(Seeded(seed, strategy));
      scheduler.Run({body, body});
      EXPECT_EQ(parts_ended, 12);
      EXPECT_EQ(numbers.size(), 12u);
      EXPECT_EQ(scheduler.current(), 0u);
    }
  }
}

TEST(SchedulerTest, PartsOutsideARunAndTheirExceptions) {
  Scheduler scheduler;
  int sum = 0;
  scheduler.RunParts(3, [&](std::size_t part) {
    scheduler.Yield();
    sum += static_cast<int>(part);
  });
  EXPECT_EQ(sum, 3);
  EXPECT_THROW(scheduler.Run({[&] {
    scheduler.RunParts(2, [&](std::size_t part) {
      scheduler.Yield();
      if (part == 1) throw std::out_of_range("part");
      sum += 100;
    });
  }}),
               std::out_of_range);
  EXPECT_EQ(sum, 103);
}

/// Sanitizers keep notes of what a stack's bytes are; nothing of them may stay.
TEST(SchedulerTest, MemoryOfItsStacksCanBeUsedAgain) {
  constexpr std::uintptr_t kBytes = 64 << 10;
  std::uintptr_t place = 0;
  {
    Scheduler scheduler;
    scheduler.RunParts(3, [&](std::size_t) {
      scheduler.Yield();
      const auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
      place = (frame / 4096 + 1) * 4096 - kBytes;
    });
  }
  void* const wanted = reinterpret_cast<void*>(place);
  void* const memory = mmap(wanted, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(memory, wanted) << "the stack is still there";
  std::memset(memory, 1, kBytes);
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace gpm::crash
