#include <functional>
#include <iterator>
#include <new>
#include <optional>

#include "gpmstore/pool_reader.h"
#include "gpmstore/store.h"
#include "pm/upgrade.h"
#include "recovery/check.h"
#include "tests/fault_injection.h"
#include "tests/files.h"
#include "tests/old_pools.h"
#include "tests/test_util.h"

/// For every k, the k-th allocation or system call of an upgrade fails.
namespace gpm::test {
namespace {

using UpgradeReplacedTest = PoolTest;
class UpgradeFaultTest : public PoolTest, public ::testing::WithParamInterface<FaultKind> {};

TEST_P(UpgradeFaultTest, EveryCallFailsOnce) {
  if (TestExecutor() != ExecutorKind::kCpu) GTEST_SKIP() << "upgrades need no executor";
  const std::string path = NewPath();
  const std::string directory = std::filesystem::path(path).parent_path();
  {
    ModelledStore store(path, Shape(8, 24), TestOpenOptions());
    store.Apply(Op::kInsert, Numbers(0, 100));
    store.store().Close();
  }
  std::mt19937_64 random(TestSeed());
  const std::string old = OldPool(ReadFile(path), 2, random);
  WriteFile(path, old);
  EXPECT_TRUE(UpgradePool(path));
  const std::string upgraded = ReadFile(path);
  // Another owner than new files get, where that can be.
  const bool root = geteuid() == 0;
  ASSERT_TRUE(!root || chown(path.c_str(), 1234, 2345) == 0);
  int failed = 0;
  for (std::uint64_t k = 1;; ++k) {
    WriteFile(path, old);
    const Fault fault(GetParam(), k, k % 2 == 0 ? EIO : ENOSPC);
    bool threw = false;
    try {
      const Fault::Armed armed;
      UpgradePool(path);
    } catch (const Error& error) {
      threw = true;
      EXPECT_NE(std::string(error.what()).find(directory), std::string::npos) << error.what();
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    if (!fault.hit()) break;
    SCOPED_TRACE(testing::Message() << "call " << k << ", " << fault.call());
    failed += threw ? 1 : 0;
    const std::string now = ReadFile(path);
    const bool directory_is_not_durable = threw && std::string(fault.call()) == "fsync";
    // (Where there is no room for whole huge pages, the new pool is shorter.)
    const bool done = now != old;
    EXPECT_TRUE(!done || upgraded.compare(0, now.size(), now) == 0);
    EXPECT_TRUE(done != threw || directory_is_not_durable);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 1);
    EXPECT_EQ(UpgradePool(path), !done);
    ExpectSound(path, 100);
    if (HasFailure()) return;
  }
  EXPECT_GT(failed, 5);
}

/// Another upgrade has replaced the file that this one opened, or somebody has removed it, before
/// this one has its lock: what is there now is left as it is.
TEST_F(UpgradeReplacedTest, WhatWasReplacedBeforeItWasLockedIsLeft) {
  if (TestExecutor() != ExecutorKind::kCpu) GTEST_SKIP() << "upgrades need no executor";
  const std::string path = NewPath();
  Store::Create(path, Shape(8, 24), TestOpenOptions()).Close();
  std::mt19937_64 random(TestSeed());
  const std::string old = OldPool(ReadFile(path), 2, random);
  const std::string other = NewPath();
  for (const bool replaced : {true, false}) {
    SCOPED_TRACE(replaced ? "replaced" : "removed");
    WriteFile(path, old);
    WriteFile(other, "another file");
    const auto act = [&] {
      std::filesystem::remove(path);
      if (replaced) std::filesystem::rename(other, path);
    };
    const Fault action(FaultKind::kSystemCall, 1, act, "flock");
    std::string message;
    {
      const Fault::Armed armed;
      EXPECT_EQ(ErrorOf([&] { UpgradePool(path); }, &message), ErrorCode::kBusy);
    }
    ASSERT_TRUE(action.hit());
    EXPECT_EQ(message, path + ": was moved or replaced meanwhile; try again");
    EXPECT_EQ(ReadFile(path), replaced ? "another file" : "");
    EXPECT_EQ(std::filesystem::exists(path), replaced);
    EXPECT_FALSE(std::filesystem::exists(path + ".gpmstore-upgrade"));
  }
}

/// Who opens it would work on a file without a name, and what that is told would be lost.
TEST_F(UpgradeReplacedTest, WhatWasReplacedBeforeItWasLockedIsNotOpened) {
  const std::string path = NewPath();
  const std::string other = NewPath();
  const std::function<void()> open = [&] { Store::Open(path, TestOpenOptions()); };
  const std::function<void()> read = [&] { PoolReader reader(path); };
  Store::Create(path, Shape(8, 24), TestOpenOptions()).Close();
  for (const auto& call : {open, read}) {
    Store::Create(other, Shape(8, 24), TestOpenOptions()).Close();
    const Fault action(
        FaultKind::kSystemCall, 1, [&] { std::filesystem::rename(other, path); }, "flock");
    {
      const Fault::Armed armed;
      EXPECT_EQ(ErrorOf(call), ErrorCode::kBusy);
    }
    ASSERT_TRUE(action.hit());
    EXPECT_EQ(ErrorOf(call), std::nullopt);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, UpgradeFaultTest,
                         ::testing::Values(FaultKind::kAllocation, FaultKind::kSystemCall),
                         [](const auto& instance) {
                           return instance.param == FaultKind::kAllocation ? "Allocation"
                                                                           : "SystemCall";
                         });

}  // namespace
}  // namespace gpm::test
