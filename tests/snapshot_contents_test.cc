// Snapshots of which every checksum is right, and what they say can't be.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pm/crc32c.h"
#include "snapshot/format.h"
#include "snapshot/reader.h"
#include "tests/files.h"
#include "tests/snapshot_fixture.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

constexpr std::uint64_t kMostThings = std::uint64_t{1} << 38;  // of which a header may tell

class SnapshotContentsTest : public SnapshotTest {
 protected:
  static constexpr std::uint64_t kItems = 40;

  void SetUp() override {
    SnapshotTest::SetUp();
    if (IsSkipped()) return;
    store_.emplace(NewPath(), SearchedShape(), TestOpenOptions());
    store_->Apply(Op::kInsert, Numbers(0, kItems));
    whole_ = NewPath();
    store_->store().Snapshot(whole_);
    store_->Apply(Op::kUpdate, Numbers(7, 5), 3);
    store_->Apply(Op::kErase, Numbers(20, 2));
    increment_ = NewPath();
    store_->store().Snapshot(increment_, {.base = whole_});
  }
  static CreateOptions SearchedShape() {
    CreateOptions create = Shape(8, 40);
    create.attributes = {{"first", 0, 8}};
    return create;
  }

  /// Makes the checksum right of the pages that begin with this header.
  template <class Header>
  static void PutHeader(std::string* bytes, std::uint64_t at, std::uint64_t length, Header header) {
    header.crc = 0;
    std::memcpy(&(*bytes)[at], &header, sizeof header);
    header.crc = Crc32c(&(*bytes)[at], length);
    std::memcpy(&(*bytes)[at], &header, sizeof header);
  }
  template <class Header>
  static Header HeaderAt(const std::string& bytes, std::uint64_t at) {
    Header header;
    std::memcpy(static_cast<void*>(&header), &bytes[at], sizeof header);
    return header;
  }
  template <class Change>
  static std::string WithHeader(std::string bytes, const Change& change) {
    auto header = HeaderAt<SnapshotHeader>(bytes, 0);
    change(header);
    PutHeader(&bytes, 0, kPageBytes, header);
    return bytes;
  }
  /// What follows a block's header, from `at` on, is other bytes. @return its checksum
  static std::uint32_t PutInBlock(std::string* bytes, const SnapshotLayout::Block& block,
                                  std::uint64_t at, const std::string& put) {
    bytes->replace(block.offset + kBlockHeaderBytes + at, put.size(), put);
    PutHeader(bytes, block.offset, block.bytes, HeaderAt<BlockHeader>(*bytes, block.offset));
    return HeaderAt<BlockHeader>(*bytes, block.offset).crc;
  }

  /// The chain, of which a file has these bytes, is refused for a cause, and by name.
  void ExpectDamaged(const std::string& file, const std::string& bytes, const std::string& cause) {
    const std::string right = ReadFile(file);
    WriteFile(file, bytes);
    std::string message;
    const auto restore = [&] { Store::Restore(Chain(), NewPath(), TestOpenOptions()); };
    EXPECT_EQ(ErrorOf(restore, &message), ErrorCode::kDamaged) << cause;
    EXPECT_EQ(message.rfind(file + ": ", 0), 0u) << message;
    EXPECT_NE(message.find(cause), std::string::npos) << message << ", not: " << cause;
    WriteFile(file, right);
  }
  std::vector<std::string> Chain() const { return {whole_, increment_}; }

  std::optional<ModelledStore> store_;
  std::string whole_;
  std::string increment_;
};

TEST_F(SnapshotContentsTest, HeadersThatCantBe) {
  const auto damaged = [&](const std::string& file, const std::string& cause, auto&& change) {
    ExpectDamaged(file, WithHeader(ReadFile(file), change), cause);
  };
  using Header = SnapshotHeader;
  damaged(whole_, "damaged snapshot: key size 256", [](Header& h) { h.key_size = 256; });
  damaged(whole_, "damaged snapshot: value size 0", [](Header& h) { h.value_size = 0; });
  damaged(whole_, "geometry 2L-3H-8S", [](Header& h) { h.geometry.locations = 3; });
  damaged(whole_, "attribute first has 5 bytes", [](Header& h) { h.attributes[0].bytes = 5; });
  damaged(whole_, "have a gap", [](Header& h) { std::swap(h.attributes[0], h.attributes[1]); });
  damaged(whole_, "reads version 1", [](Header& h) { h.version = 2; });

  const std::string cant = "its header can't be right";
  damaged(increment_, cant, [](Header& h) { h.range_bits = kMostRangeBits + 1; });
  damaged(increment_, cant, [](Header& h) { h.items = kMostThings + 1; });
  damaged(increment_, cant, [](Header& h) { h.ranges = kMostThings + 1; });
  damaged(increment_, cant, [](Header& h) { h.sequence = 0; });
  damaged(increment_, cant, [](Header& h) { h.base = {}; });
  damaged(whole_, cant, [](Header& h) { h.sequence = 1; });
  damaged(whole_, cant, [](Header& h) { h.base = h.id; });
  damaged(whole_, cant, [](Header& h) { h.ranges = 1; });
  damaged(whole_, cant, [](Header& h) { ++h.total_items; });

  damaged(increment_, "its pool's sizes or hashes", [](Header& h) { h.hash_seed[1] ^= 1; });
  damaged(increment_, "a snapshot of another pool", [](Header& h) { h.pool[3] ^= 1; });
  damaged(increment_, "its base is another snapshot", [](Header& h) { ++h.sequence; });
  damaged(whole_, "truncated snapshot: ", [](Header& h) { h.total_items = h.items = 1000; });
  ExpectDamaged(whole_, ReadFile(whole_) + std::string(kPageBytes, '\0'),
                "4096 bytes follow its end");
  ExpectRestores(Chain(), store_->model());
}

TEST_F(SnapshotContentsTest, BlocksThatCantBe) {
  const std::string bytes = ReadFile(increment_);
  const SnapshotLayout layout = SnapshotFile(increment_).layout();
  ASSERT_EQ(layout.blocks(), 2u);
  const auto header = HeaderAt<SnapshotHeader>(bytes, 0);
  const auto number = [](std::uint32_t word) {
    return std::string(reinterpret_cast<const char*>(&word), sizeof word);
  };
  const std::string past_the_last = number(std::uint32_t{1} << header.range_bits);
  // Only the footer tells that the block is not the one that was written.
  for (const std::uint64_t index : {0, 1}) {
    std::string other = bytes;
    PutInBlock(&other, layout.At(index), 0, past_the_last);
    ExpectDamaged(increment_, other, "its block " + std::to_string(index + 1) + " is of another");
  }
  std::string ranges = bytes;
  const std::uint32_t crc = PutInBlock(&ranges, layout.At(0), 0, past_the_last);
  PutInBlock(&ranges, layout.Footer(), 0, number(crc));
  ExpectDamaged(increment_, ranges, "damaged snapshot: its ranges");
  // Each of what a block says of itself.
  const auto damaged = [&](auto&& change) {
    std::string block = bytes;
    const SnapshotLayout::Block at = layout.At(1);
    auto its = HeaderAt<BlockHeader>(block, at.offset);
    change(its);
    PutHeader(&block, at.offset, at.bytes, its);
    ExpectDamaged(increment_, block, "damaged snapshot: its block 2 of 3");
  };
  damaged([](BlockHeader& h) { h.snapshot[0] ^= 1; });
  damaged([](BlockHeader& h) { h.index = 0; });
  damaged([](BlockHeader& h) { ++h.count; });
  damaged([](BlockHeader& h) { h.kind = BlockKind::kRanges; });
  ExpectRestores(Chain(), store_->model());
}

/// An increment that does not have the number of items which it says its store had.
TEST_F(SnapshotContentsTest, CountsThatLie) {
  const std::string right = ReadFile(increment_);
  const std::uint64_t items = store_->model().size();
  for (const std::uint64_t wrong : {items - 1, items + 1, std::uint64_t{0}}) {
    ExpectDamaged(increment_, WithHeader(right, [&](auto& h) { h.total_items = wrong; }),
                  std::to_string(items) + " items are in it and those before it, not " +
                      std::to_string(wrong));
  }
}

/// The same where the pool has room for as many as it says, and not for those that there are.
TEST_F(SnapshotContentsTest, MoreItemsThanAreToldOfWithoutRoomForThem) {
  ModelledStore store(NewPath(), Shape(8, 1000), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 3000));
  const std::vector<std::string> chain{NewPath(), NewPath()};
  store.store().Snapshot(chain[0]);
  store.store().Snapshot(chain[1], {.base = chain[0]});
  WriteFile(chain[1], WithHeader(ReadFile(chain[1]), [](auto& h) { h.total_items = 100; }));
  const std::string target = NewPath();
  std::string message;
  EXPECT_EQ(ErrorOf([&] { Store::Restore(chain, target, TestOpenOptions(1 << 20)); }, &message),
            ErrorCode::kDamaged);
  EXPECT_NE(message.find("more than 100 items are in it"), std::string::npos) << message;
  EXPECT_EQ(message.rfind(chain[1], 0), 0u) << message;
  for (const std::string& name : Files()) {
    EXPECT_EQ(name.find("restoring"), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace gpm::test
