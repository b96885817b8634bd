#ifndef GPM_TESTS_PEER_BATCHES_H_
#define GPM_TESTS_PEER_BATCHES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <type_traits>
#include <vector>

#include "bench/peers/tiles.h"
#include "gpmstore/batch.h"
#include "tests/host_warp.h"
#include "tests/test_util.h"

/// Batches for what the kernels of peers do, carried out by tiles on the host, and their values.
namespace gpm::bench::peers {

inline constexpr std::uint32_t kValueBytes = 32;
inline constexpr std::uint32_t kMaxBatch = 1024;
/// A row of a batch.
struct alignas(16) Value {
  std::uint64_t words[kValueBytes / 8];
};

/// What a batch answered.
template <class Row>
struct Answers {
  std::vector<Result> results;
  std::vector<Row> found;
};

/// A row that tells the seed of its key and its version in every word.
template <class Row>
Row ValueOf(std::uint64_t seed, std::uint64_t version) {
  Row row;
  for (std::uint64_t k = 0; auto& word : row.words) {
    word = static_cast<std::remove_reference_t<decltype(word)>>(test::Mix(seed + k++) + version);
  }
  return row;
}
/// The version of a whole row.
template <class Row>
std::uint64_t VersionOf(std::uint64_t seed, const Row& row) {
  const auto version = row.words[0] - ValueOf<Row>(seed, 0).words[0];
  EXPECT_TRUE(std::ranges::equal(row.words, ValueOf<Row>(seed, version).words));
  return version;
}

/// Row i is version + i of the value of key i.
template <class Row, class Key>
std::vector<Row> RowsOf(const std::vector<Key>& keys, std::uint64_t version) {
  std::vector<Row> rows;
  for (const Key key : keys) rows.push_back(ValueOf<Row>(key, version++));
  return rows;
}

template <class Row>
void ExpectAll(const Answers<Row>& answers, Result expected) {
  for (std::size_t i = 0; i < answers.results.size(); ++i) {
    ASSERT_EQ(ResultName(answers.results[i]), ResultName(expected)) << "operation " << i;
  }
}

/// Calls f(batch), which carries it out.
/// @param kinds of its operations; one: that of all @param max_batch how many there may be
template <class Key, class Row, class F>
Answers<Row> WithBatch(const std::vector<Op>& kinds, const std::vector<Key>& keys,
                       const std::vector<Row>& values, const F& f,
                       std::size_t max_batch = kMaxBatch) {
  EXPECT_LE(keys.size(), max_batch);
  Answers<Row> answers{std::vector<Result>(keys.size()), std::vector<Row>(keys.size())};
  Batch batch;
  if (kinds.size() == 1) {
    batch.op = kinds[0];
  } else {
    batch.ops = kinds;
  }
  batch.keys = std::as_bytes(std::span(keys));
  batch.values = std::as_bytes(std::span(values));
  batch.found = std::as_writable_bytes(std::span(answers.found));
  batch.results = answers.results;
  f(KernelBatch(batch, sizeof(Row)));
  return answers;
}

/// One batch, of which two tiles at once do every other operation: peer.Apply(tile, batch, i).
template <unsigned kLanes, class Peer, class Key, class Row>
Answers<Row> ApplyByTwoTiles(const Peer& peer, const std::vector<Op>& kinds,
                             const std::vector<Key>& keys, const std::vector<Row>& values) {
  return WithBatch(kinds, keys, values, [&](const KernelBatch& batch) {
    constexpr unsigned kTiles = 2;
    RunTiles<kLanes>(kTiles, [&](const auto& tile, unsigned number) {
      for (std::uint64_t i = number; i < batch.n; i += kTiles) {
        const Result result = peer.Apply(tile, batch, i);
        if (tile.thread_rank() == 0) batch.results[i] = result;
      }
    });
  });
}

/// Keys that nobody had yet, none of them empty or reserved.
template <class Key>
class KeySource {
 public:
  KeySource() { random.seed(test::TestSeed()); }
  std::vector<Key> New(std::size_t n) {
    std::vector<Key> keys(n);
    for (Key& key : keys) {
      do {
        key = static_cast<Key>(random());
      } while (key == 0 || key >= static_cast<Key>(~Key{1}) || !known_.insert(key).second);
    }
    return keys;
  }
  /// Some keys of these, each once.
  std::vector<Key> Some(std::vector<Key> keys, std::size_t n) {
    std::ranges::shuffle(keys, random);
    keys.resize(std::min(n, keys.size()));
    return keys;
  }

  std::mt19937_64 random;

 private:
  std::set<Key> known_;
};

}  // namespace gpm::bench::peers

#endif  // GPM_TESTS_PEER_BATCHES_H_
