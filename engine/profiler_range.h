#ifndef GPM_ENGINE_PROFILER_RANGE_H_
#define GPM_ENGINE_PROFILER_RANGE_H_

#include <cstdint>
#include <utility>

namespace gpm {

/// A span of time that profilers show by name: an NVTX range of the domain "gpmstore". It may end
/// in another thread. Without a profiler it takes some nanoseconds; where the library was built
/// without NVTX's header it does nothing. Thread safety: one thread at a time.
class ProfilerRange {
 public:
  ProfilerRange() = default;
  /// @param name lives as long as the program
  /// @param count shown beside it, such as the operations of a batch
  explicit ProfilerRange(const char* name, std::uint64_t count = 0) noexcept;
  ProfilerRange(ProfilerRange&& other) noexcept : id_(std::exchange(other.id_, 0)) {}
  ProfilerRange& operator=(ProfilerRange&& other) noexcept {
    End();
    id_ = std::exchange(other.id_, 0);
    return *this;
  }
  ~ProfilerRange() { End(); }

  void End() noexcept;

 private:
  std::uint64_t id_ = 0;  ///< 0: there is none
};

}  // namespace gpm

#endif  // GPM_ENGINE_PROFILER_RANGE_H_
