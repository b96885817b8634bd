#include "pm/pool.h"

#include <cstring>
#include <filesystem>

#include "tests/file_size_limit.h"
#include "tests/files.h"
#include "tests/levels.h"
#include "tests/pool_fixture.h"
#include "tests/test_util.h"

/// Pools: creation and opening, and what both refuse.
namespace gpm::test {
namespace {

TEST_F(PoolFileTest, CreateAndOpen) {
  const std::string path = NewPath();
  Superblock created;
  {
    const auto pool = Pool::Create(path, Config(), {.max_bytes = 64 * kMiB});
    created = pool->superblock();
    EXPECT_EQ(created.magic, kPoolMagic);
    EXPECT_EQ(std::memcmp(&created, "GPMSTOR1", 8), 0);
    EXPECT_EQ(created.version, kPoolVersion);
    EXPECT_EQ(created.key_size, 8u);
    EXPECT_EQ(created.value_size, 100u);
    EXPECT_EQ(created.hash_seed[0], 17u);
    EXPECT_EQ(created.hash_seed[1], 19u);
    EXPECT_EQ(created.level_count, 2u);
    EXPECT_EQ(created.levels[0].buckets, 16u);
    EXPECT_EQ(created.levels[1].buckets, 8u);
    EXPECT_EQ(created.segment_count, 0u);
    EXPECT_EQ(pool->bucket_bytes(), 128u);
    EXPECT_EQ(pool->cell_bytes(), 128u);
    EXPECT_EQ(LayoutDefect(created, pool->mapping().mapped_bytes()), "");
    EXPECT_TRUE(
        AllZero(pool->base() + kSuperblockBytes, pool->mapping().mapped_bytes() - kSuperblockBytes))
        << "copy B and the levels are empty";
  }
  const std::string bytes = ReadFile(path);
  {
    const auto pool = Pool::Open(path, {.max_bytes = 64 * kMiB});
    EXPECT_TRUE(SameBytes(pool->superblock(), created));
    EXPECT_EQ(ErrorOf([&] { Pool::Open(path, {}); }), ErrorCode::kBusy);
  }
  EXPECT_TRUE(ReadFile(path) == bytes) << "opening changes nothing";
  EXPECT_EQ(ErrorOf([&] { Pool::Create(path, Config(), {}); }), ErrorCode::kExists);
  EXPECT_TRUE(ReadFile(path) == bytes);
}

TEST_F(PoolFileTest, UuidsDiffer) {
  const auto a = Pool::Create("pinned:", Config(), {.max_bytes = 4 * kMiB});
  const auto b = Pool::Create("pinned:", Config(), {.max_bytes = 4 * kMiB});
  EXPECT_NE(std::memcmp(a->superblock().uuid, b->superblock().uuid, 16), 0);
}

TEST_F(PoolFileTest, BadConfiguration) {
  const auto refused = [&](const PoolConfig& config, const std::string& cause,
                           std::uint64_t max_bytes = 64 * kMiB) {
    const std::string path = NewPath();
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Pool::Create(path, config, {.max_bytes = max_bytes}); }, &message),
              ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find(cause), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(path));
  };
  PoolConfig config = Config();
  config.key_size = 0;
  refused(config, "key size 0 is not between 1 and 255 bytes");
  config.key_size = 256;
  refused(config, "key size 256 is not between 1 and 255 bytes");
  config = Config(0);
  refused(config, "16777216");
  config = Config((16 << 20) + 1);
  refused(config, "16777216");
  config = Config();
  config.geometry = Geometry{2, 2, 16};
  refused(config, "2L-2H-16S");
  config = Config();
  config.levels = {16};
  refused(config, "1 first levels, the geometry has 2");
  config.levels = {16, 0};
  refused(config, "0 buckets");
  config.levels = {16, 7};
  refused(config, "7 buckets are not a multiple of 2");
  config.levels = {kMaxLevelBuckets + 1, 16};
  refused(config, "4294967296 buckets");
  // The levels have 1536 buckets of 128 bytes; 12 KiB come before them.
  const std::uint64_t needed = 12 * kKiB + 1536 * 128;
  refused(Config(100, 1024), std::to_string(needed), needed - 1);
  EXPECT_NO_THROW(Pool::Create(NewPath(), Config(100, 1024), {.max_bytes = needed}));
  EXPECT_EQ(ErrorOf([&] { Pool::Create(NewPath(), Config(), {.read_only = true}); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(PoolFileTest, FailedCreationLeavesNoFile) {
  const std::string path = NewPath();
  {
    const FileSizeLimit limit(kMiB);
    EXPECT_EQ(ErrorOf([&] { Pool::Create(path, Config(100, 1 << 15), {.max_bytes = 64 * kMiB}); }),
              ErrorCode::kNoSpace);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(PoolFileTest, ReadOnlyPoolRefusesChanges) {
  const std::string path = MakePool();
  const std::string bytes = ReadFile(path);
  {
    const auto pool = Pool::Open(path, {.read_only = true});
    EXPECT_EQ(ErrorOf([&] { AddLevel(*pool); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { pool->AddSegment(1); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { pool->SetClean(true); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { pool->DropOldestLevel(); }), ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(ReadFile(path) == bytes);
}

TEST_F(PoolFileTest, CleanMark) {
  const std::string path = NewPath();
  for (const bool clean : {false, true, false}) {
    const auto pool = std::filesystem::exists(path)
                          ? Pool::Open(path, {.max_bytes = 64 * kMiB})
                          : Pool::Create(path, Config(), {.max_bytes = 64 * kMiB});
    pool->SetClean(clean);
    const std::uint64_t sequence = pool->superblock().sequence;
    pool->SetClean(clean);
    EXPECT_EQ(pool->superblock().sequence, sequence) << "no change, no write";
    EXPECT_EQ(pool->superblock().clean, clean ? 1 : 0);
  }
  EXPECT_EQ(Pool::Open(path, {.read_only = true})->superblock().clean, 0);
}

TEST_F(PoolFileTest, LargestTable) {
  const std::string path = NewPath();
  PoolConfig config = Config();
  config.key_size = 128;
  config.geometry = Geometry{1, 1, 32};
  config.levels = {kMaxLevelBuckets};
  EXPECT_EQ(ErrorOf([&] { Pool::Create(path, config, {}); }), ErrorCode::kNoSpace);
  EXPECT_FALSE(std::filesystem::exists(path));
  config.levels = {1};
  const auto pool = Pool::Create(path, config, {.max_bytes = 64 * kMiB});
  EXPECT_EQ(ErrorOf([&] { pool->AddLevel(kMaxLevelBuckets + 1); }), ErrorCode::kNoSpace);
  EXPECT_EQ(ErrorOf([&] { pool->AddLevel(0); }), ErrorCode::kNoSpace);
  for (std::uint32_t i = 1; i < kMaxLevels; ++i) pool->AddLevel(1);
  std::string message;
  EXPECT_EQ(ErrorOf([&] { pool->AddLevel(1); }, &message), ErrorCode::kNoSpace);
  EXPECT_NE(message.find("40 already"), std::string::npos) << message;
  EXPECT_EQ(LayoutDefect(pool->superblock(), pool->mapping().file_bytes()), "");
}

}  // namespace
}  // namespace gpm::test
