#include "cli/stress/gpu.h"
#include "gpmstore/error.h"

namespace gpm::stress {
namespace {

[[noreturn]] void Refuse() {
  throw Error(ErrorCode::kUnsupported, "stress: built without CUDA; use --executor cpu");
}

}  // namespace

std::byte* AllocateDevice(std::size_t) { Refuse(); }
std::byte* AllocatePinned(std::size_t) { Refuse(); }
void FreeDevice(std::byte*) noexcept {}
void FreePinned(std::byte*) noexcept {}
Stream MakeStream() { Refuse(); }
void DestroyStream(Stream) noexcept {}
void AwaitStream(Stream) { Refuse(); }
void FillRowsOnGpu(const Rows&, Stream) { Refuse(); }
void JudgeRowsOnGpu(const Rows&, const Answers&, Stream) { Refuse(); }
void RunInScope(Store&, const Rows&, std::uint32_t, std::uint64_t, std::uint64_t, Stream) {
  Refuse();
}

}  // namespace gpm::stress
