#ifndef GPM_TABLE_MEDIA_TRACED_H_
#define GPM_TABLE_MEDIA_TRACED_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "pm/persist.h"
#include "pm/tracer.h"
#include "table/group.h"
#include "table/matching.h"

namespace gpm {

/// The media policy (DirectMedia has the contract) that hands every access to a PmTracer, word by
/// word.
class TracedMedia {
 public:
  /// @param persist of a mapping that has a tracer
  explicit TracedMedia(const Persist& persist) : tracer_(persist.tracer()) {}

  std::uint64_t Load(const std::uint64_t* word) const { return tracer_->Load(word); }
  void Store(std::uint64_t* word, std::uint64_t value) const { tracer_->Store(word, value); }
  void LoadPair(const std::uint64_t* pair, std::uint64_t* first, std::uint64_t* second) const {
    *first = Load(pair);
    *second = Load(pair + 1);
  }
  void StorePair(std::uint64_t* pair, std::uint64_t first, std::uint64_t second) const {
    Store(pair + 1, second);
    Store(pair, first);
  }
  bool Cas(Step step, std::uint64_t* word, std::uint64_t expected, std::uint64_t desired) const {
    return tracer_->Cas(step, word, expected, desired);
  }
  void Flush(Step step, const void* address, std::size_t bytes) const {
    tracer_->Flush(step, address, bytes);
  }
  void Fence(Step step) const { tracer_->Fence(step); }
  void Acquire(Step step, std::uint32_t* lock) const { tracer_->Acquire(step, lock); }
  bool TryAcquire(Step step, std::uint32_t* lock) const { return CasShared(step, lock, 0u, 1u); }
  void Release(Step step, std::uint32_t* lock) const { tracer_->Release(step, lock); }

  void WriteCell(const ThreadGroup&, std::byte* cell, const std::byte* value,
                 std::uint32_t value_bytes) const {
    for (std::uint32_t i = 0; i < value_bytes; i += 8) {
      auto* const word = reinterpret_cast<std::uint64_t*>(cell + i);
      std::uint64_t filled = *word;  // bytes of a last word beyond the value stay as they are
      std::memcpy(&filled, value + i, std::min(value_bytes - i, 8u));
      tracer_->Store(word, filled);
    }
  }
  void ReadCell(const ThreadGroup&, std::byte* value, const std::byte* cell,
                std::uint32_t value_bytes) const {
    for (std::uint32_t i = 0; i < value_bytes; i += 8) {
      const std::uint64_t word = tracer_->Load(reinterpret_cast<const std::uint64_t*>(cell + i));
      std::memcpy(value + i, &word, std::min(value_bytes - i, 8u));
    }
  }
  template <class Word>
  Word LoadShared(const Word* word) const {
    tracer_->Shared(Step::kOther);
    return *word;
  }
  void LoadSharedPair(const std::uint64_t* words, std::uint64_t* low, std::uint64_t* high) const {
    *low = LoadShared(words);
    *high = LoadShared(words + 1);
  }
  template <class Word>
  void StoreShared(Word* word, Word value) const {
    tracer_->Shared(Step::kOther);
    *word = value;
  }
  template <class Word>
  bool CasShared(Step step, Word* word, Word expected, Word desired) const {
    if (tracer_->Shared(step) && *word != expected) return false;
    *word = desired;
    return true;
  }
  void FenceShared(Step) const {}
  void FenceReads(Step) const {}
  bool Validate(Step step, const std::uint32_t* word, std::uint32_t version) const {
    return !tracer_->Shared(step) || *word == version;
  }
  void Wait() const { tracer_->Pause(); }
  void ReadShared(const ThreadGroup&, std::byte* value, const std::byte* shared,
                  std::uint32_t bytes) const {
    for (std::uint32_t i = 0; i < bytes; i += 8) {
      tracer_->Shared(Step::kOther);
      std::memcpy(value + i, shared + i, std::min(bytes - i, 8u));
    }
  }
  void WriteShared(const ThreadGroup&, std::byte* shared, const std::byte* value,
                   std::uint32_t bytes) const {
    if (shared == nullptr) throw std::runtime_error("a value goes to a bucket without a frame");
    for (std::uint32_t i = 0; i < bytes; i += 8) {
      tracer_->Shared(Step::kOther);
      std::memcpy(shared + i, value + i, std::min(bytes - i, 8u));
    }
  }
  void FillShared(const ThreadGroup& group, std::byte* shared, const std::byte* cell,
                  std::uint32_t bytes) const {
    ReadCell(group, shared, cell, bytes);
  }
  BucketMatch MatchBucket(const std::uint64_t* pairs, std::uint32_t slots,
                          std::uint64_t word) const {
    return MatchBucketBy(*this, pairs, slots, word);
  }
  void MatchBuckets(const std::byte* const* buckets, std::uint32_t slots, std::uint32_t locations,
                    const std::uint64_t* words, std::size_t count, BucketMatch* matches) const {
    MatchEachBucket([this](const std::uint64_t* pairs, std::uint32_t n,
                           std::uint64_t word) { return MatchBucket(pairs, n, word); },
                    {buckets, slots, locations}, words, count, matches);
  }

 private:
  PmTracer* tracer_;
};

}  // namespace gpm

#endif  // GPM_TABLE_MEDIA_TRACED_H_
