// What is measured beside the store is right: each peer, and the store itself through the same
// adapter, against std::unordered_map, as far as its capabilities go.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "bench/peer.h"
#include "tests/test_util.h"
#include "ycsb/buffer.h"

namespace gpm::bench {
namespace {

using test::Bytes;
using ycsb::Buffer;
using ycsb::Memory;

const std::string kStore = "gpmstore";

Memory TestMemory() {
  return test::TestExecutor() == ExecutorKind::kCuda ? Memory::kDevice : Memory::kHost;
}

/// Who is tested, with keys of which size.
struct Contestant {
  std::string name;
  std::uint32_t key_bytes;
};

Capabilities CapabilitiesOf(const std::string& name) {
  return name == kStore ? StoreAdapter::CapabilitiesOf(TestMemory())
                        : FindPeer(name, TestMemory()).can;
}

/// A contestant with keys, values and batches of a test.
class PeersTest : public test::PoolTest, public testing::WithParamInterface<Contestant> {
 protected:
  using Keys = std::vector<std::uint64_t>;
  struct Answers {
    std::vector<Result> results;
    Bytes found;  ///< rows, those of finds that are ok
  };

  void SetUp() override {
    PoolTest::SetUp();
    if (IsSkipped()) return;
    can_ = CapabilitiesOf(GetParam().name);
    key_bytes_ = GetParam().key_bytes;
    value_bytes_ = std::min<std::uint32_t>(128, can_.max_value_bytes);
    random_.seed(test::TestSeed());
  }

  void Make(std::uint64_t items, double fill = 0.8) {
    if (GetParam().name == kStore) {
      CreateOptions create;
      create.key_size = key_bytes_;
      create.value_size = value_bytes_;
      create.initial_capacity = items;
      create.attributes = Attributes();
      adapter_ = std::make_unique<StoreAdapter>(NewPath(), create, test::TestOpenOptions());
      return;
    }
    adapter_ = FindPeer(GetParam().name, TestMemory())
                   .make({.items = items,
                          .max_batch = kMaxBatch,
                          .key_bytes = key_bytes_,
                          .value_bytes = value_bytes_,
                          .fill = fill,
                          .threads = 2,
                          .attributes = Attributes()});
  }
  /// The first words of a value.
  std::vector<Attribute> Attributes() const {
    if (can_.searches == Searches::kNone) return {};
    return {{"a", 0, 4}, {"b", 4, 4}, {"c", 8, 4}, {"d", 12, 4}};
  }

  bool Has(Op op) const { return can_.Has(op); }
  /// What adds an item.
  Op Insertion() const { return Has(Op::kInsert) ? Op::kInsert : Op::kUpsert; }

  /// Keys that nobody had yet.
  Keys NewKeys(std::size_t n) {
    Keys keys(n);
    for (std::uint64_t& key : keys) {
      ++last_key_;
      // Bijections, of as many bits as keys have, of which no reserved key is reached.
      key = key_bytes_ >= 8 ? test::Mix(last_key_) : last_key_ * 2654435761u & 0x7FFFFFFF;
      // Longer keys are in pairs that differ in their last words alone: see WriteKey.
      if (key_bytes_ > 8) key = (test::Mix(last_key_ / 2) & ~std::uint64_t{1}) | last_key_ % 2;
    }
    return keys;
  }
  /// `n` of the keys, some of them several times.
  Keys Some(const Keys& keys, std::size_t n) {
    Keys some(n);
    for (std::uint64_t& key : some) key = keys[random_() % keys.size()];
    return some;
  }

  /// The key of a number, at `row`. Words of longer keys follow from the number, all but the last
  /// without its lowest bit.
  void WriteKey(std::uint64_t number, std::byte* row) const {
    for (std::uint32_t at = 0; at < key_bytes_; at += 8) {
      std::uint64_t word = number;
      if (key_bytes_ > 8) word = test::Mix((at + 8 < key_bytes_ ? number | 1 : number) + at);
      std::memcpy(row + at, &word, std::min(key_bytes_ - at, 8u));
    }
  }

  /// The value of a key in a version: each word of it says both.
  Bytes ValueOf(std::uint64_t key, std::uint64_t version) const {
    Bytes value(value_bytes_);
    for (std::size_t at = 0; at < value_bytes_; at += 4) {
      const auto word = static_cast<std::uint32_t>(test::Mix(key ^ at << 48) + version);
      std::memcpy(&value[at], &word, 4);
    }
    return value;
  }
  /// Whether a value is of one of the versions [first, end), and only its words are, each on its
  /// own, if the contestant promises no more.
  bool IsOneOf(std::span<const std::byte> value, std::uint64_t key, std::uint64_t first,
               std::uint64_t end) const {
    const Bytes zero = ValueOf(key, 0);
    const auto version_at = [&](std::size_t at) {
      std::uint32_t word, base;
      std::memcpy(&word, &value[at], 4);
      std::memcpy(&base, &zero[at], 4);
      return word - base;
    };
    for (std::size_t at = 0; at < value_bytes_; at += 4) {
      const std::uint32_t version = version_at(at);
      if (version < first || version >= end) return false;
      if (can_.whole_values && version != version_at(0)) return false;
    }
    return true;
  }

  /// Applies one batch. @param kinds of operations; one: that of all @param version row i writes
  /// version + i
  Answers Apply(const std::vector<Op>& kinds, const Keys& keys, std::uint64_t version) {
    Bytes values(keys.size() * value_bytes_);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Bytes value = ValueOf(keys[i], version + i);
      std::ranges::copy(value, values.begin() + static_cast<std::ptrdiff_t>(i * value_bytes_));
    }
    return Apply(kinds, keys, values);
  }
  Answers Apply(const std::vector<Op>& kinds, const Keys& keys, const Bytes& values) {
    const std::size_t n = keys.size();
    Bytes key_rows(n * key_bytes_);
    for (std::size_t i = 0; i < n; ++i) WriteKey(keys[i], &key_rows[i * key_bytes_]);
    const auto place = [](std::span<const std::byte> rows) {
      Buffer buffer(TestMemory(), rows.size());
      buffer.CopyFrom(rows);
      return buffer;
    };
    const Buffer ops = place(std::as_bytes(std::span(kinds)));
    const Buffer placed_keys = place(key_rows);
    const Buffer placed_values = place(values);
    const Buffer found(TestMemory(), n * value_bytes_);
    const Buffer results = place(Bytes(n, std::byte{0xEE}));
    Batch batch;
    if (kinds.size() == 1) {
      batch.op = kinds[0];
    } else {
      batch.ops = ops.as<const Op>();
    }
    batch.keys = placed_keys.bytes();
    const auto has = [&](Op op) { return std::ranges::find(kinds, op) != kinds.end(); };
    if (has(Op::kInsert) || has(Op::kUpdate) || has(Op::kUpsert)) {
      batch.values = placed_values.bytes();
    }
    if (has(Op::kFind)) batch.found = found.bytes();
    batch.results = results.as<Result>();
    adapter_->Apply(batch);
    Answers answers{std::vector<Result>(n), Bytes(n * value_bytes_)};
    results.CopyTo(std::as_writable_bytes(std::span(answers.results)));
    found.CopyTo(answers.found);
    return answers;
  }
  Answers Apply(Op kind, const Keys& keys, std::uint64_t version = 0) {
    return Apply(std::vector<Op>{kind}, keys, version);
  }
  Answers Apply(Op kind, const Keys& keys, const Bytes& values) {
    return Apply(std::vector<Op>{kind}, keys, values);
  }
  std::span<const std::byte> Row(const Answers& answers, std::size_t i) const {
    return std::span(answers.found).subspan(i * value_bytes_, value_bytes_);
  }

  /// Every result is this.
  static void ExpectAll(const Answers& answers, Result expected) {
    for (std::size_t i = 0; i < answers.results.size(); ++i) {
      ASSERT_EQ(ResultName(answers.results[i]), ResultName(expected)) << "operation " << i;
    }
  }
  /// Finds keys that have exactly these versions.
  void ExpectVersions(const Keys& keys, const std::function<std::uint64_t(std::size_t)>& version) {
    const Answers answers = Apply(Op::kFind, keys);
    ExpectAll(answers, Result::kOk);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_TRUE(IsOneOf(Row(answers, i), keys[i], version(i), version(i) + 1))
          << "key " << keys[i] << ", operation " << i;
    }
  }

  /// In batches of sizes that leave warps and blocks part empty, and one that fills the GPU.
  Keys Load(std::size_t n) {
    const Keys keys = NewKeys(n);
    std::size_t first = 0;
    for (const std::size_t size : {std::size_t{1}, std::size_t{33}, std::size_t{1000}, n}) {
      const std::size_t rows = std::min(can_.builds_once ? n : size, n - first);
      if (rows == 0) break;
      const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(first);
      ExpectAll(Apply(Insertion(), Keys(begin, begin + static_cast<std::ptrdiff_t>(rows)), first),
                Result::kOk);
      first += rows;
    }
    return keys;
  }

  static constexpr std::uint64_t kMaxBatch = 40'000;
  Capabilities can_;
  std::uint32_t key_bytes_ = 8;
  std::uint32_t value_bytes_ = 128;
  std::unique_ptr<KvAdapter> adapter_;
  std::mt19937_64 random_;
  std::uint64_t last_key_ = 0;
};

TEST_P(PeersTest, FindsWhatWasInsertedAndNothingElse) {
  Make(40'000);
  ExpectAll(Apply(Op::kFind, NewKeys(100)), Result::kNotFound);
  const Keys keys = Load(40'000);
  ExpectVersions(keys, [](std::size_t i) { return i; });
  ExpectAll(Apply(Op::kFind, NewKeys(20'000)), Result::kNotFound);
  adapter_->LoadCaches();
  ExpectVersions(keys, [](std::size_t i) { return i; });
  ExpectAll(Apply(Op::kFind, NewKeys(20'000)), Result::kNotFound);
}

TEST_P(PeersTest, SlotsAreAsManyAsItems) {
  Make(20'000);
  if (adapter_->SlotCount() == 0) GTEST_SKIP() << "it does not say how many there are";
  EXPECT_LT(adapter_->SlotCount(), 4u * 20'000);
  Load(20'000);
  EXPECT_GE(adapter_->SlotCount(), 20'000u);
  EXPECT_LT(adapter_->SlotCount(), 4u * 20'000);
}

TEST_P(PeersTest, InsertsOfKeysThatAreThereChangeNothing) {
  if (!Has(Op::kInsert) || can_.inserts == Inserts::kNew) GTEST_SKIP() << "keys have to be new";
  Make(5000);
  const Keys keys = Load(3000);
  ExpectAll(Apply(Op::kInsert, keys, 7'000'000), Result::kExists);
  ExpectVersions(keys, [](std::size_t i) { return i; });
}

TEST_P(PeersTest, OneOfSeveralInsertsOfAKeyIsOk) {
  if (!Has(Op::kInsert) || can_.inserts != Inserts::kAny) GTEST_SKIP() << "keys have to be new";
  Make(20'000);
  const Keys keys = NewKeys(300);
  const Keys repeated = Some(keys, 20'000);
  const Answers answers = Apply(Op::kInsert, repeated, 0);
  std::unordered_map<std::uint64_t, std::size_t> inserted;
  for (std::size_t i = 0; i < repeated.size(); ++i) {
    if (answers.results[i] == Result::kOk) {
      EXPECT_TRUE(inserted.emplace(repeated[i], i).second) << "a second insert is ok";
    } else {
      ASSERT_EQ(answers.results[i], Result::kExists);
    }
  }
  EXPECT_EQ(inserted.size(),
            std::unordered_set<std::uint64_t>(repeated.begin(), repeated.end()).size());
  const Answers found = Apply(Op::kFind, repeated);
  ExpectAll(found, Result::kOk);
  for (std::size_t i = 0; i < repeated.size(); ++i) {
    const std::size_t by = inserted.at(repeated[i]);
    ASSERT_TRUE(IsOneOf(Row(found, i), repeated[i], by, by + 1)) << i;
  }
}

TEST_P(PeersTest, UpdatesOfAKeyLeaveOneOfTheirValues) {
  Make(20'000);
  const Keys keys = Load(5000);
  for (const Op op : {Op::kUpdate, Op::kUpsert}) {
    if (!Has(op)) continue;
    const std::uint64_t version = op == Op::kUpdate ? 1'000'000 : 2'000'000;
    adapter_->LoadCaches();
    // The first keys often, so that they meet, and all of them at least once.
    Keys updated = Some(Keys(keys.begin(), keys.begin() + 20), 5000);
    updated.insert(updated.end(), keys.begin(), keys.end());
    std::ranges::shuffle(updated, random_);
    ExpectAll(Apply(op, updated, version), Result::kOk);
    const Answers found = Apply(Op::kFind, keys);
    ExpectAll(found, Result::kOk);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_TRUE(IsOneOf(Row(found, i), keys[i], version, version + updated.size())) << i;
    }
    if (op == Op::kUpdate) {
      ExpectAll(Apply(op, NewKeys(500), version), Result::kNotFound);
    } else {
      const Keys fresh = NewKeys(500);
      ExpectAll(Apply(op, fresh, 3'000'000), Result::kOk);
      ExpectVersions(fresh, [](std::size_t i) { return 3'000'000 + i; });
    }
  }
}

TEST_P(PeersTest, ErasedKeysAreGoneAndComeAgain) {
  if (!Has(Op::kErase)) GTEST_SKIP() << "nothing is erased";
  Make(20'000);
  const Keys keys = Load(6000);
  adapter_->LoadCaches();
  const Keys erased(keys.begin(), keys.begin() + 3000);
  const Keys kept(keys.begin() + 3000, keys.end());
  // Each twice in one batch: one of the two is ok.
  Keys twice = erased;
  twice.insert(twice.end(), erased.begin(), erased.end());
  std::ranges::shuffle(twice, random_);
  const Answers answers = Apply(Op::kErase, twice);
  std::unordered_set<std::uint64_t> ok;
  for (std::size_t i = 0; i < twice.size(); ++i) {
    if (answers.results[i] == Result::kOk) {
      EXPECT_TRUE(ok.insert(twice[i]).second) << "a second erase is ok";
    } else {
      ASSERT_EQ(answers.results[i], Result::kNotFound);
    }
  }
  EXPECT_EQ(ok.size(), erased.size());
  ExpectAll(Apply(Op::kFind, erased), Result::kNotFound);
  ExpectAll(Apply(Op::kErase, erased), Result::kNotFound);
  ExpectVersions(kept, [](std::size_t i) { return 3000 + i; });
  ExpectAll(Apply(Insertion(), erased, 9'000'000), Result::kOk);
  ExpectVersions(erased, [](std::size_t i) { return 9'000'000 + i; });
  ExpectVersions(kept, [](std::size_t i) { return 3000 + i; });
}

TEST_P(PeersTest, MixedBatchesReturnWhatWasThereOrIsWritten) {
  if (!can_.mixed || !Has(Op::kUpdate)) GTEST_SKIP() << "batches have one kind";
  Make(20'000);
  const Keys keys = Load(2000);
  std::vector<std::uint64_t> first(keys.size()), end(keys.size());  // versions that may be there
  for (std::size_t i = 0; i < keys.size(); ++i) first[i] = end[i] = i;
  for (std::uint64_t& version : end) ++version;
  for (std::uint64_t round = 1; round <= 4; ++round) {
    const std::uint64_t base = round * 1'000'000;
    std::vector<Op> kinds;
    std::vector<std::size_t> chosen;
    Keys batch;
    const Keys fresh = NewKeys(200);
    for (std::size_t i = 0; i < 12'000; ++i) {
      chosen.push_back(random_() % (i % 3 == 0 ? 10 : keys.size()));
      batch.push_back(keys[chosen.back()]);
      kinds.push_back(random_() % 2 == 0 ? Op::kFind : Op::kUpdate);
      if (i % 60 != 0) continue;
      batch.back() = fresh[i / 60];
      kinds.back() = Op::kInsert;
    }
    const Answers answers = Apply(kinds, batch, base);
    ExpectAll(answers, Result::kOk);
    std::vector<bool> written(keys.size(), false);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (kinds[i] == Op::kUpdate) written[chosen[i]] = true;
      if (kinds[i] != Op::kFind) continue;
      EXPECT_TRUE(IsOneOf(Row(answers, i), batch[i], first[chosen[i]], end[chosen[i]]) ||
                  IsOneOf(Row(answers, i), batch[i], base, base + batch.size()))
          << "round " << round << ", operation " << i;
    }
    for (std::size_t k = 0; k < keys.size(); ++k) {
      if (!written[k]) continue;
      first[k] = base;
      end[k] = base + batch.size();
    }
    const Answers found = Apply(Op::kFind, keys);
    ExpectAll(found, Result::kOk);
    for (std::size_t k = 0; k < keys.size(); ++k) {
      ASSERT_TRUE(IsOneOf(Row(found, k), keys[k], first[k], end[k])) << "round " << round;
    }
    ExpectVersions(fresh, [&](std::size_t i) { return base + i * 60; });
    if (round == 2) adapter_->LoadCaches();
  }
}

TEST_P(PeersTest, AFullTableSaysSo) {
  if (can_.builds_once) GTEST_SKIP() << "what does not fit is no table";
  Make(4000, 0.9);
  Keys in, out;
  for (std::uint64_t batch = 0; batch < (can_.grows ? 2 : 6); ++batch) {
    const Keys keys = NewKeys(can_.grows ? 3500 : 4000);
    const Answers answers = Apply(Insertion(), keys, 0);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (answers.results[i] == Result::kOk) {
        in.push_back(keys[i]);
      } else {
        ASSERT_EQ(answers.results[i], Result::kNoSpace);
        out.push_back(keys[i]);
      }
    }
  }
  EXPECT_GE(in.size(), 3600u);
  EXPECT_EQ(out.empty(), can_.grows);
  if (!out.empty()) ExpectAll(Apply(Op::kFind, out), Result::kNotFound);
  const Answers found = Apply(Op::kFind, in);
  ExpectAll(found, Result::kOk);
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_TRUE(IsOneOf(Row(found, i), in[i], 0, 4000)) << i;
  }
}

/// Random batches of one kind each, with keys at most once in a batch: then all is known.
TEST_P(PeersTest, ManyBatchesAgreeWithAModel) {
  if (can_.builds_once) GTEST_SKIP() << "one batch is all";
  Make(60'000);  // erased slots are not used again by all
  const Keys all = NewKeys(12'000);
  std::unordered_map<std::uint64_t, std::uint64_t> model;  // versions
  for (std::uint64_t round = 1; round <= 60; ++round) {
    Op op = can_.kinds[random_() % can_.kinds.size()];
    Keys keys = all;
    std::ranges::shuffle(keys, random_);
    keys.resize(1 + random_() % (round % 5 == 0 ? 12'000 : 700));
    if (op == Op::kInsert && can_.inserts == Inserts::kNew) {
      std::erase_if(keys, [&](std::uint64_t key) { return model.contains(key); });
    }
    if (keys.empty()) continue;
    if (round % 20 == 0) adapter_->LoadCaches();
    const std::uint64_t base = round * 100'000;
    const Answers answers = Apply(op, keys, base);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto item = model.find(keys[i]);
      const bool there = item != model.end();
      Result expected = there ? Result::kOk : Result::kNotFound;
      if (op == Op::kUpsert) expected = Result::kOk;
      if (op == Op::kInsert) expected = there ? Result::kExists : Result::kOk;
      ASSERT_EQ(ResultName(answers.results[i]), ResultName(expected))
          << OpName(op) << " of key " << keys[i] << " in round " << round;
      if (op == Op::kFind && there) {
        ASSERT_TRUE(IsOneOf(Row(answers, i), keys[i], item->second, item->second + 1))
            << "key " << keys[i] << " in round " << round;
      }
      if (op == Op::kErase && there) model.erase(item);
      if (op == Op::kUpsert || (op == Op::kUpdate && there) || (op == Op::kInsert && !there)) {
        model[keys[i]] = base + i;
      }
    }
  }
}

/// Searches of all attributes in one call, after batches of each kind, against a look at all items.
/// Queries of two attributes come so often that a peer may regroup what it has an index of.
TEST_P(PeersTest, SearchesFindWhatMatches) {
  if (can_.searches == Searches::kNone) GTEST_SKIP() << "nothing is searched";
  Make(12'000);
  const Keys keys = Load(9000);
  std::unordered_map<std::uint64_t, Bytes> model;
  for (std::size_t i = 0; i < keys.size(); ++i) model[keys[i]] = ValueOf(keys[i], i);
  // A few values for all: an attribute that is a number has many items, and some are changed.
  const Keys owners = Some(keys, 30);
  const auto rewrite = [&](const Keys& changed) {
    Bytes rows(changed.size() * value_bytes_);
    for (std::size_t i = 0; i < changed.size(); ++i) {
      Bytes value = ValueOf(owners[random_() % owners.size()], 7);
      std::memcpy(&value[4], &i, 4);  // attribute b: each its own
      model[changed[i]] = value;
      std::ranges::copy(value, rows.begin() + static_cast<std::ptrdiff_t>(i * value_bytes_));
    }
    ExpectAll(Apply(Op::kUpdate, changed, rows), Result::kOk);
  };
  const auto expect = [&](std::size_t n, std::uint32_t attributes) {
    std::vector<std::uint64_t> bounds;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> wanted;
    std::vector<const Bytes*> values;
    for (const auto& [key, value] : model) values.push_back(&value);
    for (std::size_t i = 0; i < n; ++i) {
      const auto attribute = static_cast<std::uint32_t>(random_() % attributes);
      std::uint32_t number = static_cast<std::uint32_t>(random_());
      if (i % 8 != 0) std::memcpy(&number, &(*values[random_() % values.size()])[4 * attribute], 4);
      wanted.emplace_back(attribute, number);
      for (std::uint32_t a = 0; a < 4; ++a) {
        const bool is = a == attribute;
        bounds.insert(bounds.end(), {is ? number : 0, is ? number : ~std::uint64_t{0}});
      }
    }
    std::map<std::pair<std::uint32_t, std::uint32_t>, Keys> right;
    for (const auto& [key, value] : model) {
      for (std::uint32_t a = 0; a < 4; ++a) {
        std::uint32_t number;
        std::memcpy(&number, &value[4 * a], 4);
        right[{a, number}].push_back(key);
      }
    }
    std::uint64_t rows = 0;
    for (const auto& query : wanted) rows += right[query].size();
    Buffer placed(TestMemory(), 8 * bounds.size());
    placed.CopyFrom(std::as_bytes(std::span(bounds)));
    const Buffer counts(TestMemory(), 8 * n), offsets(TestMemory(), 8 * (n + 1));
    const Buffer found(TestMemory(), 8 * rows);
    const std::uint32_t all[] = {0, 1, 2, 3};
    Matches matches{.counts = counts.as<std::uint64_t>(),
                    .offsets = offsets.as<std::uint64_t>(),
                    .keys = found.bytes()};
    adapter_->Search({.attributes = all, .bounds = placed.as<const std::uint64_t>()}, &matches);
    EXPECT_EQ(matches.rows, rows);
    EXPECT_EQ(matches.answered, n);
    Keys host_counts(n), host_offsets(n + 1), host_keys(rows);
    counts.CopyTo(std::as_writable_bytes(std::span(host_counts)));
    offsets.CopyTo(std::as_writable_bytes(std::span(host_offsets)));
    found.CopyTo(std::as_writable_bytes(std::span(host_keys)));
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < n; ++i) {
      Keys& expected = right[wanted[i]];
      ASSERT_EQ(host_counts[i], expected.size()) << "query " << i;
      ASSERT_EQ(host_offsets[i], at);
      const auto begin = host_keys.begin() + static_cast<std::ptrdiff_t>(at);
      std::sort(begin, begin + static_cast<std::ptrdiff_t>(expected.size()));
      std::ranges::sort(expected);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), begin)) << "query " << i;
      at += expected.size();
    }
    EXPECT_EQ(host_offsets[n], at);
    if (rows == 0) return;
    matches.keys = found.bytes().first(8 * (rows - 1));
    EXPECT_THROW(
        adapter_->Search({.attributes = all, .bounds = placed.as<const std::uint64_t>()}, &matches),
        Error);
  };
  expect(500, 4);
  rewrite(Keys(keys.begin(), keys.begin() + 4000));
  expect(40, 4);
  const Keys erased(keys.begin() + 1000, keys.begin() + 2500);
  ExpectAll(Apply(Op::kErase, erased), Result::kOk);
  for (const std::uint64_t key : erased) model.erase(key);
  expect(40, 4);
  for (int i = 0; i < 4; ++i) expect(300, 1);
  expect(1, 4);
  ExpectAll(Apply(Insertion(), erased, 500), Result::kOk);
  for (std::size_t i = 0; i < erased.size(); ++i) model[erased[i]] = ValueOf(erased[i], 500 + i);
  expect(200, 4);
}

/// As published, without splits: displacement and stash come before a refusal (GPHash, FAST 2025,
/// figure 7: 85% of the table, just before segments are split).
TEST(DashTest, ASegmentIsNearlyFullWhenItRefuses) {
  if (TestMemory() != Memory::kHost) GTEST_SKIP() << "a table on the CPU";
  constexpr std::uint64_t kSegmentItems = 924;
  constexpr int kSegments = 100;
  double fill = 0;
  for (int segment = 0; segment < kSegments; ++segment) {
    const auto table =
        FindPeer("dash", Memory::kHost).make({.items = 600, .max_batch = 1, .value_bytes = 16});
    std::uint64_t inserted = 0;
    for (Result result = Result::kOk; result == Result::kOk; ++inserted) {
      const std::uint64_t key = test::Mix(test::TestSeed() + inserted + segment * 100'000ull);
      const Bytes value(16);
      Batch batch;
      batch.op = Op::kInsert;
      batch.keys = std::as_bytes(std::span(&key, 1));
      batch.values = value;
      batch.results = std::span(&result, 1);
      table->Apply(batch);
    }
    fill += static_cast<double>(inserted - 1) / kSegmentItems / kSegments;
  }
  std::printf("fill when an insert is first refused: %.3f\n", fill);
  EXPECT_GT(fill, 0.95);  // 0.94 without displacement, 0.82 without stash
  EXPECT_LE(fill, 1.0);
}

/// Of all peers that there are, also where there is no GPU to make them.
TEST(PeerItemsTest, OtherSizesOfKeysAreRefused) {
  std::vector<std::string> with_longer_keys;
  for (const Memory memory : {Memory::kHost, Memory::kDevice}) {
    for (const std::string& name : PeerNames(memory)) {
      const Peer& peer = FindPeer(name, memory);
      const Capabilities& can = peer.can;
      for (const std::uint32_t bytes : {4u, 8u, 16u, 31u, 32u, 64u, 128u}) {
        const bool has = can.HasKeysOf(bytes);
        const std::string why = WhyNotItems(peer, bytes, can.value_unit);
        EXPECT_EQ(why.empty(), has) << name << ": " << why;
        if (has) continue;
        EXPECT_NE(why.find("--key-size " + std::to_string(bytes)), std::string::npos) << why;
        EXPECT_THROW(RequireItems(peer, bytes, can.value_unit), Error);
      }
      if (can.longer_keys.empty()) continue;
      with_longer_keys.push_back(name);
      EXPECT_NE(WhyNotItems(peer, 16, can.value_unit).find("keys of 8 or 32 or 128 bytes"),
                std::string::npos);
    }
  }
  std::vector<std::string> expected = {"libcuckoo", "libcuckoo-malloc"};
  if (!PeerNames(Memory::kDevice).empty()) {
    expected.insert(expected.end(), {"clevel-gpm", "gphash", "libcuckoo-carried", "slabhash-gpm"});
  }
  EXPECT_EQ(with_longer_keys, expected);
}

/// All of them, with each of their sizes of keys. (The store has any, which its own tests test.)
std::vector<Contestant> Contestants() {
  std::vector<std::string> names = PeerNames(TestMemory());
  names.push_back(kStore);
  std::vector<Contestant> contestants;
  for (const std::string& name : names) {
    const Capabilities can = CapabilitiesOf(name);
    contestants.push_back({name, can.key_bytes == 0 ? 8 : can.key_bytes});
    for (const std::uint32_t bytes : can.longer_keys) contestants.push_back({name, bytes});
  }
  return contestants;
}
INSTANTIATE_TEST_SUITE_P(All, PeersTest, testing::ValuesIn(Contestants()), [](const auto& test) {
  std::string name = test.param.name + "_" + std::to_string(test.param.key_bytes);
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace gpm::bench
