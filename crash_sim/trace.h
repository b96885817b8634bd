#ifndef GPM_CRASH_SIM_TRACE_H_
#define GPM_CRASH_SIM_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pm/steps.h"

namespace gpm::crash {

/// The bytes of a pool's file, as words; what the file has beyond a trace's growth is zero.
using Image = std::vector<std::uint64_t>;

/// One access to persistent memory that can change what a crash leaves, or a mark.
struct Event {
  enum class Kind : std::uint8_t { kStore, kCas, kFlush, kSeen, kFence, kGrow, kMark };
  Kind kind = Kind::kStore;
  Step step = Step::kOther;
  std::uint32_t thread = 0;
  /// kStore, kCas, kFlush, kSeen: bytes from the pool's start. kGrow: the file's size from now on,
  /// bytes. kMark: its number, of which the trace's reader knows the meaning.
  std::uint64_t offset = 0;
  std::uint64_t before = 0;  ///< kStore, kCas: the word that was there
  /// kStore, kCas: the word that is there now; kFlush: bytes; kSeen: stores of the word before this
  /// event have been seen by the thread, and are durable after its next fence.
  std::uint64_t after = 0;
};

/// What one program did to one pool, in the order in which it became visible.
///
/// Thread safety: none.
class Trace {
 public:
  void Add(const Event& event) { events_.push_back(event); }
  void Clear() { events_.clear(); }
  const std::vector<Event>& events() const { return events_; }

  /// Applies everything to what the file held before.
  void ApplyTo(Image& image) const;

  /// Compares the file as it is now with what the trace says that it must hold.
  /// @return the first word that differs, in words: a write that escaped tracing; empty if none
  std::string FirstDifference(Image before, const Image& now) const;

 private:
  std::vector<Event> events_;
};

/// "thread 2 stores 0x1 -> 0x2 at 8192 (insert-claim-cas)"
std::string Describe(const Event& event);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_TRACE_H_
