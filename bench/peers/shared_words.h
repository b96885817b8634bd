#ifndef GPM_BENCH_PEERS_SHARED_WORDS_H_
#define GPM_BENCH_PEERS_SHARED_WORDS_H_

#include <cstdint>

#include "pm/annotate.h"
#ifdef __CUDACC__
#include "pm/count_pm.cuh"
#endif

/// Words of 4 and 8 bytes that others write meanwhile, in GPU memory, on PM that a GPU reaches or,
/// for tests, on the host.
namespace gpm::bench::peers {

/// The load and the store that are asked for, and no others.
template <class Word>
GPM_HD Word LoadWord(const Word* word) {
#ifdef __CUDA_ARCH__
  const auto counted = CountPm(PmPlace::kSlots, PmAccess::kRead, word, sizeof *word);
  const Word value = *const_cast<const volatile Word*>(word);
  counted.End(value);
  return value;
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}
template <class Word>
GPM_HD void StoreWord(Word* word, Word value) {
#ifdef __CUDA_ARCH__
  const auto counted = CountPm(PmPlace::kSlots, PmAccess::kWrite, word, sizeof *word);
  *const_cast<volatile Word*>(word) = value;
  counted.End();
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

/// Two words that are loaded or stored at once, though another may see one of them alone.
struct alignas(16) WordPair {
  std::uint64_t first;
  std::uint64_t second;
};
/// REQUIRES: 16-byte aligned words, here and below.
GPM_HD inline WordPair LoadPair(const std::uint64_t* words) {
#ifdef __CUDA_ARCH__
  const auto counted = CountPm(PmPlace::kSlots, PmAccess::kRead, words, sizeof(WordPair));
  const ulonglong2 pair = __ldcv(reinterpret_cast<const ulonglong2*>(words));
  counted.End(pair.x);
  return {pair.x, pair.y};
#else
  return {LoadWord(&words[0]), LoadWord(&words[1])};
#endif
}
/// What a cache may have, as it was when the kernel began or later.
GPM_HD inline WordPair LoadCachedPair(const std::uint64_t* words) {
#ifdef __CUDA_ARCH__
  const auto counted = CountPm(PmPlace::kSlots, PmAccess::kRead, words, sizeof(WordPair));
  const ulonglong2 pair = *reinterpret_cast<const ulonglong2*>(words);
  counted.End(pair.x);
  return {pair.x, pair.y};
#else
  return LoadPair(words);
#endif
}
GPM_HD inline void StorePair(std::uint64_t* words, WordPair pair) {
#ifdef __CUDA_ARCH__
  const auto counted = CountPm(PmPlace::kSlots, PmAccess::kWrite, words, sizeof pair);
  __stwt(reinterpret_cast<ulonglong2*>(words), make_ulonglong2(pair.first, pair.second));
  counted.End();
#else
  StoreWord(&words[0], pair.first);
  StoreWord(&words[1], pair.second);
#endif
}

/// @return the old word
GPM_HD inline std::uint64_t Exchange(std::uint64_t* word, std::uint64_t desired) {
#ifdef __CUDA_ARCH__
  const auto counted = CountPm(PmPlace::kSlots, PmAccess::kSwap, word, sizeof *word);
  const std::uint64_t old = atomicExch(reinterpret_cast<unsigned long long*>(word), desired);
  counted.End(old);
  return old;
#else
  return __atomic_exchange_n(word, desired, __ATOMIC_SEQ_CST);
#endif
}
GPM_HD inline std::uint32_t Exchange(std::uint32_t* word, std::uint32_t desired) {
#ifdef __CUDA_ARCH__
  const auto counted = CountPm(PmPlace::kSlots, PmAccess::kSwap, word, sizeof *word);
  const std::uint32_t old = atomicExch(word, desired);
  counted.End(old);
  return old;
#else
  return __atomic_exchange_n(word, desired, __ATOMIC_SEQ_CST);
#endif
}

GPM_HD inline bool Cas(std::uint64_t* word, std::uint64_t expected, std::uint64_t desired) {
#ifdef __CUDA_ARCH__
  const auto counted = CountPm(PmPlace::kSlots, PmAccess::kSwap, word, sizeof *word);
  const std::uint64_t old =
      atomicCAS(reinterpret_cast<unsigned long long*>(word), expected, desired);
  counted.End(old);
  return old == expected;
#else
  return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST);
#endif
}
GPM_HD inline bool Cas(std::uint32_t* word, std::uint32_t expected, std::uint32_t desired) {
#ifdef __CUDA_ARCH__
  const auto counted = CountPm(PmPlace::kSlots, PmAccess::kSwap, word, sizeof *word);
  const std::uint32_t old = atomicCAS(word, expected, desired);
  counted.End(old);
  return old == expected;
#else
  return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST);
#endif
}

/// What was accessed before is, for all threads of the executor, before what is accessed after.
GPM_HD inline void Fence() {
#ifdef __CUDA_ARCH__
  __threadfence();
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
/// The same for PM, where it orders persists (GPHash, FAST 2025, section 3.2.3).
GPM_HD inline void SystemFence() {
#ifdef __CUDA_ARCH__
  const auto counted = CountPmFence();
  __threadfence_system();
  counted.End();
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

}  // namespace gpm::bench::peers

#endif  // GPM_BENCH_PEERS_SHARED_WORDS_H_
