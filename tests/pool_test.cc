#include "pm/pool.h"

#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>

#include "pm/crc32c.h"
#include "pm/space.h"
#include "tests/levels.h"
#include "tests/test_util.h"

/// Pools: creation, the two superblock copies, derived space, and changes of levels and segments.
namespace gpm::test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kKiB = std::uint64_t{1} << 10;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

Superblock CopyOf(const std::string& file, int copy) {
  Superblock superblock;
  std::memcpy(&superblock, file.data() + copy * kSuperblockBytes, sizeof superblock);
  return superblock;
}

void PutCopy(std::string* file, int copy, Superblock superblock) {
  superblock.crc = 0;
  superblock.crc = Crc32c(&superblock, sizeof superblock);
  std::memcpy(file->data() + copy * kSuperblockBytes, &superblock, sizeof superblock);
}

bool SameBytes(const Superblock& a, const Superblock& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

bool AllZero(const std::byte* from, std::uint64_t bytes) {
  return std::all_of(from, from + bytes, [](std::byte b) { return b == std::byte{0}; });
}

/// @param newest buckets of the newest level
PoolConfig Config(std::uint32_t value_size = 100, std::uint64_t newest = 16) {
  PoolConfig config;
  config.value_size = value_size;
  config.hash_seed[0] = 17;
  config.hash_seed[1] = 19;
  config.levels = {newest, newest / 2};
  return config;
}

std::uint64_t CellsOf(const Pool& pool) {
  std::uint64_t cells = 0;
  for (std::uint32_t i = 0; i < pool.superblock().segment_count; ++i) {
    const SegmentEntry& segment = pool.superblock().segments[i];
    cells += CellsIn(Extent{segment.offset, segment.bytes}, pool.cell_bytes());
  }
  return cells;
}

class PoolFileTest : public PoolTest {
 protected:
  /// A file with a pool that was changed often enough for both copies to be in use.
  std::string MakePool() {
    const std::string path = NewPath();
    const auto pool = Pool::Create(path, Config(), {.max_bytes = 64 * kMiB});
    pool->AddSegment(10);
    pool->SetClean(false);
    return path;
  }

  /// Opening is refused as damaged with a message that holds `causes`, and leaves the file alone.
  void ExpectDamaged(const std::string& bytes, const std::vector<std::string>& causes) {
    const std::string path = NewPath();
    WriteFile(path, bytes);
    for (const bool read_only : {false, true}) {
      std::string message;
      EXPECT_EQ(ErrorOf([&] { Pool::Open(path, {.read_only = read_only}); }, &message),
                ErrorCode::kDamaged);
      EXPECT_NE(message.find(path), std::string::npos) << message;
      for (const std::string& cause : causes) {
        EXPECT_NE(message.find(cause), std::string::npos) << message << " should say: " << cause;
      }
    }
    EXPECT_TRUE(ReadFile(path) == bytes) << "the file was changed";
  }
};

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
  void (*const handler)(int) = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = kMiB;
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_EQ(ErrorOf([&] { Pool::Create(path, Config(100, 1 << 15), {.max_bytes = 64 * kMiB}); }),
            ErrorCode::kNoSpace);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(PoolFileTest, NotAPool) {
  ExpectDamaged("", {"not a GPMStore pool", "empty"});
  ExpectDamaged("hello\n", {"not a GPMStore pool"});
  ExpectDamaged(std::string(100'000, 'x'), {"not a GPMStore pool"});
  ExpectDamaged(std::string(100'000, '\0'), {"not a GPMStore pool", "empty"});
  EXPECT_EQ(ErrorOf([&] { Pool::Open(NewPath(), {}); }), ErrorCode::kNotFound);
  const std::string directory = std::filesystem::path(NewPath()).parent_path();
  EXPECT_EQ(ErrorOf([&] { Pool::Open(directory, {}); }), ErrorCode::kInvalidArgument);
}

TEST_F(PoolFileTest, InterruptedCreation) {
  const std::string path = NewPath();
  Pool::Create(path, Config(), {.max_bytes = 64 * kMiB});
  std::string bytes = ReadFile(path);
  bytes.replace(0, 8, 8, '\0');  // what a crash before that word persisted leaves
  ExpectDamaged(bytes, {"creation was interrupted"});
}

TEST_F(PoolFileTest, AnotherVersion) {
  const std::string original = ReadFile(MakePool());
  const auto of_version = [&](std::uint32_t version) {
    std::string bytes = original;
    for (const int copy : {0, 1}) {
      Superblock superblock = CopyOf(original, copy);
      superblock.version = version;
      PutCopy(&bytes, copy, superblock);
    }
    return bytes;
  };
  ExpectDamaged(of_version(7), {"copy A: format version 7, this build reads version 3; copy B"});
  for (const std::uint32_t old : {1u, 2u}) {
    ExpectDamaged(of_version(old), {"version " + std::to_string(old) +
                                    ", this build reads version 3: `gpmstore upgrade`"});
  }
}

TEST_F(PoolFileTest, OneBadCopyFallsBackToTheOther) {
  const std::string original = ReadFile(MakePool());
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 40; ++round) {
    const int bad = round % 2;
    std::string bytes = original;
    bytes[static_cast<std::size_t>(bad) * kSuperblockBytes + random() % kSuperblockBytes] ^=
        static_cast<char>(1 << random() % 8);
    const std::string path = NewPath();
    WriteFile(path, bytes);
    const auto pool = Pool::Open(path, {.read_only = true});
    EXPECT_TRUE(SameBytes(pool->superblock(), CopyOf(original, 1 - bad)));
  }
}

TEST_F(PoolFileTest, BothCopiesBad) {
  std::string bytes = ReadFile(MakePool());
  bytes[100] ^= 1;
  bytes[kSuperblockBytes + 9] ^= 1;
  ExpectDamaged(bytes, {"copy A: checksum mismatch", "copy B: format version 259"});
}

TEST_F(PoolFileTest, TheNewerCopyIsInForce) {
  std::string bytes = ReadFile(MakePool());
  for (const int newer : {0, 1}) {
    Superblock superblock = CopyOf(bytes, 0);
    superblock.sequence = 1000;
    PutCopy(&bytes, newer, superblock);
    superblock.sequence = 999;
    PutCopy(&bytes, 1 - newer, superblock);
    EXPECT_EQ(ChooseSuperblock(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "x"),
              newer);
  }
}

TEST_F(PoolFileTest, TornSwitchLeavesTheOldState) {
  const std::string path = MakePool();
  const std::string before = ReadFile(path);
  Superblock old;
  {
    const auto pool = Pool::Open(path, {.max_bytes = 64 * kMiB});
    old = pool->superblock();
    AddLevel(*pool);
    EXPECT_EQ(pool->superblock().sequence, old.sequence + 1);
  }
  const std::string after = ReadFile(path);
  const int written = SameBytes(CopyOf(before, 0), CopyOf(after, 0)) ? 1 : 0;
  EXPECT_TRUE(SameBytes(CopyOf(before, 1 - written), CopyOf(after, 1 - written)));
  EXPECT_TRUE(SameBytes(CopyOf(before, 1 - written), old)) << "a change writes the other copy only";
  // A crash while the copy is written: any words of it are new, the others old.
  std::mt19937_64 random(TestSeed());
  const std::size_t start = static_cast<std::size_t>(written) * kSuperblockBytes;
  for (int round = 0; round < 200; ++round) {
    std::string torn = after;
    for (std::size_t word = 0; word < kSuperblockBytes; word += 8) {
      if (random() % 2 == 0) torn.replace(start + word, 8, before, start + word, 8);
    }
    const Superblock copy = CopyOf(torn, written);
    const int chosen =
        ChooseSuperblock(reinterpret_cast<const std::byte*>(torn.data()), torn.size(), "x");
    if (SameBytes(copy, CopyOf(after, written))) {
      EXPECT_EQ(chosen, written);
    } else {
      EXPECT_EQ(chosen, 1 - written);
    }
  }
}

TEST_F(PoolFileTest, Truncated) {
  const std::string path = MakePool();
  const std::string bytes = ReadFile(path);
  const std::uint64_t end = UsedEnd(Pool::Open(path, {.read_only = true})->superblock());
  ASSERT_LT(end, bytes.size());
  for (const std::uint64_t left : {std::uint64_t{5000}, std::uint64_t{8192}, end - 1, end - 4096}) {
    ExpectDamaged(bytes.substr(0, left), {"truncated: the superblock names " + std::to_string(end) +
                                          " bytes, the file has " + std::to_string(left)});
  }
  WriteFile(path, bytes.substr(0, end));  // what is cut off here is free
  const auto pool = Pool::Open(path, {.max_bytes = 64 * kMiB});
  AddLevel(*pool);
  EXPECT_EQ(LayoutDefect(pool->superblock(), pool->mapping().file_bytes()), "");
}

TEST_F(PoolFileTest, TruncationIsNotBridgedByAnOlderCopy) {
  const std::string path = NewPath();
  {
    const auto pool = Pool::Create(path, Config(100, 1 << 14), {.max_bytes = 64 * kMiB});
    AddLevel(*pool);
  }
  const std::string bytes = ReadFile(path);
  const std::uint64_t first_levels = UsedEnd(CopyOf(bytes, 0));
  ASSERT_LT(first_levels, UsedEnd(CopyOf(bytes, 1)));
  // Copy A is whole and names only what is there; but the items are where copy B says.
  ExpectDamaged(bytes.substr(0, first_levels), {"copy B", "truncated"});
}

TEST_F(PoolFileTest, ContentsThatCantBe) {
  const std::string original = ReadFile(MakePool());
  const int in_force =
      ChooseSuperblock(reinterpret_cast<const std::byte*>(original.data()), original.size(), "x");
  const auto damaged = [&](const std::string& cause, auto&& change) {
    std::string bytes = original;
    Superblock superblock = CopyOf(original, in_force);
    change(superblock);
    PutCopy(&bytes, in_force, superblock);
    ExpectDamaged(bytes, {cause});
  };
  damaged("key size 256", [](Superblock& s) { s.key_size = 256; });
  damaged("value size 0", [](Superblock& s) { s.value_size = 0; });
  damaged("geometry 2L-3H-8S", [](Superblock& s) { s.geometry.locations = 3; });
  damaged("orderly close", [](Superblock& s) { s.clean = 2; });
  damaged("41 levels, there can be 2 to 40", [](Superblock& s) { s.level_count = 41; });
  damaged("1 levels", [](Superblock& s) { s.level_count = 1; });
  damaged("4294967295 levels", [](Superblock& s) { s.level_count = ~0u; });
  damaged("level 7 is named, but there are 2", [](Superblock& s) { s.levels[7].offset = 1 << 20; });
  damaged("level 2 is named, but there are 2", [](Superblock& s) { s.levels[2].buckets = 4; });
  damaged("level 2: 0 buckets", [](Superblock& s) { s.level_count = 3; });
  damaged("level 0: 0 buckets", [](Superblock& s) { s.levels[0].buckets = 0; });
  damaged("level 1: 9 buckets", [](Superblock& s) { s.levels[1].buckets = 9; });
  damaged("buckets are not", [](Superblock& s) { s.levels[1].buckets = 1ull << 32; });
  damaged("buckets are not", [](Superblock& s) { s.levels[1].buckets = ~0ull; });
  damaged("level 0 lies in the superblocks", [](Superblock& s) { s.levels[0].offset = 0; });
  damaged("level 0 lies in the superblocks", [](Superblock& s) { s.levels[0].offset = 8192; });
  damaged("level 0 is not aligned", [](Superblock& s) { s.levels[0].offset += 128; });
  damaged("overlap", [](Superblock& s) { s.levels[0].offset = s.levels[1].offset; });
  damaged("overlap", [](Superblock& s) { s.segments[0].offset = s.levels[1].offset; });
  damaged("truncated", [](Superblock& s) { s.levels[0].offset = 1 << 30; });
  damaged("level 0 and value segment 0 overlap",
          [](Superblock& s) { s.levels[0].buckets = 1 << 24; });
  damaged("truncated", [](Superblock& s) { s.segments[0].bytes = 1 << 30; });
  damaged("beyond any", [](Superblock& s) { s.segments[0].bytes = ~0ull << 12; });
  damaged("beyond any", [](Superblock& s) { s.segments[0].offset = ~0ull << 12; });
  damaged("segment 0 is empty", [](Superblock& s) { s.segments[0].bytes = 0; });
  damaged("segment 0 is not aligned", [](Superblock& s) { s.segments[0].bytes -= 1; });
  damaged("201 value segments", [](Superblock& s) { s.segment_count = 201; });
  damaged("segment 1 is empty", [](Superblock& s) { s.segment_count = 2; });
  damaged("values of 8 bytes need none", [](Superblock& s) { s.value_size = 8; });
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
    EXPECT_EQ(pool->mapping().mapped_bytes(), before + 5 * kMiB);
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

/// Random changes of a pool, compared with what must hold after each.
class RandomPool {
 public:
  RandomPool(std::string path, std::uint64_t seed) : path_(std::move(path)), random_(seed) {
    PoolConfig config;
    config.key_size = 8u << Below(5);
    config.value_size = 9 + static_cast<std::uint32_t>(Below(Below(4) == 0 ? 65'528 : 300));
    const Geometry geometries[] = {{2, 2, 8}, {1, 1, 1}, {1, 2, 16}, {4, 2, 4}, {2, 1, 2}};
    config.geometry = geometries[Below(5)];
    for (int i = 0; i < config.geometry.levels; ++i)
      config.levels.push_back(config.geometry.locations * (1 + Below(16)));
    max_bytes_ = Below(3) == 0 ? kMiB * (1 + Below(6)) : 64 * kMiB;
    pool_ = Pool::Create(path_, config, {.max_bytes = max_bytes_});
  }

  void Run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      const Superblock before = pool_->superblock();
      try {
        Step();
        EXPECT_GE(pool_->superblock().sequence, before.sequence);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kNoSpace) << error.what();
        EXPECT_TRUE(SameBytes(pool_->superblock(), before)) << error.what();
      }
      Check();
    }
  }

 private:
  std::uint64_t Below(std::uint64_t n) { return random_() % n; }
  std::uint64_t RandomBuckets(Geometry geometry) {
    return geometry.locations * (1 + Below(std::uint64_t{1} << Below(12)));
  }

  void Step() {
    const Superblock& superblock = pool_->superblock();
    switch (Below(11)) {
      case 0:
      case 1:
        AddLevel();
        break;
      case 2:
      case 3:
      case 4:
        if (superblock.level_count > superblock.geometry.levels) {
          pool_->DropOldestLevel();
        }
        break;
      case 5:
        Reopen();
        break;
      case 6:
        pool_->SetClean(Below(2) == 0);
        break;
      case 7:
        ReplaceLevels();
        break;
      default:
        AddSegment();
        break;
    }
  }

  void ReplaceLevels() {
    PoisonFreeSpace();
    const bool zeroed = Below(2) == 0;
    const Geometry geometry = pool_->superblock().geometry;
    LevelSizes sizes;
    for (int i = 0; i < geometry.levels; ++i) sizes.push_back(RandomBuckets(geometry));
    const Extent place = pool_->PlaceLevels(sizes, zeroed);
    EXPECT_EQ(place.bytes, LevelsBytes(pool_->superblock(), sizes));
    EXPECT_TRUE(!zeroed || AllZero(pool_->base() + place.offset, place.bytes));
    pool_->ReplaceLevels(sizes, place);
    const Superblock& superblock = pool_->superblock();
    EXPECT_EQ(SizesOf(superblock), sizes);
    EXPECT_EQ(superblock.levels[superblock.level_count - 1].offset, place.offset);
  }

  void AddLevel() {
    PoisonFreeSpace();
    const std::uint64_t buckets = RandomBuckets(pool_->superblock().geometry);
    pool_->AddLevel(buckets);
    const LevelEntry& level = pool_->superblock().levels[0];
    EXPECT_EQ(level.buckets, buckets);
    EXPECT_TRUE(AllZero(pool_->base() + level.offset, LevelBytes(pool_->superblock(), buckets)));
  }

  /// Whatever free space holds, levels must start empty.
  void PoisonFreeSpace() {
    std::uint64_t free_from = 0;
    for (const Extent& used : UsedExtents(pool_->superblock())) {
      if (used.offset > free_from) {
        std::memset(pool_->base() + free_from, 0xAB, used.offset - free_from);
      }
      free_from = used.end();
    }
    std::memset(pool_->base() + free_from, 0xAB, pool_->mapping().mapped_bytes() - free_from);
  }

  void AddSegment() {
    const std::uint64_t wanted = 1 + Below(Below(2) == 0 ? 10 : 3000);
    const Extent added = pool_->AddSegment(wanted);
    const std::uint64_t cell_bytes = pool_->cell_bytes();
    const std::uint64_t first = (added.offset + cell_bytes - 1) / cell_bytes;
    EXPECT_GE(CellsIn(added, cell_bytes), 1u);
    for (std::uint64_t cell = first; cell < first + CellsIn(added, cell_bytes); ++cell) {
      EXPECT_TRUE(cells_.insert(cell).second) << "cell " << cell << " was given out before";
    }
  }

  void Reopen() {
    const Superblock before = pool_->superblock();
    pool_.reset();
    pool_ = Pool::Open(path_, {.max_bytes = max_bytes_});
    EXPECT_TRUE(SameBytes(pool_->superblock(), before));
  }

  void Check() {
    const Superblock& superblock = pool_->superblock();
    EXPECT_EQ(LayoutDefect(superblock, pool_->mapping().file_bytes()), "");
    EXPECT_LE(pool_->mapping().mapped_bytes(), max_bytes_);
    std::uint64_t end = 0;
    for (const Extent& used : UsedExtents(superblock)) {
      EXPECT_GE(used.offset, end) << "extents overlap";
      end = used.end();
    }
    EXPECT_EQ(UsedEnd(superblock), end);
    EXPECT_EQ(CellsOf(*pool_), cells_.size()) << "every cell was given out once";
    const std::byte* copies = pool_->base();
    const int in_force = ChooseSuperblock(copies, pool_->mapping().file_bytes(), path_);
    EXPECT_EQ(std::memcmp(copies + in_force * kSuperblockBytes, &superblock, sizeof superblock), 0);
  }

  std::string path_;
  std::mt19937_64 random_;
  std::uint64_t max_bytes_ = 0;
  std::unique_ptr<Pool> pool_;
  std::set<std::uint64_t> cells_;
};

TEST_F(PoolFileTest, RandomChanges) {
  for (std::uint64_t round = 0; round < 25 && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::string path = NewPath();
    RandomPool(path, TestSeed() + round).Run(80);
    std::filesystem::remove(path);
  }
}

TEST_F(PoolFileTest, FullMediumLeavesThePoolIntact) {
  const std::string path = NewPath();
  const auto pool = Pool::Create(path, Config(100, 256), {.max_bytes = 64 * kMiB});
  pool->AddSegment(1000);
  const Superblock before = pool->superblock();
  void (*const handler)(int) = std::signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited{};
  getrlimit(RLIMIT_FSIZE, &unlimited);
  rlimit limit = unlimited;
  limit.rlim_cur = pool->mapping().mapped_bytes();
  setrlimit(RLIMIT_FSIZE, &limit);
  // What is mapped already can still be used, and then there is no more.
  const Extent rest = pool->AddSegment(1'000'000);
  EXPECT_EQ(rest.end(), pool->mapping().mapped_bytes());
  const Superblock full = pool->superblock();
  std::string message;
  EXPECT_EQ(ErrorOf([&] { pool->AddSegment(1); }, &message), ErrorCode::kNoSpace);
  EXPECT_EQ(ErrorOf([&] { AddLevel(*pool); }), ErrorCode::kNoSpace);
  setrlimit(RLIMIT_FSIZE, &unlimited);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(message.find("can't extend the file"), std::string::npos) << message;
  EXPECT_TRUE(SameBytes(pool->superblock(), full));
  EXPECT_EQ(full.sequence, before.sequence + 1);
  AddLevel(*pool);
  EXPECT_EQ(LayoutDefect(pool->superblock(), pool->mapping().file_bytes()), "");
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
