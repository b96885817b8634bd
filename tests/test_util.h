#ifndef GPM_TESTS_TEST_UTIL_H_
#define GPM_TESTS_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpmstore/store.h"
#include "pm/gpu_host.h"
#include "recovery/check.h"
#include "table/elements.h"
#include "table/geometry.h"
#include "table/group.h"

/// What the engine's tests share: where pools go, which executor runs, seeds, keys and values of
/// any size, and a model that applies a batch one operation at a time.
///
/// Environment:
///   GPM_TEST_EXECUTOR  cpu (default) or cuda; ctest registers the tests once for each
///   GPM_TEST_SEED      replays the randomized tests of a failed run
///   GPM_TEST_CACHE     1: there is a directory, and a cache of the values of half of the buckets
///   that is
///                      loaded often
///   GPM_TEST_OPS       operations of the model test in all, over its instances
namespace gpm::test {

inline ExecutorKind TestExecutor() {
  const char* name = std::getenv("GPM_TEST_EXECUTOR");
  return name != nullptr && std::string(name) == "cuda" ? ExecutorKind::kCuda : ExecutorKind::kCpu;
}

inline std::uint64_t EnvironmentNumber(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 0);
}

/// The seed of this run; printed once, so that a failure can be replayed.
inline std::uint64_t TestSeed() {
  static const std::uint64_t seed = [] {
    const std::uint64_t value = EnvironmentNumber("GPM_TEST_SEED", std::random_device{}());
    std::printf("GPM_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    std::fflush(stdout);
    return value;
  }();
  return seed;
}

inline OpenOptions TestOpenOptions(std::uint64_t max_bytes = 0) {
  OpenOptions options;
  options.executor = TestExecutor();
  options.max_bytes = max_bytes;
  if (EnvironmentNumber("GPM_TEST_CACHE", 0) != 0) {
    options.cache.directory = true;
    options.cache.fraction = 0.5;
    options.cache.refresh_interval = 2000;
  }
  return options;
}

/// What tests that need a GPU skip with where there is none. CTest (tests/CMakeLists.txt) counts a
/// program that says so as skipped, whatever else it says: nothing else may.
inline constexpr const char* kNoGpu = "skipped: no GPU to test on";

/// A directory of its own for each test, removed at the end. Skips the cuda instance of every test
/// where there is no GPU.
class PoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestExecutor() == ExecutorKind::kCuda && GpuCount() == 0) GTEST_SKIP() << kNoGpu;
    std::string pattern = parent_ + "gpmstore_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr) << pattern << ": " << std::strerror(errno);
    directory_ = pattern;
  }
  void TearDown() override {
    std::error_code ignored;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
  }

  static constexpr const char* kTmpfs = "/dev/shm/";
  /// Of the media that tests can use, a GPU registers only tmpfs.
  std::string parent_ = TestExecutor() == ExecutorKind::kCuda ? kTmpfs : testing::TempDir();

  /// A path in the test's directory where no file is.
  std::string NewPath() { return directory_ + "/pool" + std::to_string(next_path_++); }

 private:
  std::string directory_;
  int next_path_ = 0;
};

/// Calls `action` and returns the code of the gpm::Error it threw, or nothing. The message, which
/// must not be empty, goes to `*message`.
template <class Action>
std::optional<ErrorCode> ErrorOf(Action&& action, std::string* message = nullptr) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_STRNE(error.what(), "");
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return std::nullopt;
}

using Bytes = std::vector<std::byte>;

inline std::string AsString(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// A bijection of 64-bit words (splitmix64's finalizer).
inline std::uint64_t Mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

inline constexpr std::uint64_t kAllOnes = ~std::uint64_t{0};

/// The key with a number: the last word is the number, and for two of three numbers the other
/// words are mixed from it, so that there are keys that differ only in their last word. Number 0 is
/// the all-zero key, kAllOnes the all-one key. Keys that are not whole words end with the number's
/// bytes, or with as many as they have, the lowest last: so that there are keys that differ only in
/// their last byte.
inline std::string MakeKey(std::uint64_t number, std::uint32_t key_size) {
  if (key_size % 8 != 0) {
    std::string key(key_size, '\0');
    for (std::uint32_t i = 1; i <= std::min(key_size, 8u); ++i) {
      key[key_size - i] = static_cast<char>(number >> (8 * (i - 1)));
    }
    for (std::uint32_t i = 8; i < key_size && number % 3 != 0; ++i) {
      key[i - 8] = static_cast<char>(Mix(number + i));
    }
    if (number == kAllOnes) key.assign(key_size, '\xFF');
    return key;
  }
  std::vector<std::uint64_t> words(key_size / 8, 0);
  if (number == kAllOnes) {
    std::fill(words.begin(), words.end(), kAllOnes);
  } else if (number % 3 != 0) {
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = Mix(number + i);
  }
  words.back() = number;
  return std::string(reinterpret_cast<const char*>(words.data()), key_size);
}

/// REQUIRES: at least 8 bytes.
inline std::uint64_t KeyNumber(std::span<const std::byte> key) {
  std::uint64_t number = 0;
  if (key.size() % 8 != 0) {
    for (const std::byte byte : key.last(8))
      number = number << 8 | static_cast<std::uint64_t>(byte);
    return number;
  }
  std::memcpy(&number, key.data() + key.size() - 8, 8);
  return number;
}

/// The value with a tag. Each 8 bytes of it derive from the tag, so that a mixture of two values is
/// neither's.
inline std::string MakeValue(std::uint64_t tag, std::uint32_t value_size) {
  std::string value(value_size, '\0');
  for (std::uint32_t i = 0; i < value_size; i += 8) {
    const std::uint64_t word = tag ^ (i * 0x9E3779B97F4A7C15ull);
    std::memcpy(value.data() + i, &word, std::min(8u, value_size - i));
  }
  return value;
}

/// The tag of a value of at least 8 bytes, or nothing when the value is torn.
inline std::optional<std::uint64_t> ValueTag(std::span<const std::byte> value) {
  std::uint64_t tag;
  std::memcpy(&tag, value.data(), 8);
  if (AsString(value) != MakeValue(tag, static_cast<std::uint32_t>(value.size()))) {
    return std::nullopt;
  }
  return tag;
}

/// What the store should hold, by key.
using Model = std::unordered_map<std::string, std::string>;

/// Arrays of a batch, filled operation by operation. Outputs start with a pattern, so that one that
/// was not written is seen.
class TestBatch {
 public:
  TestBatch(std::uint32_t key_size, std::uint32_t value_size)
      : key_size_(key_size), value_size_(value_size) {}

  void Add(Op op, const std::string& key, const std::string& value) {
    ops_.push_back(op);
    keys_ += key;
    values_ += value;
  }
  /// Adds an operation on the key with a number; the value that it writes (or, for finds and
  /// erases, must ignore) is the one with the tag.
  void Add(Op op, std::uint64_t key_number, std::uint64_t value_tag) {
    Add(op, MakeKey(key_number, key_size_), MakeValue(value_tag, value_size_));
  }

  std::size_t size() const { return ops_.size(); }
  Op op(std::size_t i) const { return ops_[i]; }
  Result result(std::size_t i) const { return results_[i]; }
  std::span<const std::byte> key(std::size_t i) const {
    return std::as_bytes(std::span(keys_)).subspan(i * key_size_, key_size_);
  }
  std::span<const std::byte> value(std::size_t i) const {
    return std::as_bytes(std::span(values_)).subspan(i * value_size_, value_size_);
  }
  std::span<const std::byte> found(std::size_t i) const {
    return std::as_bytes(std::span(found_)).subspan(i * value_size_, value_size_);
  }

  /// The batch over these arrays, whose outputs it resets; valid until the next Add or Mixed.
  Batch Mixed() {
    found_.assign(values_.size(), kUntouched);
    results_.assign(ops_.size(), kUnset);
    Batch batch;
    batch.ops = ops_;
    batch.keys = std::as_bytes(std::span(keys_));
    batch.values = std::as_bytes(std::span(values_));
    batch.found = std::as_writable_bytes(std::span(found_));
    batch.results = results_;
    batch.element = element();
    return batch;
  }
  /// That values are taken for by operations that accumulate; none if it can't be any.
  Element element() const {
    return value_size_ % 8 == 0 && value_size_ % 5 == 0 ? Element::kUInt64
           : value_size_ % 4 == 0                       ? Element::kFloat32
           : value_size_ % 6 == 0                       ? Element::kFloat16
           : value_size_ % 2 == 0                       ? Element::kBFloat16
                                                        : Element::kNone;
  }

  /// The same through the calls for one kind. REQUIRES: all operations are of this kind.
  template <class AnyStore>
  void ApplySingle(AnyStore& store, Op kind) {
    const std::uint64_t not_ok = CallFor(store, kind);
    EXPECT_EQ(not_ok, static_cast<std::uint64_t>(
                          std::count_if(results_.begin(), results_.end(),
                                        [](Result result) { return result != Result::kOk; })));
  }
  template <class AnyStore>
  std::uint64_t CallFor(AnyStore& store, Op kind) {
    const Batch batch = Mixed();
    switch (kind) {
      case Op::kFind:
        return store.Find(batch.keys, batch.found, batch.results);
      case Op::kInsert:
        return store.Insert(batch.keys, batch.values, batch.results);
      case Op::kUpdate:
        return store.Update(batch.keys, batch.values, batch.results);
      case Op::kUpsert:
        return store.Upsert(batch.keys, batch.values, batch.results);
      case Op::kErase:
        return store.Erase(batch.keys, batch.results);
      case Op::kFindOrInsert:
        return store.FindOrInsert(batch.keys, {}, Element::kNone, batch.values, batch.found,
                                  batch.results);
      case Op::kAccumulate:
        return store.Accumulate(batch.keys, batch.element, batch.values, batch.results);
    }
    return 0;
  }

  /// What operation i does to a model.
  void ApplyOne(Model& model, std::size_t i) const {
    const std::string at = AsString(key(i));
    const auto item = model.find(at);
    const bool present = item != model.end();
    const Op kind = ops_[i];
    if (kind == Op::kErase && present) model.erase(item);
    if (kind == Op::kAccumulate && present && element() != Element::kNone) {
      Addends addends;
      addends.element = element();
      addends.sum = reinterpret_cast<std::byte*>(item->second.data());
      addends.rows = value(i).data();
      AddRows(ThreadGroup{}, addends, value_size_);
    }
    const bool inserts = kind == Op::kInsert || kind == Op::kFindOrInsert;
    if (kind == Op::kUpsert || (present ? kind == Op::kUpdate : inserts)) {
      model[at] = AsString(value(i));
    }
  }

  /// Applies the operations one by one to the model and compares each result and found value.
  /// @param no_space operations that wrote may also have reported kNoSpace and changed nothing
  void Compare(Model& model, bool no_space = false) const {
    int failures = 0;
    for (std::size_t i = 0; i < size() && failures < 5; ++i) {
      const std::string at = AsString(key(i));
      const auto item = model.find(at);
      const bool present = item != model.end();
      const bool inserts = ops_[i] == Op::kInsert || ops_[i] == Op::kFindOrInsert;
      const bool adds = ops_[i] == Op::kAccumulate;
      Result expected = present != inserts || ops_[i] == Op::kUpsert
                            ? Result::kOk
                            : (present ? Result::kExists : Result::kNotFound);
      if (adds && element() == Element::kNone) expected = Result::kInvalid;
      const std::string* found = nullptr;
      const bool writes = ops_[i] != Op::kFind && ops_[i] != Op::kErase;
      const bool finds = ops_[i] == Op::kFindOrInsert;
      if (no_space && writes && expected == Result::kOk && results_[i] == Result::kNoSpace) {
        expected = Result::kNoSpace;
      } else if (expected == Result::kOk) {
        if (ops_[i] == Op::kFind) found = &item->second;
        ApplyOne(model, i);
      }
      if (finds && (expected == Result::kOk || expected == Result::kExists)) found = &model[at];
      const bool right_value = found == nullptr || AsString(this->found(i)) == *found;
      if (results_[i] != expected || !right_value) ++failures;
      EXPECT_EQ(ResultName(results_[i]), ResultName(expected)) << Where(i);
      EXPECT_TRUE(right_value) << "wrong value, " << Where(i);
    }
  }

  void Clear() {
    ops_.clear();
    keys_.clear();
    values_.clear();
  }

 private:
  static constexpr char kUntouched = '\x5A';
  static constexpr Result kUnset = static_cast<Result>(0xEE);

  std::string Where(std::size_t i) const {
    return "operation " + std::to_string(i) + " of " + std::to_string(size()) + ", " +
           std::string(OpName(ops_[i])) + " of key " + std::to_string(KeyNumber(key(i)));
  }

  std::uint32_t key_size_;
  std::uint32_t value_size_;
  std::vector<Op> ops_;
  std::string keys_;
  std::string values_;
  std::string found_;
  std::vector<Result> results_;
};

/// The store holds exactly the model's items, by ForEach and by Stats.
template <class AnyStore>
void ExpectContents(AnyStore& store, const Model& model) {
  std::uint64_t visited = 0;
  std::uint64_t wrong = 0;
  Model seen;
  store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    ++visited;
    const auto item = model.find(AsString(key));
    if (item == model.end() || item->second != AsString(value)) ++wrong;
    seen.emplace(AsString(key), std::string());
  });
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(visited, model.size());
  EXPECT_EQ(seen.size(), visited) << "a key was visited twice";
  const StoreStats stats = store.Stats();
  EXPECT_EQ(stats.items, model.size());
  EXPECT_DOUBLE_EQ(stats.load_factor,
                   static_cast<double>(stats.items) / static_cast<double>(stats.capacity_slots));
}

/// A closed pool passes the offline check with exactly this many items, and nothing left to do for
/// recovery.
inline void ExpectSound(const std::string& path, std::uint64_t items) {
  const CheckReport report = CheckPool(path);
  for (const std::string& defect : report.defects) ADD_FAILURE() << defect;
  EXPECT_EQ(report.items, items);
  EXPECT_EQ(report.insert_slots, 0u);
  EXPECT_EQ(report.duplicates, 0u);
  EXPECT_FALSE(report.resizing);
  EXPECT_TRUE(report.clean);
}

/// A store next to its model.
class ModelledStore {
 public:
  ModelledStore(std::string path, const CreateOptions& create, const OpenOptions& open)
      : path_(std::move(path)), open_(open), store_(Store::Create(path_, create, open)) {}

  Store& store() { return store_; }
  Model& model() { return model_; }
  const std::string& path() const { return path_; }
  TestBatch NewBatch() const { return TestBatch(store_.key_size(), store_.value_size()); }

  /// Applies a mixed batch and compares.
  void Apply(TestBatch& batch, bool no_space = false) {
    store_.Apply(batch.Mixed());
    batch.Compare(model_, no_space);
  }
  /// Applies one kind to a list of keys; the value for key number k is the one tagged k + tag.
  void Apply(Op kind, const std::vector<std::uint64_t>& key_numbers, std::uint64_t tag = 0) {
    TestBatch batch = NewBatch();
    for (const std::uint64_t number : key_numbers) batch.Add(kind, number, number + tag);
    batch.ApplySingle(store_, kind);
    batch.Compare(model_);
  }

  void ExpectContents() { test::ExpectContents(store_, model_); }

  /// Closes, checks the pool offline, opens again and compares the contents.
  void Reopen() { Reopen(open_); }
  void Reopen(const OpenOptions& open) {
    store_.Close();
    ExpectSound(path_, model_.size());
    store_ = Store::Open(path_, open);
    EXPECT_TRUE(store_.Stats().recovery.was_clean);
    ExpectContents();
  }

 private:
  std::string path_;
  OpenOptions open_;
  Store store_;
  Model model_;
};

inline CreateOptions Shape(std::uint32_t key_size, std::uint32_t value_size,
                           std::uint64_t initial_capacity = 0) {
  CreateOptions create;
  create.key_size = key_size;
  create.value_size = value_size;
  create.initial_capacity = initial_capacity;
  return create;
}

/// first, first + 1, ... (count numbers).
inline std::vector<std::uint64_t> Numbers(std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> numbers(count);
  for (std::uint64_t i = 0; i < count; ++i) numbers[i] = first + i;
  return numbers;
}

}  // namespace gpm::test

#endif  // GPM_TESTS_TEST_UTIL_H_
