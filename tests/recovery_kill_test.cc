#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "recovery/check.h"
#include "tests/test_util.h"

/// Recovery of the pool of a process that was killed for real.
namespace gpm::test {
namespace {

class RealCrashTest : public PoolTest {};

TEST_F(RealCrashTest, AcknowledgedBatchesSurviveAKilledProcess) {
  if (TestExecutor() != ExecutorKind::kCpu) GTEST_SKIP() << "forks, which CUDA does not survive";
  constexpr std::uint32_t kKeySize = 16;
  constexpr std::uint32_t kValueSize = 40;
  const std::string path = NewPath();
  { Store::Create(path, {.key_size = kKeySize, .value_size = kValueSize}, TestOpenOptions()); }
  std::mt19937_64 random(TestSeed());
  Model model;
  std::uint64_t first = 0;  // batch of this round's child
  const auto make_batch = [](std::uint64_t number) {
    TestBatch batch(kKeySize, kValueSize);
    std::mt19937_64 choose(number);
    for (int i = 0; i < 200; ++i) {
      batch.Add(static_cast<Op>(choose() % kOpKinds), choose() % (100 + 20 * number), choose());
    }
    return batch;
  };
  for (int round = 0; round < 8; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // applies batches, one byte for each that is acknowledged, until killed
      Store store = Store::Open(path, TestOpenOptions());
      for (std::uint64_t number = first;; ++number) {
        TestBatch batch = make_batch(number);
        store.Apply(batch.Mixed());
        if (write(ends[1], "+", 1) != 1) _exit(1);
      }
    }
    close(ends[1]);
    std::uint64_t acknowledged = 0;
    char byte;
    const std::uint64_t wanted = 1 + random() % 30;
    while (acknowledged < wanted && read(ends[0], &byte, 1) == 1) ++acknowledged;
    usleep(static_cast<useconds_t>(random() % 3000));
    kill(child, SIGKILL);
    while (read(ends[0], &byte, 1) == 1) ++acknowledged;
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";

    for (std::uint64_t number = first; number < first + acknowledged; ++number) {
      const TestBatch batch = make_batch(number);
      for (std::size_t i = 0; i < batch.size(); ++i) batch.ApplyOne(model, i);
    }
    // The batch that was running: each key is as before it, or as after one of its operations on
    // it. What of the two it is, the reopened store says, and the model follows.
    std::map<std::string, std::set<std::string>> allowed;  // empty value: no item
    const TestBatch running = make_batch(first + acknowledged);
    const auto state = [&](const std::string& key) {
      return model.contains(key) ? model[key] : std::string();
    };
    for (std::size_t i = 0; i < running.size(); ++i) {
      const std::string key = AsString(running.key(i));
      allowed[key].insert(state(key));
    }
    const Model before = model;
    for (std::size_t i = 0; i < running.size(); ++i) {
      running.ApplyOne(model, i);
      const std::string key = AsString(running.key(i));
      allowed[key].insert(state(key));
    }
    model = before;
    const CheckReport crashed = CheckPool(path);
    EXPECT_TRUE(crashed.defects.empty());
    EXPECT_FALSE(crashed.clean);
    Store store = Store::Open(path, TestOpenOptions());
    EXPECT_FALSE(store.Stats().recovery.was_clean);
    Model actual;
    store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      actual[AsString(key)] = AsString(value);
    });
    for (const auto& [key, values] : allowed) {
      const std::string value = actual.contains(key) ? actual[key] : std::string();
      EXPECT_TRUE(values.contains(value));
      if (value.empty()) {
        model.erase(key);
      } else {
        model[key] = value;
      }
    }
    ExpectContents(store, model);
    store.Close();
    ExpectSound(path, model.size());
    first += acknowledged + 1;
  }
}

}  // namespace
}  // namespace gpm::test
