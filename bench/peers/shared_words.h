#ifndef GPM_BENCH_PEERS_SHARED_WORDS_H_
#define GPM_BENCH_PEERS_SHARED_WORDS_H_

#include <cstdint>

#include "pm/annotate.h"

/// Words of 4 and 8 bytes that others write meanwhile, in GPU memory or, for tests, on the host.
namespace gpm::bench::peers {

/// The load and the store that are asked for, and no others.
template <class Word>
GPM_HD Word LoadWord(const Word* word) {
#ifdef __CUDA_ARCH__
  return *const_cast<const volatile Word*>(word);
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}
template <class Word>
GPM_HD void StoreWord(Word* word, Word value) {
#ifdef __CUDA_ARCH__
  *const_cast<volatile Word*>(word) = value;
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

GPM_HD inline bool Cas(std::uint64_t* word, std::uint64_t expected, std::uint64_t desired) {
#ifdef __CUDA_ARCH__
  return atomicCAS(reinterpret_cast<unsigned long long*>(word), expected, desired) == expected;
#else
  return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST);
#endif
}
GPM_HD inline bool Cas(std::uint32_t* word, std::uint32_t expected, std::uint32_t desired) {
#ifdef __CUDA_ARCH__
  return atomicCAS(word, expected, desired) == expected;
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

}  // namespace gpm::bench::peers

#endif  // GPM_BENCH_PEERS_SHARED_WORDS_H_
