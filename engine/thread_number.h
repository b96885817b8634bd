#ifndef GPM_ENGINE_THREAD_NUMBER_H_
#define GPM_ENGINE_THREAD_NUMBER_H_

#include <atomic>
#include <cstdint>

namespace gpm {

/// Of the calling thread, from 1 on: no other thread of the process ever has it, where a
/// std::thread::id is used again when its thread has ended.
inline std::uint64_t ThreadNumber() {
  static std::atomic<std::uint64_t> threads{0};
  thread_local const std::uint64_t number = ++threads;
  return number;
}

}  // namespace gpm

#endif  // GPM_ENGINE_THREAD_NUMBER_H_
