#include "tests/fault_session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <new>
#include <string_view>
#include <utility>

#include "engine/store_impl.h"

namespace gpm::test {

FaultSession::FaultSession(PoolState state, const FaultShape& shape, std::uint64_t max_bytes,
                           const Fault& fault)
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

void FaultSession::Snapshot(bool compare) {
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

void FaultSession::Restore() {
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

void FaultSession::KeepSnapshots() {
  // (On tmpfs, where to sync takes no time.)
  options_.snapshot.path = "/dev/shm/gpmstore_fault_test_" + std::to_string(getpid());
  options_.snapshot.interval = 1e8;
  options_.snapshot.restore = true;
}

void FaultSession::Keep() {
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

void FaultSession::LoseAndRestore() {
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

bool FaultSession::Call(const std::function<void()>& action) {
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

void FaultSession::Create(std::uint64_t capacity) {
  const auto create = [&] {
    store_ =
        Store::Create(path_, test::Shape(shape_.key_size, shape_.value_size, capacity), options_);
  };
  if (Call(create)) return;
  EXPECT_FALSE(std::filesystem::exists(path_)) << "a pool that could not be created is there";
  std::filesystem::remove(path_);
  create();
}

void FaultSession::Open() {
  const auto open = [&] { store_ = Store::Open(path_, options_); };
  if (!Call(open)) {
    ExpectSoundPool();
    open();
  }
  ExpectAll();
}

void FaultSession::Apply(TestBatch& batch, std::optional<Op> kind) {
  const auto apply = [&] {
    if (kind) return batch.ApplySingle(*store_, *kind);
    store_->Apply(*mixed_);
  };
  Run(batch, apply);
}

void FaultSession::BulkLoad(TestBatch& batch) {
  Run(batch, [&] { store_->BulkLoad(mixed_->keys, mixed_->values, mixed_->results); });
}

void FaultSession::ApplyAsync(TestBatch& batch) {
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

void FaultSession::Do(const std::function<void()>& action, bool again) {
  if (Call(action)) return;
  Resume();
  if (again) action();
}

void FaultSession::Compact() {
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

void FaultSession::Close(TestBatch& pending) {
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

void FaultSession::Close() {
  Close([] {});
}

void FaultSession::ExpectAllAndClose() {
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

void FaultSession::AddKeys(const TestBatch& batch) {
  for (std::size_t i = 0; i < batch.size(); ++i) keys_.insert(AsString(batch.key(i)));
}

void FaultSession::Close(const std::function<void()>& after) {
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

void FaultSession::Run(TestBatch& batch, const std::function<void()>& apply) {
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

void FaultSession::Resume() {
  if (!ErrorOf([&] { store_->Stats(); })) return;
  TestBatch finds = NewBatch();
  finds.Add(Op::kFind, 1, 0);
  EXPECT_TRUE(ErrorOf([&] { store_->Apply(finds.Mixed()); }).has_value());
  EXPECT_TRUE(ErrorOf([&] { store_->Reserve(1); }).has_value());
  store_->Close();
  EXPECT_FALSE(ExpectSoundPool().clean);
  store_ = Store::Open(path_, options_);
}

void FaultSession::Reread(const TestBatch& batch) {
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

void FaultSession::ExpectAll() {
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

void FaultSession::ExpectNoTemporaryFiles() const {
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

CheckReport FaultSession::ExpectSoundPool() const {
  CheckReport report = CheckPool(path_);
  for (const std::string& defect : report.defects) ADD_FAILURE() << defect;
  return report;
}

}  // namespace gpm::test
