#ifndef GPM_TABLE_MEDIA_DIRECT_H_
#define GPM_TABLE_MEDIA_DIRECT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include "pm/pause_cpu.h"
#include "pm/persist.h"
#include "table/group.h"
#include "table/matching.h"
#include "table/volatile_ops.h"

namespace gpm {

/// The media policy of the cpu executor: every access to persistent memory that the protocols make
/// goes through one of these. The contract that other policies (GPU, tracing) share:
///
///   Load          atomic 8-byte read; sees all that was stored before the value it reads
///   Store         atomic 8-byte write, ordered after this thread's earlier writes (release)
///   LoadPair      reads two words, 16-byte aligned, in any order
///   StorePair     stores two words, 16-byte aligned; they persist in any order
///   Cas           atomic compare-and-swap; true when it swapped
///   Flush         names bytes just written, to be durable after the next Fence
///   Fence         what was written (and flushed) before it persists before what is written after
///   Acquire       takes a lock in volatile memory, waiting for it; what its last holder wrote is
///                 seen from then on
///   TryAcquire    the same if nobody has it; whether it did
///   Release       gives it back
///   WriteCell     fills a value cell that nobody else can reach yet
///   ReadCell      copies out of a value cell that nobody writes
///   MatchBucket   compares a bucket's state words
///   MatchBuckets  the same for many keys (of the cpu executor's media alone)
///
/// and, of the executor's own memory, where the directory and the cache are:
///
///   LoadShared, StoreShared   atomic read and write of a word, in order among each other on a CPU
///   CasShared                 atomic compare-and-swap; true when it swapped
///   LoadSharedPair            reads two words, 16-byte aligned
///   FenceShared               what comes before it is seen before what comes after
///   FenceReads                the same, of reads alone
///   Validate                  whether a word is still this
///   ReadShared, WriteShared   copy bytes out of it and into it; what others write meanwhile may be
///                             seen in part
///   FillShared                copies a value cell into it
///   Wait                      lets others go on, in a loop that waits for one of them
///
/// A Step says which step of which protocol it is, for the policy that traces.
class DirectMedia {
 public:
  explicit DirectMedia(const Persist& persist)
      : persist_(persist),
        match_bucket_(MatchVersions().front().one),
        match_buckets_(MatchVersions().front().many) {}

  std::uint64_t Load(const std::uint64_t* word) const {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
  }
  void Store(std::uint64_t* word, std::uint64_t value) const {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  }
  void LoadPair(const std::uint64_t* pair, std::uint64_t* first, std::uint64_t* second) const {
    *first = Load(pair);
    *second = Load(pair + 1);
  }
  void StorePair(std::uint64_t* pair, std::uint64_t first, std::uint64_t second) const {
    Store(pair + 1, second);
    Store(pair, first);
  }
  bool Cas(Step, std::uint64_t* word, std::uint64_t expected, std::uint64_t desired) const {
    return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
  }
  void Flush(Step step, const void* address, std::size_t bytes) const {
    persist_.Flush(step, address, bytes);
  }
  void Fence(Step step) const { persist_.Fence(step); }

  void Acquire(Step, std::uint32_t* lock) const {
    for (int tries = 1; !TryAcquire(Step::kKeyLock, lock); ++tries) {
      // Its holder is busy for a microsecond, unless it lost its core.
      if (tries % kTriesBeforeYield == 0) {
        std::this_thread::yield();
      } else {
        PauseCpu();
      }
    }
  }
  bool TryAcquire(Step, std::uint32_t* lock) const {
    return __atomic_exchange_n(lock, 1u, __ATOMIC_ACQUIRE) == 0;
  }
  void Release(Step, std::uint32_t* lock) const { __atomic_store_n(lock, 0u, __ATOMIC_RELEASE); }

  void WriteCell(const ThreadGroup&, std::byte* cell, const std::byte* value,
                 std::uint32_t value_bytes) const {
    std::memcpy(cell, value, value_bytes);
  }
  void ReadCell(const ThreadGroup&, std::byte* value, const std::byte* cell,
                std::uint32_t value_bytes) const {
    std::memcpy(value, cell, value_bytes);
  }
  BucketMatch MatchBucket(const std::uint64_t* pairs, std::uint32_t slots,
                          std::uint64_t word) const {
    return match_bucket_(pairs, slots, word);
  }
  void MatchBuckets(const std::byte* const* buckets, std::uint32_t slots, std::uint32_t locations,
                    const std::uint64_t* words, std::size_t count, BucketMatch* matches) const {
    match_buckets_(buckets, slots, locations, words, count, matches);
  }

  template <class Word>
  Word LoadShared(const Word* word) const {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
  }
  void LoadSharedPair(const std::uint64_t* words, std::uint64_t* low, std::uint64_t* high) const {
    *low = LoadShared(words);
    *high = LoadShared(words + 1);
  }
  template <class Word>
  void StoreShared(Word* word, Word value) const {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  }
  template <class Word>
  bool CasShared(Step, Word* word, Word expected, Word desired) const {
    return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
  }
  /// Nothing to do: loads acquire, stores release and CasShared does both. So who sees a word of a
  /// change also sees the mark that was set before it, and Validate says so.
  void FenceShared(Step) const {}
  void FenceReads(Step) const {}
  bool Validate(Step, const std::uint32_t* word, std::uint32_t value) const {
    return LoadShared(word) == value;
  }
  void Wait() const { std::this_thread::yield(); }
  void ReadShared(const ThreadGroup&, std::byte* value, const std::byte* shared,
                  std::uint32_t bytes) const {
    for (std::uint32_t i = 0; i < bytes; i += 8) {
      const auto word = LoadShared(reinterpret_cast<const std::uint64_t*>(shared + i));
      std::memcpy(value + i, &word, std::min(bytes - i, 8u));
    }
  }
  void WriteShared(const ThreadGroup&, std::byte* shared, const std::byte* value,
                   std::uint32_t bytes) const {
    for (std::uint32_t i = 0; i < bytes; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, value + i, std::min(bytes - i, 8u));
      StoreShared(reinterpret_cast<std::uint64_t*>(shared + i), word);
    }
  }
  void FillShared(const ThreadGroup& group, std::byte* shared, const std::byte* cell,
                  std::uint32_t bytes) const {
    WriteShared(group, shared, cell, bytes);
  }

 private:
  static constexpr int kTriesBeforeYield = 64;

  Persist persist_;
  MatchBucketFn match_bucket_;
  MatchBucketsFn match_buckets_;
};

}  // namespace gpm

#endif  // GPM_TABLE_MEDIA_DIRECT_H_
