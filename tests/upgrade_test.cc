#include "pm/upgrade.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>

#include "pm/pool.h"
#include "recovery/check.h"
#include "tests/file_size_limit.h"
#include "tests/files.h"
#include "tests/levels.h"
#include "tests/old_pools.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::ErrorOf;

enum class State { kClosed, kCrashed, kResizing };

struct OldShape {
  std::uint32_t version;
  std::uint32_t key_size;
  std::uint32_t value_size;
  Geometry geometry;
  State state;
  double growth = 2;
  std::uint64_t items = 700;
};

class UpgradeTest : public test::PoolTest {
 protected:
  static constexpr OldShape kCells{2, 8, 24, {2, 2, 8}, State::kCrashed};

  void SetUp() override {
    PoolTest::SetUp();
    if (IsSkipped()) return;
    path_ = NewPath();
  }

  std::string Read() const { return test::ReadFile(path_); }
  void Write(const std::string& bytes) const { test::WriteFile(path_, bytes); }
  std::string Copy() const { return path_ + ".gpmstore-upgrade"; }
  std::string Directory() const { return std::filesystem::path(path_).parent_path(); }
  std::ptrdiff_t Files() const {
    return std::distance(std::filesystem::directory_iterator(Directory()), {});
  }

  /// The bytes of a pool of this version; the pool is removed.
  std::string MakePool(const OldShape& shape) {
    const CreateOptions create{
        .key_size = shape.key_size, .value_size = shape.value_size, .geometry = shape.geometry};
    OpenOptions open = test::TestOpenOptions();
    open.growth = shape.growth;
    std::string bytes;
    {
      test::ModelledStore store(path_, create, open);
      std::vector<std::uint64_t> numbers = test::Numbers(0, shape.items);
      numbers.push_back(test::kAllOnes);
      store.Apply(Op::kInsert, numbers);
      store.Apply(Op::kUpdate, test::Numbers(100, 100), 5000);
      store.Apply(Op::kErase, test::Numbers(1, 60));
      if (shape.state == State::kCrashed) bytes = Read();
      store.store().Close();
      model_ = store.model();
    }
    if (shape.state == State::kResizing) {
      const auto pool = Pool::Open(path_, {});
      pool->SetClean(false);
      if (shape.growth == 2) {
        test::AddLevel(*pool);
      } else {
        pool->AddLevel(pool->superblock().levels[0].buckets / 4 * 4 + 12);
      }
    }
    if (bytes.empty()) bytes = Read();
    std::filesystem::remove(path_);
    return bytes;
  }
  std::string MakeOldPool(const OldShape& shape) {
    return test::OldPool(MakePool(shape), shape.version, random_);
  }

  /// A pool with a number in both superblock copies, and right checksums.
  static std::string WithNumber(std::string pool, std::size_t at, std::uint32_t number) {
    for (const std::size_t begin : {std::size_t{0}, std::size_t{kSuperblockBytes}}) {
      std::string copy = pool.substr(begin, kSuperblockBytes);
      test::Put(&copy, at, number);
      test::PutCrc(&copy);
      pool.replace(begin, kSuperblockBytes, copy);
    }
    return pool;
  }

  /// Of the pool, which is of this version.
  void ExpectItems() {
    const CheckReport report = CheckPool(path_);
    EXPECT_TRUE(report.defects.empty()) << report.defects.front();
    EXPECT_EQ(report.items, model_.size());
    EXPECT_EQ(report.insert_slots, 0u);
    Store store = Store::Open(path_, test::TestOpenOptions());
    test::ExpectContents(store, model_);
    test::TestBatch finds(store.key_size(), store.value_size());
    for (const auto& [key, value] : model_) finds.Add(Op::kFind, key, value);
    finds.ApplySingle(store, Op::kFind);
    finds.Compare(model_);
    store.Close();
  }
  /// Every slot without item has both words 0, and no other byte differs but in superblocks.
  void ExpectBuckets(const std::string& upgraded, const std::string& before) {
    std::string wanted = before;
    const Superblock superblock = test::InForce(before);
    test::ForEachBucket(superblock, [&](std::size_t at) {
      for (std::uint32_t s = 0; s < superblock.geometry.slots; ++s) {
        std::uint64_t state;
        std::memcpy(&state, &wanted[at + 16 * s], sizeof state);
        if (state == kEmptyState || state == kInsertState) {
          std::fill_n(&wanted[at + 16 * s], 16, '\0');
        }
      }
    });
    const auto same = [&](std::size_t offset, std::size_t bytes) {
      return upgraded.compare(offset, bytes, wanted, offset, bytes) == 0;
    };
    for (const Extent& extent : UsedExtents(superblock)) {
      const std::size_t from = std::max<std::size_t>(extent.offset, kReservedOffset);
      EXPECT_TRUE(same(from, extent.end() - from)) << extent.offset;
    }
    Superblock now = test::InForce(upgraded);
    EXPECT_EQ(now.sequence, superblock.sequence + 1);
    now.sequence = superblock.sequence;
    now.crc = superblock.crc;
    EXPECT_EQ(std::memcmp(&now, &superblock, sizeof now), 0);
  }
  /// The upgrade is refused, and changes nothing.
  void ExpectRefused(ErrorCode code, const std::string& why) {
    const std::string before = Read();
    const std::ptrdiff_t files = Files();
    std::string message;
    EXPECT_EQ(ErrorOf([&] { UpgradePool(path_); }, &message), code) << why;
    EXPECT_NE(message.find(why), std::string::npos) << message;
    EXPECT_NE(message.find(path_), std::string::npos) << message;
    EXPECT_TRUE(Read() == before);
    EXPECT_EQ(Files(), files);
  }

  std::string path_;
  test::Model model_;
  std::mt19937_64 random_{test::TestSeed()};
};

TEST_F(UpgradeTest, KeepsEveryItemInWhateverState) {
  std::vector<OldShape> shapes;
  for (const State state : {State::kClosed, State::kCrashed, State::kResizing}) {
    for (const std::uint32_t version : {1u, 2u}) {
      for (const std::uint32_t key_size : {8u, 32u}) {
        for (const std::uint32_t value_size : {8u, 3u, 24u, 200u}) {
          shapes.push_back({version, key_size, value_size, {2, 2, 8}, state});
        }
      }
      for (const Geometry geometry : {Geometry{1, 2, 4}, Geometry{4, 2, 4}, Geometry{1, 1, 32},
                                      Geometry{2, 1, 1}, Geometry{8, 1, 4}}) {
        shapes.push_back({version, 8, 24, geometry, state});
        shapes.push_back({version, 16, 8, geometry, state});
      }
    }
    for (const double growth : {1.1, 1.3, 3.5}) {
      shapes.push_back({2, 8, 100, {2, 2, 8}, state, growth});
      shapes.push_back({2, 64, 7, {2, 2, 8}, state, growth});
    }
  }
  for (const OldShape& shape : shapes) {
    SCOPED_TRACE(testing::Message()
                 << "version " << shape.version << ", keys of " << shape.key_size << ", values of "
                 << shape.value_size << ", " << int{shape.geometry.levels} << "L-"
                 << int{shape.geometry.locations} << "H-" << int{shape.geometry.slots}
                 << "S, state " << static_cast<int>(shape.state) << ", growth " << shape.growth);
    const std::string before = MakePool(shape);
    Write(test::OldPool(before, shape.version, random_));
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Pool::Open(path_, {}); }, &message), ErrorCode::kDamaged);
    EXPECT_NE(message.find("gpmstore upgrade"), std::string::npos) << message;
    EXPECT_TRUE(UpgradePool(path_));
    const std::string upgraded = Read();
    ExpectBuckets(upgraded, before);
    EXPECT_FALSE(UpgradePool(path_));
    EXPECT_TRUE(Read() == upgraded);
    EXPECT_EQ(Files(), 1);
    EXPECT_EQ(CheckPool(path_).clean, shape.state == State::kClosed);
    EXPECT_TRUE(CheckPool(path_).resizing || shape.state != State::kResizing);
    ExpectItems();
    if (HasFailure()) return;
    std::filesystem::remove(path_);
  }
}

TEST_F(UpgradeTest, AfterAnInterruptedUpgradeFrom1To2) {
  OldShape shape = kCells;
  const std::string before = MakePool(shape);
  const std::string first = test::OldPool(before, 1, random_);
  // Of version 2 is the copy that was not in force: whole, or torn.
  Superblock second = test::InForce(before);
  const bool a_in_force = std::memcmp(&second, before.data(), sizeof second) == 0;
  const std::size_t at = a_in_force ? kSuperblockBytes : 0;
  ++second.sequence;
  const std::string copy = test::OldCopy(second, 2);
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    std::string torn = first;
    for (std::size_t i = 0; i < kSuperblockBytes; i += 8) {
      if (round == 0 || random_() % 40 >= static_cast<unsigned>(round)) {
        torn.replace(at + i, 8, copy, i, 8);
      }
    }
    Write(torn);
    EXPECT_TRUE(UpgradePool(path_));
    ExpectItems();
  }
}

TEST_F(UpgradeTest, RefusesDamagedPools) {
  EXPECT_EQ(ErrorOf([&] { UpgradePool(path_); }), ErrorCode::kNotFound);
  EXPECT_EQ(ErrorOf([&] { UpgradePool("pinned:"); }), ErrorCode::kInvalidArgument);
  const auto refused = [&](const std::string& bytes, const std::string& why) {
    Write(bytes);
    ExpectRefused(ErrorCode::kDamaged, why);
  };
  refused("", "too short");
  refused(std::string(10'000, 'x'), "not a GPMStore");
  OldShape shape = kCells;
  for (const std::uint32_t version : {1u, 2u}) {
    SCOPED_TRACE(version);
    shape.version = version;
    std::filesystem::remove(path_);
    const std::string now = MakePool(shape);
    const std::string good = test::OldPool(now, version, random_);
    const auto with = [&](std::size_t at, std::uint32_t number) {
      return WithNumber(good, at, number);
    };
    std::string torn = good;
    torn[100] ^= 1;
    torn[kSuperblockBytes + 100] ^= 1;
    refused(torn, "checksum mismatch");
    refused(with(offsetof(Superblock, version), 7), "version 7");
    refused(with(offsetof(Superblock, key_size), 12), "key size 12");
    refused(good.substr(0, 2 * kSuperblockBytes + 4096), "truncated");
    if (version == 1) {
      refused(with(test::kTop1, 40), "levels");
      refused(with(test::kBottom1, 30), "levels");
      refused(with(test::kSegmentCount1, 201), "201 value segments");
      Write(with(test::kTop1, 39));
      ExpectRefused(ErrorCode::kUnsupported, "format version 3 has levels");
    } else {
      refused(with(offsetof(Superblock, level_count), 41), "41 levels");
      refused(with(offsetof(Superblock, segment_count), 201), "201 value segments");
    }
    // An item without value would be half an item of this version, which recovery clears.
    const Superblock superblock = test::InForce(now);
    std::string without = good;
    test::ForEachBucket(superblock, [&](std::size_t at) {
      std::uint64_t state;
      std::memcpy(&state, &good[at], sizeof state);
      if (state == kEmptyState || state == kInsertState) return;
      test::Put(&without, at + test::OldReference(superblock, 0), std::uint64_t{0});
    });
    refused(without, "slot 0: the item has no value");
    Write(good);
    EXPECT_TRUE(UpgradePool(path_));
    ExpectItems();
  }
}

TEST_F(UpgradeTest, AnyNumbersInASuperblock) {
  int refused = 0;
  int done = 0;
  for (const std::uint32_t version : {1u, 2u}) {
    OldShape shape = kCells;
    shape.version = version;
    const std::string good = MakeOldPool(shape);
    for (int round = 0; round < 80; ++round) {
      const std::size_t at = 40 + 4 * (random_() % (round % 2 == 0 ? 20 : 1000));
      std::uint32_t number;
      std::memcpy(&number, &good[at], sizeof number);
      const std::uint32_t numbers[] = {
          0, 1, 8, 40, number + 1, number - 1, number + 4096, ~0u, number ^ (1u << random_() % 32)};
      Write(WithNumber(good, at, numbers[random_() % std::size(numbers)]));
      const std::string before = Read();
      SCOPED_TRACE(testing::Message() << "version " << version << ", offset " << at);
      if (ErrorOf([&] { UpgradePool(path_); })) {
        ++refused;
        EXPECT_TRUE(Read() == before);
      } else {
        ++done;
        EXPECT_NO_THROW(CheckPool(path_));
      }
      EXPECT_EQ(Files(), 1);
    }
    std::filesystem::remove(path_);
  }
  EXPECT_GT(refused, 10);
  EXPECT_GT(done, 10);
}

TEST_F(UpgradeTest, WhatFailsLeavesThePoolAsItWas) {
  const std::string good = MakeOldPool(kCells);
  Write(good);
  {
    const Mapping held(path_, Mapping::Options{});
    ExpectRefused(ErrorCode::kBusy, "in use");
  }
  {
    const test::FileSizeLimit limit(64 * 1024);
    ExpectRefused(ErrorCode::kNoSpace, "no upgraded pool, of");
  }
  test::WriteFile(Copy(), "a file of the user's");
  ExpectRefused(ErrorCode::kExists, "no upgrade left it");
  std::string other = good;
  other[offsetof(Superblock, uuid)] ^= 1;
  test::WriteFile(Copy(), other);
  ExpectRefused(ErrorCode::kExists, "no upgrade left it");
  std::filesystem::remove(Copy());
  std::filesystem::create_directory(Copy());
  ExpectRefused(ErrorCode::kInvalidArgument, "is a directory");
  std::filesystem::remove(Copy());
  const std::string short_path = path_;
  path_ = Directory() + "/" + std::string(250, 'p');
  std::filesystem::rename(short_path, path_);
  ExpectRefused(ErrorCode::kIo, "File name too long");
  std::filesystem::rename(path_, short_path);
  path_ = short_path;
  EXPECT_TRUE(UpgradePool(path_));
  ExpectItems();
}

/// In a child, as a user other than root. @return the error's code, if there is one
int UpgradeAsNobody(const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(100);
    const auto code = ErrorOf([&] { UpgradePool(path); });
    _exit(code ? static_cast<int>(*code) : 101);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 102;
}

TEST_F(UpgradeTest, OfAPoolInADirectoryThatIsNotTheCallers) {
  const std::string good = MakeOldPool(kCells);
  Write(good);
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  ASSERT_EQ(chmod(Directory().c_str(), 0555), 0);
  EXPECT_EQ(UpgradeAsNobody(path_), static_cast<int>(ErrorCode::kIo));
  EXPECT_EQ(Files(), 1);
  ASSERT_EQ(chmod(Directory().c_str(), 0777), 0);
  if (geteuid() == 0) {  // the pool is not nobody's, and would be
    EXPECT_EQ(UpgradeAsNobody(path_), static_cast<int>(ErrorCode::kIo));
    EXPECT_EQ(Files(), 1);
  }
  EXPECT_TRUE(Read() == good);
  EXPECT_TRUE(UpgradePool(path_));
  ExpectItems();
}

TEST_F(UpgradeTest, KeepsLinksAndPermissions) {
  const std::string good = MakeOldPool(kCells);
  Write(good);
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  const std::string link = NewPath();
  const std::string hard_link = NewPath();
  std::filesystem::create_symlink(path_, link);
  std::filesystem::create_hard_link(path_, hard_link);
  const bool root = geteuid() == 0;
  ASSERT_TRUE(!root || chown(path_.c_str(), 1234, 2345) == 0);
  EXPECT_TRUE(UpgradePool(link));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_FALSE(UpgradePool(path_));
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
  EXPECT_TRUE(!root || (status.st_uid == 1234 && status.st_gid == 2345));
  ExpectItems();
  path_ = hard_link;
  EXPECT_TRUE(Read() == good);
}

TEST_F(UpgradeTest, ReplacesWhatAKilledOneLeft) {
  const std::string good = MakeOldPool(kCells);
  Write(good);
  EXPECT_TRUE(UpgradePool(path_));
  const std::string upgraded = Read();
  for (const std::string& left : {std::string(), std::string(100'000, '\0'), upgraded.substr(0, 50),
                                  std::string(8, '\0') + upgraded.substr(8), upgraded}) {
    Write(good);
    test::WriteFile(Copy(), left);
    EXPECT_TRUE(UpgradePool(path_));
    EXPECT_TRUE(Read() == upgraded);
    EXPECT_EQ(Files(), 1);
  }
}

TEST_F(UpgradeTest, OfASparseFileOnTmpfs) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  OldShape shape = kCells;
  shape.state = State::kResizing;  // the new level holds nothing
  const std::string good = MakeOldPool(shape);
  std::string directory = "/dev/shm/gpmstore_test_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  path_ = directory + "/pool";
  {
    std::ofstream file(path_, std::ios::binary);
    for (std::size_t page = 0; page < good.size(); page += kPageBytes) {
      if (good.find_first_not_of('\0', page) >= page + kPageBytes) continue;
      file.seekp(static_cast<std::streamoff>(page));
      file << good.substr(page, kPageBytes);
    }
  }
  std::filesystem::resize_file(path_, good.size());
  EXPECT_TRUE(Read() == good);
  EXPECT_TRUE(UpgradePool(path_));
  ExpectItems();
  std::filesystem::remove_all(directory);
}

TEST_F(UpgradeTest, KilledAtAnyMomentItLeavesTheOldPoolOrTheNewOne) {
  using Clock = std::chrono::steady_clock;
  OldShape shape = kCells;
  shape.value_size = 100;
  shape.items = 40'000;
  const std::string good = MakeOldPool(shape);
  Write(good);
  const auto start = Clock::now();
  EXPECT_TRUE(UpgradePool(path_));
  const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
  const std::string upgraded = Read();
  int left = 0;
  int finished = 0;
  for (int round = 0; round < 36 || ((left == 0 || finished == 0) && round < 300); ++round) {
    SCOPED_TRACE(round);
    Write(good);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      UpgradePool(path_);
      for (;;) pause();
    }
    usleep(static_cast<useconds_t>(random_() % (2 * static_cast<std::uint64_t>(took.count()))));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    const std::string now = Read();
    const bool done = now == upgraded;
    ASSERT_TRUE(done || now == good);
    finished += done ? 1 : 0;
    left += std::filesystem::exists(Copy()) ? 1 : 0;
    EXPECT_EQ(UpgradePool(path_), !done);
    EXPECT_TRUE(Read() == upgraded);
    EXPECT_EQ(Files(), 1);
    if (HasFailure()) return;
  }
  EXPECT_GT(left, 0) << "no kill met an upgrade";
  EXPECT_GT(finished, 0);
  ExpectItems();
}

}  // namespace
}  // namespace gpm
