#ifndef GPM_PM_HUGE_MEMORY_H_
#define GPM_PM_HUGE_MEMORY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "pm/format.h"

namespace gpm {

/// Memory of the process of its own, zeros at first, in huge pages where the system has any (a
/// hint): to be written once, or registered with a GPU, that takes a fraction of the time. The
/// system takes its pages back at once when it goes.
class HugeMemory {
 public:
  HugeMemory() = default;
  /// @throws std::bad_alloc
  explicit HugeMemory(std::uint64_t bytes) : bytes_(RoundUp(bytes, kPageBytes)) {
    if (bytes_ == 0) return;
    void* const data =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    madvise(data, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(data);
  }
  ~HugeMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  HugeMemory(HugeMemory&& other) noexcept { *this = std::move(other); }
  HugeMemory& operator=(HugeMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  /// Aligned to pages; null: it has no bytes.
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }  ///< whole pages

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace gpm

#endif  // GPM_PM_HUGE_MEMORY_H_
