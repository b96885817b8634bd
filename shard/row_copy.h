#ifndef GPM_SHARD_ROW_COPY_H_
#define GPM_SHARD_ROW_COPY_H_

#include <cstddef>
#include <cstring>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>
#endif

namespace gpm {

/// std::memcpy.
struct PlainCopy {
  template <class Bytes>
  void operator()(std::byte* to, const std::byte* from, Bytes bytes) const {
    std::memcpy(to, from, bytes);
  }
  void Finish() const {}
};

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
/// A copy that goes past the CPU's caches: a plain one first reads from memory what it is going to
/// write, and of an array that is larger than the caches no line is there when it is wanted.
/// REQUIRES: the address written, and `bytes`, are multiples of 16
struct StreamedCopy {
  template <class Bytes>
  void operator()(std::byte* to, const std::byte* from, Bytes bytes) const {
    for (std::size_t at = 0; at < bytes; at += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
    }
  }
  /// Before another thread reads what was written.
  void Finish() const { _mm_sfence(); }
};
#else
using StreamedCopy = PlainCopy;
#endif

}  // namespace gpm

#endif  // GPM_SHARD_ROW_COPY_H_
