#include "crash_sim/trace.h"

#include <fmt/format.h>

#include <algorithm>

namespace gpm::crash {

void Trace::ApplyTo(Image& image) const {
  for (const Event& event : events_) {
    if (event.kind == Event::Kind::kGrow) {
      image.resize(event.offset / 8);
    } else if (event.kind == Event::Kind::kStore || event.kind == Event::Kind::kCas) {
      image.at(event.offset / 8) = event.after;
    }
  }
}

std::string Trace::FirstDifference(Image before, const Image& now) const {
  ApplyTo(before);
  if (before.size() != now.size()) {
    return fmt::format("the file has {} bytes, by its trace {}", 8 * now.size(), 8 * before.size());
  }
  const auto [traced, found] = std::mismatch(before.begin(), before.end(), now.begin());
  if (traced == before.end()) return "";
  return fmt::format("the word at {} is {:#x}, by its trace {:#x}: a write was not traced",
                     8 * (traced - before.begin()), *found, *traced);
}

std::string Describe(const Event& event) {
  const auto with_step = [&](std::string text) {
    text.insert(0, fmt::format("thread {} ", event.thread));
    if (event.step != Step::kOther) text += fmt::format(" ({})", StepName(event.step));
    return text;
  };
  switch (event.kind) {
    case Event::Kind::kStore:
      return with_step(
          fmt::format("stores {:#x} -> {:#x} at {}", event.before, event.after, event.offset));
    case Event::Kind::kCas:
      return with_step(
          event.before == event.after
              ? fmt::format("fails to swap {:#x} at {}", event.before, event.offset)
              : fmt::format("swaps {:#x} -> {:#x} at {}", event.before, event.after, event.offset));
    case Event::Kind::kFlush:
      return with_step(fmt::format("flushes {} bytes at {}", event.after, event.offset));
    case Event::Kind::kSeen:
      return with_step(fmt::format("has seen what was stored at {}", event.offset));
    case Event::Kind::kFence:
      return with_step("fences");
    case Event::Kind::kGrow:
      return fmt::format("the file has {} bytes from now on", event.offset);
    case Event::Kind::kMark:
      return fmt::format("mark {}", event.offset);
  }
  return "";
}

}  // namespace gpm::crash
