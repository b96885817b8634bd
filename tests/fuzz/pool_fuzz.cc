#include "tests/fuzz/pool_fuzz.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "gpmstore/store.h"
#include "pm/pool.h"
#include "recovery/check.h"
#include "table/operation.h"
#include "tests/fuzz/damage.h"
#include "tests/test_util.h"

namespace gpm::fuzz {
namespace {

constexpr std::uint64_t kRoomBytes = 512 * 1024;
constexpr std::uint64_t kPlentyBytes = 64 * 1024 * 1024;
/// Numbers of keys that operations insert, and that damage may plant.
constexpr std::uint64_t kFirstFreshKey = 128;
constexpr std::size_t kMaxDefectsReported = 16;

template <class... Arguments>
[[noreturn]] void Fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  throw Violation(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// The one file that all inputs use: in memory, and gone with the process.
class PoolFile {
 public:
  PoolFile() : fd_(memfd_create("gpmstore_fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error(std::string("memfd_create: ") + std::strerror(errno));
    path_ = fmt::format("/proc/self/fd/{}", fd_);
  }
  ~PoolFile() { ::close(fd_); }
  PoolFile(const PoolFile&) = delete;
  PoolFile& operator=(const PoolFile&) = delete;

  const std::string& path() const { return path_; }

  void Write(const std::vector<std::byte>& bytes) {
    const auto size = static_cast<ssize_t>(bytes.size());
    if (ftruncate(fd_, size) != 0 || pwrite(fd_, bytes.data(), bytes.size(), 0) != size) {
      throw std::runtime_error(std::string("the pool's file: ") + std::strerror(errno));
    }
  }
  bool Holds(const std::vector<std::byte>& bytes) const {
    const std::vector<std::byte> there = Read();
    return there.size() == bytes.size() &&
           (bytes.empty() || std::memcmp(there.data(), bytes.data(), bytes.size()) == 0);
  }
  std::vector<std::byte> Read() const {
    const off_t size = lseek(fd_, 0, SEEK_END);
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    if (pread(fd_, bytes.data(), bytes.size(), 0) != size) {
      throw std::runtime_error(std::string("the pool's file: ") + std::strerror(errno));
    }
    return bytes;
  }

 private:
  int fd_;
  std::string path_;
};

/// The result of an action, or the error it threw.
template <class Result>
struct Attempt {
  std::optional<Result> result;
  std::optional<ErrorCode> error;
  std::string message;
};

template <class Action>
auto Try(Action&& action) {
  Attempt<decltype(action())> attempt;
  try {
    attempt.result.emplace(action());
  } catch (const Error& error) {
    attempt.error = error.code();
    attempt.message = error.what();
    if (attempt.message.empty()) Fail("an error without a message");
  }
  return attempt;
}

/// One input on its way.
class Trial {
 public:
  Trial(PoolFile* file, const Damage& damage)
      : file_(*file),
        damage_(damage),
        base_(*damage.base),
        key_size_(base_.superblock.key_size),
        value_size_(base_.superblock.value_size),
        random_(damage.seed) {
    if (!damage.table_intact) return;
    unsure_ = damage.touched;
    for (std::size_t item = 0; item < base_.keys.size(); ++item) {
      if (Sure(base_.keys[item])) model_.emplace(base_.keys[item], base_.values[item]);
    }
  }

  Outcome Run() {
    file_.Write(damage_.image);
    Outcome outcome;
    outcome.table_intact = damage_.table_intact;
    const auto check = Try([&] { return CheckPool(file_.path()); });
    ExpectUntouched("the check");
    if (check.result) {
      before_ = *check.result;
      sound_ = outcome.sound = before_.defects.empty();
      Dump();
    }
    const std::uint64_t room = damage_.tight ? 0 : kRoomBytes;
    auto open = Try([&] { return Store::Open(file_.path(), Options(room)); });
    outcome.refused = open.error;
    if (check.error && open.error != check.error) {
      Fail("the check says '{}', open says '{}'", check.message, open.message);
    }
    if (open.error == ErrorCode::kNoSpace && check.result && before_.resizing) {
      ExpectSame(CheckPool(file_.path()));
      open = Try([&] { return Store::Open(file_.path(), Options(kPlentyBytes)); });
      if (open.error) Fail("open with a larger maximum: {}", open.message);
    } else if (open.error) {
      if (open.error != ErrorCode::kDamaged) Fail("not an error of damage: {}", open.message);
      if (check.result && sound_) Fail("the check found nothing, but open says {}", open.message);
      ExpectUntouched("open");
      return outcome;
    }
    outcome.opened = true;
    store_.emplace(std::move(*open.result));
    Use();
    outcome.resized = !failed_ && store_->Stats().resizes > 0;
    Finish();
    return outcome;
  }

 private:
  OpenOptions Options(std::uint64_t room) const {
    OpenOptions options;
    options.executor = ExecutorKind::kCpu;
    options.threads = 1;
    options.max_bytes = RoundUp(damage_.image.size(), kPageBytes) + room;
    return options;
  }

  void ExpectUntouched(const char* who) const {
    if (!file_.Holds(damage_.image)) Fail("{} changed a pool that it must not change", who);
  }

  /// Whether `model_` says what there is of a key.
  bool Sure(const std::string& key) const {
    return learned_.contains(key) || (damage_.table_intact && !unsure_.contains(key));
  }
  void Forget(const std::string& key) {
    unsure_.insert(key);
    learned_.erase(key);
    model_.erase(key);
  }

  std::string Name(const std::string& key) const {
    return fmt::format("key {:#x}", test::KeyNumber(std::as_bytes(std::span(key))));
  }

  /// Reads the pool as it is, without recovering it.
  void Dump() const {
    const auto pool = Pool::Open(file_.path(), {.max_bytes = 0, .read_only = true});
    std::unordered_set<std::string> seen;
    std::uint64_t visited = 0;
    VisitPool(*pool, [&](std::span<const std::byte> key, std::span<const std::byte>) {
      ++visited;
      seen.insert(test::AsString(key));
    });
    if (sound_ && (visited != before_.items || visited != seen.size())) {
      Fail("{} items are visited, with {} keys, the check finds {}", visited, seen.size(),
           before_.items);
    }
  }

  /// The open store: its counts, its contents, batches.
  void Use() {
    key_size_ = store_->key_size();  // another table than the base's, perhaps
    value_size_ = store_->value_size();
    ExpectCounts(before_.items);
    ExpectContents();
    ApplyBatch({}, 0);  // finds all keys
    std::vector<std::string> keys;
    if (key_size_ == base_.superblock.key_size) keys = base_.keys;
    switch (damage_.volume) {
      case Volume::kNothing:
        break;
      case Volume::kFew:
        ApplyBatch(keys, 12);
        break;
      case Volume::kMany:
        ApplyBatch(keys, 64);
        break;
      case Volume::kResize:
        Insert(160);
        ApplyBatch(keys, 32);
        break;
    }
    if (!failed_) ApplyBatch({}, 0);
  }

  /// Closes the store, or leaves the pool as a crash would; then checks it and opens it again.
  void Finish() {
    const StoreStats stats = failed_ ? StoreStats{} : store_->Stats();  // it has none any more
    const bool crash = damage_.crash;
    std::vector<std::byte> crashed;
    if (crash) crashed = file_.Read();
    const auto close = Try([&] { return store_->Close(), 0; });
    if (close.error) Fail("close: {}", close.message);
    store_.reset();
    if (crash) file_.Write(crashed);

    const CheckReport after = CheckPool(file_.path());
    ExpectSame(after);
    if (!crash && !failed_) {
      if (!after.clean) Fail("closed, but not marked as closed");
      if (after.insert_slots > 0 || after.resizing) Fail("closed with slots or a resize half done");
      // (A resize leaves out damaged copies of items, which are counted until the pool is opened.)
      const bool counted = sound_ || (after.defects.empty() && stats.resizes == 0);
      if (counted && after.items != stats.items) {
        Fail("{} items are counted, the check finds {}", stats.items, after.items);
      }
    }
    auto open = Try([&] { return Store::Open(file_.path(), Options(kPlentyBytes)); });
    // Of a pool that was closed in order the slots are trusted; after a crash they are inspected,
    // and what the check found then counts.
    if (open.error == ErrorCode::kDamaged && !sound_ && !after.clean && !after.defects.empty()) {
      return;
    }
    if (open.error) Fail("opened once, but not again: {}", open.message);
    store_.emplace(std::move(*open.result));
    ExpectCounts(after.items);
    ExpectContents();
    store_->Close();
  }

  /// What a defect says, but for what may change while the pool is open: the number of its level,
  /// when a level was added; and the place of a key's second copy, when either copy was displaced,
  /// and of an item that is wrong but for its word, which moves as any other (its table's keys may
  /// have become shorter).
  static std::string Lasting(std::string defect) {
    if (defect.starts_with("level ")) defect.erase(0, defect.find(','));
    for (const char* what : {": second copy", ": not all bytes behind the key's own"}) {
      if (const std::size_t at = defect.find(what); at != std::string::npos) defect.erase(0, at);
    }
    return defect;
  }

  /// The check finds nothing that it did not find before the pool was opened first.
  void ExpectSame(const CheckReport& report) const {
    for (const std::string& defect : report.defects) {
      const bool known =
          std::any_of(before_.defects.begin(), before_.defects.end(),
                      [&](const std::string& other) { return Lasting(other) == Lasting(defect); });
      if (!known && before_.defects.size() < kMaxDefectsReported) Fail("new defect: {}", defect);
      if (defect.find("value cell") != std::string::npos) Fail("in an opened pool: {}", defect);
    }
  }

  void ExpectCounts(std::uint64_t items) const {
    const StoreStats stats = store_->Stats();
    if (!sound_) return;
    if (stats.items != items) Fail("the check finds {} items, the store {}", items, stats.items);
    if (stats.value_cells > 0 && stats.free_cells + items != stats.value_cells) {
      Fail("{} cells, {} of them free, and {} items", stats.value_cells, stats.free_cells, items);
    }
  }

  void ExpectContents() {
    std::unordered_map<std::string, int> seen;
    std::uint64_t visited = 0;
    std::string wrong;
    store_->ForEach([&](std::span<const std::byte> key_bytes, std::span<const std::byte> value) {
      ++visited;
      const std::string key = test::AsString(key_bytes);
      const int times = ++seen[key];
      if (times > 1 && (sound_ || Sure(key))) wrong = Name(key) + " twice";
      if (!Sure(key)) return;
      const auto item = model_.find(key);
      if (item == model_.end()) wrong = Name(key) + ", which nobody inserted";
      if (item != model_.end() && item->second != test::AsString(value)) {
        wrong = Name(key) + " with a wrong value";
      }
    });
    if (!wrong.empty()) Fail("ForEach visits {}", wrong);
    for (const auto& [key, value] : model_) {
      if (!seen.contains(key)) Fail("ForEach does not visit {}", Name(key));
    }
    if (sound_ && visited != store_->Stats().items) {
      Fail("ForEach visits {} items, the store counts {}", visited, store_->Stats().items);
    }
  }

  /// `count` operations of all kinds on known and new keys; none: a find of each known key.
  void ApplyBatch(const std::vector<std::string>& keys, std::size_t count) {
    test::TestBatch batch(key_size_, value_size_);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t choice = random_() % 8;
      std::string key = test::MakeKey(kFirstFreshKey + random_() % 64, key_size_);
      if (choice < 5 && !keys.empty()) key = keys[random_() % keys.size()];
      if (choice == 5) key = test::MakeKey(random_() % 2 == 0 ? 0 : test::kAllOnes, key_size_);
      batch.Add(static_cast<Op>(random_() % kOpKinds), key,
                test::MakeValue(random_(), value_size_));
    }
    if (count == 0) {
      for (const auto& [key, value] : model_) {
        batch.Add(Op::kFind, key, test::MakeValue(0, value_size_));
      }
      batch.Add(Op::kFind, 0, 0);
      batch.Add(Op::kFind, test::kAllOnes, 0);
      batch.Add(Op::kFind, kFirstFreshKey, 0);
    }
    Apply(&batch);
  }

  void Insert(std::uint64_t count) {
    test::TestBatch batch(key_size_, value_size_);
    for (std::uint64_t i = 0; i < count; ++i) batch.Add(Op::kInsert, kFirstFreshKey + i, i);
    Apply(&batch);
  }

  /// Carries a batch out and compares each outcome with the model's. A batch may fail when a
  /// resize can't be finished within the pool's maximum; then the store is of no use any more.
  void Apply(test::TestBatch* batch) {
    if (failed_) return;
    const Batch operations = batch->Mixed();
    const auto attempt = Try([&] { return store_->Apply(operations), 0; });
    if (attempt.error) {
      if (attempt.error != ErrorCode::kNoSpace) Fail("a batch failed: {}", attempt.message);
      failed_ = true;
      for (std::size_t i = 0; i < batch->size(); ++i) {
        Forget(test::AsString(batch->key(i)));
      }
      return;
    }
    for (std::size_t i = 0; i < batch->size(); ++i) ExpectOutcome(*batch, i);
  }

  void ExpectOutcome(const test::TestBatch& batch, std::size_t i) {
    const Result result = batch.result(i);
    const bool may_be_invalid = batch.op(i) == Op::kAccumulate && batch.element() == Element::kNone;
    if (result > (may_be_invalid ? Result::kInvalid : Result::kNoSpace)) {
      Fail("operation without an outcome");
    }
    const std::string key = test::AsString(batch.key(i));
    const Op op = batch.op(i);
    const bool writes = Writes(op);
    if (!Sure(key)) {
      // What was written, or found, is there from now on.
      if (op == Op::kAccumulate || op == Op::kErase) return;
      if (result != Result::kOk && !HasFound(op, result)) return;
      model_[key] = test::AsString(HasFound(op, result) ? batch.found(i) : batch.value(i));
      learned_.insert(key);
      return;
    }
    const auto item = model_.find(key);
    const bool present = item != model_.end();
    Result expected = Result::kOk;
    if ((op == Op::kInsert || op == Op::kFindOrInsert) && present) expected = Result::kExists;
    if (!Inserts(op) && !present) expected = Result::kNotFound;
    if (op == Op::kAccumulate && batch.element() == Element::kNone) expected = Result::kInvalid;
    if (writes && expected == Result::kOk && result == Result::kNoSpace) return;
    if (result != expected) {
      Fail("{} of {}: {} instead of {}", OpName(op), Name(key), ResultName(result),
           ResultName(expected));
    }
    if (HasFound(op, result) && test::AsString(batch.found(i)) !=
                                    (present ? item->second : test::AsString(batch.value(i)))) {
      Fail("{} of {}: a wrong value", OpName(op), Name(key));
    }
    if (expected != Result::kOk) return;
    if (writes) batch.ApplyOne(model_, i);
    if (op != Op::kErase) return;
    if (learned_.contains(key)) {
      Forget(key);  // damage may have left another copy of it
    } else {
      model_.erase(item);
    }
  }

  PoolFile& file_;
  const Damage& damage_;
  const BasePool& base_;
  std::uint32_t key_size_;
  std::uint32_t value_size_;
  std::mt19937_64 random_;
  CheckReport before_;   ///< of the damaged pool
  bool sound_ = false;   ///< that found no defect
  bool failed_ = false;  ///< a batch threw: no space for a resize
  std::optional<Store> store_;
  test::Model model_;
  std::unordered_set<std::string> unsure_;   ///< keys that anything may have happened to
  std::unordered_set<std::string> learned_;  ///< those of which the operations have told
};

}  // namespace

Outcome RunInput(std::span<const std::uint8_t> input) {
  static PoolFile file;
  const Damage damage = ReadDamage(input);
  try {
    return Trial(&file, damage).Run();
  } catch (const Error& error) {
    Fail("base pool '{}': {}", damage.base->name, error.what());
  } catch (const Violation& violation) {
    Fail("base pool '{}': {}", damage.base->name, violation.what());
  }
}

void Tally::Add(const Outcome& outcome) {
  opened_ += outcome.opened ? 1 : 0;
  with_defects_ += outcome.opened && !outcome.sound ? 1 : 0;
  table_intact_ += outcome.opened && outcome.table_intact ? 1 : 0;
  resized_ += outcome.resized ? 1 : 0;
  if (outcome.refused) ++refused_[*outcome.refused];
}

std::uint64_t Tally::refused() const {
  std::uint64_t sum = 0;
  for (const auto& [code, count] : refused_) sum += count;
  return sum;
}

std::string Tally::ToString() const {
  std::string text = fmt::format(
      "{} opened ({} of them with defects that the check names, {} with all undamaged items "
      "known, {} resized)",
      opened_, with_defects_, table_intact_, resized_);
  for (const auto& [code, count] : refused_) {
    text += fmt::format(", {} refused: {}", count, ErrorName(code));
  }
  return text;
}

}  // namespace gpm::fuzz
