#ifndef GPM_CRASH_SIM_CRASH_STATES_H_
#define GPM_CRASH_SIM_CRASH_STATES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "crash_sim/trace.h"

namespace gpm::crash {

/// What a crash may leave, by the persistency model of docs/CRASH_CONSISTENCY.md.

/// A word of the pool and what it holds.
struct WordValue {
  std::uint64_t offset = 0;
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(const WordValue&, const WordValue&) = default;
};

/// What a crash left: the words that differ from the durable image.
using CrashState = std::vector<WordValue>;

/// A word of which it is open what a crash leaves: its durable value, or that after any of its
/// stores since.
struct OpenWord {
  struct Store {
    std::size_t event;
    std::uint64_t value;
  };
  std::uint64_t offset = 0;
  std::vector<Store> stores;           ///< not surely durable, in order
  std::vector<std::uint64_t> choices;  ///< distinct values, two or more; first the durable one

  std::uint64_t durable() const { return choices.front(); }
  std::uint64_t latest() const { return stores.back().value; }
};

/// A hash of a file's bytes, which is the sum of its words': one word's change changes it by the
/// difference of HashWord. Words that are zero count nothing, so that growth does not either.
std::uint64_t HashWord(std::uint64_t offset, std::uint64_t value);
std::uint64_t HashImage(const Image& image);

/// Walks a trace from crash point to crash point. These are: just before an event that makes stores
/// durable, before a mark, before growth, and the end; of these, the ones before which something
/// became possible since the last. That covers every instant. From one such event to the next,
/// what may be left only grows: a store adds a value for its word, a flush alone changes nothing.
/// So what a crash at any instant between leaves, a crash just before the next such event can leave
/// too. Right after one, before the next store, it is a part of what it was right before.
///
/// Thread safety: none.
class CrashPoints {
 public:
  /// @param trace outlives this
  /// @param before what the file held before the trace, durably
  CrashPoints(const Trace& trace, Image before);

  /// Goes to the next crash point. @return false when there is none any more
  bool Next();

  // Of the crash point:
  const Image& durable() const { return durable_; }
  std::uint64_t durable_hash() const { return durable_hash_; }
  const std::vector<OpenWord>& open_words() const { return open_words_; }  ///< by offset
  double states() const;                                                   ///< how many there are
  std::size_t event() const { return next_; }             ///< the crash comes just before this one
  std::uint64_t last_mark() const { return last_mark_; }  ///< 0 before the first

 private:
  struct Flushed {
    std::uint64_t first;  ///< offset
    std::uint64_t end;
    std::size_t event;  ///< stores before this one
  };
  bool MakesDurable(const Event& fence) const;
  void Apply(const Event& event);
  void Flush(const Event& event);
  void Fence(const Event& event);
  void CollectOpenWords();

  const Trace& trace_;
  Image durable_;
  std::uint64_t durable_hash_;
  std::size_t next_ = 0;
  bool applied_ =
      true;            ///< the event at next_ - 1, and all before; false: at a point, next_ is due
  bool fresh_ = true;  ///< something became possible since the last point
  std::uint64_t last_mark_ = 0;
  std::map<std::uint64_t, std::vector<OpenWord::Store>> pending_;    ///< by offset; none is empty
  std::unordered_map<std::uint32_t, std::vector<Flushed>> flushed_;  ///< by thread, not fenced yet
  std::vector<OpenWord> open_words_;
};

/// Called with a state and the hash of the image it makes. @return whether to go on
using VisitState = std::function<bool(const CrashState& state, std::uint64_t image_hash)>;

/// Visits the states of a crash point: all of them when there are at most `limit`. Else `limit` or
/// more, chosen by `seed`: always nothing more than what is durable, everything, each prefix of the
/// stores, each word alone, all but each word (of more than `limit` stores or words, a part of
/// these); then random ones. These may repeat.
/// @return false when a visit said so
bool VisitStates(const CrashPoints& point, std::uint64_t limit, std::uint64_t seed,
                 const VisitState& visit);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_CRASH_STATES_H_
