#ifndef GPM_TABLE_VOLATILE_OPS_H_
#define GPM_TABLE_VOLATILE_OPS_H_

#include <cstdint>

#include "pm/annotate.h"

namespace gpm {

/// Relaxed atomics on the executor's own volatile memory: DRAM for the cpu executor, GPU memory for
/// the cuda executor. Nothing here touches persistent memory; that goes through a media policy.

GPM_HD inline std::uint64_t AtomicAdd(std::uint64_t* word, std::uint64_t amount) {
#ifdef __CUDA_ARCH__
  return atomicAdd(reinterpret_cast<unsigned long long*>(word), amount);
#else
  return __atomic_fetch_add(word, amount, __ATOMIC_RELAXED);
#endif
}

GPM_HD inline std::uint32_t AtomicLoad32(const std::uint32_t* word) {
#ifdef __CUDA_ARCH__
  return *const_cast<const volatile std::uint32_t*>(word);
#else
  return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
}

/// What was written before AtomicRelease32 of the word is seen after it.
GPM_HD inline std::uint32_t AtomicAcquire32(const std::uint32_t* word) {
#ifdef __CUDA_ARCH__
  const std::uint32_t value = AtomicLoad32(word);
  __threadfence();
  return value;
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}

GPM_HD inline void AtomicRelease32(std::uint32_t* word, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  __threadfence();
  *const_cast<volatile std::uint32_t*>(word) = value;
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

GPM_HD inline void AtomicAdd32(std::uint32_t* word, std::uint32_t amount) {
#ifdef __CUDA_ARCH__
  atomicAdd(word, amount);
#else
  __atomic_fetch_add(word, amount, __ATOMIC_RELAXED);
#endif
}

/// The word, which is one more then.
GPM_HD inline std::uint32_t AtomicNext(std::uint32_t* word) {
#ifdef __CUDA_ARCH__
  return atomicAdd(word, 1u);
#else
  return __atomic_fetch_add(word, 1u, __ATOMIC_RELAXED);
#endif
}

GPM_HD inline std::uint32_t AtomicOr(std::uint32_t* word, std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return atomicOr(word, bits);
#else
  return __atomic_fetch_or(word, bits, __ATOMIC_RELAXED);
#endif
}

GPM_HD inline std::uint64_t AtomicLoad(const std::uint64_t* word) {
#ifdef __CUDA_ARCH__
  return *const_cast<const volatile std::uint64_t*>(word);
#else
  return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
}

GPM_HD inline std::uint32_t PopCount(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<std::uint32_t>(__popc(bits));
#else
  // Of the baseline x86-64, which has no instruction for it, the compiler's own is a call.
  bits -= (bits >> 1) & 0x55555555u;
  bits = (bits & 0x33333333u) + ((bits >> 2) & 0x33333333u);
  return (((bits + (bits >> 4)) & 0x0F0F0F0Fu) * 0x01010101u) >> 24;
#endif
}

/// REQUIRES: bits != 0.
GPM_HD inline std::uint32_t LeadingZeros(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<std::uint32_t>(__clz(static_cast<int>(bits)));
#else
  return static_cast<std::uint32_t>(__builtin_clz(bits));
#endif
}

/// Index of the lowest set bit. REQUIRES: bits != 0.
GPM_HD inline std::uint32_t LowestBit(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<std::uint32_t>(__ffs(static_cast<int>(bits)) - 1);
#else
  return static_cast<std::uint32_t>(__builtin_ctz(bits));
#endif
}

}  // namespace gpm

#endif  // GPM_TABLE_VOLATILE_OPS_H_
