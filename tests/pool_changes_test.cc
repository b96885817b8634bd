#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "pm/pool.h"
#include "pm/space.h"
#include "pm/superblock.h"
#include "tests/pool_fixture.h"
#include "tests/test_util.h"

/// Random changes of levels and segments.
namespace gpm::test {
namespace {

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
    const Extent begun = pool_->BeginPlacing(sizes);
    const Extent place = pool_->PlaceLevels(sizes, zeroed);
    EXPECT_EQ(begun.offset, place.offset);
    EXPECT_EQ(begun.bytes, place.bytes);
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

}  // namespace
}  // namespace gpm::test
