#ifndef GPM_TESTS_FAULT_SESSION_H_
#define GPM_TESTS_FAULT_SESSION_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gpmstore/store.h"
#include "recovery/check.h"
#include "tests/fault_injection.h"
#include "tests/test_util.h"

/// Calls of a store of which one meets a fault, and what must hold then.
namespace gpm::test {

/// Names the tests of each shape of keys and values.
struct FaultShape {
  const char* name;
  std::uint32_t key_size;
  std::uint32_t value_size;
  bool directory;
  bool on_tmpfs;  ///< else in gtest's directory
};

/// A pool without a store, and what it holds.
struct PoolState {
  std::string path;
  Model model;
  std::set<std::string> keys;  ///< that there ever were
};

/// A store, what it must hold, and calls of it of which one meets the fault.
class FaultSession {
 public:
  /// @param state of the pool; its path is where a pool may be created if there is none
  FaultSession(PoolState state, const FaultShape& shape, std::uint64_t max_bytes,
               const Fault& fault);

  PoolState state() const { return {path_, model_, keys_}; }
  Store& store() { return *store_; }
  const FaultShape& shape() const { return shape_; }
  TestBatch NewBatch() const { return {shape_.key_size, shape_.value_size}; }

  /// Its stores drain the oldest level beside batches when they grow.
  void ComposeNoLevels() { options_.growth_pause = 0; }
  /// Takes a snapshot, an increment if that can be. When it fails there is no file.
  /// @param compare what changed is found by comparing
  void Snapshot(bool compare = false);
  /// Restores the chain, and looks whether that is as it should be.
  void Restore();

  /// From now on its stores take snapshots of themselves, when Keep says so and when they close.
  void KeepSnapshots();
  /// Takes one. When it fails the store says so, and goes on.
  void Keep();
  /// The pool is gone, and restored when it is opened: as it was, or, where a snapshot could not be
  /// read to its end, as it was in one before.
  void LoseAndRestore();
  void RemoveKept() { std::filesystem::remove_all(options_.snapshot.path); }

  /// Makes a call that the fault may meet. @return whether it did not throw
  bool Call(const std::function<void()>& action);

  void Create(std::uint64_t capacity);
  void Open();
  void Apply(TestBatch& batch, std::optional<Op> kind = std::nullopt);
  /// Inserts by a bulk load.
  void BulkLoad(TestBatch& batch);
  /// The same with a ticket, which must say the same each time that it is asked.
  void ApplyAsync(TestBatch& batch);
  /// A call that changes nothing of what is stored.
  void Do(const std::function<void()>& action, bool again = true);
  /// Compacts; in the next session, as its error says, if a batch failed in this one.
  void Compact();
  /// @param pending what the store completes when it is closed
  void Close(TestBatch& pending);
  void Close();
  /// Everything is right, and stays so; without a fault.
  void ExpectAllAndClose();
  /// Results may say that there is no room.
  void ExpectFull() { full_ = true; }
  /// Leaves the pool as it is, as if the process were killed.
  void CopyTo(const std::string& path) const { std::filesystem::copy_file(path_, path); }

 private:
  void AddKeys(const TestBatch& batch);
  void Close(const std::function<void()>& after);
  /// Applies a batch. When it throws, each key is as before or as after some operation on it; then
  /// it can be applied again.
  void Run(TestBatch& batch, const std::function<void()>& apply);
  /// After a call that threw: the store can be used, or says to everybody that it can't.
  void Resume();
  /// Brings the model up to date with a batch of which nobody knows how far it came.
  void Reread(const TestBatch& batch);
  /// Finds, by every key that there ever was, and ForEach.
  void ExpectAll();
  void ExpectNoTemporaryFiles() const;
  CheckReport ExpectSoundPool() const;

  const std::string path_;
  const FaultShape& shape_;
  const Fault& fault_;
  OpenOptions options_;
  std::optional<Store> store_;
  Model model_;
  std::set<std::string> keys_;
  std::optional<Batch> mixed_;  ///< the batch that is being applied
  bool full_ = false;
  std::vector<std::string> chain_;  ///< of snapshots
  std::vector<Model> kept_;         ///< what those of KeepSnapshots have, as it was then
};

}  // namespace gpm::test

#endif  // GPM_TESTS_FAULT_SESSION_H_
