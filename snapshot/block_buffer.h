#ifndef GPM_SNAPSHOT_BLOCK_BUFFER_H_
#define GPM_SNAPSHOT_BLOCK_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <new>

#include "pm/format.h"

namespace gpm {

/// Memory as O_DIRECT wants it: whole pages. Its contents are anything.
class BlockBuffer {
 public:
  /// @throws std::bad_alloc
  explicit BlockBuffer(std::uint64_t bytes)
      : data_(static_cast<std::byte*>(
            ::operator new (RoundUp(bytes, kPageBytes), std::align_val_t{kPageBytes}))) {}
  ~BlockBuffer() { ::operator delete (data_, std::align_val_t{kPageBytes}); }
  BlockBuffer(const BlockBuffer&) = delete;
  BlockBuffer& operator=(const BlockBuffer&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

}  // namespace gpm

#endif  // GPM_SNAPSHOT_BLOCK_BUFFER_H_
