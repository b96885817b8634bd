#include "pm/upgrade.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "pm/crc32c.h"
#include "pm/pool.h"
#include "recovery/check.h"
#include "tests/levels.h"
#include "tests/test_util.h"

/// Pools of format version 1, made from those of this version, which differ in the superblock
/// alone.
namespace gpm {
namespace {

using test::ErrorOf;

/// Offsets and sizes in a superblock of version 1, as docs/FORMAT.md has them.
constexpr std::size_t kBottom = 72, kTop = 76, kSegmentCount = 80, kLevelOffset = 88,
                      kSegments = 408;

/// A superblock copy of version 1. REQUIRES: its levels have 2^i buckets
std::string Copy1(const Superblock& superblock) {
  std::string copy(kSuperblockBytes, '\0');
  std::memcpy(copy.data(), &superblock, kBottom);
  const auto put = [&](std::size_t at, auto number) {
    std::memcpy(&copy[at], &number, sizeof number);
  };
  put(offsetof(Superblock, version), std::uint32_t{1});
  const auto level_of = [&](std::uint32_t i) {
    return static_cast<std::uint32_t>(std::countr_zero(superblock.levels[i].buckets));
  };
  put(kBottom, level_of(superblock.level_count - 1));
  put(kTop, level_of(0));
  for (std::uint32_t i = 0; i < superblock.level_count; ++i) {
    put(kLevelOffset + 8 * level_of(i), superblock.levels[i].offset);
  }
  put(kSegmentCount, superblock.segment_count);
  std::memcpy(&copy[kSegments], superblock.segments, sizeof superblock.segments);
  put(offsetof(Superblock, crc), std::uint32_t{0});
  put(offsetof(Superblock, crc), Crc32c(copy.data(), copy.size()));
  return copy;
}

class UpgradeTest : public test::PoolTest {
 protected:
  static constexpr std::uint64_t kItems = 700;

  void SetUp() override {
    PoolTest::SetUp();
    if (IsSkipped()) return;
    path_ = NewPath();
  }

  std::string Read() {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  /// The pool's bytes, as a build of version 1 would have left them.
  /// @param resizing amid a resize
  std::string MakePool1(bool resizing) {
    {
      CreateOptions create;
      create.value_size = 24;
      OpenOptions open = test::TestOpenOptions();
      open.growth = 2;  // version 1 knew levels of a power of two of buckets alone
      test::ModelledStore store(path_, create, open);
      store.Apply(Op::kInsert, test::Numbers(0, kItems));
      store.store().Close();
      model_ = store.model();
    }
    if (resizing) {
      const auto pool = Pool::Open(path_, {});
      pool->SetClean(false);
      test::AddLevel(*pool);
    }
    std::string bytes = Read();
    for (const std::size_t at : {std::size_t{0}, std::size_t{kSuperblockBytes}}) {
      Superblock superblock;
      std::memcpy(&superblock, &bytes[at], sizeof superblock);
      if (superblock.magic == kPoolMagic) bytes.replace(at, kSuperblockBytes, Copy1(superblock));
    }
    return bytes;
  }
  void ExpectItems() {
    EXPECT_TRUE(CheckPool(path_).defects.empty());
    Store store = Store::Open(path_, test::TestOpenOptions());
    test::ExpectContents(store, model_);
    store.Close();
  }

  std::string path_;
  test::Model model_;
};

TEST_F(UpgradeTest, KeepsEveryItemInWhateverState) {
  for (const bool resizing : {false, true}) {
    SCOPED_TRACE(resizing);
    Write(MakePool1(resizing));
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Pool::Open(path_, {}); }, &message), ErrorCode::kDamaged);
    EXPECT_NE(message.find("gpmstore upgrade"), std::string::npos) << message;
    EXPECT_TRUE(UpgradePool(path_));
    const std::string upgraded = Read();
    for (const std::size_t at : {std::size_t{0}, std::size_t{kSuperblockBytes}}) {
      std::uint32_t version = 0;
      std::memcpy(&version, &upgraded[at + offsetof(Superblock, version)], sizeof version);
      EXPECT_EQ(version, kPoolVersion) << "else a build of version 1 opens it as it was";
    }
    EXPECT_FALSE(UpgradePool(path_));
    EXPECT_TRUE(Read() == upgraded);
    EXPECT_EQ(CheckPool(path_).resizing, resizing);
    ExpectItems();
    std::filesystem::remove(path_);
  }
}

TEST_F(UpgradeTest, ACrashInTheMiddleIsMadeUpFor) {
  const std::string before = MakePool1(true);
  Write(before);
  ASSERT_TRUE(UpgradePool(path_));
  const std::string after = Read();
  // The copy that is written first is the one that was not in force: with the lower number.
  const auto sequence = [&](int copy) {
    std::uint64_t number = 0;
    std::memcpy(&number, &before[copy * kSuperblockBytes + offsetof(Superblock, sequence)], 8);
    return number;
  };
  const std::size_t first = (sequence(0) < sequence(1) ? 0 : 1) * kSuperblockBytes;
  const std::size_t second = kSuperblockBytes - first;
  std::mt19937_64 random(test::TestSeed());
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    // All words of the copies written before, and any of the one that was being written.
    std::string torn = before;
    const std::size_t being_written = round % 2 == 0 ? first : second;
    if (being_written == second)
      torn.replace(first, kSuperblockBytes, after, first, kSuperblockBytes);
    const std::uint64_t one_in = 1 + random() % 40;
    for (std::size_t at = being_written; at < being_written + kSuperblockBytes; at += 8) {
      if (random() % one_in == 0) torn.replace(at, 8, after, at, 8);
    }
    Write(torn);
    const bool done = torn == after;
    EXPECT_TRUE(UpgradePool(path_) || done || being_written == second);
    EXPECT_FALSE(UpgradePool(path_));
    ExpectItems();
  }
}

TEST_F(UpgradeTest, RefusesWhatItCantConvert) {
  std::string message;
  EXPECT_EQ(ErrorOf([&] { UpgradePool(path_); }), ErrorCode::kNotFound);
  const std::string good = MakePool1(false);
  const auto refused = [&](const std::string& bytes, const std::string& why) {
    Write(bytes);
    EXPECT_EQ(ErrorOf([&] { UpgradePool(path_); }, &message), ErrorCode::kDamaged) << why;
    EXPECT_NE(message.find(why), std::string::npos) << message;
    EXPECT_TRUE(Read() == bytes);
  };
  const auto with = [&](std::size_t at, std::uint32_t number) {
    std::string bytes = good;
    for (const std::size_t copy : {std::size_t{0}, std::size_t{kSuperblockBytes}}) {
      std::memcpy(&bytes[copy + at], &number, sizeof number);
      std::memset(&bytes[copy + offsetof(Superblock, crc)], 0, 4);
      const std::uint32_t crc = Crc32c(&bytes[copy], kSuperblockBytes);
      std::memcpy(&bytes[copy + offsetof(Superblock, crc)], &crc, 4);
    }
    return bytes;
  };
  refused("", "too short");
  refused(std::string(10'000, 'x'), "not a GPMStore");
  std::string torn = good;
  torn[100] ^= 1;
  torn[kSuperblockBytes + 100] ^= 1;
  refused(torn, "damaged pool");
  refused(with(kTop, 40), "levels");
  refused(with(kBottom, 30), "levels");
  refused(with(kSegmentCount, 201), "201 value segments");
  refused(good.substr(0, 2 * kSuperblockBytes + 4096), "truncated");
  refused(with(offsetof(Superblock, key_size), 256), "key size 256");
  Write(with(kTop, 39));
  EXPECT_EQ(ErrorOf([&] { UpgradePool(path_); }), ErrorCode::kUnsupported);
  Write(good);
  {
    const Mapping held(path_, Mapping::Options{});
    EXPECT_EQ(ErrorOf([&] { UpgradePool(path_); }), ErrorCode::kBusy);
  }
  EXPECT_TRUE(UpgradePool(path_));
  ExpectItems();
}

}  // namespace
}  // namespace gpm
