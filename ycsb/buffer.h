#ifndef GPM_YCSB_BUFFER_H_
#define GPM_YCSB_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpm::ycsb {

/// Where the arrays of a batch live.
enum class Memory {
  kHost,
  kPinned,  ///< host memory that the GPU reaches
  kDevice,  ///< of the current GPU
};

/// Owns bytes in host or device memory; zero at first, and really allocated, so that no page fault
/// is timed. Movable. Thread safety: none.
class Buffer {
 public:
  Buffer() = default;
  /// @throws Error(kUnsupported) for pinned and device memory when built without CUDA, Error(kGpu)
  ///         when the GPU has not that much, std::bad_alloc
  Buffer(Memory memory, std::uint64_t bytes);
  /// Holds anything, and host memory is not touched: for who writes all of it with several threads,
  /// since one takes long for the page faults of gigabytes. @throws as the constructor
  static Buffer Untouched(Memory memory, std::uint64_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::span<std::byte> bytes() const { return bytes_; }
  template <typename T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

  void Zero();
  /// @param source host bytes, at most as many as the buffer has from byte `at`
  void CopyFrom(std::span<const std::byte> source, std::uint64_t at = 0);
  /// @param target host bytes, at most as many as the buffer has from byte `at`
  void CopyTo(std::span<std::byte> target, std::uint64_t at = 0) const;

 private:
  Memory memory_ = Memory::kHost;
  std::span<std::byte> bytes_;
};

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_BUFFER_H_
