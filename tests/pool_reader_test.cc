#include "gpmstore/pool_reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "pm/pool.h"
#include "tests/files.h"
#include "tests/levels.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

class PoolReaderTest : public PoolTest {
 protected:
  static constexpr std::uint64_t kItems = 600;
  static constexpr std::uint32_t kValueSize = 20;

  std::vector<std::uint64_t> Keys() const {
    std::vector<std::uint64_t> keys = Numbers(0, kItems - 1);
    keys.push_back(kAllOnes);
    return keys;
  }
  std::string MakePool(std::uint32_t key_size) {
    const std::string path = NewPath();
    Store store = Store::Create(path, Shape(key_size, kValueSize), TestOpenOptions());
    TestBatch batch(key_size, kValueSize);
    for (const std::uint64_t key : Keys()) batch.Add(Op::kInsert, key, key + 1);
    EXPECT_EQ(store.Apply(batch.Mixed()), 0u);
    return path;
  }
  static bool Get(const PoolReader& pool, std::uint64_t key, std::optional<std::uint64_t>* tag) {
    const std::string bytes = MakeKey(key, pool.key_size());
    Bytes value(pool.value_size());
    const bool found = pool.Get(std::as_bytes(std::span(bytes)), value);
    if (found) *tag = ValueTag(value);
    return found;
  }
  static void ExpectItems(const PoolReader& pool) {
    for (std::uint64_t key = 0; key < 2 * kItems; ++key) {
      std::optional<std::uint64_t> tag;
      ASSERT_EQ(Get(pool, key, &tag), key < kItems - 1) << key;
      ASSERT_EQ(tag.value_or(key + 1), key + 1);
    }
    std::optional<std::uint64_t> tag;
    EXPECT_TRUE(Get(pool, kAllOnes, &tag));
    std::map<std::uint64_t, std::uint64_t> seen;
    EXPECT_TRUE(pool.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      EXPECT_TRUE(seen.emplace(KeyNumber(key), ValueTag(value).value_or(0)).second);
    }));
    EXPECT_EQ(seen.size(), kItems);
    int visits = 0;
    EXPECT_FALSE(pool.ForEach([&](auto, auto) { return ++visits < 5; }));
    EXPECT_EQ(visits, 5);
    EXPECT_EQ(pool.Stats().items, kItems);
  }
};

TEST_F(PoolReaderTest, ReadsPoolsThatWereClosedInOrderOrNot) {
  for (const std::uint32_t key_size : {8u, 32u, 36u}) {
    SCOPED_TRACE(key_size);
    const std::string path = MakePool(key_size);
    {
      const PoolReader pool(path);
      EXPECT_EQ(pool.key_size(), key_size);
      EXPECT_EQ(pool.value_size(), kValueSize);
      EXPECT_TRUE(pool.Stats().recovery.was_clean);
      ExpectItems(pool);
    }
    {  // a resize was under way: items of the oldest level are in none that is addressed
      const auto pool = Pool::Open(path, {});
      pool->SetClean(false);
      test::AddLevel(*pool);
    }
    const std::string before = ReadFile(path);
    {
      const PoolReader pool(path);
      EXPECT_FALSE(pool.Stats().recovery.was_clean);
      ExpectItems(pool);
    }
    EXPECT_TRUE(ReadFile(path) == before);
    Store store = Store::Open(path, TestOpenOptions());
    EXPECT_TRUE(store.Stats().recovery.resize_continued);
    EXPECT_EQ(store.Stats().items, kItems);
  }
}

TEST_F(PoolReaderTest, NeedsNoPermissionToWrite) {
  const std::string path = MakePool(8);
  const std::string directory = path.substr(0, path.rfind('/'));
  ASSERT_EQ(chmod(path.c_str(), 0444), 0);
  ASSERT_EQ(chmod(directory.c_str(), 0555), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(2);
    if (ErrorOf([&] { Store::Open(path, TestOpenOptions()); }) != ErrorCode::kIo) _exit(3);
    std::optional<std::uint64_t> tag;
    const auto error = ErrorOf([&] { Get(PoolReader(path), 7, &tag); });
    _exit(!error && tag == 8u ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(chmod(directory.c_str(), 0755), 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(PoolReaderTest, Refuses) {
  const std::string path = MakePool(8);
  EXPECT_EQ(ErrorOf([&] { PoolReader{NewPath()}; }), ErrorCode::kNotFound);
  const std::string other = NewPath();
  std::ofstream(other) << "something else";
  EXPECT_EQ(ErrorOf([&] { PoolReader{other}; }), ErrorCode::kDamaged);
  {
    const Store store = Store::Open(path, TestOpenOptions());
    EXPECT_EQ(ErrorOf([&] { PoolReader{path}; }), ErrorCode::kBusy);
  }
  const PoolReader first(path), second(path);
  EXPECT_EQ(ErrorOf([&] { Store::Open(path, TestOpenOptions()); }), ErrorCode::kBusy);
  Bytes key(8), value(kValueSize), longer(32);
  EXPECT_TRUE(first.Get(key, value));
  EXPECT_EQ(ErrorOf([&] { (void)first.Get(longer, value); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { (void)first.Get(key, longer); }), ErrorCode::kInvalidArgument);
  const std::span<const std::byte> no_key(static_cast<const std::byte*>(nullptr), key.size());
  const std::span<std::byte> no_value(static_cast<std::byte*>(nullptr), value.size());
  EXPECT_EQ(ErrorOf([&] { (void)first.Get(no_key, value); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { (void)first.Get(key, no_value); }), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace gpm::test
