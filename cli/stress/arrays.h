#ifndef GPM_CLI_STRESS_ARRAYS_H_
#define GPM_CLI_STRESS_ARRAYS_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "gpmstore/store.h"

namespace gpm::stress {

/// Which memory an array of a batch is in.
enum class Place { kDevice, kPinned, kPageable };
std::string_view PlaceName(Place place);
/// Whether the GPU fills and judges it; else the host does.
inline bool OnGpu(Place place) { return place == Place::kDevice; }

/// Memory for an array, in any of the places, kept and made larger as batches need it.
/// Thread safety: none.
class Array {
 public:
  Array() = default;
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  /// At least `bytes` bytes; what they hold is unspecified. Earlier ones in the same place may be
  /// gone. @throws Error(kGpu), std::bad_alloc
  std::byte* Get(Place place, std::size_t bytes);

 private:
  std::byte* device_ = nullptr;
  std::byte* pinned_ = nullptr;
  std::size_t device_bytes_ = 0;
  std::size_t pinned_bytes_ = 0;
  std::vector<std::byte> pageable_;
};

/// The memory and the stream of one lane (lane.h), kept from round to round: to allocate and free
/// GPU memory makes streams wait for each other, which would hide what stress looks for.
struct LaneMemory {
  explicit LaneMemory(bool gpu);
  ~LaneMemory();
  LaneMemory(const LaneMemory&) = delete;
  LaneMemory& operator=(const LaneMemory&) = delete;

  Array plan, keys, values, ops, found, results, tokens, answers;
  Stream stream = nullptr;
};

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_ARRAYS_H_
