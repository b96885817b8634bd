#ifndef GPM_ENGINE_CUDA_IO_AROUND_CACHES_H_
#define GPM_ENGINE_CUDA_IO_AROUND_CACHES_H_

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpm {

/// memcpy for what a GPU reads next, or nobody soon: the lines that are written are not read first,
/// nor kept in a cache, where a GPU would have to fetch them. FenceAroundCaches orders it before
/// what the thread writes afterwards.
inline void CopyAroundCaches(std::byte* to, const std::byte* from, std::uint64_t bytes) {
#ifdef __SSE2__
  const std::uint64_t head = std::min(bytes, (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64);
  if (head != 0) std::memcpy(to, from, head);
  std::uint64_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    __m128i line[4];
    std::memcpy(line, from + at, sizeof line);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, line[i]);
  }
  if (at != bytes) std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

inline void FenceAroundCaches() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_AROUND_CACHES_H_
