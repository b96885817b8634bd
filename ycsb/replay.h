#ifndef GPM_YCSB_REPLAY_H_
#define GPM_YCSB_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>

#include "ycsb/runner.h"
#include "ycsb/target.h"
#include "ycsb/trace.h"

namespace gpm::ycsb {

/// @throws Error(kInvalidArgument) when keys or values of these sizes are shorter than the trace's
void RequireFit(const Trace& trace, std::uint32_t key_size, std::uint32_t value_size);

struct ReplayOptions {
  std::size_t batch_lines = 4096;
  /// Where one line an operation goes, or null: the trace's word, the key as written, the outcome
  /// (ResultName) and, for a find that is ok, the value without its trailing zero bytes; separated
  /// by tabs.
  std::ostream* results = nullptr;
  /// Called after batches with the lines done and the lines there are.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

/// Applies a trace to a store, in mixed batches of consecutive lines; the outcomes equal those of
/// applying the lines one by one (Batch). A key is its number in a store with keys of 8 bytes, else
/// its text. Texts and values are padded with zero bytes to the store's sizes.
/// @throws Error(kInvalidArgument) when the store's keys or values are shorter than the trace's, or
///         batch_lines is 0 (nothing was applied); kIo when the results can't be written; as
///         Store::Apply
PhaseReport Replay(Target store, const Trace& trace, const ReplayOptions& options);

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_REPLAY_H_
