#include "engine/profiler_range.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace gpm {
namespace {

nvtxDomainHandle_t Domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("gpmstore");
  return domain;
}

}  // namespace

ProfilerRange::ProfilerRange(const char* name, std::uint64_t count) noexcept {
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  event.payload.ullValue = count;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = name;
  id_ = nvtxDomainRangeStartEx(Domain(), &event);
}

void ProfilerRange::End() noexcept {
  if (id_ != 0) nvtxDomainRangeEnd(Domain(), std::exchange(id_, 0));
}

}  // namespace gpm

#else

namespace gpm {

ProfilerRange::ProfilerRange(const char*, std::uint64_t) noexcept {}
void ProfilerRange::End() noexcept {}

}  // namespace gpm

#endif
