#ifndef GPM_BENCH_PAPER_COUNTING_TRACER_H_
#define GPM_BENCH_PAPER_COUNTING_TRACER_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "pm/pool.h"
#include "pm/tracer.h"

namespace gpm::bench {

/// What an access is for, as its place says: of the pool its slots, cells or superblocks; or memory
/// that threads share.
enum class Phase : std::uint8_t {
  kRest,        ///< between accesses: the batch's own work
  kVolatile,    ///< the directory, the cache, locks
  kSearch,      ///< slots are read
  kReadValue,   ///< cells are read
  kWriteValue,  ///< cells are written
  kPublish,     ///< slots are written
  kPersist,     ///< flushes and fences
  kManage,      ///< superblocks
  kCount
};

std::string_view PhaseName(Phase phase);  ///< "rest", "directory and cache", "read slots", ...

/// Accesses to the pool. A line has 64 bytes; accesses to one line, one after another and of one
/// kind, touch it once.
struct PhaseCounts {
  std::uint64_t reads = 0;  ///< words of 8 bytes
  std::uint64_t read_lines = 0;
  std::uint64_t writes = 0;  ///< words of 8 bytes; a compare-and-swap is one
  std::uint64_t written_lines = 0;
  std::uint64_t swaps = 0;  ///< compare-and-swaps
  std::uint64_t flushes = 0;
  std::uint64_t flushed_lines = 0;
  std::uint64_t fences = 0;
  double seconds = 0;  ///< from the first access of the phase to the first of another
};

/// Carries out a store's accesses to its pool, and counts them by phase: what the protocols do, not
/// what a model says. Flushes and fences are counted alone, as on a medium that needs none: caches,
/// eADR, tmpfs. A batch's parts run one after another, in the thread that applies it.
///
/// Thread safety: one thread at a time.
class CountingTracer : public PmTracer {
 public:
  /// Counts from now on, from 0, the pool as it is now. REQUIRES: a store has it open.
  /// @throws Error(kDamaged) when neither superblock can be right
  void Start();
  /// What follows is of no phase: between batches.
  void Rest() { Enter(Phase::kRest); }
  void Stop();

  const PhaseCounts& of(Phase phase) const { return counts_[static_cast<std::size_t>(phase)]; }
  /// Flushes, fences, compare-and-swaps and locks of this name.
  std::uint64_t met(Step step) const { return met_[static_cast<std::size_t>(step)]; }

  void Mapped(std::byte* base, std::uint64_t bytes) override;
  std::uint64_t Load(const std::uint64_t* word) override;
  void Store(std::uint64_t* word, std::uint64_t value) override;
  bool Cas(Step step, std::uint64_t* word, std::uint64_t expected, std::uint64_t desired) override;
  void Flush(Step step, const void* address, std::uint64_t bytes) override;
  void Fence(Step step) override;
  void Acquire(Step step, std::uint32_t* lock) override;
  void Release(Step step, std::uint32_t* lock) override;
  bool Shared(Step step) override;
  void Pause() override;
  void RunParts(std::size_t parts, const std::function<void(std::size_t)>& part) override;

 private:
  using Clock = std::chrono::steady_clock;

  enum class Place : std::uint8_t { kSuperblocks, kSlots, kCells };
  Place PlaceOf(const void* address) const;
  std::uint64_t LineOf(const void* address) const;
  void Enter(Phase phase);
  void Meet(Step step) { ++met_[static_cast<std::size_t>(step)]; }
  PhaseCounts& counts() { return counts_[static_cast<std::size_t>(phase_)]; }
  void CountWrite(const std::uint64_t* word);

  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::vector<Extent> slots_;  ///< the reserved level and the levels
  bool counting_ = false;
  Phase phase_ = Phase::kRest;
  Clock::time_point since_;
  std::uint64_t read_line_ = 0;  ///< the last one
  std::uint64_t written_line_ = 0;
  std::array<PhaseCounts, static_cast<std::size_t>(Phase::kCount)> counts_{};
  std::array<std::uint64_t, static_cast<std::size_t>(Step::kCount)> met_{};
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_PAPER_COUNTING_TRACER_H_
