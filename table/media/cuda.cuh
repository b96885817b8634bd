#ifndef GPM_TABLE_MEDIA_CUDA_CUH_
#define GPM_TABLE_MEDIA_CUDA_CUH_

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include <cstddef>
#include <cstdint>
#include <cuda/atomic>

#include "pm/annotate.h"
#include "pm/count_pm.cuh"
#include "pm/pm_counts.h"
#include "pm/steps.h"
#include "table/group.h"
#include "table/matching.h"

namespace gpm {

/// A tile of a warp that works on one operation.
/// @tparam kLanes a power of two, at most 32
template <std::uint32_t kLanes>
class TileGroup {
 public:
  using Tile = cooperative_groups::thread_block_tile<kLanes>;
  static constexpr std::uint32_t kSize = kLanes;

  __device__ explicit TileGroup(const Tile& tile) : tile_(tile) {}
  __device__ std::uint32_t Lane() const { return tile_.thread_rank(); }
  __device__ bool IsLeader() const { return tile_.thread_rank() == 0; }
  __device__ void Sync() const { tile_.sync(); }
  template <class Word>
  __device__ Word Broadcast(Word value) const {
    return tile_.shfl(value, 0);
  }
  __device__ std::uint32_t Ballot(bool bit) const { return tile_.ballot(bit); }
  __device__ std::uint32_t Or(std::uint32_t bits) const {
    return cooperative_groups::reduce(tile_, bits, cooperative_groups::bit_or<std::uint32_t>());
  }

 private:
  Tile tile_;
};

/// Which pool lines kernels wrote, for the host to flush before it acknowledges the batch; used
/// only where the medium needs that (persistent memory without eADR). In GPU memory.
struct DirtyLog {
  std::uint64_t* lines = nullptr;  ///< addresses of 64-byte lines; null: nothing is logged
  std::uint64_t* count = nullptr;  ///< may run past capacity: then everything has to be flushed
  std::uint64_t capacity = 0;
};

/// Whether an address is a multiple of so many bytes.
__device__ inline bool IsAligned(const std::byte* address, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

/// LoadChunk and StoreChunk where 16 bytes can't be accessed at once. (Called, so that kernels
/// whose rows are aligned have few instructions for others.)
__device__ GPM_NOINLINE inline uint4 LoadUnaligned(const std::byte* source, std::uint32_t bytes) {
  if (bytes >= 16 && IsAligned(source, 8)) {  // rows of 24, 200, 1000 bytes
    const auto* const halves = reinterpret_cast<const uint2*>(source);
    return make_uint4(halves[0].x, halves[0].y, halves[1].x, halves[1].y);
  }
  std::uint32_t words[4] = {};
  if (IsAligned(source, 4)) {
    for (std::uint32_t w = 0; w < 4; ++w) {
      if (4 * w + 4 <= bytes) words[w] = reinterpret_cast<const std::uint32_t*>(source)[w];
    }
    if (bytes >= 16) return make_uint4(words[0], words[1], words[2], words[3]);
  }
#pragma unroll 1
  for (std::uint32_t i = IsAligned(source, 4) ? bytes / 4 * 4 : 0; i < min(bytes, 16u); ++i) {
    const std::uint32_t byte = static_cast<std::uint32_t>(source[i]) << (8 * (i % 4));
    for (std::uint32_t w = 0; w < 4; ++w) words[w] |= i / 4 == w ? byte : 0;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ GPM_NOINLINE inline void StoreUnaligned(std::byte* target, uint4 chunk,
                                                   std::uint32_t bytes) {
  if (bytes >= 16 && IsAligned(target, 8)) {
    auto* const halves = reinterpret_cast<uint2*>(target);
    halves[0] = make_uint2(chunk.x, chunk.y);
    halves[1] = make_uint2(chunk.z, chunk.w);
    return;
  }
  const std::uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
  if (IsAligned(target, 4)) {
    for (std::uint32_t w = 0; w < 4; ++w) {
      if (4 * w + 4 <= bytes) reinterpret_cast<std::uint32_t*>(target)[w] = words[w];
    }
    if (bytes >= 16) return;
  }
#pragma unroll 1
  for (std::uint32_t i = IsAligned(target, 4) ? bytes / 4 * 4 : 0; i < min(bytes, 16u); ++i) {
    std::uint32_t word = words[0];
    for (std::uint32_t w = 1; w < 4; ++w) word = i / 4 == w ? words[w] : word;
    target[i] = static_cast<std::byte>(word >> (8 * (i % 4)));
  }
}

/// 16 bytes at any alignment, of which `bytes` are there; the rest is zero.
__device__ inline uint4 LoadChunk(const std::byte* source, std::uint32_t bytes) {
  return bytes >= 16 && IsAligned(source, 16) ? *reinterpret_cast<const uint4*>(source)
                                              : LoadUnaligned(source, bytes);
}

/// The first `bytes` (at most 16) bytes of a chunk, to any alignment.
__device__ inline void StoreChunk(std::byte* target, uint4 chunk, std::uint32_t bytes) {
  if (bytes >= 16 && IsAligned(target, 16)) {
    *reinterpret_cast<uint4*>(target) = chunk;
  } else {
    StoreUnaligned(target, chunk, bytes);
  }
}

/// Copies bytes within GPU memory, by all lanes of a group.
template <class Group>
__device__ void CopyBytes(const Group& group, std::byte* target, const std::byte* source,
                          std::uint32_t bytes) {
  for (std::uint32_t i = 16 * group.Lane(); i < bytes; i += 16 * Group::kSize) {
    StoreChunk(target + i, LoadChunk(source + i, bytes - i), bytes - i);
  }
}

/// The media policy of the cuda executor (DirectMedia has the contract).
///
/// Persistent memory is host memory behind the link. Loads bypass the caches, which nobody keeps
/// coherent with it. System-scope fences make the order (GPHash section 3.2.3). Loads need no
/// fence: a protocol loads a reference only behind a branch on the state that it loaded before, and
/// a GPU issues loads in order and never ahead of a branch. (So does the hardware, and so say the
/// tests on it; the PTX memory model alone would ask for acquiring loads.) A lock is given back
/// after a fence: the protocol's own last one, or that of the directory.
class CudaMedia {
 public:
  /// @param persists false: what is written is named by nothing in persistent memory until the host
  ///        has waited for the kernel, so that only the GPU's threads need an order
  __device__ explicit CudaMedia(const DirtyLog& dirty, bool persists = true)
      : dirty_(dirty), persists_(persists) {}

  __device__ std::uint64_t Load(const std::uint64_t* word) const {
    const auto counted = CountPm(PmPlace::kSlots, PmAccess::kRead, word, sizeof *word);
    const std::uint64_t value = *const_cast<const volatile std::uint64_t*>(word);
    counted.End(value);
    return value;
  }
  __device__ void Store(std::uint64_t* word, std::uint64_t value) const {
    const auto counted = CountPm(PmPlace::kSlots, PmAccess::kWrite, word, sizeof *word);
    *const_cast<volatile std::uint64_t*>(word) = value;
    counted.End();
  }
  /// One read over the link.
  __device__ void LoadPair(const std::uint64_t* pair, std::uint64_t* first,
                           std::uint64_t* second) const {
    const auto counted = CountPm(PmPlace::kSlots, PmAccess::kRead, pair, 2 * sizeof *pair);
    const ulonglong2 words = __ldcv(reinterpret_cast<const ulonglong2*>(pair));
    counted.End(words.x);
    *first = words.x;
    *second = words.y;
  }
  /// One write over the link.
  __device__ void StorePair(std::uint64_t* pair, std::uint64_t first, std::uint64_t second) const {
    const auto counted = CountPm(PmPlace::kSlots, PmAccess::kWrite, pair, 2 * sizeof *pair);
    __stwt(reinterpret_cast<ulonglong2*>(pair), make_ulonglong2(first, second));
    counted.End();
  }
  __device__ bool Cas(Step, std::uint64_t* word, std::uint64_t expected,
                      std::uint64_t desired) const {
    const auto counted = CountPm(PmPlace::kSlots, PmAccess::kSwap, word, sizeof *word);
    // Device scope is enough: nothing else works on a pool meanwhile. (Over PCIe the GPU's atomics
    // on host memory are atomic among its own threads, not against the CPU.)
    const std::uint64_t old =
        atomicCAS(reinterpret_cast<unsigned long long*>(word), expected, desired);
    counted.End(old);
    return old == expected;
  }
  __device__ void Flush(Step, const void* address, std::size_t bytes) const {
    if (dirty_.lines != nullptr) Log(dirty_, address, bytes);
  }
  __device__ void Fence(Step) const {
    if (persists_) {
      const auto counted = CountPmFence();
      __threadfence_system();
      counted.End();
    } else {
      __threadfence();
    }
  }

  __device__ void Acquire(Step, std::uint32_t* lock) const {
    while (!TryAcquire(Step::kKeyLock, lock)) __nanosleep(kLockWaitNanoseconds);
  }
  /// Takes a lock if nobody has it; for Operations::TryBegin.
  __device__ bool TryAcquire(Step, std::uint32_t* lock) const {
    // (An acquiring exchange waits for nothing that was written before, where a fence would.)
    return cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device>(*lock).exchange(
               1u, cuda::memory_order_acquire) == 0;
  }
  __device__ void Release(Step, std::uint32_t* lock) const { atomicExch(lock, 0u); }

  template <class Group>
  __device__ void WriteCell(const Group& group, std::byte* cell, const std::byte* value,
                            std::uint32_t value_bytes) const {
    for (std::uint32_t i = 16 * group.Lane(); i < value_bytes; i += 16 * Group::kSize) {
      const uint4 chunk = LoadChunk(value + i, value_bytes - i);
      AwaitForCount(chunk.x);
      const auto counted = CountPm(PmPlace::kValues, PmAccess::kWrite, cell + i, sizeof chunk);
      *reinterpret_cast<uint4*>(cell + i) = chunk;
      counted.End();
    }
  }
  template <class Group>
  __device__ void ReadCell(const Group& group, std::byte* value, const std::byte* cell,
                           std::uint32_t value_bytes) const {
    std::uint32_t i = 16 * group.Lane();
    if constexpr (Group::kSize > 32 && !kCountsPm) {  // a block, which copies long values
      constexpr std::uint32_t kInFlight = 8;
      constexpr std::uint32_t kStep = 16 * Group::kSize;
      for (; i + (kInFlight - 1) * kStep + 16 <= value_bytes; i += kInFlight * kStep) {
        uint4 chunks[kInFlight];
        for (std::uint32_t k = 0; k < kInFlight; ++k) {
          chunks[k] = __ldcv(reinterpret_cast<const uint4*>(cell + i + k * kStep));
        }
        for (std::uint32_t k = 0; k < kInFlight; ++k)
          StoreChunk(value + i + k * kStep, chunks[k], 16);
      }
    }
    for (; i < value_bytes; i += 16 * Group::kSize) {
      const auto counted = CountPm(PmPlace::kValues, PmAccess::kRead, cell + i, sizeof(uint4));
      const uint4 chunk = __ldcv(reinterpret_cast<const uint4*>(cell + i));
      counted.End(chunk.x);
      StoreChunk(value + i, chunk, value_bytes - i);
    }
  }
  /// Copies a value between arrays of a batch.
  template <class Group>
  __device__ void CopyRow(const Group& group, std::byte* target, const std::byte* source,
                          std::uint32_t bytes) const {
    CopyBytes(group, target, source, bytes);
  }
  template <class Word>
  __device__ Word LoadShared(const Word* word) const {
    return *const_cast<const volatile Word*>(word);
  }
  template <class Word>
  __device__ void StoreShared(Word* word, Word value) const {
    *const_cast<volatile Word*>(word) = value;
  }
  template <class Word>
  __device__ bool CasShared(Step, Word* word, Word expected, Word desired) const {
    return atomicCAS(word, expected, desired) == expected;
  }
  __device__ void LoadSharedPair(const std::uint64_t* words, std::uint64_t* low,
                                 std::uint64_t* high) const {
    const auto pair = __ldcv(reinterpret_cast<const ulonglong2*>(words));
    *low = pair.x;
    *high = pair.y;
  }
  __device__ void FenceShared(Step) const { __threadfence(); }
  /// What was read is in registers when the next load is issued (see above): it is enough that the
  /// compiler keeps the order.
  __device__ void FenceReads(Step) const { __threadfence_block(); }
  __device__ bool Validate(Step, const std::uint32_t* word, std::uint32_t version) const {
    return LoadShared(word) == version;
  }
  __device__ void Wait() const { __nanosleep(kLockWaitNanoseconds); }
  template <class Group>
  __device__ void ReadShared(const Group& group, std::byte* value, const std::byte* shared,
                             std::uint32_t bytes) const {
    ReadCell(group, value, shared, bytes);
  }
  template <class Group>
  __device__ void WriteShared(const Group& group, std::byte* shared, const std::byte* value,
                              std::uint32_t bytes) const {
    WriteCell(group, shared, value, bytes);
  }
  template <class Group>
  __device__ void FillShared(const Group& group, std::byte* shared, const std::byte* cell,
                             std::uint32_t bytes) const {
    ReadCell(group, shared, cell, bytes);
  }
  __device__ BucketMatch MatchBucket(const std::uint64_t* pairs, std::uint32_t slots,
                                     std::uint64_t word) const {
    return MatchBucketBy(*this, pairs, slots, word);
  }

 private:
  /// A holder is busy for some round trips over the link.
  static constexpr unsigned kLockWaitNanoseconds = 500;

  __device__ GPM_NOINLINE static void Log(DirtyLog dirty, const void* address, std::size_t bytes) {
    const auto first = reinterpret_cast<std::uint64_t>(address) / 64 * 64;
    for (std::uint64_t line = first; line < reinterpret_cast<std::uint64_t>(address) + bytes;
         line += 64) {
      const std::uint64_t at = atomicAdd(reinterpret_cast<unsigned long long*>(dirty.count), 1ull);
      if (at < dirty.capacity) dirty.lines[at] = line;
    }
  }

  DirtyLog dirty_;
  bool persists_;
};

}  // namespace gpm

#endif  // GPM_TABLE_MEDIA_CUDA_CUH_
