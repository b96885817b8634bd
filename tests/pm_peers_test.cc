// What the kernels of the peers on PM do (bench/peers/gphash_table.h, slabhash_table.h,
// clevel_table.h), carried out on the host, for keys of 8 and of 32 bytes: tiles whose lanes are
// threads, and several of them at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "bench/peers/clevel_table.h"
#include "bench/peers/gphash_table.h"
#include "bench/peers/slabhash_table.h"
#include "tests/host_cells.h"
#include "tests/host_warp.h"
#include "tests/peer_batches.h"
#include "tests/test_util.h"

namespace gpm::bench::peers {
namespace {

/// The last word with which a key has this fold.
template <unsigned kWords>
void SetFold(Key<kWords>& key, std::uint64_t fold) {
  key.words[kWords - 1] = 0;
  key.words[kWords - 1] = key.Fold() ^ fold;
}

/// GPHash with frames for a fifth of the buckets and more; or without what figure 9 adds.
template <unsigned kWordsOfKey, unsigned kLanesOfTile = kWarpThreads, bool kInPlace = true,
          bool kCached = true>
struct GpHash {
  using Table = gphash::GpHashTable<kWordsOfKey, kInPlace, kCached>;
  inline static const std::string kName = kLanesOfTile == 1 ? "gphash_threads"
                                          : !kInPlace       ? "gphash_apart"
                                          : !kCached        ? "gphash_uncached"
                                                            : "gphash";
  static constexpr unsigned kWords = kWordsOfKey;
  static constexpr unsigned kLanes = kLanesOfTile;

  explicit GpHash(std::uint64_t slots)
      : top(slots / gphash::kSlots / 3 * 2 / 2 * 2 + 2),
        buckets(top + top / 2),
        frames(buckets.size() / 3),
        frame_of(buckets.size(), gphash::kNotCached),
        bucket_of(frames.size(), gphash::kNotCached),
        holders(frames.size()),
        uses(buckets.size()),
        writers(frames.size() * gphash::kSlots),
        cells(kValueBytes + Table::kKeyBytes,
              static_cast<std::uint32_t>(buckets.size() * gphash::kSlots + kMaxBatch)) {
    table = {buckets.data(),
             top,
             cells.view,
             {frame_of.data(), bucket_of.data(), holders.data(), uses.data(), frames.data(),
              writers.data()}};
  }
  template <class Tile>
  Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    std::uint64_t cell = 0;
    const Result result = table.Apply(tile, batch, i, &cell);
    if (cell != 0) CopyValue(tile, batch.FoundOf(i), cells.view.AddressOf(cell), kValueBytes);
    return result;
  }
  void LoadCaches() {
    std::vector<std::uint32_t> hottest(buckets.size());
    std::iota(hottest.begin(), hottest.end(), 0u);
    std::ranges::stable_sort(hottest, [&](auto a, auto b) { return uses[a] > uses[b]; });
    if constexpr (kCached) {
      RunTiles<kLanes>(1, [&](const auto& tile, unsigned) { Load(tile, hottest); });
    }
  }
  /// Loads the first of some buckets.
  template <class Tile>
  void Load(const Tile& tile, std::span<const std::uint32_t> of) const {
    for (std::uint32_t y = 0; y < frames.size(); ++y) table.LoadFrame(tile, y, of[y]);
  }
  /// Nobody holds a frame, and frames have what their buckets have, but for keys and references of
  /// free slots.
  void Check() {
    for (const std::uint32_t count : holders) ASSERT_EQ(count, 0u);
    for (std::size_t x = 0; x < buckets.size(); ++x) {
      if (frame_of[x] == gphash::kNotCached) continue;
      gphash::Bucket<kWords>& frame = frames[frame_of[x]];
      for (unsigned slot = 0; slot < gphash::kSlots; ++slot) {
        ASSERT_EQ(*frame.State(slot), *buckets[x].State(slot));
        if (*frame.State(slot) == gphash::kEmpty) continue;
        ASSERT_EQ(*frame.Reference(slot), *buckets[x].Reference(slot));
        for (unsigned k = 0; k < frame.kKeyWords; ++k) {
          ASSERT_EQ(frame.KeyWords(slot)[k], buckets[x].KeyWords(slot)[k]);
        }
      }
    }
  }

  std::uint64_t top;
  std::vector<gphash::Bucket<kWords>> buckets, frames;
  std::vector<std::uint32_t> frame_of, bucket_of, holders, uses;
  std::vector<std::uint64_t> writers;
  HostCells cells;
  Table table;
};

template <unsigned kWordsOfKey>
struct SlabHash {
  inline static const std::string kName = "slabhash";
  static constexpr unsigned kWords = kWordsOfKey;
  static constexpr unsigned kLanes = kWarpThreads;

  explicit SlabHash(std::uint64_t slots)
      : slabs(slots / slabhash::kSlots + 2),
        log(kMaxBatch),
        count(slabs.size() / 3 + 1),
        cells(kValueBytes,
              static_cast<std::uint32_t>(slabs.size() * slabhash::kSlots + kMaxBatch)) {
    table = {slabs.data(), log.data(), count, slabs.size(), &count, cells.view};
  }
  template <class Tile>
  Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    std::uint64_t cell = 0;
    const Result result = table.Apply(tile, batch, i, &cell);
    if (cell != 0) CopyValue(tile, batch.FoundOf(i), cells.view.AddressOf(cell), kValueBytes);
    return result;
  }
  void LoadCaches() {}
  /// Nothing is left to be done again, and every key that is there has a value.
  void Check() {
    for (const auto& record : log) {
      ASSERT_TRUE(record.words[0] == slabhash::kNothing || record.words[1 + kWords] == 0);
    }
    for (auto& slab : slabs) {
      for (unsigned slot = 0; slot < slabhash::kSlots; ++slot) {
        const bool used = slab.words[slot] != slabhash::kEmpty;
        ASSERT_EQ(used, slab.words[slabhash::kReferenceLane + slot] != 0);
      }
    }
  }

  std::vector<slabhash::Slab<kWords>> slabs;
  std::vector<slabhash::LogRecord<kWords>> log;
  std::uint64_t count;
  HostCells cells;
  slabhash::SlabHashTable<kWords> table;
};

template <unsigned kWordsOfKey>
struct Clevel {
  inline static const std::string kName = "clevel";
  static constexpr unsigned kWords = kWordsOfKey;
  static constexpr unsigned kLanes = 1;
  struct alignas(64) Bucket {
    std::uint64_t words[clevel::kSlots];
  };

  explicit Clevel(std::uint64_t slots)
      : top(slots / clevel::kSlots / 3 * 2 / 2 * 2 + 2),
        buckets(top + top / 2),
        cells(clevel::ClevelTable<kWords>::kKeyBytes + kValueBytes,
              static_cast<std::uint32_t>(buckets.size() * clevel::kSlots + kMaxBatch)) {
    table = {buckets[0].words, top, cells.view};
  }
  template <class Tile>
  Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    return table.Apply(tile, batch, i);
  }
  void LoadCaches() {}
  void Check() {}

  std::uint64_t top;
  std::vector<Bucket> buckets;
  HostCells cells;
  clevel::ClevelTable<kWords> table;
};

template <class Peer>
class PmPeersTest : public testing::Test {
 protected:
  static constexpr unsigned kWords = Peer::kWords;
  using KeyType = Key<kWords>;
  using Keys = std::vector<KeyType>;
  using Answers = peers::Answers<Value>;
  struct Less {
    bool operator()(const KeyType& a, const KeyType& b) const {
      return std::ranges::lexicographical_compare(a.words, b.words);
    }
  };

  void SetUp() override { random_.seed(test::TestSeed()); }

  /// Keys that nobody had yet. Of longer ones a third have the fold of the one before, and so all
  /// that follows from it, and two of its words; another third differ from it in one word, which is
  /// often 0.
  Keys NewKeys(std::size_t n) {
    Keys keys(n);
    for (std::size_t i = 0; i < n; ++i) {
      KeyType& key = keys[i];
      do {
        for (std::uint64_t& word : key.words) word = random_();
        if constexpr (kWords > 1) {
          if (i % 3 != 0) key = keys[i - 1];
          if (i % 3 == 1) {
            key.words[random_() % (kWords - 1)] = random_();
            SetFold(key, keys[i - 1].Fold());
          }
          if (i % 3 == 2) {
            key.words[1 + random_() % (kWords - 1)] = random_() % 2 == 0 ? 0 : random_();
          }
        }
      } while (!known_.insert(key).second);
    }
    return keys;
  }
  static std::uint64_t SeedOf(const KeyType& key) { return key.Fold() + key.words[0]; }

  /// One batch, by two tiles at once. Row i writes version + i.
  /// @param kinds of its operations; one: that of all
  Answers Apply(const std::vector<Op>& kinds, const Keys& keys, std::uint64_t version = 0) {
    std::vector<Value> values;
    for (const KeyType& key : keys) values.push_back(ValueOf<Value>(SeedOf(key), version++));
    return ApplyByTwoTiles<Peer::kLanes>(*peer_, kinds, keys, values);
  }
  Answers Apply(Op op, const Keys& keys, std::uint64_t version = 0) {
    return Apply(std::vector<Op>{op}, keys, version);
  }
  void ExpectVersions(const Keys& keys, std::uint64_t first) {
    const Answers answers = Apply(Op::kFind, keys);
    ExpectAll(answers, Result::kOk);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(VersionOf(SeedOf(keys[i]), answers.found[i]), first + i) << i;
    }
  }
  void Make(std::uint64_t slots) { peer_ = std::make_unique<Peer>(slots); }

  std::unique_ptr<Peer> peer_;
  std::mt19937_64 random_;
  std::set<KeyType, Less> known_;
};

using Peers = testing::Types<GpHash<1>, GpHash<4>, GpHash<1, 1, false, false>,
                             GpHash<1, kWarpThreads, false, false>,
                             GpHash<1, kWarpThreads, true, false>, GpHash<16>, SlabHash<1>,
                             SlabHash<4>, SlabHash<16>, Clevel<1>, Clevel<4>, Clevel<16>>;
using SlabHashes = testing::Types<SlabHash<1>, SlabHash<4>, SlabHash<16>>;
struct PeerName {
  template <class Peer>
  static std::string GetName(int) {
    return Peer::kName + std::to_string(8 * Peer::kWords);
  }
};
TYPED_TEST_SUITE(PmPeersTest, Peers, PeerName);

TYPED_TEST(PmPeersTest, ManyBatchesAgreeWithAModel) {
  this->Make(4000);  // SlabHash-GPM does not use slots again
  const auto all = this->NewKeys(240);
  std::map<typename TestFixture::KeyType, std::uint64_t, typename TestFixture::Less> model;
  const Op ops[] = {Op::kInsert, Op::kFind, Op::kUpdate, Op::kErase};
  for (std::uint64_t round = 0; round < 60; ++round) {
    const Op op = ops[round < 2 ? round : this->random_() % 4];
    auto keys = all;
    std::ranges::shuffle(keys, this->random_);
    keys.resize(20 + this->random_() % 100);
    if (round % 6 == 2) this->peer_->LoadCaches();
    const std::uint64_t base = 1000 * round;
    const auto answers = this->Apply(op, keys, base);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto item = model.find(keys[i]);
      const bool there = item != model.end();
      Result expected = there ? Result::kOk : Result::kNotFound;
      if (op == Op::kInsert) expected = there ? Result::kExists : Result::kOk;
      ASSERT_EQ(ResultName(answers.results[i]), ResultName(expected))
          << OpName(op) << " " << i << " of round " << round;
      if (op == Op::kFind && there) {
        ASSERT_EQ(VersionOf(this->SeedOf(keys[i]), answers.found[i]), item->second) << i;
      }
      if (op == Op::kErase && there) model.erase(item);
      if ((op == Op::kUpdate && there) || (op == Op::kInsert && !there)) model[keys[i]] = base + i;
    }
    this->peer_->Check();
  }
  EXPECT_EQ(this->peer_->cells.Used(), model.size());
}

/// In a table so small that many of the others are looked for where the key is.
TYPED_TEST(PmPeersTest, EveryBitOfAKeyCounts) {
  this->Make(20);
  const auto keys = this->NewKeys(1);
  ExpectAll(this->Apply(Op::kInsert, keys), Result::kOk);
  typename TestFixture::Keys others;
  for (unsigned bit = 0; bit < 64 * TypeParam::kWords; ++bit) {
    others.push_back(keys[0]);
    others.back().words[bit / 64] ^= std::uint64_t{1} << bit % 64;
  }
  ExpectAll(this->Apply(Op::kFind, others), Result::kNotFound);
  ExpectAll(this->Apply(Op::kErase, others), Result::kNotFound);
  this->ExpectVersions(keys, 0);
}

TYPED_TEST(PmPeersTest, AFullTableSaysSoAndLosesNothing) {
  this->Make(200);
  typename TestFixture::Keys in;
  std::size_t refused = 0;
  for (std::uint64_t round = 0; refused == 0 || round < 4; ++round) {
    ASSERT_LT(round, 20u);
    const auto keys = this->NewKeys(60);
    const auto answers = this->Apply(Op::kInsert, keys);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (answers.results[i] == Result::kOk) {
        in.push_back(keys[i]);
      } else {
        ASSERT_EQ(answers.results[i], Result::kNoSpace);
        ++refused;
      }
    }
  }
  EXPECT_GT(in.size(), 100u);
  for (std::size_t first = 0; first < in.size(); first += 60) {
    const auto end = std::min(first + 60, in.size());
    const typename TestFixture::Keys part(in.begin() + static_cast<std::ptrdiff_t>(first),
                                          in.begin() + static_cast<std::ptrdiff_t>(end));
    ExpectAll(this->Apply(Op::kFind, part), Result::kOk);
  }
  EXPECT_EQ(this->peer_->cells.Used(), in.size());
}

/// Few keys, which two warps insert at once.
template <class Peer>
class SlabHashTest : public PmPeersTest<Peer> {};
TYPED_TEST_SUITE(SlabHashTest, SlabHashes, PeerName);

TYPED_TEST(SlabHashTest, OneOfSeveralInsertsOfAKeyIsOk) {
  this->Make(1500);
  const auto keys = this->NewKeys(30);
  typename TestFixture::Keys repeated;
  for (int i = 0; i < 150; ++i) repeated.push_back(keys[static_cast<std::size_t>(i) / 2 % 30]);
  const auto answers = this->Apply(Op::kInsert, repeated);
  std::set<typename TestFixture::KeyType, typename TestFixture::Less> inserted;
  for (std::size_t i = 0; i < repeated.size(); ++i) {
    if (answers.results[i] == Result::kOk) {
      EXPECT_TRUE(inserted.insert(repeated[i]).second) << "a second insert is ok";
    } else {
      ASSERT_EQ(answers.results[i], Result::kExists);
    }
  }
  EXPECT_EQ(inserted.size(), keys.size());
  EXPECT_EQ(this->peer_->cells.Used(), keys.size());
  this->peer_->Check();
}

/// What share of the slots that its chains have a table uses follows from their length alone: 0.69
/// with 12 items each, and the 0.82 of GPHash's evaluation with 34 (Poisson).
using SlabChainsTest = PmPeersTest<SlabHash<1>>;
TEST_F(SlabChainsTest, LongerChainsAreFuller) {
  Make(6600);
  const auto chains = peer_->count;
  std::size_t items = 0;
  for (const auto& [mean, load_factor] : {std::pair{12u, 0.69}, std::pair{34u, 0.82}}) {
    while (items < mean * chains) {
      const auto keys = NewKeys(std::min<std::size_t>(100, mean * chains - items));
      ExpectAll(Apply(Op::kInsert, keys), Result::kOk);
      items += keys.size();
    }
    const auto slots = static_cast<double>(peer_->count * slabhash::kSlots);
    EXPECT_NEAR(static_cast<double>(items) / slots, load_factor, 0.05) << mean;
  }
}

/// Finds and updates of a few keys, and inserts of others, all at once and with frames.
TYPED_TEST(PmPeersTest, MixedBatchesReturnWhatWasThereOrIsWritten) {
  this->Make(600);
  const auto keys = this->NewKeys(9);
  ExpectAll(this->Apply(Op::kInsert, keys), Result::kOk);
  this->ExpectVersions(keys, 0);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> versions;  // that may be there: first, end
  for (std::uint64_t i = 0; i < keys.size(); ++i) versions.emplace_back(i, i + 1);
  for (std::uint64_t base = 1000; base <= 5000; base += 1000) {
    this->peer_->LoadCaches();
    const auto fresh = this->NewKeys(60);
    auto batch = fresh;
    std::vector<Op> kinds(fresh.size(), Op::kInsert);
    std::vector<std::size_t> chosen(fresh.size());
    std::set<std::size_t> updated;
    for (int i = 0; i < 180; ++i) {
      chosen.push_back(this->random_() % keys.size());
      batch.push_back(keys[chosen.back()]);
      kinds.push_back(this->random_() % 2 == 0 ? Op::kFind : Op::kUpdate);
      if (kinds.back() == Op::kUpdate) updated.insert(chosen.back());
    }
    const auto answers = this->Apply(kinds, batch, base);
    ExpectAll(answers, Result::kOk);
    for (std::size_t i = fresh.size(); i < batch.size(); ++i) {
      if (kinds[i] != Op::kFind) continue;
      const std::uint64_t version = VersionOf(this->SeedOf(batch[i]), answers.found[i]);
      const auto [first, end] = versions[chosen[i]];
      EXPECT_TRUE((version >= first && version < end) ||
                  (version >= base && version < base + batch.size()))
          << version;
    }
    for (const std::size_t k : updated) versions[k] = {base, base + batch.size()};
    const auto found = this->Apply(Op::kFind, keys);
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const std::uint64_t version = VersionOf(this->SeedOf(keys[k]), found.found[k]);
      EXPECT_TRUE(version >= versions[k].first && version < versions[k].second) << version;
    }
    this->ExpectVersions(fresh, base);
    this->peer_->Check();
  }
  EXPECT_EQ(this->peer_->cells.Used(), keys.size() + 5 * 60);
}

TEST(KeyTest, AKeyOfOneWordIsItsFoldAndAllWordsOfALongerOneCount) {
  const Key<1> one{{42}};
  EXPECT_EQ(one.Fold(), 42u);
  const Key<4> key{{1, 2, 3, 4}};
  for (unsigned k = 0; k < 4; ++k) {
    Key<4> other = key;
    other.words[k] ^= std::uint64_t{1} << 63;
    EXPECT_FALSE(other == key);
    EXPECT_NE(other.Fold(), key.Fold());
    Key<4> written{};
    StoreKey(written.words, other);
    EXPECT_TRUE(LoadKey<4>(written.words) == other);
  }
  Key<4> set = key;
  SetFold(set, 7);
  EXPECT_EQ(set.Fold(), 7u);
}

TEST(GpHashTest, NoLongerKeyHasTheStateOfAFreeSlot) {
  for (const std::uint64_t fold : {gphash::kEmpty, gphash::kInsert}) {
    Key<4> key{{1, 2, 3, 0}};
    SetFold(key, fold);
    EXPECT_NE(gphash::StateOf(key), gphash::kEmpty);
    EXPECT_NE(gphash::StateOf(key), gphash::kInsert);
    EXPECT_EQ(gphash::StateOf(Key<1>{{fold}}), fold);  // is refused
  }
}

class HalfWrittenTest : public PmPeersTest<SlabHash<4>> {
 protected:
  /// Claims the first slot of a key's chain, as an insert does, and writes some words of the key.
  std::uint64_t* Claim(const KeyType& key, unsigned words) {
    slab_ = peer_->table.BucketOf(key);
    for (unsigned k = 0; k < words; ++k) {
      peer_->slabs[slab_].words[slabhash::Slab<4>::IndexOf(0, k)] = key.words[k];
    }
    return &peer_->slabs[slab_].words[slabhash::kReferenceLane];
  }
  std::uint64_t slab_ = 0;
};

TEST_F(HalfWrittenTest, IsNotFound) {
  Make(60);
  const KeyType key{{1, 2, 3, 4}};
  for (unsigned words = 1; words <= 4; ++words) {
    std::uint64_t* const reference = Claim(key, words);
    EXPECT_EQ(*reference, 0u);
    ExpectAll(Apply(Op::kFind, {key}), Result::kNotFound);
    // What it looks like meanwhile is not there, either.
    KeyType seen{};
    std::copy_n(key.words, words, seen.words);
    ExpectAll(Apply(Op::kFind, {seen}), Result::kNotFound);
    ExpectAll(Apply(Op::kUpdate, {seen}), Result::kNotFound);
    EXPECT_EQ(slabhash::SlabHashTable<4>::IsWholeWhereSeen(seen), words == 4);
  }
}

/// An insert of the same key waits for its end, and one of a key that begins alike, too.
TEST_F(HalfWrittenTest, IsAwaitedByInserts) {
  for (const bool same : {true, false}) {
    Make(60);
    const KeyType key{{1, 2, 3, 4}};
    KeyType other = key;
    if (!same) {
      other.words[1] = 9;
      SetFold(other, key.Fold());  // so that both are in one chain
    }
    std::uint64_t* const reference = Claim(key, 1);
    Answers answers;
    std::jthread insert([&] { answers = Apply(Op::kInsert, {other}); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (unsigned k = 1; k < 4; ++k) {
      StoreWord(&peer_->slabs[slab_].words[slabhash::Slab<4>::IndexOf(0, k)], key.words[k]);
    }
    StoreWord(reference, std::uint64_t{kMaxBatch});
    insert.join();
    ExpectAll(answers, same ? Result::kExists : Result::kOk);
    ExpectAll(Apply(Op::kFind, {key, other}), Result::kOk);
  }
}

/// While finds go on, frames are taken from buckets and given to others, again and again.
TEST(GpHashTest, FramesAreLoadedBesideFinds) {
  constexpr std::uint64_t kItems = 200;
  GpHash<1> peer(400);
  std::vector<Key<1>> keys(kItems);
  std::vector<Value> values(kItems), found(kItems);
  std::vector<Result> results(kItems);
  for (std::uint64_t i = 0; i < kItems; ++i) {
    keys[i] = {{test::Mix(i + 1)}};
    values[i].words[0] = keys[i].words[0];
  }
  Batch batch;
  batch.op = Op::kInsert;
  batch.keys = std::as_bytes(std::span(keys));
  batch.values = std::as_bytes(std::span(values));
  batch.found = std::as_writable_bytes(std::span(found));
  batch.results = results;
  const auto apply = [&](const auto& tile, std::uint64_t i) {
    const Result result = peer.Apply(tile, KernelBatch(batch, kValueBytes), i);
    if (tile.thread_rank() == 0) results[i] = result;
  };
  RunTiles<kWarpThreads>(1, [&](const auto& tile, unsigned) {
    for (std::uint64_t i = 0; i < kItems; ++i) apply(tile, i);
  });
  batch.op = Op::kFind;
  std::vector<std::uint32_t> order(peer.buckets.size());
  std::iota(order.begin(), order.end(), 0u);
  std::atomic<bool> found_all = false;
  RunTiles<kWarpThreads>(2, [&](const auto& tile, unsigned number) {
    if (number == 0) {
      for (std::uint64_t i = 0; i < 10 * kItems; ++i) {
        const std::uint64_t item = i % kItems;
        apply(tile, item);
        tile.sync();
        if (tile.thread_rank() != 0) continue;
        EXPECT_EQ(ResultName(results[item]), ResultName(Result::kOk)) << i;
        EXPECT_EQ(found[item].words[0], keys[item].words[0]) << i;
      }
      found_all = true;
      return;
    }
    // Each time a bucket is in another frame than before, or in none.
    for (std::uint32_t round = 0; !tile.any(found_all); ++round) {
      peer.Load(tile, std::span(order).subspan(round % 3 * 7, peer.frames.size()));
    }
  });
  peer.Check();
}

/// While an operation holds a frame, it keeps what it has, though nobody else gets it.
TEST(GpHashTest, AFrameThatIsHeldIsNotOverwritten) {
  GpHash<1> peer(400);
  for (std::size_t x = 0; x < peer.buckets.size(); ++x) *peer.buckets[x].State(0) = x + 1;
  const auto load = [&](std::uint32_t bucket) {
    RunTiles<kWarpThreads>(
        1, [&](const auto& tile, unsigned) { peer.table.LoadFrame(tile, 0, bucket); });
  };
  load(3);
  ASSERT_EQ(peer.table.Hold(3), 0u);
  std::jthread loader([&] { load(5); });
  while (LoadWord(&peer.frame_of[3]) != gphash::kNotCached) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(LoadWord(peer.frames[0].State(0)), 4u);
  EXPECT_EQ(peer.table.Hold(3), gphash::kNotCached);
  EXPECT_EQ(peer.table.Hold(5), gphash::kNotCached);
  EXPECT_EQ(LoadWord(&peer.holders[0]), 1u);
  AtomicAdd32(&peer.holders[0], ~0u);
  loader.join();
  EXPECT_EQ(*peer.frames[0].State(0), 6u);
  EXPECT_EQ(peer.table.Hold(5), 0u);
}

/// A slot of GPHash that is being written has no key, whatever words it has.
TEST(GpHashTest, AHalfWrittenKeyIsNeitherFoundNorOverwritten) {
  GpHash<4> peer(48);
  const Key<4> key{{1, 2, 3, 4}};
  for (auto& bucket : peer.buckets) {
    for (unsigned slot = 0; slot < gphash::kSlots; ++slot) {
      *bucket.State(slot) = gphash::kInsert;
      StoreKey(bucket.KeyWords(slot), key);
    }
  }
  std::vector<Value> values(1), found(1);
  std::vector<Result> results(1);
  for (const auto& [op, expected] :
       {std::pair{Op::kFind, Result::kNotFound}, std::pair{Op::kUpdate, Result::kNotFound},
        std::pair{Op::kErase, Result::kNotFound}, std::pair{Op::kInsert, Result::kNoSpace}}) {
    Batch batch;
    batch.op = op;
    batch.keys = std::as_bytes(std::span(&key, 1));
    batch.values = std::as_bytes(std::span(values));
    batch.found = std::as_writable_bytes(std::span(found));
    batch.results = results;
    RunTiles<kWarpThreads>(1, [&](const auto& tile, unsigned) {
      const Result result = peer.Apply(tile, KernelBatch(batch, kValueBytes), 0);
      if (tile.thread_rank() == 0) results[0] = result;
    });
    EXPECT_EQ(ResultName(results[0]), ResultName(expected)) << OpName(op);
  }
}

}  // namespace
}  // namespace gpm::bench::peers
