#ifndef GPM_BENCH_PEERS_KEYS_H_
#define GPM_BENCH_PEERS_KEYS_H_

#include <cstdint>

#include "bench/peers/shared_words.h"
#include "pm/annotate.h"
#include "table/hash.h"

namespace gpm::bench::peers {

/// A key of words of 8 bytes, as a row of a batch has it.
template <unsigned kWords>
struct alignas(kWords == 1 ? 8 : 16) Key {
  static_assert(kWords == 1 || kWords % 2 == 0, "longer keys are read and written by pairs");
  std::uint64_t words[kWords];

  /// A hash of all words. That of a key of one word is the word.
  GPM_HD std::uint64_t Fold() const {
    std::uint64_t fold = words[0];
    for (unsigned k = 1; k < kWords; ++k) fold = Scramble(fold) ^ words[k];
    return fold;
  }
  GPM_HD bool operator==(const Key& other) const {
    bool same = true;
    for (unsigned k = 0; k < kWords; ++k) same = same && words[k] == other.words[k];
    return same;
  }
};

/// By one thread, the words of a key side by side, which others may write or read meanwhile.
/// REQUIRES: aligned as a Key.
template <unsigned kWords>
GPM_HD Key<kWords> LoadKey(const std::uint64_t* words) {
  Key<kWords> key;
  if constexpr (kWords == 1) {
    key.words[0] = LoadWord(words);
  } else {
    for (unsigned k = 0; k < kWords; k += 2) {
      const WordPair pair = LoadPair(&words[k]);
      key.words[k] = pair.first;
      key.words[k + 1] = pair.second;
    }
  }
  return key;
}
template <unsigned kWords>
GPM_HD void StoreKey(std::uint64_t* words, const Key<kWords>& key) {
  if constexpr (kWords == 1) {
    StoreWord(words, key.words[0]);
  } else {
    for (unsigned k = 0; k < kWords; k += 2) {
      StorePair(&words[k], {key.words[k], key.words[k + 1]});
    }
  }
}

}  // namespace gpm::bench::peers

#endif  // GPM_BENCH_PEERS_KEYS_H_
