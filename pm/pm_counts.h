#ifndef GPM_PM_PM_COUNTS_H_
#define GPM_PM_PM_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpm {

/// What kernels do to persistent memory, counted: in a build with GPM_COUNT_PM, which is for that
/// alone. Any other has nothing of it.
#ifdef GPM_COUNT_PM
inline constexpr bool kCountsPm = true;
#else
inline constexpr bool kCountsPm = false;
#endif

/// What lies there: keys, states and references; values; what is logged.
enum class PmPlace : unsigned { kSlots, kValues, kLog, kCount };
enum class PmAccess : unsigned { kRead, kWrite, kSwap, kCount };  ///< a swap: an atomic operation

/// By threads: what 32 of them read at once are 32 reads. (No member has an initial value: there is
/// one in GPU memory.)
struct PmCounts {
  static constexpr std::size_t kPlaces = static_cast<std::size_t>(PmPlace::kCount);
  static constexpr std::size_t kAccesses = static_cast<std::size_t>(PmAccess::kCount);

  unsigned long long count[kPlaces][kAccesses];
  unsigned long long bytes[kPlaces][kAccesses];
  unsigned long long fences;  ///< of the system's scope
  /// Of the GPU's clock, by warps: what 32 threads read at once takes them once.
  unsigned long long cycles[kPlaces][kAccesses];
  unsigned long long fence_cycles;

  PmCounts& operator+=(const PmCounts& other) {
    for (std::size_t p = 0; p < kPlaces; ++p) {
      for (std::size_t a = 0; a < kAccesses; ++a) {
        count[p][a] += other.count[p][a];
        bytes[p][a] += other.bytes[p][a];
        cycles[p][a] += other.cycles[p][a];
      }
    }
    fences += other.fences;
    fence_cycles += other.fence_cycles;
    return *this;
  }
};

/// Where it is counted.
struct CountedMemory {
  std::span<const std::byte> all{};
  std::span<const std::byte> log{};  ///< a part of it
};

/// The kernels of one file. (Device code is not linked: each has counters of its own.)
struct PmCountersOfFile {
  void (*start)(const CountedMemory& memory);  ///< from 0
  PmCounts (*read)();
};
/// Of all files. Only changed before main.
inline std::vector<PmCountersOfFile>& AllPmCounters() {
  static std::vector<PmCountersOfFile> all;
  return all;
}

/// Counts from 0 what kernels that begin from now on do on the current GPU.
inline void StartPmCounts(const CountedMemory& memory) {
  for (const PmCountersOfFile& file : AllPmCounters()) file.start(memory);
}
/// REQUIRES: those kernels have ended.
inline PmCounts ReadPmCounts() {
  PmCounts sum{};
  for (const PmCountersOfFile& file : AllPmCounters()) sum += file.read();
  return sum;
}

}  // namespace gpm

#endif  // GPM_PM_PM_COUNTS_H_
