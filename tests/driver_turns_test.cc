// Turns at the driver: launches are not disturbed, and neither side starves.

#include "pm/driver_turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace gpm::test {
namespace {

TEST(DriverTurns, ARegistrationIsAloneAndLaunchesAreTogether) {
  DriverTurns turns;
  std::atomic<int> launching{0};
  std::atomic<int> registering{0};
  std::atomic<int> most_launching{0};
  std::atomic<bool> wrong{false};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        const DriverTurns::Launching turn(turns);
        const DriverTurns::Launching part(turns);
        const int now = ++launching;
        int most = most_launching;
        while (most < now && !most_launching.compare_exchange_weak(most, now)) {
        }
        std::this_thread::yield();
        if (registering > 0) wrong = true;
        --launching;
      }
    });
  }
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        const DriverTurns::Registering turn(turns);
        if (++registering > 1 || launching > 0) wrong = true;
        std::this_thread::yield();
        --registering;
      }
    });
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto lasts = [&] { return std::chrono::steady_clock::now() - begin; };
  while (lasts() < std::chrono::milliseconds(300) ||
         (most_launching < 2 && lasts() < std::chrono::minutes(1))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(wrong);
  EXPECT_GT(most_launching, 1);
}

/// One side asks again and again, at once; the other still has its turns.
TEST(DriverTurns, NeitherSideStarves) {
  constexpr int kTurns = 200;
  for (const bool registers_always : {true, false}) {
    DriverTurns turns;
    std::atomic<bool> stop{false};
    const auto take = [&](bool registers) {
      if (registers) {
        const DriverTurns::Registering turn(turns);
      } else {
        const DriverTurns::Launching turn(turns);
      }
    };
    std::vector<std::thread> always;
    for (int t = 0; t < 3; ++t) {
      always.emplace_back([&] {
        while (!stop) take(registers_always);
      });
    }
    for (int i = 0; i < kTurns; ++i) take(!registers_always);
    stop = true;
    for (std::thread& thread : always) thread.join();
  }
}

TEST(DriverTurns, WhoLaunchesMayRegister) {
  DriverTurns turns;
  const DriverTurns::Launching turn(turns);
  const DriverTurns::Registering part(turns);
}

TEST(DriverTurns, ABreakLetsARegistrationGo) {
  DriverTurns turns;
  const DriverTurns::Launching turn(turns);
  const DriverTurns::Launching part(turns);
  bool registered = false;
  std::thread other;
  {
    const DriverTurns::Break pause(turns);
    other = std::thread([&] {
      const DriverTurns::Registering its(turns);
      registered = true;
    });
    other.join();
  }
  EXPECT_TRUE(registered);
  const DriverTurns::Break nothing_to_wait_for(turns);
}

TEST(DriverTurns, ABreakOfWhoHasNoTurnIsNothing) {
  DriverTurns turns;
  { const DriverTurns::Break pause(turns); }
  const DriverTurns::Registering its(turns);
}

}  // namespace
}  // namespace gpm::test
