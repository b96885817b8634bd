#ifndef GPM_ENGINE_CPU_PREFETCH_WINDOW_H_
#define GPM_ENGINE_CPU_PREFETCH_WINDOW_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

#include "table/matching.h"
#include "table/protocol.h"

namespace gpm {

/// Windows: operations that one thread takes each step of together.
struct WindowShape {
  std::size_t operations;
  std::uint32_t apart;  ///< turns from one step of a window to its next one
};
inline constexpr WindowShape kSmallWindows = {3, 2};
inline constexpr WindowShape kLargeWindows = {12, 1};
inline constexpr WindowShape kMostOfWindows = {12, 2};  ///< that there is room for

/// Of each operation, a step prefetches mostly 2 to 4 lines, and a core that waits for some 24
/// lines (so many AMD's of the third generation can) drops prefetches of more. Those that have
/// AVX-512 keep more of them: docs/TRIED.md has the rates with other windows.
inline WindowShape WindowsOfThisCpu() {
#if defined(__x86_64__)
  static const bool keeps_more = __builtin_cpu_supports("avx512f") != 0;
  if (keeps_more) return kLargeWindows;
#endif
  return kSmallWindows;
}

inline constexpr std::size_t kMaxCandidates = 32;  ///< slots, and so buckets
inline constexpr std::uint64_t kMaxPrefetchBytes = 512;

inline void PrefetchLine(const void* address) {
  __builtin_prefetch(address);
  // GCC takes a function of prefetches alone for one without any effect and drops its calls.
  asm volatile("");
}

/// Prefetches a line of which the neighbour, the other one of 128 bytes, is wanted soon, too: into
/// the second-level cache, for which CPUs fetch both at once. Where the neighbour is not wanted,
/// this is slower than PrefetchLine.
inline void PrefetchWithNeighbour(const void* address) {
  __builtin_prefetch(address, 0, 2);
  asm volatile("");
}

/// From the line that they begin in to the one that they end in.
inline void PrefetchBytes(const std::byte* address, std::uint64_t bytes) {
  const std::uint64_t before = reinterpret_cast<std::uintptr_t>(address) % 64;
  for (std::uint64_t i = 0; i < before + std::min(bytes, kMaxPrefetchBytes); i += 64) {
    PrefetchWithNeighbour(address - before + i);
  }
}

/// CandidateBucket, with what depends on the level alone worked out once.
class LevelAim {
 public:
  LevelAim(const TableView& table, std::uint32_t level)
      : table_(table),
        first_candidate_(level * table.locations),
        locations_(table.locations),
        bucket_bytes_(table.bucket_bytes),
        first_bucket_(table.Bucket(level, 0)),
        part_buckets_(table.level_views[level].part_buckets) {}

  /// @param buckets receives the candidate buckets of the level
  void Buckets(const Candidates& candidates, std::byte** buckets) const {
    if (candidates.reserved >= 0) {
      for (std::uint32_t j = 0; j < locations_; ++j) {
        buckets[j] = CandidateBucket(table_, candidates, first_candidate_ + j);
      }
      return;
    }
    std::uint64_t hash = candidates.hash.h;
    std::byte* part = first_bucket_;
    for (std::uint32_t j = 0; j < locations_; ++j) {
      buckets[j] = part + ShareOf(hash, part_buckets_) * bucket_bytes_;
      hash += candidates.hash.g;
      part += part_buckets_ * bucket_bytes_;
    }
  }

 private:
  const TableView& table_;
  const std::uint32_t first_candidate_;
  const std::uint32_t locations_;
  const std::uint64_t bucket_bytes_;
  std::byte* const first_bucket_;
  const std::uint32_t part_buckets_;
};

/// Operations on their way through a thread.
struct PrefetchWindow {
  static constexpr std::size_t kWindow = kMostOfWindows.operations;

  std::size_t count = 0;
  std::array<std::size_t, kWindow> index;  ///< in the batch
  std::array<KeyBuffer, kWindow> buffers;
  std::array<const std::uint64_t*, kWindow> keys;
  std::array<Candidates, kWindow> candidates;
  std::array<Hint, kWindow> found;                ///< where
  std::array<std::uint64_t, kWindow> references;  ///< room for what `prepare` finds (ForWindows)
  std::array<std::uint32_t, kWindow> pending;     ///< operations that look at the next level
  std::size_t pending_count = 0;
  std::array<std::uint64_t, kWindow> words;  ///< of the pending ones, in their order
  std::array<BucketMatch, kWindow> matches;
  /// Their candidate buckets in that level, one key's after another's.
  std::array<std::byte*, kWindow * kMaxCandidates> buckets;

  bool Found(std::size_t k) const { return found[k].slot.bucket != nullptr; }
};

/// Takes operations through the steps of a search, many at a time, so that their cache misses
/// overlap. By one thread.
///
/// @tparam Operations of a ThreadGroup
/// @tparam KeyOf key_of(i, &buffer) gives the words of the key of operation i, or copies them there
template <class Operations, class Media, class KeyOf>
class WindowSearch {
 public:
  using Window = PrefetchWindow;

  /// @param searches else keys are hashed alone: there is a directory
  WindowSearch(const TableView& table, const Operations& operations, const Media& media,
               bool searches, const KeyOf& key_of, const WindowShape& shape)
      : table_(table),
        operations_(operations),
        media_(media),
        searches_(searches),
        key_of_(key_of),
        shape_(shape) {}

  /// Takes operations in windows (next(&window, how many at most), which gives none at the end)
  /// through the steps of a search, and calls visit(window) for each, in order, until it returns
  /// false. Before that, prepare(&window, operations that are visited before it) prefetches what
  /// the visit needs. The windows in flight take turns, a step each: what one prefetches arrives
  /// while the others work.
  template <class Next, class Prepare, class Visit>
  void ForWindows(const Next& next, const Prepare& prepare, const Visit& visit) const {
    const std::uint32_t two_a_level = table_.key_words > 1 ? 1 : 0;  // steps: keys are compared
    const std::uint32_t all_steps = table_.levels << two_a_level;
    const auto take_step = [&](std::uint32_t step, Window* window) {
      if (window->pending_count == 0) return;
      if ((step & two_a_level) == 0) MatchLevel(window);
      if ((step & two_a_level) == two_a_level) SearchLevel(step >> two_a_level, window);
    };
    const std::uint32_t steps = std::min(all_steps, kMaxSteps);
    const std::uint32_t apart = shape_.apart;
    const std::uint32_t last = (steps + 1) * apart;
    std::array<Window, (kMaxSteps + 1) * kMostOfWindows.apart + 1> windows;
    std::size_t in_flight = 0;  // operations
    std::size_t prepared = 0;   // of those
    std::uint32_t newest = 0;
    do {
      const auto at = [&](std::uint32_t turns_ago) -> Window& {
        return windows[newest >= turns_ago ? newest - turns_ago : newest + last + 1 - turns_ago];
      };
      next(&at(0), shape_.operations);
      in_flight += at(0).count;
      Enter(&at(0));
      for (std::uint32_t step = 0; step + 1 < steps; ++step) {
        take_step(step, &at((step + 1) * apart));
      }
      Window& searched = at(steps * apart);
      for (std::uint32_t step = steps - 1; step < all_steps; ++step) take_step(step, &searched);
      prepare(&searched, prepared);
      prepared += searched.count;
      Window& visited = at(last);
      if (visited.count > 0 && !visit(visited)) return;
      in_flight -= visited.count;
      prepared -= visited.count;
      visited.count = 0;
      newest = newest == last ? 0 : newest + 1;
    } while (in_flight > 0);
  }

 private:
  /// Further steps are taken in the last one's turn.
  static constexpr std::uint32_t kMaxSteps = 4;

  /// Hashes a window of keys and prefetches the buckets where most of them are.
  void Enter(Window* window) const {
    const std::size_t count = window->count;
    for (std::size_t k = 0; k < count; ++k) {
      window->keys[k] = key_of_(window->index[k], &window->buffers[k]);
      // Made in its place: a copy would read as vectors what was just stored as words, and wait.
      ::new (&window->candidates[k]) Candidates(operations_.Locate(window->keys[k]));
      window->found[k] = Hint{};
      window->pending[k] = static_cast<std::uint32_t>(k);
    }
    window->pending_count = searches_ ? count : 0;
    if (window->pending_count > 0) AimAt(0, window);
  }

  /// Finds and prefetches the pending operations' buckets of level top - `level`.
  ///
  /// Nothing but prefetches is in their loop: the fewer instructions between them, the more of them
  /// are looked up in the page table at once.
  void AimAt(std::uint32_t level, Window* window) const {
    const LevelAim aim(table_, level);
    const std::uint32_t locations = table_.locations;
    std::byte** bucket = window->buckets.data();
    for (std::size_t p = 0; p < window->pending_count; ++p) {
      const Candidates& candidates = window->candidates[window->pending[p]];
      window->words[p] = candidates.word;
      aim.Buckets(candidates, bucket);
      bucket += locations;
    }
    const std::uint64_t bytes = table_.pair_bytes();
    for (std::byte** each = window->buckets.data(); each < bucket; ++each) {
      if (*each == nullptr) continue;
      for (std::uint64_t i = 0; i < bytes; i += 64) PrefetchWithNeighbour(*each + i);
    }
  }

  /// Prefetches keys longer than 8 bytes of which the fingerprint matches.
  void PrefetchKeys(const Window& window) const {
    if (table_.key_words == 1) return;
    for (std::size_t p = 0; p < window.pending_count; ++p) {
      for (std::uint32_t rest = window.matches[p].match; rest != 0; rest &= rest - 1) {
        const std::uint32_t bit = LowestBit(rest);
        std::byte* const bucket = window.buckets[p * table_.locations + (bit >> table_.slot_bits)];
        const Slot slot{bucket, bit & (table_.slots - 1)};
        PrefetchBytes(reinterpret_cast<const std::byte*>(table_.Key(slot)), 8 * table_.key_words);
      }
    }
  }

  /// Compares the state words of the buckets that AimAt found, which are there by now.
  void MatchLevel(Window* window) const {
    media_.MatchBuckets(window->buckets.data(), table_.slots, table_.locations,
                        window->words.data(), window->pending_count, window->matches.data());
    PrefetchKeys(*window);
  }

  /// Takes what matches, of keys of more than 8 bytes (a step later) what is equal, and prefetches
  /// the buckets of the next level for the keys that are not there.
  void SearchLevel(std::uint32_t level, Window* window) const {
    const std::uint32_t first = level * table_.locations;
    std::size_t missing = 0;
    std::byte** buckets = window->buckets.data();
    for (std::size_t p = 0; p < window->pending_count; ++p, buckets += table_.locations) {
      const std::uint32_t k = window->pending[p];
      std::uint32_t match = window->matches[p].match << (first << table_.slot_bits);
      if (table_.key_words > 1 && match != 0) {  // of equal fingerprints: the keys
        std::array<std::byte*, kMaxCandidates> all;
        std::copy_n(buckets, table_.locations, all.begin() + first);
        match =
            operations_.ProbeLevel(window->candidates[k], window->keys[k], level, all.data()).match;
      }
      if (match == 0) {
        window->pending[missing++] = k;
        continue;
      }
      const std::uint32_t position = LowestBit(match);
      const std::uint32_t location = (position >> table_.slot_bits) & (table_.locations - 1);
      window->found[k] = Hint{Slot{buckets[location], position & (table_.slots - 1)}, position};
    }
    window->pending_count = level + 1 < table_.levels ? missing : 0;
    if (window->pending_count > 0) AimAt(level + 1, window);
  }

  const TableView& table_;
  const Operations& operations_;
  const Media& media_;
  const bool searches_;
  const KeyOf& key_of_;
  const WindowShape shape_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CPU_PREFETCH_WINDOW_H_
