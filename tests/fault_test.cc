// For each story of a store, and every k: the k-th allocation, system call or CUDA call of it
// fails. A call that this reaches throws, or not; never does it hang, crash, answer wrongly or lose
// what was acknowledged, nor does a pool claim to be clean and is not; made again, it succeeds.
//
// Environment: GPM_TEST_FAULTS, so that one of so many k is tried, by seed (1 tries all).

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "engine/store_impl.h"
#include "tests/fault_injection.h"
#include "tests/levels.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

/// Longer than any story takes, under sanitizers too.
constexpr unsigned kHangSeconds = 60;

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

struct Shape {
  const char* name;
  std::uint32_t key_size;
  std::uint32_t value_size;
  bool directory;
  const char* parent;  ///< where the pools are; null: gtest's directory
};

constexpr Shape kShapes[] = {
    {"Cells", 8, 40, false, nullptr},
    {"InlineWithCache", 16, 8, true, "/dev/shm"},
    {"CellsWithCache", 8, 24, true, nullptr},
    {"CellsOnTmpfs", 32, 100, false, "/dev/shm"},
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
  FaultSession(PoolState state, const Shape& shape, std::uint64_t max_bytes, const Fault& fault)
      : path_(std::move(state.path)),
        shape_(shape),
        fault_(fault),
        model_(std::move(state.model)),
        keys_(std::move(state.keys)) {
    options_ = TestOpenOptions(max_bytes);
    options_.threads = 2;
    options_.cache.directory = shape.directory;
    options_.cache.fraction = shape.directory ? 0.5 : 0;
  }

  PoolState state() const { return {path_, model_, keys_}; }
  Store& store() { return *store_; }
  const Shape& shape() const { return shape_; }
  TestBatch NewBatch() const { return {shape_.key_size, shape_.value_size}; }

  /// Its stores drain the oldest level beside batches when they grow.
  void ComposeNoLevels() { options_.growth_pause = 0; }
  /// Takes a snapshot, an increment if that can be. When it fails there is no file.
  /// @param compare what changed is found by comparing
  void Snapshot(bool compare = false) {
    const std::string file = path_ + ".snap" + std::to_string(chain_.size());
    std::string base = chain_.empty() || compare ? "" : chain_.back();
    const auto snapshot = [&] {
      const std::vector<std::string> chain = compare ? chain_ : std::vector<std::string>();
      store_->Snapshot(file, {.base = base, .chain = chain, .threads = 2});
    };
    if (!Call(snapshot)) {
      EXPECT_FALSE(std::filesystem::exists(file)) << "a snapshot that could not be taken is there";
      ExpectNoTemporaryFiles();
      Resume();
      if (ErrorOf(snapshot) == ErrorCode::kInvalidArgument) {  // opened anew: no base is known
        chain_.clear();
        base.clear();
        std::filesystem::remove(file);
        snapshot();
      }
    }
    chain_.push_back(file);
  }
  /// Restores the chain, and looks whether that is as it should be.
  void Restore() {
    const std::string path = path_ + ".restored";
    std::optional<Store> restored;
    const auto restore = [&] { restored = Store::Restore(chain_, path, options_); };
    if (!Call(restore)) {
      ExpectNoTemporaryFiles();
      // (What failed may have been the opening of what was restored.)
      std::filesystem::remove(path);
      restore();
    }
    ExpectContents(*restored, model_);
    restored->Close();
    ExpectSound(path, model_.size());
    std::filesystem::remove(path);
    for (const std::string& file : chain_) std::filesystem::remove(file);
  }

  /// From now on its stores take snapshots of themselves, when Keep says so and when they close.
  void KeepSnapshots() {
    // (On tmpfs, where to sync takes no time.)
    options_.snapshot.path = "/dev/shm/gpmstore_fault_test_" + std::to_string(getpid());
    options_.snapshot.interval = 1e8;
    options_.snapshot.restore = true;
  }
  /// Takes one. When it fails the store says so, and goes on.
  void Keep() {
    const std::uint64_t failures = store_->Stats().snapshot_failures;
    {
      const Fault::Armed armed;
      store_->impl()->keeper()->Keep();
    }
    if (ErrorOf([&] { store_->Stats(); })) return Resume();
    const StoreStats stats = store_->Stats();
    const bool failed = stats.snapshot_failures != failures;
    EXPECT_EQ(stats.snapshot_error.empty(), !failed);
    EXPECT_TRUE(!failed || (fault_.hit() && fault_.kind() != FaultKind::kShortCall));
    if (!failed) kept_.push_back(model_);
  }
  /// The pool is gone, and restored when it is opened: as it was, or, where a snapshot could not be
  /// read to its end, as it was in one before.
  void LoseAndRestore() {
    if (!store_) store_ = Store::Open(path_, options_);
    store_->Close();  // without a fault: the folder has all of it
    store_.reset();
    kept_.push_back(model_);
    std::filesystem::remove(path_);
    const bool hit_before = fault_.hit();
    const auto open = [&] { store_ = Store::Open(path_, options_); };
    if (!Call(open)) open();
    if (fault_.hit() != hit_before && fault_.kind() == FaultKind::kFileEnd) {
      Model now;
      store_->ForEach([&](auto key, auto value) { now[AsString(key)] = AsString(value); });
      EXPECT_NE(std::find(kept_.begin(), kept_.end(), now), kept_.end());
      model_ = now;
    }
    ExpectAll();
  }
  void RemoveKept() { std::filesystem::remove_all(options_.snapshot.path); }

  /// Makes a call that the fault may meet. @return whether it did not throw
  bool Call(const std::function<void()>& action) {
    const Fault::Armed armed;
    try {
      action();
      return true;
    } catch (const Error& error) {
      EXPECT_FALSE(fault_.hit() && fault_.kind() == FaultKind::kShortCall) << error.what();
      EXPECT_TRUE(fault_.kind() != FaultKind::kFileEnd || error.code() == ErrorCode::kDamaged)
          << error.what();
    } catch (const std::bad_alloc&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << "threw neither gpm::Error nor bad_alloc: " << error.what();
    }
    return false;
  }

  void Create(std::uint64_t capacity) {
    const auto create = [&] {
      store_ =
          Store::Create(path_, test::Shape(shape_.key_size, shape_.value_size, capacity), options_);
    };
    if (Call(create)) return;
    EXPECT_FALSE(std::filesystem::exists(path_)) << "a pool that could not be created is there";
    std::filesystem::remove(path_);
    create();
  }

  void Open() {
    const auto open = [&] { store_ = Store::Open(path_, options_); };
    if (!Call(open)) {
      ExpectSoundPool();
      open();
    }
    ExpectAll();
  }

  void Apply(TestBatch& batch, std::optional<Op> kind = std::nullopt) {
    const auto apply = [&] {
      if (kind) return batch.ApplySingle(*store_, *kind);
      store_->Apply(*mixed_);
    };
    Run(batch, apply);
  }

  /// Inserts by a bulk load.
  void BulkLoad(TestBatch& batch) {
    Run(batch, [&] { store_->BulkLoad(mixed_->keys, mixed_->values, mixed_->results); });
  }

  /// The same with a ticket, which must say the same each time that it is asked.
  void ApplyAsync(TestBatch& batch) {
    Run(batch, [&] {
      Ticket ticket = store_->ApplyAsync(*mixed_);
      try {
        ticket.Wait();
      } catch (...) {
        EXPECT_ANY_THROW(ticket.Wait());
        throw;
      }
      ticket.Wait();
    });
  }

  /// A call that changes nothing of what is stored.
  void Do(const std::function<void()>& action, bool again = true) {
    if (Call(action)) return;
    Resume();
    if (again) action();
  }

  /// Compacts; in the next session, as its error says, if a batch failed in this one.
  void Compact() {
    Do([&] {
      try {
        store_->Compact();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnsupported || !fault_.hit()) throw;
        store_->Close();
        store_ = Store::Open(path_, options_);
        store_->Compact();
      }
    });
  }

  /// @param pending what the store completes when it is closed
  void Close(TestBatch& pending) {
    std::optional<Ticket> ticket;
    AddKeys(pending);
    const Batch batch = pending.Mixed();
    if (!Call([&] { ticket = store_->ApplyAsync(batch); })) {
      Resume();
      Reread(pending);
    }
    Close([&] {
      if (!ticket) return;
      bool complete = true;
      try {
        ticket->Wait();
      } catch (const std::exception&) {
        EXPECT_ANY_THROW(ticket->Wait());
        complete = false;
      }
      ticket.reset();
      store_ = Store::Open(path_, options_);
      if (complete) {
        pending.Compare(model_, full_ || fault_.hit());
      } else {
        Reread(pending);
      }
    });
  }
  void Close() {
    Close([] {});
  }

  /// Everything is right, and stays so; without a fault.
  void ExpectAllAndClose() {
    if (!store_) store_ = Store::Open(path_, options_);
    ExpectAll();
    if (TestExecutor() == ExecutorKind::kCpu) {
      store_->Close();
      store_ = Store::Open(path_, options_);
      EXPECT_EQ(store_->impl()->CountMisplacedCells(), 0u);
    }
    store_->Close();
    store_.reset();
    ExpectSound(path_, model_.size());
  }

  /// Results may say that there is no room.
  void ExpectFull() { full_ = true; }
  /// Leaves the pool as it is, as if the process were killed.
  void CopyTo(const std::string& path) const { std::filesystem::copy_file(path_, path); }

 private:
  void AddKeys(const TestBatch& batch) {
    for (std::size_t i = 0; i < batch.size(); ++i) keys_.insert(AsString(batch.key(i)));
  }

  void Close(const std::function<void()>& after) {
    // A call that failed before has left nothing behind: on a GPU it may have.
    if (fault_.hit() && TestExecutor() == ExecutorKind::kCpu) {
      EXPECT_EQ(store_->impl()->CountMisplacedCells(), 0u);
    }
    Call([&] { store_->Close(); });
    EXPECT_TRUE(ErrorOf([&] { store_->Stats(); }).has_value()) << "not closed";
    EXPECT_TRUE(ExpectSoundPool().clean || fault_.hit());
    store_.reset();
    after();
  }

  /// Applies a batch. When it throws, each key is as before or as after some operation on it; then
  /// it can be applied again.
  void Run(TestBatch& batch, const std::function<void()>& apply) {
    AddKeys(batch);
    mixed_ = batch.Mixed();
    const bool hit_before = fault_.hit();
    if (Call(apply)) {
      batch.Compare(model_, full_ || fault_.hit() != hit_before);
      return;
    }
    Resume();
    Reread(batch);
    mixed_ = batch.Mixed();
    apply();
    batch.Compare(model_, full_);
  }

  /// After a call that threw: the store can be used, or says to everybody that it can't.
  void Resume() {
    if (!ErrorOf([&] { store_->Stats(); })) return;
    TestBatch finds = NewBatch();
    finds.Add(Op::kFind, 1, 0);
    EXPECT_TRUE(ErrorOf([&] { store_->Apply(finds.Mixed()); }).has_value());
    EXPECT_TRUE(ErrorOf([&] { store_->Reserve(1); }).has_value());
    store_->Close();
    EXPECT_FALSE(ExpectSoundPool().clean);
    store_ = Store::Open(path_, options_);
  }

  /// Brings the model up to date with a batch of which nobody knows how far it came.
  void Reread(const TestBatch& batch) {
    std::map<std::string, std::set<std::optional<std::string>>> allowed;
    Model after = model_;
    const auto state = [&](const std::string& key) {
      const auto item = after.find(key);
      return item == after.end() ? std::nullopt : std::optional(item->second);
    };
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::string key = AsString(batch.key(i));
      allowed[key].insert(state(key));
      batch.ApplyOne(after, i);
      allowed[key].insert(state(key));
    }
    TestBatch finds = NewBatch();
    for (const auto& [key, states] : allowed)
      finds.Add(Op::kFind, key, MakeValue(0, shape_.value_size));
    store_->Apply(finds.Mixed());
    std::size_t i = 0;
    for (const auto& [key, states] : allowed) {
      std::optional<std::string> now;
      if (finds.result(i) == Result::kOk) now = AsString(finds.found(i));
      EXPECT_TRUE(states.contains(now)) << "key " << KeyNumber(finds.key(i)) << " is neither as "
                                        << "before nor as after an operation of the batch";
      model_.erase(key);
      if (now) model_[key] = *now;
      ++i;
    }
  }

  /// Finds, by every key that there ever was, and ForEach.
  void ExpectAll() {
    TestBatch finds = NewBatch();
    for (const std::string& key : keys_) {
      finds.Add(Op::kFind, key, MakeValue(0, shape_.value_size));
    }
    for (const auto& [key, value] : model_) finds.Add(Op::kFind, key, value);
    finds.ApplySingle(*store_, Op::kFind);
    finds.Compare(model_);
    std::uint64_t visited = 0;
    store_->ForEach([&](std::span<const std::byte>, std::span<const std::byte>) { ++visited; });
    EXPECT_EQ(visited, model_.size());
  }

  void ExpectNoTemporaryFiles() const {
    // (But where removing it is what failed.)
    if (fault_.call() != nullptr && std::string_view(fault_.call()) == "unlink") return;
    const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().string();
      if (name.rfind(path_ + ".", 0) != 0) continue;
      EXPECT_EQ(name.find("partial"), std::string::npos) << name;
      EXPECT_EQ(name.find("restoring"), std::string::npos) << name;
    }
  }

  CheckReport ExpectSoundPool() const {
    CheckReport report = CheckPool(path_);
    for (const std::string& defect : report.defects) ADD_FAILURE() << defect;
    return report;
  }

  const std::string path_;
  const Shape& shape_;
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

constexpr std::uint64_t kAmpleBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kLoaded = 600;

TestBatch Operations(const FaultSession& session, Op op, std::uint64_t first, std::uint64_t count,
                     std::uint64_t tag = 0) {
  TestBatch batch = session.NewBatch();
  for (std::uint64_t key = first; key < first + count; ++key) batch.Add(op, key, key + tag);
  return batch;
}

/// All kinds, several operations on a key.
TestBatch MixedOperations(const FaultSession& session, std::uint64_t keys, std::uint64_t count) {
  TestBatch batch = session.NewBatch();
  for (std::uint64_t i = 0; i < count; ++i) {
    batch.Add(static_cast<Op>(Mix(i) % kOpKinds), Mix(i + count) % keys, i);
  }
  return batch;
}

void Insert(FaultSession& session, std::uint64_t first, std::uint64_t count) {
  TestBatch batch = Operations(session, Op::kInsert, first, count);
  session.Apply(batch, Op::kInsert);
}

void Grow(FaultSession& session) {
  session.Open();
  Insert(session, 1000, 3000);
  TestBatch erases = Operations(session, Op::kErase, 500, 2500);
  session.Apply(erases, Op::kErase);
  TestBatch mixed = MixedOperations(session, 6000, 4000);
  session.ApplyAsync(mixed);
  session.Close();
}

/// How a story finds its pool.
enum class Before : std::uint8_t { kNothing, kClosed, kCrashed, kResizing };

struct Story {
  const char* name;
  Before before;
  std::uint64_t max_bytes;
  void (*tell)(FaultSession& session);
};

constexpr Story kStories[] = {
    {"Create", Before::kNothing, kAmpleBytes,
     [](FaultSession& session) {
       session.Create(500);
       Insert(session, 0, 100);
       session.Close();
     }},
    {"BulkLoad", Before::kNothing, kAmpleBytes,
     [](FaultSession& session) {
       session.Create(500);
       TestBatch items = Operations(session, Op::kInsert, 0, 4200);
       session.BulkLoad(items);
       TestBatch more = Operations(session, Op::kInsert, 4000, 400);
       session.BulkLoad(more);
       session.Close();
     }},
    {"OpenClosed", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       session.Close();
     }},
    {"OpenCrashed", Before::kCrashed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       Insert(session, 10000, 50);
       session.Close();
     }},
    {"OpenResizing", Before::kResizing, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       session.Close();
     }},
    {"Batches", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       for (const Op op : {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase, Op::kUpsert}) {
         TestBatch batch = Operations(session, op, kLoaded - 200, 400, 7);
         session.Apply(batch, op);
       }
       TestBatch mixed = MixedOperations(session, 2 * kLoaded, 500);
       session.Apply(mixed);
       TestBatch small = MixedOperations(session, 50, 20);
       session.ApplyAsync(small);
       session.Close();
     }},
    {"Growth", Before::kClosed, kAmpleBytes, [](FaultSession& session) { Grow(session); }},
    {"GrowthBesideBatches", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.ComposeNoLevels();
       Grow(session);
     }},
    {"CacheLoadings", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       for (int round = 0; round < 2; ++round) {
         session.Do([&] { session.store().RefreshCache().Wait(); });
         TestBatch mixed = MixedOperations(session, kLoaded, 300);
         session.Apply(mixed);
         TestBatch finds = Operations(session, Op::kFind, 0, kLoaded);
         session.Apply(finds, Op::kFind);
       }
       session.Close();
     }},
    {"ReserveAndVisit", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       session.Do([&] { session.store().Reserve(4000); }, false);
       session.Do([&] { session.store().ForEach([](auto, auto) {}); });
       session.Do([&] { session.store().Stats(); });
       session.Close();
     }},
    {"LevelInPlaceOfCells", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       Insert(session, 1000, 9000);
       TestBatch erases = Operations(session, Op::kErase, 1000, 8900);
       session.Apply(erases, Op::kErase);
       session.Do([&] { session.store().Reserve(14000); });
       Insert(session, 1000, 500);
       session.Close();
     }},
    {"ReserveAndInsert", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       session.Do([&] { session.store().Reserve(8000); });
       Insert(session, 1000, 500);
       session.Close();
     }},
    {"Compact", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       Insert(session, 1000, 5000);
       TestBatch erases = Operations(session, Op::kErase, 0, 5500);
       session.Apply(erases, Op::kErase);
       session.Compact();
       Insert(session, 0, 900);
       session.Compact();
       session.Close();
     }},
    {"Snapshots", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       session.Snapshot();
       TestBatch mixed = MixedOperations(session, kLoaded, 200);
       session.Apply(mixed);
       session.Snapshot();
       Insert(session, 1000, 300);
       session.Snapshot();
       session.Restore();
       session.Close();
     }},
    {"SnapshotsWithoutLinks", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       const NoLinks no_links;
       session.Open();
       session.Snapshot();
       Insert(session, 1000, 50);
       session.Snapshot();
       Insert(session, 1100, 50);
       session.Snapshot(true);
       session.Restore();
       session.Close();
     }},
    {"KeptSnapshots", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.KeepSnapshots();
       session.Open();
       session.Keep();
       Insert(session, 1000, 50);
       session.Keep();
       session.Close();
       session.LoseAndRestore();
       Insert(session, 2000, 20);
       session.Close();
     }},
    {"RoomAhead", Before::kNothing, kAmpleBytes,
     [](FaultSession& session) {
       // Nearly all that a small pool has mapped, so that its next level lies beyond that.
       const Shape& shape = session.shape();
       const std::uint64_t item_bytes = 20 + (shape.key_size > 8 ? shape.key_size : 0) +
                                        (shape.value_size > 8 ? shape.value_size : 0);
       const std::uint64_t capacity = (std::uint64_t{3} << 19) / item_bytes;
       session.Create(capacity);
       Insert(session, 0, capacity / 4);  // four more such batches, and it would be full
       session.Do([&] { session.store().impl()->AwaitReadyRoom(); });
       TestBatch more = Operations(session, Op::kUpsert, capacity / 4, 500);
       session.Apply(more, Op::kUpsert);
       session.Do([&] { session.store().Reserve(capacity * 3 / 2); });
       TestBatch updates = Operations(session, Op::kUpdate, 0, capacity / 4, 1);
       session.Apply(updates, Op::kUpdate);
       session.Compact();
       session.Close();
     }},
    {"CloseWithWork", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       TestBatch pending = Operations(session, Op::kInsert, 1000, 1200);
       session.Close(pending);
     }},
    {"FullPool", Before::kClosed, std::uint64_t{384} << 10,
     [](FaultSession& session) {
       session.ExpectFull();
       session.Open();
       TestBatch inserts = Operations(session, Op::kInsert, 1000, 7000);
       session.Apply(inserts, Op::kInsert);
       TestBatch updates = Operations(session, Op::kUpdate, 0, 500, 9);
       session.Apply(updates, Op::kUpdate);
       TestBatch erases = Operations(session, Op::kErase, 0, 300);
       session.Apply(erases, Op::kErase);
       Insert(session, 0, 300);
       session.Close();
     }},
};

using FaultParam = std::tuple<const Story*, const Shape*, FaultKind>;

class FaultTest : public PoolTest, public ::testing::WithParamInterface<FaultParam> {
 protected:
  void SetUp() override {
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
  PoolState Prepare(const Story& story, const Shape& shape) {
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
  bool Try(const Story& story, const Shape& shape, const PoolState& prepared, const Fault& fault) {
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
  const Shape& shape = *std::get<1>(GetParam());
  const FaultKind kind = std::get<2>(GetParam());
  const PoolState prepared = Prepare(story, shape);
  const std::uint64_t every =
      EnvironmentNumber("GPM_TEST_FAULTS", TestExecutor() == ExecutorKind::kCuda ? 5 : 1);
  std::uint64_t hits = 0;
  for (const int error : {EIO, ENOSPC}) {
    if (error != EIO && kind != FaultKind::kSystemCall) break;
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

template <class T, std::size_t kCount>
std::vector<const T*> Pointers(const T (&things)[kCount]) {
  std::vector<const T*> pointers;
  for (const T& thing : things) pointers.push_back(&thing);
  return pointers;
}

INSTANTIATE_TEST_SUITE_P(Stories, FaultTest,
                         ::testing::Combine(::testing::ValuesIn(Pointers(kStories)),
                                            ::testing::ValuesIn(Pointers(kShapes)),
                                            ::testing::ValuesIn(Kinds())),
                         FaultName);

}  // namespace
}  // namespace gpm::test
