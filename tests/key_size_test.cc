#include <gtest/gtest.h>

#include <cstring>

#include "gpmstore/pool_reader.h"
#include "pm/pool.h"
#include "recovery/check.h"
#include "table/key_rows.h"
#include "table/layout.h"
#include "tests/test_util.h"

/// Keys of every kind of size: of one word and of several, whole words and not.
namespace gpm::test {
namespace {

constexpr std::uint32_t kSizes[] = {1, 7, 8, 9, 33, 36, 100, 128, 129, 255};
constexpr std::uint32_t kValueSize = 16;

TEST(KeyRowsTest, PaddedAndNarrowed) {
  for (std::uint32_t key_size = 1; key_size <= kMaxKeyBytes; ++key_size) {
    const std::uint32_t words = KeyWords(key_size);
    std::string rows;
    for (const std::uint64_t number : {kAllOnes, std::uint64_t{7}})
      rows += MakeKey(number, key_size);
    std::vector<std::uint64_t> padded(2 * words, 0xABABABABABABABABull);
    for (std::size_t i = 0; i < 2; ++i) {
      const char* const row = rows.data() + i * key_size;
      PadKey(row, key_size, &padded[i * words]);
      EXPECT_EQ(std::memcmp(&padded[i * words], row, key_size), 0);
      EXPECT_TRUE(IsPadded(&padded[i * words], key_size));
      for (std::uint32_t w = 0; w < words; ++w) {
        const auto* const bytes = reinterpret_cast<const std::byte*>(row);
        EXPECT_EQ(PaddedWord(bytes + 8 * w, key_size - 8 * w), padded[i * words + w]);
      }
    }
    std::string narrowed(rows.size(), 'x');
    NarrowKeys(padded.data(), 2, key_size, reinterpret_cast<std::byte*>(narrowed.data()));
    EXPECT_EQ(narrowed, rows);
    for (std::uint32_t at = key_size; at < 8 * words; ++at) {
      std::vector<std::uint64_t> wrong(padded.begin(), padded.begin() + words);
      reinterpret_cast<char*>(wrong.data())[at] = 1;
      EXPECT_FALSE(IsPadded(wrong.data(), key_size)) << at;
    }
  }
}

class KeySizeTest : public PoolTest, public ::testing::WithParamInterface<std::uint32_t> {
 protected:
  /// Keys that differ in one byte alone.
  static std::string KeyWith(std::uint32_t at, int value) {
    std::string key(GetParam(), 'k');
    key[at] = static_cast<char>(value);
    return key;
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, KeySizeTest, ::testing::ValuesIn(kSizes),
                         [](const auto& size) { return "key" + std::to_string(size.param); });

TEST_P(KeySizeTest, EveryByteCounts) {
  ModelledStore store(NewPath(), Shape(GetParam(), kValueSize), TestOpenOptions());
  TestBatch inserts = store.NewBatch();
  std::uint64_t tag = 0;
  for (std::uint32_t at = 0; at < GetParam(); ++at) {
    inserts.Add(Op::kInsert, KeyWith(at, 'x'), MakeValue(++tag, kValueSize));
  }
  for (int value = 0; value < 256; ++value) {
    inserts.Add(Op::kUpsert, KeyWith(GetParam() - 1, value), MakeValue(++tag, kValueSize));
  }
  store.Apply(inserts);
  TestBatch batch = store.NewBatch();
  for (std::uint32_t at = 0; at < GetParam(); ++at) {
    for (const char value : {'x', 'y', '\0'}) {
      batch.Add(Op::kFind, KeyWith(at, value), MakeValue(0, kValueSize));
    }
  }
  for (int value = 0; value < 256; value += 2) {
    batch.Add(Op::kErase, KeyWith(GetParam() - 1, value), MakeValue(0, kValueSize));
    batch.Add(Op::kFind, KeyWith(GetParam() - 1, value + 1), MakeValue(0, kValueSize));
  }
  store.Apply(batch);
  store.ExpectContents();
  store.Reopen();
}

/// Each array of keys begins at any address, and ends where its last row does.
TEST_P(KeySizeTest, RowsBeginAnywhere) {
  Store store = Store::Create(NewPath(), Shape(GetParam(), kValueSize), TestOpenOptions());
  constexpr std::size_t kCount = 200;
  TestBatch numbers(GetParam(), kValueSize);
  for (std::size_t i = 0; i < kCount; ++i) numbers.Add(Op::kUpsert, i, i);
  const Batch whole = numbers.Mixed();
  ASSERT_EQ(store.Apply(whole), 0u);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    Bytes keys(shift + whole.keys.size());
    std::copy(whole.keys.begin(), whole.keys.end(),
              keys.begin() + static_cast<std::ptrdiff_t>(shift));
    Bytes found(kCount * kValueSize);
    std::vector<Result> results(kCount);
    EXPECT_EQ(store.Find(std::span(keys).subspan(shift), found, results), 0u);
    EXPECT_TRUE(std::equal(found.begin(), found.end(), whole.values.begin()));
  }
}

TEST_P(KeySizeTest, ReadersSeeRows) {
  const std::string path = NewPath();
  ModelledStore store(path, Shape(GetParam(), kValueSize), TestOpenOptions());
  store.Apply(Op::kUpsert, Numbers(0, 250));
  store.Apply(Op::kUpsert, {kAllOnes});
  const Model& model = store.model();
  store.store().Close();
  const PoolReader pool(path);
  EXPECT_EQ(pool.key_size(), GetParam());
  std::uint64_t visited = 0;
  pool.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    ++visited;
    const auto item = model.find(AsString(key));
    ASSERT_NE(item, model.end());
    EXPECT_EQ(AsString(value), item->second);
    Bytes got(kValueSize);
    EXPECT_TRUE(pool.Get(key, got));
    EXPECT_EQ(AsString(got), item->second);
  });
  EXPECT_EQ(visited, model.size());
}

/// A byte behind a key's own that is not zero is damage: the check names it, and recovery after a
/// crash refuses the pool.
TEST_P(KeySizeTest, PaddingIsZero) {
  if (!ArePadded(GetParam())) GTEST_SKIP() << "there is none";
  const std::string path = NewPath();
  {
    ModelledStore store(path, Shape(GetParam(), kValueSize), TestOpenOptions());
    store.Apply(Op::kUpsert, Numbers(1, 20));
  }
  {
    const std::unique_ptr<Pool> pool = Pool::Open(path, Pool::Options{});
    const TableView table = MakeTableView(pool->base(), pool->superblock());
    std::uint64_t* word = nullptr;
    for (std::uint64_t b = 0; b < table.Buckets(0) && word == nullptr; ++b) {
      const Slot slot{table.Bucket(0, b), 0};
      if (*table.State(slot) == kEmptyState) continue;
      word = table.key_words == 1 ? table.State(slot) : table.Key(slot) + table.key_words - 1;
    }
    ASSERT_NE(word, nullptr);
    EXPECT_EQ(*word >> (8 * (GetParam() % 8)), 0u);
    *word |= std::uint64_t{1} << 63;
    pool->SetClean(false);
  }
  const CheckReport report = CheckPool(path);
  ASSERT_EQ(report.defects.size(), 1u);
  EXPECT_NE(report.defects[0].find("not all bytes behind the key's own are zeros"),
            std::string::npos)
      << report.defects[0];
  std::string message;
  EXPECT_EQ(ErrorOf([&] { Store::Open(path, TestOpenOptions()); }, &message), ErrorCode::kDamaged);
  EXPECT_NE(message.find("1 items have keys of more than"), std::string::npos) << message;
}

}  // namespace
}  // namespace gpm::test
