#include "bench/paper/counting_tracer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

namespace gpm::bench {
namespace {

constexpr std::uint64_t kLineBytes = 64;
constexpr std::uint64_t kNoLine = ~std::uint64_t{0};

}  // namespace

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kRest:
      return "rest";
    case Phase::kVolatile:
      return "directory, cache, locks";
    case Phase::kSearch:
      return "read slots";
    case Phase::kReadValue:
      return "read value";
    case Phase::kWriteValue:
      return "write value";
    case Phase::kPublish:
      return "write slots";
    case Phase::kPersist:
      return "flush and fence";
    default:
      return "superblocks";
  }
}

void CountingTracer::Start() {
  const int in_force = ChooseSuperblock(base_, bytes_, "the pool");
  Superblock superblock;
  std::memcpy(&superblock, base_ + static_cast<std::uint64_t>(in_force) * kSuperblockBytes,
              sizeof superblock);
  const std::uint64_t bucket_bytes = BucketBytes(superblock.key_size, superblock.geometry);
  slots_ = {{kReservedOffset, 2 * bucket_bytes}};
  for (std::uint32_t i = 0; i < superblock.level_count; ++i) {
    slots_.push_back({superblock.levels[i].offset, superblock.levels[i].buckets * bucket_bytes});
  }
  counts_ = {};
  met_ = {};
  read_line_ = written_line_ = kNoLine;
  phase_ = Phase::kRest;
  since_ = Clock::now();
  counting_ = true;
}

void CountingTracer::Stop() {
  const Clock::time_point now = Clock::now();
  counts().seconds += std::chrono::duration<double>(now - since_).count();
  counting_ = false;
}

CountingTracer::Place CountingTracer::PlaceOf(const void* address) const {
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - base_);
  if (offset < kReservedOffset) return Place::kSuperblocks;
  const bool in_slots = std::ranges::any_of(slots_, [&](const Extent& extent) {
    return offset >= extent.offset && offset < extent.end();
  });
  return in_slots ? Place::kSlots : Place::kCells;
}

std::uint64_t CountingTracer::LineOf(const void* address) const {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - base_) / kLineBytes;
}

void CountingTracer::Enter(Phase phase) {
  if (!counting_ || phase == phase_) return;
  const Clock::time_point now = Clock::now();
  counts().seconds += std::chrono::duration<double>(now - since_).count();
  since_ = now;
  phase_ = phase;
}

void CountingTracer::CountWrite(const std::uint64_t* word) {
  const Place place = PlaceOf(word);
  Enter(place == Place::kSlots   ? Phase::kPublish
        : place == Place::kCells ? Phase::kWriteValue
                                 : Phase::kManage);
  const std::uint64_t line = LineOf(word);
  ++counts().writes;
  counts().written_lines += line != written_line_ ? 1 : 0;
  written_line_ = line;
}

void CountingTracer::Mapped(std::byte* base, std::uint64_t bytes) {
  base_ = base;
  bytes_ = bytes;
}

std::uint64_t CountingTracer::Load(const std::uint64_t* word) {
  if (counting_) {
    const Place place = PlaceOf(word);
    Enter(place == Place::kSlots   ? Phase::kSearch
          : place == Place::kCells ? Phase::kReadValue
                                   : Phase::kManage);
    const std::uint64_t line = LineOf(word);
    ++counts().reads;
    counts().read_lines += line != read_line_ ? 1 : 0;
    read_line_ = line;
  }
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

void CountingTracer::Store(std::uint64_t* word, std::uint64_t value) {
  if (counting_) CountWrite(word);
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

bool CountingTracer::Cas(Step step, std::uint64_t* word, std::uint64_t expected,
                         std::uint64_t desired) {
  if (counting_) {
    CountWrite(word);
    ++counts().swaps;
    Meet(step);
  }
  return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE);
}

void CountingTracer::Flush(Step step, const void* address, std::uint64_t bytes) {
  if (!counting_ || bytes == 0) return;
  Enter(Phase::kPersist);
  const auto* const last = static_cast<const std::byte*>(address) + bytes - 1;
  ++counts().flushes;
  counts().flushed_lines += LineOf(last) - LineOf(address) + 1;
  Meet(step);
}

void CountingTracer::Fence(Step step) {
  std::atomic_signal_fence(std::memory_order_acq_rel);  // as Persist::Fence
  if (!counting_) return;
  Enter(Phase::kPersist);
  ++counts().fences;
  Meet(step);
}

void CountingTracer::Acquire(Step step, std::uint32_t* lock) {
  Enter(Phase::kVolatile);
  if (counting_) Meet(step);
  while (__atomic_exchange_n(lock, 1u, __ATOMIC_ACQUIRE) != 0) std::this_thread::yield();
}

void CountingTracer::Release(Step, std::uint32_t* lock) {
  Enter(Phase::kVolatile);
  __atomic_store_n(lock, 0u, __ATOMIC_RELEASE);
}

bool CountingTracer::Shared(Step) {
  Enter(Phase::kVolatile);
  return true;
}

void CountingTracer::Pause() { std::this_thread::yield(); }

void CountingTracer::RunParts(std::size_t parts, const std::function<void(std::size_t)>& part) {
  for (std::size_t i = 0; i < parts; ++i) part(i);
}

}  // namespace gpm::bench
