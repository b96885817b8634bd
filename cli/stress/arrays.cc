#include "cli/stress/arrays.h"

#include <algorithm>
#include <bit>

#include "cli/stress/gpu.h"

namespace gpm::stress {

std::string_view PlaceName(Place place) {
  switch (place) {
    case Place::kDevice:
      return "device";
    case Place::kPinned:
      return "pinned";
    case Place::kPageable:
      break;
  }
  return "pageable";
}

Array::~Array() {
  if (device_ != nullptr) FreeDevice(device_);
  if (pinned_ != nullptr) FreePinned(pinned_);
}

std::byte* Array::Get(Place place, std::size_t bytes) {
  // Room for many batches to come, so that there are few allocations.
  const std::size_t room = std::bit_ceil(std::max<std::size_t>(bytes, 1 << 16));
  switch (place) {
    case Place::kDevice:
      if (device_bytes_ < bytes) {
        if (device_ != nullptr) FreeDevice(device_);
        device_ = nullptr;
        device_bytes_ = 0;
        device_ = AllocateDevice(room);
        device_bytes_ = room;
      }
      return device_;
    case Place::kPinned:
      if (pinned_bytes_ < bytes) {
        if (pinned_ != nullptr) FreePinned(pinned_);
        pinned_ = nullptr;
        pinned_bytes_ = 0;
        pinned_ = AllocatePinned(room);
        pinned_bytes_ = room;
      }
      return pinned_;
    case Place::kPageable:
      break;
  }
  if (pageable_.size() < bytes) pageable_.resize(room);
  return pageable_.data();
}

LaneMemory::LaneMemory(bool gpu) : stream(gpu ? MakeStream() : nullptr) {}
LaneMemory::~LaneMemory() {
  if (stream != nullptr) DestroyStream(stream);
}

}  // namespace gpm::stress
