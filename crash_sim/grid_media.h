#ifndef GPM_CRASH_SIM_GRID_MEDIA_H_
#define GPM_CRASH_SIM_GRID_MEDIA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "crash_sim/grid_machine.h"
#include "table/group.h"
#include "table/matching.h"

namespace gpm::crash {

/// The media policy (DirectMedia has the contract) of the GPU that GridMachine stands for: what
/// CudaMedia is on a real one.
class GridMedia {
 public:
  /// @param persist of a mapping whose tracer is a GridMachine
  explicit GridMedia(const Persist& persist)
      : machine_(static_cast<GridMachine*>(persist.tracer())) {}

  std::uint64_t Load(const std::uint64_t* word) const { return machine_->GridLoad(word); }
  void Store(std::uint64_t* word, std::uint64_t value) const { machine_->GridStore(word, value); }
  void LoadPair(const std::uint64_t* pair, std::uint64_t* first, std::uint64_t* second) const {
    *first = Load(pair);
    *second = Load(pair + 1);
  }
  void StorePair(std::uint64_t* pair, std::uint64_t first, std::uint64_t second) const {
    Store(pair + 1, second);
    Store(pair, first);
  }
  bool Cas(Step step, std::uint64_t* word, std::uint64_t expected, std::uint64_t desired) const {
    return machine_->GridCas(step, word, expected, desired);
  }
  void Flush(Step step, const void* address, std::size_t bytes) const {
    machine_->GridFlush(step, address, bytes);
  }
  void Fence(Step step) const { machine_->FenceSystem(step); }
  void Acquire(Step step, std::uint32_t* lock) const {
    while (!machine_->TryAcquire(step, lock)) {
    }
  }
  bool TryAcquire(Step step, std::uint32_t* lock) const { return machine_->TryAcquire(step, lock); }
  void Release(Step step, std::uint32_t* lock) const { machine_->GridRelease(step, lock); }

  void WriteCell(const ThreadGroup&, std::byte* cell, const std::byte* value,
                 std::uint32_t value_bytes) const {
    for (std::uint32_t i = 0; i < value_bytes; i += 8) {
      auto* const word = reinterpret_cast<std::uint64_t*>(cell + i);
      std::uint64_t filled = 0;
      std::memcpy(&filled, value + i, std::min(value_bytes - i, 8u));
      machine_->GridStore(word, filled);
    }
  }
  void ReadCell(const ThreadGroup&, std::byte* value, const std::byte* cell,
                std::uint32_t value_bytes) const {
    for (std::uint32_t i = 0; i < value_bytes; i += 8) {
      const std::uint64_t word =
          machine_->GridLoad(reinterpret_cast<const std::uint64_t*>(cell + i));
      std::memcpy(value + i, &word, std::min(value_bytes - i, 8u));
    }
  }
  void CopyRow(const ThreadGroup&, std::byte* target, const std::byte* source,
               std::uint32_t bytes) const {
    std::memcpy(target, source, bytes);
  }
  template <class Word>
  Word LoadShared(const Word* word) const {
    return machine_->LoadShared(word);
  }
  void LoadSharedPair(const std::uint64_t* words, std::uint64_t* low, std::uint64_t* high) const {
    *low = LoadShared(words);
    *high = LoadShared(words + 1);
  }
  template <class Word>
  void StoreShared(Word* word, Word value) const {
    machine_->StoreShared(word, value);
  }
  template <class Word>
  bool CasShared(Step step, Word* word, Word expected, Word desired) const {
    return machine_->CasShared(step, word, expected, desired);
  }
  void FenceShared(Step step) const { machine_->FenceDevice(step); }
  void FenceReads(Step step) const { machine_->FenceReads(step); }
  bool Validate(Step step, const std::uint32_t* word, std::uint32_t version) const {
    return machine_->Leaves(step) || LoadShared(word) == version;
  }
  void Wait() const { machine_->GridPause(); }
  void ReadShared(const ThreadGroup&, std::byte* value, const std::byte* shared,
                  std::uint32_t bytes) const {
    machine_->BeginCopy();
    for (std::uint32_t i = 0; i < bytes; i += 8) {
      const auto word = LoadShared(reinterpret_cast<const std::uint64_t*>(shared + i));
      std::memcpy(value + i, &word, std::min(bytes - i, 8u));
    }
    machine_->EndCopy();
  }
  void WriteShared(const ThreadGroup&, std::byte* shared, const std::byte* value,
                   std::uint32_t bytes) const {
    if (shared == nullptr) throw std::runtime_error("a value goes to a bucket without a frame");
    for (std::uint32_t i = 0; i < bytes; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, value + i, std::min(bytes - i, 8u));
      StoreShared(reinterpret_cast<std::uint64_t*>(shared + i), word);
    }
  }
  void FillShared(const ThreadGroup& group, std::byte* shared, const std::byte* cell,
                  std::uint32_t bytes) const {
    for (std::uint32_t i = 0; i < bytes; i += 8) {
      std::uint64_t word = 0;
      ReadCell(group, reinterpret_cast<std::byte*>(&word), cell + i, std::min(bytes - i, 8u));
      StoreShared(reinterpret_cast<std::uint64_t*>(shared + i), word);
    }
  }
  BucketMatch MatchBucket(const std::uint64_t* pairs, std::uint32_t slots,
                          std::uint64_t word) const {
    return MatchBucketBy(*this, pairs, slots, word);
  }

 private:
  GridMachine* machine_;
};

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_GRID_MEDIA_H_
