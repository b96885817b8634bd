// Crashes and failures of a store over several pools: processes that end before any of the
// library's system calls, and calls that fail.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <functional>

#include "gpmstore/sharded_store.h"
#include "tests/fault_injection.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

namespace fs = std::filesystem;
using test::ErrorOf;
using test::Fault;
using test::FaultKind;
using test::MakeKey;
using test::MakeValue;
using test::Model;
using test::Shape;
using test::TestBatch;

constexpr std::uint32_t kValueSize = 24;

/// Each shard has one thread: the fewer there are, the fewer calls are to be tried.
OpenOptions Options() {
  OpenOptions open;
  open.executor = ExecutorKind::kCpu;
  open.threads = 1;
  return open;
}

class ShardFaultTest : public test::PoolTest {
 protected:
  std::string NewStore(std::uint32_t shards, std::uint32_t value_size = kValueSize) {
    const std::string folder = NewPath();
    ShardedStore store =
        ShardedStore::Create(folder, Shape(8, value_size), {.shards = shards}, Options());
    TestBatch batch(8, value_size);
    for (std::uint64_t i = 0; i < 200; ++i) batch.Add(Op::kInsert, i, i);
    model_.clear();
    store.Apply(batch.Mixed());
    batch.Compare(model_);
    store.Close();
    return folder;
  }
  /// It can be opened, has all items, and its folder has no file too many.
  void ExpectWhole(const std::string& folder, std::uint32_t shards, std::uint32_t or_shards) {
    ShardedStore store = ShardedStore::Open(folder, Options());
    EXPECT_TRUE(store.shards() == shards || store.shards() == or_shards) << store.shards();
    test::ExpectContents(store, model_);
    std::uint32_t files = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      files += entry.path().extension() == ".pool" || entry.path().extension() == ".new";
    }
    EXPECT_EQ(files, store.shards());
  }
  /// Ends a process before its k-th system call in `action`. @return whether it came so far
  static bool DiesAt(std::uint64_t k, const std::function<void()>& action) {
    const pid_t child = fork();
    if (child == 0) {
      const Fault fault(FaultKind::kSystemCall, k, Fault::kDies);
      try {
        const Fault::Armed armed;
        action();
      } catch (...) {
        _exit(1);
      }
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == Fault::kDies)
        << WEXITSTATUS(status);
    return WEXITSTATUS(status) == Fault::kDies;
  }

  Model model_;
};

TEST_F(ShardFaultTest, ACrashInReshardLeavesTheOldStoreOrTheNew) {
  const std::string folder = NewStore(2);
  const std::string copy = NewPath();
  std::uint64_t k = 1;
  for (bool died = true; died; ++k) {
    fs::remove_all(copy);
    fs::copy(folder, copy);
    died = DiesAt(k, [&] { ShardedStore::Reshard(copy, {.shards = 3}, Options()); });
    SCOPED_TRACE(k);
    if (k % 2 == 0) {  // who calls it again gets what was asked for
      ShardedStore::Reshard(copy, {.shards = 3}, Options());
      ExpectWhole(copy, 3, 3);
    } else {
      ExpectWhole(copy, died ? 2 : 3, 3);
    }
  }
  EXPECT_GT(k, 50u);
}

TEST_F(ShardFaultTest, ACrashInCreateLeavesNoStore) {
  const std::string folder = NewPath();
  const auto create = [&] {
    ShardedStore::Create(folder, Shape(8, kValueSize), {.shards = 3}, Options());
  };
  std::uint64_t k = 1;
  for (bool died = true; died; ++k) {
    SCOPED_TRACE(k);
    fs::remove_all(folder);
    died = DiesAt(k, create);
    if (ErrorOf([&] { ShardedStore::Open(folder, Options()); }) == ErrorCode::kNotFound) {
      create();  // what is left is not in its way
    }
    ExpectWhole(folder, 3, 3);
  }
  EXPECT_GT(k, 20u);
}

TEST_F(ShardFaultTest, WhatFailsLeavesNothingOfANewStore) {
  const std::string folder = NewPath();
  for (const FaultKind kind : {FaultKind::kSystemCall, FaultKind::kAllocation}) {
    bool hit = true;
    std::uint64_t failures = 0;
    for (std::uint64_t k = 1; hit; ++k) {
      SCOPED_TRACE(testing::Message() << test::FaultKindName(kind) << " " << k);
      const Fault fault(kind, k);
      bool failed = false;
      ShardedStore store;
      try {
        const Fault::Armed armed;
        store = ShardedStore::Create(folder, Shape(8, kValueSize), {.shards = 2}, Options());
      } catch (const std::exception&) {
        failed = true;
      }
      hit = fault.hit();
      failures += failed ? 1 : 0;
      EXPECT_TRUE(hit || !failed);
      EXPECT_EQ(fs::exists(folder), !failed);
      if (!failed) test::ExpectContents(store, Model());  // it was done without
      store.Close();
      fs::remove_all(folder);
    }
    EXPECT_GT(failures, 10u) << test::FaultKindName(kind);
  }
}

/// Pools without their manifest, in a folder that can't be read, are not taken for none: whoever
/// creates a store in it would remove them.
TEST_F(ShardFaultTest, AFolderThatCantBeReadIsNotTakenForAnEmptyOne) {
  const std::string folder = NewStore(2);
  fs::rename(folder + "/manifest.json", folder + "/kept.json");
  const auto create = [&](std::uint64_t k, const char* call) {
    const Fault fault(FaultKind::kSystemCall, k, EIO, call);
    const Fault::Armed armed;
    const auto error = ErrorOf(
        [&] { ShardedStore::Create(folder, Shape(8, kValueSize), {.shards = 2}, Options()); });
    EXPECT_EQ(error, fault.hit() ? ErrorCode::kIo : ErrorCode::kExists) << call << " " << k;
    EXPECT_FALSE(fs::exists(folder + "/manifest.json.new"));
    return fault.hit();
  };
  for (const char* call : {"lstat", "opendir", "readdir"}) {
    std::uint64_t hits = 0;
    while (create(hits + 1, call)) ++hits;
    EXPECT_GE(hits, std::string(call) == "readdir" ? 5u : 1u) << call;  // ., .., two pools, the end
  }
  fs::rename(folder + "/kept.json", folder + "/manifest.json");
  ExpectWhole(folder, 2, 2);
}

TEST_F(ShardFaultTest, AReshardThatFailsLeavesAWholeStore) {
  const std::string folder = NewStore(2);
  const std::string copy = NewPath();
  for (const FaultKind kind : {FaultKind::kSystemCall, FaultKind::kAllocation}) {
    bool hit = true;
    std::uint64_t failures = 0;
    for (std::uint64_t k = 1; hit; k += kind == FaultKind::kAllocation ? 23 : 1) {
      SCOPED_TRACE(testing::Message() << test::FaultKindName(kind) << " " << k);
      fs::remove_all(copy);
      fs::copy(folder, copy);
      const Fault fault(kind, k);
      bool failed = false;
      try {
        const Fault::Armed armed;
        ShardedStore::Reshard(copy, {.shards = 3}, Options());
      } catch (const std::exception&) {
        failed = true;
      }
      hit = fault.hit();
      failures += failed ? 1 : 0;
      EXPECT_TRUE(hit || !failed);
      ExpectWhole(copy, failed ? 2 : 3, 3);  // or the new one, whose name may not last
    }
    EXPECT_GT(failures, 5u) << test::FaultKindName(kind);
  }
}

/// The pools' growth fails in one shard: its operations have happened or not, the others' have.
TEST_F(ShardFaultTest, AShardThatFailsIsNamedAndTheOthersAreSound) {
  constexpr std::uint32_t kLarge = 4000;  // so that pools grow
  struct Calls {
    const char* name;
    std::uint64_t every;  ///< tries the fault at one of so many
  };
  // (Which calls are the batch's, and end it, and which those of the threads that make room ahead,
  // differs from run to run. That a size is not known ends no batch: few of those are tried.)
  constexpr Calls kCalls[] = {
      {"posix_fallocate", 1}, {"mmap", 1}, {"pthread_create", 1}, {"fstat", 31}, {"fstatfs", 31}};
  for (const bool waits : {false, true}) {
    std::uint64_t failures = 0;
    for (const auto& [call, every] : kCalls) {
      bool hit = true;
      for (std::uint64_t k = 1; hit; k += every) {
        SCOPED_TRACE(testing::Message() << call << " " << k << (waits ? ", with a ticket" : ""));
        const std::string folder = NewStore(2, kLarge);
        ShardedStore store = ShardedStore::Open(folder, Options());
        TestBatch batch(8, kLarge);
        for (std::uint64_t i = 100; i < 1300; ++i) batch.Add(Op::kUpsert, i, i + 1);
        const Batch rows = batch.Mixed();
        const Fault fault(FaultKind::kSystemCall, k, EIO, call);
        bool failed = false;
        try {
          const Fault::Armed armed;
          if (!waits) {
            store.Apply(rows);
          } else {
            Ticket ticket = store.ApplyAsync(rows);
            try {
              ticket.Wait();
            } catch (const std::exception&) {
              EXPECT_ANY_THROW(ticket.Wait());
              throw;
            }
          }
        } catch (const Error& error) {
          failed = true;
          EXPECT_EQ(std::string(error.what()).rfind("shard ", 0), 0u) << error.what();
        } catch (const std::bad_alloc&) {
          failed = true;
        }
        hit = fault.hit();
        failures += failed ? 1 : 0;
        ASSERT_TRUE(hit || !failed);
        if (!failed) {
          batch.Compare(model_);
        } else {
          store.Close();
          store = ShardedStore::Open(folder, Options());
          for (std::size_t i = 0; i < batch.size(); ++i) {
            const std::string key = test::AsString(batch.key(i));
            test::Bytes found(kLarge);
            const bool is_there = store.Get(batch.key(i), found);
            const auto before = model_.find(key);
            const bool happened =
                is_there && test::AsString(found) == test::AsString(batch.value(i));
            EXPECT_TRUE(happened || (before == model_.end()
                                         ? !is_there
                                         : is_there && test::AsString(found) == before->second))
                << i;
            if (happened) batch.ApplyOne(model_, i);
          }
          store.Apply(batch.Mixed());  // it can be done again
          batch.Compare(model_);
        }
        test::ExpectContents(store, model_);
      }
    }
    EXPECT_GT(failures, 1u) << (waits ? "with a ticket" : "without");
  }
}

}  // namespace
}  // namespace gpm
