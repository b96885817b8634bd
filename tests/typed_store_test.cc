#include "gpmstore/typed_store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "tests/test_util.h"

namespace gpm::test {
namespace {

struct Point {
  float x, y, z;
  friend bool operator==(const Point&, const Point&) = default;
};
using Name = std::array<char, 32>;
using Points = TypedStore<Name, Point>;
using Numbers64 = TypedStore<std::uint64_t, std::uint64_t>;

Name NameOf(const std::string& text) {
  Name name{};
  text.copy(name.data(), name.size());
  return name;
}

class TypedStoreTest : public PoolTest {};

TEST_F(TypedStoreTest, CallsCountWhatWasNotOk) {
  Numbers64 store = Numbers64::Create(NewPath(), {}, TestOpenOptions());
  std::vector<std::uint64_t> keys(1003), values(1003), found(1003);
  for (std::uint64_t i = 0; i < keys.size(); ++i) {
    keys[i] = i;
    values[i] = 10 * i;
  }
  const std::span<const std::uint64_t> some = std::span(keys).first(401);
  EXPECT_EQ(store.Insert(some, std::span(values).first(401)), 0u);
  EXPECT_EQ(store.Insert(keys, values), 401u);
  EXPECT_EQ(store.Find(keys, found), 0u);
  EXPECT_EQ(found, values);
  EXPECT_EQ(store.Erase(some), 0u);
  EXPECT_EQ(store.Erase(some), 401u);
  std::vector<Result> results(keys.size());
  EXPECT_EQ(store.Find(keys, found, results), 401u);
  EXPECT_EQ(
      static_cast<std::uint64_t>(std::count(results.begin(), results.end(), Result::kNotFound)),
      401u);
  EXPECT_EQ(store.Update(keys, values), 401u);
  EXPECT_EQ(store.Upsert(keys, values), 0u);
  EXPECT_EQ(store.BulkLoad(keys, values), 1003u);
  EXPECT_EQ(store.store().Apply({.op = Op::kErase, .keys = {}, .results = {}}), 0u);
}

TEST_F(TypedStoreTest, FindOrInsertAndAccumulate) {
  using Row = std::array<float, 2>;
  auto store = TypedStore<std::uint64_t, Row>::Create(NewPath(), {}, TestOpenOptions());
  const std::vector<std::uint64_t> keys = {1, 2, 1};
  std::vector<Row> found(3);
  std::vector<Result> results(3);
  EXPECT_EQ(store.FindOrInsert(keys, {1, 2}, found, results), 1u);
  EXPECT_EQ(found, std::vector<Row>(3, Row{1, 2}));
  EXPECT_EQ(store.Accumulate(keys, found, results), 0u);
  EXPECT_EQ(store.Get(1), (Row{3, 6}));
  EXPECT_EQ(store.Get(2), (Row{2, 4}));

  Points points = Points::Create(NewPath(), {}, TestOpenOptions());
  const std::vector<Name> names = {NameOf("a")};
  const std::vector<Point> rows = {{1, 2, 3}};
  EXPECT_EQ(points.FindOrInsert(names, {4, 5, 6}, {}, std::span(results).first(1)), 0u);
  EXPECT_EQ(points.Accumulate<Element::kFloat32>(names, rows, std::span(results).first(1)), 0u);
  EXPECT_EQ(points.Get(names[0]), (Point{5, 7, 9}));
}

TEST_F(TypedStoreTest, SingleItemsOfOwnTypes) {
  const std::string path = NewPath();
  Points store = Points::OpenOrCreate(path, {}, TestOpenOptions());
  EXPECT_EQ(store.store().key_size(), 32u);
  EXPECT_EQ(store.store().value_size(), 12u);
  EXPECT_EQ(store.Get(NameOf("a")), std::nullopt);
  EXPECT_EQ(store.Put(NameOf("a"), {1, 2, 3}), Result::kOk);
  EXPECT_EQ(store.Put(NameOf("b"), {4, 5, 6}), Result::kOk);
  EXPECT_EQ(store.Put(NameOf("a"), {7, 8, 9}), Result::kOk);
  EXPECT_EQ(store.Get(NameOf("a")), (Point{7, 8, 9}));
  EXPECT_TRUE(store.Delete(NameOf("b")));
  EXPECT_FALSE(store.Delete(NameOf("b")));
  store.Close();
  EXPECT_FALSE(store);
  store = Points::OpenOrCreate(path, {}, TestOpenOptions());
  EXPECT_TRUE(store);
  EXPECT_EQ(store.Get(NameOf("a")), (Point{7, 8, 9}));
  EXPECT_EQ(store.Stats().items, 1u);
}

/// A block of a model's cache: a digest, a layer.
struct BlockName {
  std::array<std::uint8_t, 32> digest;
  std::uint32_t layer;
};

template <class Key>
class TypedKeyTest : public PoolTest {};
using KeyTypes = ::testing::Types<std::array<std::uint8_t, 1>, std::array<char, 7>, BlockName,
                                  std::array<char, 255>>;
TYPED_TEST_SUITE(TypedKeyTest, KeyTypes);

TYPED_TEST(TypedKeyTest, KeysOfAnySize) {
  using Blocks = TypedStore<TypeParam, std::uint64_t>;
  const std::string path = this->NewPath();
  std::vector<TypeParam> keys(200);
  std::vector<std::uint64_t> values(200), found(200);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    values[i] = i + 1;
    // They differ in their last byte alone.
    reinterpret_cast<unsigned char*>(&keys[i])[sizeof(TypeParam) - 1] =
        static_cast<unsigned char>(i);
  }
  Blocks store = Blocks::Create(path, {}, TestOpenOptions());
  EXPECT_EQ(store.store().key_size(), sizeof(TypeParam));
  EXPECT_EQ(store.Insert(std::span<const TypeParam>(keys).first(100),
                         std::span<const std::uint64_t>(values).first(100)),
            0u);
  EXPECT_EQ(store.Find(keys, found), 100u);
  EXPECT_TRUE(std::equal(found.begin(), found.begin() + 100, values.begin()));
  EXPECT_EQ(store.Put(keys[150], 7), Result::kOk);
  EXPECT_EQ(store.Get(keys[150]), 7u);
  EXPECT_EQ(store.Get(keys[151]), std::nullopt);
  EXPECT_TRUE(store.Delete(keys[150]));
  store.Close();
  store = Blocks::Open(path, TestOpenOptions());
  std::uint64_t items = 0;
  store.ForEach([&](const TypeParam& key, const std::uint64_t& value) {
    ++items;
    EXPECT_EQ(std::memcmp(&key, &keys.at(value - 1), sizeof key), 0);
  });
  EXPECT_EQ(items, 100u);
}

TEST_F(TypedStoreTest, PoolsOfOtherSizesAreRefused) {
  const std::string path = NewPath();
  Points::Create(path, {}, TestOpenOptions()).Close();
  for (int attempt = 0; attempt < 2; ++attempt) {  // the first leaves no lock
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Numbers64::Open(path, TestOpenOptions()); }, &message),
              ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find("keys of 32 bytes and values of 12, not of 8 and 8"), std::string::npos)
        << message;
    EXPECT_EQ(ErrorOf([&] { Numbers64::OpenOrCreate(path, {}, TestOpenOptions()); }, &message),
              ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find("keys of 32 bytes and values of 12, not of 8 and 8"), std::string::npos)
        << message;
  }
  EXPECT_TRUE(Points::Open(path, TestOpenOptions()));
}

TEST_F(TypedStoreTest, AVisitorCanStop) {
  Numbers64 store = Numbers64::Create(NewPath(), {}, TestOpenOptions());
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(store.Put(i, i + 1000), Result::kOk);
  int visits = 0;
  EXPECT_FALSE(store.ForEach([&](std::uint64_t, std::uint64_t) { return ++visits < 7; }));
  EXPECT_EQ(visits, 7);
  visits = 0;
  EXPECT_FALSE(store.store().ForEach([&](auto, auto) { return ++visits < 7; }));
  EXPECT_EQ(visits, 7);
  std::map<std::uint64_t, std::uint64_t> seen;
  EXPECT_TRUE(store.ForEach([&](std::uint64_t key, std::uint64_t value) { seen[key] = value; }));
  EXPECT_EQ(seen.size(), 100u);
  for (const auto& [key, value] : seen) EXPECT_EQ(value, key + 1000);
}

TEST_F(TypedStoreTest, AnEmptyStoreSaysSo) {
  const auto expect_empty = [](Store& store) {
    EXPECT_FALSE(store);
    EXPECT_EQ(ErrorOf([&] { store.Stats(); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { store.key_size(); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { store.Apply({}); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { store.Reserve(1); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { store.ForEach([](auto, auto) {}); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { store.ForEach([](auto, auto) { return true; }); }),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { store.Delete({}); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { (void)store.ApplyAsync({}); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { store.Close(); }), std::nullopt);
  };
  Store store;
  expect_empty(store);
  Store opened = Store::Create(NewPath(), {}, TestOpenOptions());
  EXPECT_TRUE(opened);
  store = std::move(opened);
  EXPECT_TRUE(store);
  expect_empty(opened);  // moved from
  store.Close();
  expect_empty(store);
}

TEST_F(TypedStoreTest, OpenOrCreateWaitsForAFileThatIsBeingCreated) {
  const std::string path = NewPath();
  std::ofstream(path).close();
  std::jthread creator([&] {  // that found it locked, and gives up
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::filesystem::remove(path);
  });
  EXPECT_TRUE(Store::OpenOrCreate(path, {}, TestOpenOptions()));
  creator.join();

  const std::string empty = NewPath();  // that stays
  std::ofstream(empty).close();
  EXPECT_EQ(ErrorOf([&] { Store::OpenOrCreate(empty, {}, TestOpenOptions()); }),
            ErrorCode::kDamaged);
  EXPECT_EQ(std::filesystem::file_size(empty), 0u);
  EXPECT_TRUE(Store::OpenOrCreate("pinned:", {}, TestOpenOptions()));
}

TEST_F(TypedStoreTest, OfProcessesThatOpenOrCreateAtOnceOneHasThePool) {
  if (TestExecutor() != ExecutorKind::kCpu) GTEST_SKIP() << "forks, which CUDA does not survive";
  constexpr int kProcesses = 4;
  constexpr int kGotIt = 10, kBusy = 11, kOther = 12;
  for (int round = 0; round < 25; ++round) {
    const std::string path = NewPath();
    int told[2], done[2];
    ASSERT_EQ(pipe(told), 0);
    ASSERT_EQ(pipe(done), 0);
    std::vector<pid_t> children;
    for (int i = 0; i < kProcesses; ++i) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        close(done[1]);
        Store store;
        const std::optional<ErrorCode> error = ErrorOf([&] {
          store = Store::OpenOrCreate(path, {}, {.executor = ExecutorKind::kCpu, .threads = 1});
        });
        const int outcome = !error ? kGotIt : *error == ErrorCode::kBusy ? kBusy : kOther;
        char byte = 0;
        if (write(told[1], &byte, 1) != 1) _exit(kOther);
        if (read(done[0], &byte, 1) != 0) _exit(kOther);  // until all have an answer
        store.Close();
        _exit(outcome);
      }
      children.push_back(child);
    }
    char bytes[kProcesses];
    for (int heard = 0; heard < kProcesses;) {
      const ssize_t more = read(told[0], bytes, sizeof bytes);
      ASSERT_GT(more, 0);
      heard += static_cast<int>(more);
    }
    for (const int end : {done[0], done[1], told[0], told[1]}) close(end);
    std::map<int, int> outcomes;
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFEXITED(status)) << status;
      ++outcomes[WEXITSTATUS(status)];
    }
    EXPECT_EQ(outcomes[kGotIt], 1) << "round " << round;
    EXPECT_EQ(outcomes[kBusy], kProcesses - 1) << "round " << round;
    EXPECT_TRUE(Store::Open(path, TestOpenOptions())) << "round " << round;
  }
}

TEST_F(TypedStoreTest, GetNeedsRoomForTheValue) {
  Store store = Store::Create(NewPath(), Shape(8, 16), TestOpenOptions());
  const std::uint64_t key = 1;
  std::vector<std::byte> value(16);
  EXPECT_EQ(store.Put(std::as_bytes(std::span(&key, 1)), value), Result::kOk);
  for (const std::size_t wrong : {0, 15, 17}) {
    value.resize(wrong);
    EXPECT_EQ(ErrorOf([&] { EXPECT_FALSE(store.Get(std::as_bytes(std::span(&key, 1)), value)); }),
              ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace gpm::test
