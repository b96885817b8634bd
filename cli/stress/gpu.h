#ifndef GPM_CLI_STRESS_GPU_H_
#define GPM_CLI_STRESS_GPU_H_

#include <cstddef>
#include <cstdint>

#include "cli/stress/rows.h"
#include "gpmstore/store.h"

namespace gpm::stress {

/// What stress does on the GPU. Built without CUDA, each throws Error(kUnsupported).
///
/// Thread safety: any thread; a stream by one thread at a time.

/// Memory that kernels reach. @throws Error(kGpu)
std::byte* AllocateDevice(std::size_t bytes);
std::byte* AllocatePinned(std::size_t bytes);
void FreeDevice(std::byte* memory) noexcept;
void FreePinned(std::byte* memory) noexcept;

/// A stream that does not wait for the default stream.
Stream MakeStream();
void DestroyStream(Stream stream) noexcept;
void AwaitStream(Stream stream);

/// Fills the arrays of `rows` on `stream`. The plan is memory that kernels reach, and stays as it
/// is until the stream was waited for.
void FillRowsOnGpu(const Rows& rows, Stream stream);

/// Judges the answers in `rows` and waits for that. All is memory that kernels reach, `answers`
/// the host too.
void JudgeRowsOnGpu(const Rows& rows, const Answers& answers, Stream stream);

/// Carries out the operations of `rows` by a kernel in a DeviceScope: each `group` of them, one
/// after another, by one tile. Arrays are memory that kernels reach.
void RunInScope(Store& store, const Rows& rows, std::uint32_t group, std::uint64_t writes,
                std::uint64_t erases, Stream stream);

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_GPU_H_
