// For each story of a store, and every k: the k-th allocation, system call or CUDA call of it
// fails. A call that this reaches throws, or not; never does it hang, crash, answer wrongly or lose
// what was acknowledged, nor does a pool claim to be clean and is not; made again, it succeeds.
//
// Environment: GPM_TEST_FAULTS, so that one of so many k is tried, by seed (1 tries all).

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "pm/pool.h"
#include "tests/fault_injection.h"
#include "tests/fault_session.h"
#include "tests/fault_stories.h"
#include "tests/levels.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

/// Longer than any story takes, under sanitizers too.
constexpr unsigned kHangSeconds = 60;

/// Fewer than the calls of any story that are an allocation, of the system or, on a GPU, of CUDA: a
/// story with fewer means that they are not counted any more. (Not every story reads a file.)
std::uint64_t LeastCalls(FaultKind kind) {
  return kind == FaultKind::kShortCall || kind == FaultKind::kFileEnd ? 0 : 10;
}

/// What is being tried, for who finds the process dead.
char trying[256] = "nothing";

void SayWhatWasTried(int signal) {
  const auto say = [](const char* text) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(2);
  };
  say(signal == SIGALRM ? "\nhangs: " : "\ndies: ");
  say(trying);
  say("\n");
  std::signal(signal, SIG_DFL);
  raise(signal);
}

constexpr FaultShape kShapes[] = {
    {"Cells", 8, 40, false, false},
    {"InlineWithCacheOnTmpfs", 16, 8, true, true},
    {"CellsWithCache", 8, 24, true, false},
    {"CellsOnTmpfs", 32, 100, false, true},
};

using FaultParam = std::tuple<const Story*, const FaultShape*, FaultKind>;

class FaultTest : public PoolTest, public ::testing::WithParamInterface<FaultParam> {
 protected:
  void SetUp() override {
    if (std::get<1>(GetParam())->on_tmpfs) parent_ = kTmpfs;
    PoolTest::SetUp();
    for (const int signal : {SIGALRM, SIGABRT, SIGSEGV, SIGBUS}) {
      std::signal(signal, SayWhatWasTried);
    }
  }
  void TearDown() override {
    alarm(0);
    std::snprintf(trying, sizeof trying, "nothing");
    PoolTest::TearDown();
  }

  /// Makes the pool that a story begins with.
  PoolState Prepare(const Story& story, const FaultShape& shape) {
    const Fault none(FaultKind::kAllocation, 0);
    PoolState state{NewPath(), {}, {}};
    if (story.before == Before::kNothing) return state;
    FaultSession session(state, shape, story.max_bytes, none);
    session.Create(0);
    Insert(session, 0, kLoaded);
    TestBatch mixed = MixedOperations(session, kLoaded, 300);
    session.Apply(mixed);
    if (story.before == Before::kCrashed) {
      state = session.state();
      state.path = NewPath();
      session.CopyTo(state.path);
      return state;
    }
    session.Close();
    state = session.state();
    if (story.before == Before::kResizing) {
      const auto pool = Pool::Open(state.path, {});
      pool->SetClean(false);
      test::AddLevel(*pool);
    }
    return state;
  }

  /// Tells the story with the k-th call failing. @return whether there were so many
  bool Try(const Story& story, const FaultShape& shape, const PoolState& prepared,
           const Fault& fault) {
    PoolState state = prepared;
    state.path = NewPath();
    if (story.before != Before::kNothing) std::filesystem::copy_file(prepared.path, state.path);
    alarm(kHangSeconds);
    FaultSession session(state, shape, story.max_bytes, fault);
    story.tell(session);
    session.ExpectAllAndClose();
    session.RemoveKept();
    std::filesystem::remove(state.path);
    return fault.hit();
  }
};

TEST_P(FaultTest, EveryCallFailsOnce) {
  const Story& story = *std::get<0>(GetParam());
  const FaultShape& shape = *std::get<1>(GetParam());
  const FaultKind kind = std::get<2>(GetParam());
  const PoolState prepared = Prepare(story, shape);
  const std::uint64_t every = EnvironmentNumber("GPM_TEST_FAULTS", 5);
  std::uint64_t hits = 0;
  std::uint64_t least = 0;
  for (const int error : {EIO, ENOSPC}) {
    if (error != EIO && kind != FaultKind::kSystemCall) break;
    least += LeastCalls(kind) / every;
    bool hit = true;
    for (std::uint64_t k = 1 + TestSeed() % every; hit && !HasFailure(); k += every) {
      std::snprintf(trying, sizeof trying, "story %s, %s, %s %llu", story.name, shape.name,
                    FaultKindName(kind), static_cast<unsigned long long>(k));
      const Fault fault(kind, k, error);
      hit = Try(story, shape, prepared, fault);
      hits += hit;
      if (HasFailure()) {
        ADD_FAILURE() << trying << ": " << (hit ? fault.call() : "none") << " failed";
      }
    }
  }
  EXPECT_GE(hits, least) << "calls do not fail";
  RecordProperty("faults", std::to_string(hits));
  std::printf("%llu faults\n", static_cast<unsigned long long>(hits));
}

std::string FaultName(const ::testing::TestParamInfo<FaultParam>& info) {
  std::string name = FaultKindName(std::get<2>(info.param));
  name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
  name[0] = static_cast<char>(std::toupper(name[0]));
  return name + std::get<0>(info.param)->name + std::get<1>(info.param)->name;
}

std::vector<FaultKind> Kinds() {
  if (TestExecutor() != ExecutorKind::kCuda)
    return {FaultKind::kAllocation, FaultKind::kSystemCall, FaultKind::kShortCall,
            FaultKind::kFileEnd};
  return {FaultKind::kAllocation, FaultKind::kSystemCall, FaultKind::kShortCall,
          FaultKind::kFileEnd, FaultKind::kCudaCall};
}

template <class T>
std::vector<const T*> Pointers(std::span<const T> things) {
  std::vector<const T*> pointers;
  for (const T& thing : things) pointers.push_back(&thing);
  return pointers;
}

INSTANTIATE_TEST_SUITE_P(Stories, FaultTest,
                         ::testing::Combine(::testing::ValuesIn(Pointers<Story>(Stories())),
                                            ::testing::ValuesIn(Pointers<FaultShape>(kShapes)),
                                            ::testing::ValuesIn(Kinds())),
                         FaultName);

}  // namespace
}  // namespace gpm::test
