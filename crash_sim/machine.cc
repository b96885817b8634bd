#include "crash_sim/machine.h"

#include <fmt/format.h>

#include <stdexcept>

namespace gpm::crash {

void Machine::Begin(std::uint64_t file_bytes) {
  trace_.Clear();
  bytes_ = file_bytes;
  Revive();
}

void Machine::Revive() {
  accesses_left_ = 0;
  killed_ = false;
}

void Machine::Mark(std::uint64_t number) {
  trace_.Add(Event{.kind = Event::Kind::kMark, .thread = Thread(), .offset = number});
}

void Machine::Mapped(std::byte* base, std::uint64_t bytes) {
  base_ = base;
  if (bytes == bytes_) return;
  bytes_ = bytes;
  trace_.Add(Event{.kind = Event::Kind::kGrow, .thread = Thread(), .offset = bytes});
}

std::uint64_t Machine::Load(const std::uint64_t* word) {
  Begins();
  WordOffset(word);
  return *word;
}

void Machine::Store(std::uint64_t* word, std::uint64_t value) {
  Begins(Step::kOther);
  trace_.Add(Event{.kind = Event::Kind::kStore,
                   .thread = Thread(),
                   .offset = WordOffset(word),
                   .before = *word,
                   .after = value});
  *word = value;
}

bool Machine::Cas(Step step, std::uint64_t* word, std::uint64_t expected, std::uint64_t desired) {
  const bool left_out = Begins(step);
  const std::uint64_t before = *word;
  const bool swaps = left_out || before == expected;
  trace_.Add(Event{.kind = Event::Kind::kCas,
                   .step = step,
                   .thread = Thread(),
                   .offset = WordOffset(word),
                   .before = before,
                   .after = swaps ? desired : before});
  if (swaps) *word = desired;
  return swaps;
}

void Machine::Flush(Step step, const void* address, std::uint64_t bytes) {
  if (Begins(step) || bytes == 0) return;
  trace_.Add(Event{.kind = Event::Kind::kFlush,
                   .step = step,
                   .thread = Thread(),
                   .offset = OffsetOf(address, bytes),
                   .after = bytes});
}

void Machine::Fence(Step step) {
  if (Begins(step)) return;
  trace_.Add(Event{.kind = Event::Kind::kFence, .step = step, .thread = Thread()});
}

void Machine::Acquire(Step step, std::uint32_t* lock) {
  Begins();
  ++met_[static_cast<std::size_t>(step)];
  if (IsLeftOut(step)) return;
  while (*lock != 0) {
    if (!Scheduled()) throw std::logic_error("a thread waits for a lock that it has taken itself");
    scheduler_->Pause();
  }
  *lock = 1;
}

void Machine::Release(Step step, std::uint32_t* lock) {
  Begins();
  if (!IsLeftOut(step)) *lock = 0;
}

bool Machine::Shared(Step step) {
  Begins();
  ++met_[static_cast<std::size_t>(step)];
  return !IsLeftOut(step);
}

void Machine::Pause() {
  if (!Scheduled()) throw std::logic_error("a thread waits for another, but there is none");
  scheduler_->Pause();
}

void Machine::RunParts(std::size_t parts, const std::function<void(std::size_t)>& part) {
  if (Scheduled()) return scheduler_->RunParts(parts, part);
  if (parts == 1) return part(0);  // as a thread pool does: no other thread is worth waking
  const std::uint32_t caller = thread_;
  for (std::size_t i = 0; i < parts; ++i) {
    thread_ = next_thread_++;
    part(i);
  }
  thread_ = caller;
}

void Machine::Begins() {
  if (Scheduled()) scheduler_->Yield();
  if (killed_) throw Killed{};
}

bool Machine::Begins(Step step) {
  Begins();
  if (accesses_left_ > 0 && --accesses_left_ == 0) {
    killed_ = true;
    throw Killed{};
  }
  ++met_[static_cast<std::size_t>(step)];
  return IsLeftOut(step);
}

std::uint64_t Machine::OffsetOf(const void* address, std::uint64_t bytes) const {
  const auto start = reinterpret_cast<std::uintptr_t>(base_);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (at < start || at - start > bytes_ || bytes > bytes_ - (at - start)) {
    throw std::logic_error(
        fmt::format("an access to {} bytes at {:+} of a pool of {} bytes", bytes,
                    static_cast<std::int64_t>(at) - static_cast<std::int64_t>(start), bytes_));
  }
  return at - start;
}

std::uint64_t Machine::WordOffset(const std::uint64_t* word) const {
  const std::uint64_t offset = OffsetOf(word, sizeof *word);
  if (offset % 8 != 0) {
    throw std::logic_error(fmt::format("an access to a word at {}, which is no word's", offset));
  }
  return offset;
}

}  // namespace gpm::crash
