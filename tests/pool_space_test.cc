#include <sys/mount.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "pm/pool.h"
#include "pm/space.h"
#include "tests/file_size_limit.h"
#include "tests/files.h"
#include "tests/levels.h"
#include "tests/pool_fixture.h"
#include "tests/test_util.h"

/// A pool's space: where levels and value segments go, what they leave is used again, and what
/// happens when there is no more.
namespace gpm::test {
namespace {

TEST_F(PoolFileTest, LevelsComeAndGo) {
  const auto pool = Pool::Create(NewPath(), Config(), {.max_bytes = 64 * kMiB});
  EXPECT_EQ(ErrorOf([&] { pool->DropOldestLevel(); }), ErrorCode::kInvalidArgument);
  const std::uint64_t dropped = pool->superblock().levels[1].offset;
  const std::uint64_t kept = pool->superblock().levels[0].offset;
  pool->AddLevel(26);
  EXPECT_EQ(SizesOf(pool->superblock()), (LevelSizes{26, 16, 8}));
  EXPECT_EQ(pool->superblock().levels[1].offset, kept);
  EXPECT_EQ(pool->superblock().levels[2].offset, dropped);
  pool->DropOldestLevel();
  EXPECT_EQ(SizesOf(pool->superblock()), (LevelSizes{26, 16}));
  EXPECT_EQ(pool->superblock().levels[2].offset, 0u);
  for (const Extent& used : UsedExtents(pool->superblock())) {
    EXPECT_TRUE(used.end() <= dropped || used.offset > dropped);
  }
  EXPECT_EQ(LargestGap(pool->superblock()).offset, dropped);
}

TEST_F(PoolFileTest, ANewLevelIsEmptyWhereverItGoes) {
  const auto pool = Pool::Create(NewPath(), Config(100, 1 << 10), {.max_bytes = 64 * kMiB});
  while (pool->superblock().levels[0].buckets < 1 << 15) {
    // Old bytes everywhere outside the superblocks, also in space that nothing names.
    std::memset(pool->base() + kReservedOffset, 0xEE,
                pool->mapping().mapped_bytes() - kReservedOffset);
    AddLevel(*pool);
    const LevelEntry& level = pool->superblock().levels[0];
    EXPECT_TRUE(AllZero(pool->base() + level.offset, LevelBytes(pool->superblock(), level.buckets)))
        << level.buckets << " buckets";
    pool->DropOldestLevel();
  }
}

TEST_F(PoolFileTest, AFileMayBeLongerThanItsSuperblockSays) {
  // A crash leaves what was made ready for growth, and no superblock names it: of a process that
  // was killed in the middle, perhaps without memory for all of it.
  for (const bool written : {false, true}) {
    const std::string path = NewPath();
    Pool::Create(path, Config(100, 1 << 10), {.max_bytes = 64 * kMiB}).reset();
    const std::uint64_t before = std::filesystem::file_size(path);
    std::filesystem::resize_file(path, before + 5 * kMiB);
    if (written) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(before));
      file << std::string(5 * kMiB, '\x77');
    }
    const auto pool = Pool::Open(path, {.max_bytes = 64 * kMiB});
    if (written) {
      EXPECT_EQ(pool->mapping().mapped_bytes(), before + 5 * kMiB);
    } else {
      EXPECT_LE(pool->mapping().mapped_bytes(), before) << "the hole is given back";
      EXPECT_EQ(pool->mapping().HoleBytes(), 0u);
    }
    pool->AddSegment(1000);
    pool->AddLevel(1 << 15);
    const LevelEntry& level = pool->superblock().levels[0];
    EXPECT_TRUE(
        AllZero(pool->base() + level.offset, LevelBytes(pool->superblock(), level.buckets)));
    EXPECT_EQ(LayoutDefect(pool->superblock(), pool->mapping().file_bytes()), "");
    pool->GiveBackEnd();
    EXPECT_LE(std::filesystem::file_size(path), UsedEnd(pool->superblock()) + 2 * kMiB);
  }
}

TEST_F(PoolFileTest, OpeningFillsTheHolesOfASparseCopy) {
  const auto allocated = [](const std::string& path) {
    struct stat status {};
    EXPECT_EQ(stat(path.c_str(), &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
  };
  const std::string path = NewPath();  // on a disk, where there is one
  Pool::Create(path, Config(100, 1 << 14), {.max_bytes = 64 * kMiB}).reset();
  const std::string copy = NewPath();
  const std::string contents = ReadFile(path);
  ASSERT_EQ(contents.find_first_not_of('\0', kReservedOffset), std::string::npos);
  WriteFile(copy, contents.substr(0, kReservedOffset));
  std::filesystem::resize_file(copy, contents.size());
  ASSERT_LT(allocated(copy), contents.size());
  Pool::Open(copy, {.max_bytes = 64 * kMiB, .read_only = true}).reset();
  EXPECT_LT(allocated(copy), contents.size());
  Pool::Open(copy, {.max_bytes = 64 * kMiB}).reset();
  EXPECT_GE(allocated(copy), contents.size());
  EXPECT_EQ(ReadFile(copy), contents);
}

TEST_F(PoolFileTest, ASparseCopyOnAFullFileSystem) {
  const std::string folder = std::filesystem::path(NewPath()).parent_path() / "full";
  std::filesystem::create_directory(folder);
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=8m") != 0) {
    GTEST_SKIP() << "can't mount a small tmpfs: " << std::strerror(errno);
  }
  const std::string path = NewPath();
  Pool::Create(path, Config(100, 1 << 14), {.max_bytes = 64 * kMiB}).reset();
  const std::string copy = folder + "/copy";
  const std::string contents = ReadFile(path);
  WriteFile(copy, contents.substr(0, kReservedOffset));
  std::filesystem::resize_file(copy, contents.size());
  const std::uint64_t room = std::filesystem::space(folder).available;
  WriteFile(folder + "/other", std::string(room - kMiB, '\x77'));
  for (const bool read_only : {false, true}) {
    std::string why;
    EXPECT_EQ(
        ErrorOf([&] { Pool::Open(copy, {.max_bytes = 64 * kMiB, .read_only = read_only}); }, &why),
        ErrorCode::kNoSpace);
    EXPECT_NE(why.find("has holes"), std::string::npos) << why;
    EXPECT_EQ(std::filesystem::space(folder).available, kMiB) << "nothing is taken in vain";
  }
  std::filesystem::remove(folder + "/other");
  Pool::Open(copy, {.max_bytes = 64 * kMiB, .read_only = true}).reset();
  Pool::Open(copy, {.max_bytes = 64 * kMiB}).reset();
  EXPECT_EQ(ReadFile(copy), contents);
  umount2(folder.c_str(), MNT_DETACH);
}

TEST_F(PoolFileTest, SpaceOfDroppedLevelsIsUsedAgain) {
  const auto pool = Pool::Create(NewPath(), Config(100, 1 << 12), {.max_bytes = 64 * kMiB});
  const Extent dropped{pool->superblock().levels[1].offset,
                       LevelBytes(pool->superblock(), 1 << 11)};
  AddLevel(*pool);
  pool->DropOldestLevel();
  const std::uint64_t end = UsedEnd(pool->superblock());
  const Extent added = pool->AddSegment(1);
  EXPECT_EQ(added.offset, dropped.offset);
  EXPECT_EQ(added.bytes, dropped.bytes);
  EXPECT_EQ(UsedEnd(pool->superblock()), end);
  // The gap is used up: the next cells are fresh.
  EXPECT_EQ(pool->AddSegment(1).offset, end);
}

TEST_F(PoolFileTest, SegmentsGrowWithThePool) {
  const auto pool = Pool::Create(NewPath(), Config(100), {.max_bytes = 64 * kMiB});
  const Extent first = pool->AddSegment(1);
  EXPECT_EQ(first.bytes, 64 * kKiB) << "at least 64 KiB";
  const Extent second = pool->AddSegment(100'000);
  EXPECT_GE(CellsIn(second, pool->cell_bytes()), 100'000u);
  EXPECT_EQ(pool->superblock().segment_count, 1u)
      << "joined: the second begins where the first ends";
  const std::uint64_t cells = CellsOf(*pool);
  const Extent third = pool->AddSegment(1);
  EXPECT_GE(CellsIn(third, pool->cell_bytes()), cells / 32) << "a small share";
  EXPECT_EQ(CellsOf(*pool), cells + CellsIn(third, pool->cell_bytes()));
}

TEST_F(PoolFileTest, AlignedCellsOfEverySize) {
  for (const std::uint32_t value_size : {9u, 17u, 100u, 1000u, 5000u, 30'000u, 65'536u}) {
    SCOPED_TRACE(value_size);
    const auto pool = Pool::Create("pinned:", Config(value_size), {.max_bytes = 64 * kMiB});
    for (const std::uint64_t wanted : {1, 16, 17, 100}) {
      const std::uint64_t before = CellsOf(*pool);
      const Extent added = pool->AddSegment(wanted);
      EXPECT_GE(CellsIn(added, pool->cell_bytes()), std::max<std::uint64_t>(wanted, 16));
      EXPECT_EQ(CellsOf(*pool), before + CellsIn(added, pool->cell_bytes()))
          << "the range returned has all the new cells, one across the border included";
    }
  }
}

TEST_F(PoolFileTest, InlineValuesHaveNoCells) {
  const auto pool = Pool::Create("pinned:", Config(8), {.max_bytes = 64 * kMiB});
  EXPECT_EQ(ErrorOf([&] { pool->AddSegment(1); }), ErrorCode::kInvalidArgument);
}

TEST_F(PoolFileTest, SegmentsUpToTheMaximum) {
  const auto pool = Pool::Create(NewPath(), Config(1000), {.max_bytes = 4 * kMiB});
  const std::uint64_t cell_bytes = pool->cell_bytes();
  // Every way to ask for more than there is: a whole step, exactly, and far too much.
  EXPECT_GE(CellsIn(pool->AddSegment(3 * kMiB / cell_bytes), cell_bytes), 3 * kMiB / cell_bytes);
  EXPECT_GE(CellsIn(pool->AddSegment(20), cell_bytes), 20u);
  EXPECT_GE(CellsIn(pool->AddSegment(~std::uint64_t{0}), cell_bytes), 1u);
  EXPECT_EQ(UsedEnd(pool->superblock()), 4 * kMiB);
  EXPECT_EQ(pool->mapping().mapped_bytes(), 4 * kMiB);
  const Superblock full = pool->superblock();
  std::string message;
  EXPECT_EQ(ErrorOf([&] { pool->AddSegment(1); }, &message), ErrorCode::kNoSpace);
  EXPECT_NE(message.find("4194304"), std::string::npos) << message;
  EXPECT_EQ(ErrorOf([&] { AddLevel(*pool); }), ErrorCode::kNoSpace);
  EXPECT_TRUE(SameBytes(pool->superblock(), full));
}

TEST_F(PoolFileTest, SmallGapsServeWhenNothingElseIsLeft) {
  const auto pool = Pool::Create(NewPath(), Config(100, 64), {.max_bytes = 4 * kMiB});
  AddLevel(*pool);
  pool->DropOldestLevel();  // a gap of one page
  const Extent gap = LargestGap(pool->superblock());
  EXPECT_EQ(gap.bytes, 4 * kKiB);
  EXPECT_GT(pool->AddSegment(1).offset, gap.offset) << "not worth a segment yet";
  while (UsedEnd(pool->superblock()) < 4 * kMiB) pool->AddSegment(1000);
  const Extent last = pool->AddSegment(1000);
  EXPECT_EQ(last.offset, gap.offset);
  EXPECT_EQ(last.bytes, gap.bytes);
  EXPECT_EQ(ErrorOf([&] { pool->AddSegment(1); }), ErrorCode::kNoSpace);
}

TEST_F(PoolFileTest, FullDirectory) {
  const std::string path = NewPath();
  Pool::Create(path, Config(100, 64), {.max_bytes = 64 * kMiB})->AddSegment(131'072);
  std::string bytes = ReadFile(path);
  Superblock superblock = CopyOf(bytes, 1);
  ASSERT_EQ(superblock.segment_count, 1u);
  const std::uint64_t start = superblock.segments[0].offset;
  const auto fill = [&](std::uint32_t count, std::uint64_t stride) {
    superblock.segment_count = count;
    for (std::uint32_t i = 0; i < count; ++i) {
      superblock.segments[i] = SegmentEntry{start + i * stride, 4096};
    }
    PutCopy(&bytes, 1, superblock);
    WriteFile(path, bytes);
    return Pool::Open(path, {.max_bytes = 64 * kMiB});
  };
  // Nothing but small gaps, and no entry left: only what joins the last segment can be added.
  for (const std::uint64_t stride : {20 * kKiB, 24 * kKiB}) {
    const auto pool = fill(kMaxSegments, stride);
    const std::uint64_t end = UsedEnd(pool->superblock());
    EXPECT_EQ(pool->AddSegment(1).offset, end) << "joined to the last";
    EXPECT_EQ(pool->superblock().segment_count, kMaxSegments);
  }
  // A gap of 76 KiB between two segments is worth an entry until three quarters of them are used.
  for (const std::uint32_t count : {10u, kMaxSegments / 4 * 3 - 1}) {
    const auto pool = fill(count, 80 * kKiB);
    EXPECT_EQ(pool->AddSegment(1).offset, start + 4 * kKiB);
    EXPECT_EQ(pool->superblock().segment_count, count - 1) << "joined to those on both sides";
  }
  const auto pool = fill(kMaxSegments / 4 * 3, 80 * kKiB);
  const std::uint64_t end = UsedEnd(pool->superblock());
  EXPECT_EQ(pool->AddSegment(1).offset, end);
}

TEST_F(PoolFileTest, FullMediumLeavesThePoolIntact) {
  const std::string path = NewPath();
  const auto pool = Pool::Create(path, Config(100, 256), {.max_bytes = 64 * kMiB});
  pool->AddSegment(1000);
  const Superblock before = pool->superblock();
  std::optional<FileSizeLimit> limit(std::in_place, pool->mapping().mapped_bytes());
  // What is mapped already can still be used, and then there is no more.
  const Extent rest = pool->AddSegment(1'000'000);
  EXPECT_EQ(rest.end(), pool->mapping().mapped_bytes());
  const Superblock full = pool->superblock();
  std::string message;
  EXPECT_EQ(ErrorOf([&] { pool->AddSegment(1); }, &message), ErrorCode::kNoSpace);
  EXPECT_EQ(ErrorOf([&] { AddLevel(*pool); }), ErrorCode::kNoSpace);
  limit.reset();
  EXPECT_NE(message.find("can't extend the file"), std::string::npos) << message;
  EXPECT_TRUE(SameBytes(pool->superblock(), full));
  EXPECT_EQ(full.sequence, before.sequence + 1);
  AddLevel(*pool);
  EXPECT_EQ(LayoutDefect(pool->superblock(), pool->mapping().file_bytes()), "");
}

}  // namespace
}  // namespace gpm::test
