// What the kernels of WarpDrive do (bench/peers/warpdrive_table.h), carried out on the host: groups
// whose lanes are threads, and two of them at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "bench/peers/warpdrive_table.h"
#include "tests/peer_batches.h"

namespace gpm::bench::peers::warpdrive {
namespace {

/// A value of 4 bytes.
struct ShortValue {
  std::uint32_t words[1];
};

/// A table of WarpDrive in host memory. @tparam kGroup |g|
template <class Slots, unsigned kGroup>
struct WarpDrive {
  using Table = WarpDriveTable<Slots>;
  using Key = typename Table::Key;
  static constexpr bool kPacked = std::is_same_v<Slots, PackedSlots>;
  using Row = std::conditional_t<kPacked, ShortValue, Value>;
  static constexpr unsigned kLanes = kGroup;

  explicit WarpDrive(std::uint64_t slots) : words(slots, Table::kEmpty), values(slots) {
    table.words = words.data();
    table.slots = slots;
    if constexpr (!kPacked) table.values = reinterpret_cast<std::byte*>(values.data());
  }
  /// The keys of all slots, sorted.
  std::vector<Key> Keys() const {
    std::vector<Key> keys;
    for (const std::uint64_t word : words) {
      if (!Table::IsFree(word)) keys.push_back(Table::KeyOfWord(word));
    }
    std::ranges::sort(keys);
    return keys;
  }

  std::vector<std::uint64_t> words;
  std::vector<Row> values;
  Table table{};
};

template <class Peer>
class WarpDriveTest : public testing::Test {
 protected:
  using Key = typename Peer::Key;
  using Row = typename Peer::Row;

  /// One batch, by two groups at once. Row i writes version + i.
  Answers<Row> Apply(Op op, const std::vector<Key>& keys, std::uint64_t version = 0) {
    return ApplyByTwoTiles<Peer::kLanes>(peer_->table, {op}, keys, RowsOf<Row>(keys, version));
  }
  /// The table has the keys of a model, each once, and their values.
  void ExpectItems(const std::map<Key, std::uint64_t>& model) {
    std::vector<Key> keys;
    for (const auto& item : model) keys.push_back(item.first);
    ASSERT_EQ(peer_->Keys(), keys);
    const auto answers = Apply(Op::kFind, keys);
    ExpectAll(answers, Result::kOk);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(VersionOf(keys[i], answers.found[i]), model.at(keys[i]));
    }
  }
  void Make(std::uint64_t slots) { peer_ = std::make_unique<Peer>(slots); }

  std::unique_ptr<Peer> peer_;
  KeySource<Key> source_;
};

using WarpDrives = testing::Types<WarpDrive<SeparateSlots, 1>, WarpDrive<SeparateSlots, 4>,
                                  WarpDrive<SeparateSlots, 32>, WarpDrive<PackedSlots, 4>>;
struct WarpDriveName {
  template <class Peer>
  static std::string GetName(int) {
    return (Peer::kPacked ? "pairs" : "separate") + std::to_string(Peer::kLanes);
  }
};
TYPED_TEST_SUITE(WarpDriveTest, WarpDrives, WarpDriveName);

TYPED_TEST(WarpDriveTest, ManyBatchesAgreeWithAModel) {
  this->Make(200);
  const auto all = this->source_.New(100);
  std::map<typename TypeParam::Key, std::uint64_t> model;
  std::size_t added = 0;
  const Op ops[] = {Op::kUpsert, Op::kFind, Op::kErase};
  for (std::uint64_t round = 0; round < 60; ++round) {
    const Op op = ops[round < 3 ? round : this->source_.random() % 3];
    const auto keys = this->source_.Some(all, 10 + this->source_.random() % 40);
    const std::uint64_t base = 1000 * round;
    const auto answers = this->Apply(op, keys, base);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto item = model.find(keys[i]);
      const bool there = item != model.end();
      ASSERT_EQ(ResultName(answers.results[i]),
                ResultName(there || op == Op::kUpsert ? Result::kOk : Result::kNotFound))
          << OpName(op) << " " << i << " of round " << round;
      if (op == Op::kFind && there) {
        ASSERT_EQ(VersionOf(keys[i], answers.found[i]), item->second) << i;
      }
      if (op == Op::kErase && there) model.erase(item);
      if (op == Op::kUpsert) {
        added += there ? 0 : 1;
        model[keys[i]] = base + i;
      }
    }
    ASSERT_NO_FATAL_FAILURE(this->ExpectItems(model)) << OpName(op) << " of round " << round;
  }
  // Each new key took an empty slot or a tombstone.
  const auto empty = std::ranges::count(this->peer_->words, TypeParam::Table::kEmpty);
  EXPECT_LT(this->peer_->words.size() - static_cast<std::size_t>(empty), added);
}

TYPED_TEST(WarpDriveTest, AFullTableSaysSoAndLosesNothing) {
  constexpr std::size_t kSlots = 130;  // of which a window has few
  this->Make(kSlots);
  std::map<typename TypeParam::Key, std::uint64_t> model;
  const auto upsert = [&](std::size_t n, std::size_t refused) {
    const auto keys = this->source_.New(n);
    const auto answers = this->Apply(Op::kUpsert, keys);
    EXPECT_EQ(std::ranges::count(answers.results, Result::kNoSpace), refused);
    for (std::size_t i = 0; i < n; ++i) {
      if (answers.results[i] != Result::kNoSpace) model[keys[i]] = i;
    }
    ASSERT_EQ(model.size(), kSlots);
    ASSERT_NO_FATAL_FAILURE(this->ExpectItems(model));
  };
  upsert(kSlots + 4, 4);
  // What is there has room; and what was erased leaves room for as many keys.
  std::vector<typename TypeParam::Key> keys;
  for (auto& [key, version] : model) {
    keys.push_back(key);
    version = 1000 + keys.size();
  }
  ExpectAll(this->Apply(Op::kUpsert, keys, 1001), Result::kOk);
  ASSERT_NO_FATAL_FAILURE(this->ExpectItems(model));
  const auto erased = this->source_.Some(keys, 3);
  ExpectAll(this->Apply(Op::kErase, erased), Result::kOk);
  ExpectAll(this->Apply(Op::kErase, erased), Result::kNotFound);
  for (const auto key : erased) model.erase(key);
  ASSERT_NO_FATAL_FAILURE(this->ExpectItems(model));
  upsert(5, 2);
}

#if !defined(__SANITIZE_THREAD__)  // upserts of a key write its value at once, as they may
TYPED_TEST(WarpDriveTest, SeveralUpsertsOfAKeyLeaveItOnce) {
  this->Make(100);
  const auto others = this->source_.New(40);  // tombstones
  const auto keys = this->source_.New(8);
  for (std::uint64_t round = 0; round < 5; ++round) {
    ExpectAll(this->Apply(Op::kUpsert, others), Result::kOk);
    ExpectAll(this->Apply(Op::kErase, others), Result::kOk);
    std::vector<typename TypeParam::Key> repeated;
    for (std::size_t i = 0; i < 160; ++i) repeated.push_back(keys[i / 2 % keys.size()]);
    ExpectAll(this->Apply(Op::kUpsert, repeated), Result::kOk);
    auto sorted = keys;
    std::ranges::sort(sorted);
    ASSERT_EQ(this->peer_->Keys(), sorted);
    const auto answers = this->Apply(Op::kFind, keys);
    for (std::size_t k = 0; k < keys.size(); ++k) {
      // Each word is of one of the rows.
      const auto first = ValueOf<typename TypeParam::Row>(keys[k], 0);
      for (std::size_t w = 0; w < std::size(first.words); ++w) {
        const auto version = answers.found[k].words[w] - first.words[w];
        ASSERT_LT(version, repeated.size());
        ASSERT_EQ(repeated[version], keys[k]);
      }
    }
    // Of as many erases one is ok.
    const auto erases = this->Apply(Op::kErase, repeated).results;
    EXPECT_EQ(std::ranges::count(erases, Result::kOk), keys.size());
    EXPECT_EQ(std::ranges::count(erases, Result::kNotFound), repeated.size() - keys.size());
    ASSERT_TRUE(this->peer_->Keys().empty());
  }
}
#endif

TYPED_TEST(WarpDriveTest, ReservedKeysAndOtherOperationsAreInvalid) {
  this->Make(32);
  using KeyType = typename TypeParam::Key;
  const auto last = static_cast<KeyType>(~KeyType{0});
  for (const Op op : {Op::kFind, Op::kUpsert, Op::kErase}) {
    ExpectAll(this->Apply(op, {last, static_cast<KeyType>(last - 1)}), Result::kInvalid);
  }
  for (const Op op : {Op::kInsert, Op::kUpdate}) {
    ExpectAll(this->Apply(op, this->source_.New(2)), Result::kInvalid);
  }
  EXPECT_TRUE(this->peer_->Keys().empty());
  const std::vector<KeyType> largest{static_cast<KeyType>(last - 2)};
  ExpectAll(this->Apply(Op::kUpsert, largest), Result::kOk);
  EXPECT_EQ(this->peer_->Keys(), largest);
}

}  // namespace
}  // namespace gpm::bench::peers::warpdrive
