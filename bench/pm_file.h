#ifndef GPM_BENCH_PM_FILE_H_
#define GPM_BENCH_PM_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpm::bench {

/// Zero bytes of a file without a name, where the store's own pools lie by default, mapped, and by
/// default so that kernels read and write them (UVA): what stands for PM.
class PmFile {
 public:
  enum class For { kGpu, kCpu };  ///< who is to reach it

  /// @throws Error(kIo) when there is no room, Error(kUnsupported) when the GPU can't reach it
  explicit PmFile(std::uint64_t bytes, For user = For::kGpu);
  ~PmFile();
  PmFile(const PmFile&) = delete;
  PmFile& operator=(const PmFile&) = delete;

  std::byte* data() const { return memory_; }
  std::span<const std::byte> bytes() const { return {memory_, bytes_}; }

 private:
  std::uint64_t bytes_;
  For user_;
  std::byte* memory_ = nullptr;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_PM_FILE_H_
