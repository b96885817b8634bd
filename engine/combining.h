#ifndef GPM_ENGINE_COMBINING_H_
#define GPM_ENGINE_COMBINING_H_

#include <cstdint>

#include "table/operation.h"

namespace gpm {

/// Combining: what a sequence of operations on one key does. A batch then needs one probe and at
/// most one PM write for a key, and the operations of a long run are answered in parallel.
/// Positions are those of operations in the batch sorted by key hash, batch order kept on each key.
///
/// The effect of a sequence depends on one bit, whether the key was there before. For either case
/// it leaves the item as it was, or leaves none, or leaves the value that the operation at some
/// position wrote. Effects of sequences compose associatively, so a segmented scan yields, at each
/// operation, the effect of all operations on its key up to and including it.

inline constexpr std::uint32_t kUnchanged = 0xFFFFFFFFu;
inline constexpr std::uint32_t kRemoved = 0xFFFFFFFEu;
inline constexpr std::uint32_t kNoPosition = 0x7FFFFFFFu;

/// The effect of a run of operations; also the element of the scan.
struct alignas(16) KeyRunEffect {
  std::uint32_t if_absent;   ///< kUnchanged, kRemoved, or the position of the last writer
  std::uint32_t if_present;  ///< the same, when the key was there before
  std::uint32_t first;  ///< where the run begins; kNoPosition in elements that do not begin one
  /// Position of the run's first operation that gives back a value, or kNoPosition. The top bit
  /// says that the run is to be carried out one by one: keys collided, which means equal hashes, or
  /// some operations but not all are kAccumulate.
  std::uint32_t find_and_collided;

  /// The position whose value a run of one kind of operations writes, whether the key is there or
  /// not. REQUIRES: the kind writes, and it is no run of several keys
  GPM_HD std::uint32_t writer() const { return if_present < kRemoved ? if_present : if_absent; }
  GPM_HD std::uint32_t first_find() const { return find_and_collided & kNoPosition; }
  GPM_HD bool collided() const { return (find_and_collided & ~kNoPosition) != 0; }
  /// Whether all operations are kAccumulate: the sum of all is written at once. (Where such a run
  /// finds no key it leaves none. No other run that does so writes to a key that is there.)
  GPM_HD bool accumulates() const { return if_absent == kRemoved && if_present < kRemoved; }
};

/// The effect of one operation at `position`.
/// @param begins_run whether the operation before it has another hash
/// @param other_key whether the operation before it has the same hash but another key
GPM_HD inline KeyRunEffect EffectOf(Op op, bool has_value, std::uint32_t position, bool begins_run,
                                    bool other_key) {
  const Plan plan = PlanOf(op, has_value ? reinterpret_cast<const std::byte*>(1) : nullptr);
  KeyRunEffect effect;
  effect.if_absent = plan.if_absent == Action::kWrite ? position : kUnchanged;
  if (plan.if_present == Action::kAdd) effect.if_absent = kRemoved;
  effect.if_present = WritesValue(plan.if_present)        ? position
                      : plan.if_present == Action::kErase ? kRemoved
                                                          : kUnchanged;
  effect.first = begins_run ? position : kNoPosition;
  effect.find_and_collided =
      (GivesValue(op, has_value) ? position : kNoPosition) | (other_key ? ~kNoPosition : 0);
  return effect;
}

/// Whether an effect changes the item.
GPM_HD inline bool Changes(const KeyRunEffect& effect, bool present_before) {
  return present_before ? effect.if_present != kUnchanged : effect.if_absent < kRemoved;
}

/// State of the item after an effect.
GPM_HD inline bool PresentAfter(std::uint32_t effect, bool present_before) {
  return effect == kUnchanged ? present_before : effect != kRemoved;
}

/// The effect of `left`, then `right`; of `right` alone when it begins a run.
struct ComposeEffects {
  GPM_HD KeyRunEffect operator()(const KeyRunEffect& left, const KeyRunEffect& right) const {
    if (right.first != kNoPosition) return right;
    KeyRunEffect both;
    both.if_absent = After(left.if_absent, false, right);
    both.if_present = After(left.if_present, true, right);
    both.first = left.first;
    const std::uint32_t find =
        left.first_find() != kNoPosition ? left.first_find() : right.first_find();
    both.find_and_collided =
        find | ((left.find_and_collided | right.find_and_collided) & ~kNoPosition);
    if (left.accumulates() != right.accumulates()) both.find_and_collided |= ~kNoPosition;
    return both;
  }

 private:
  GPM_HD static std::uint32_t After(std::uint32_t earlier, bool present_before,
                                    const KeyRunEffect& right) {
    const std::uint32_t later =
        PresentAfter(earlier, present_before) ? right.if_present : right.if_absent;
    return later == kUnchanged ? earlier : later;
  }
};

/// The plan that carries out a run's effect with one write.
/// @param value_at value_at(position) gives the value_size bytes that an operation writes; of a run
///        that accumulates it is not called, and Plan::addends is for the caller to set
template <class ValueAt>
GPM_HD inline Plan PlanOfKeyRun(const KeyRunEffect& effect, const ValueAt& value_at) {
  Plan plan;
  if (effect.if_absent != kUnchanged && effect.if_absent != kRemoved) {
    plan.if_absent = Action::kWrite;
    plan.absent_value = value_at(effect.if_absent);
  }
  if (effect.if_present == kRemoved) {
    plan.if_present = Action::kErase;
  } else if (effect.accumulates()) {
    plan.if_present = Action::kAdd;
  } else if (effect.if_present != kUnchanged) {
    plan.if_present = Action::kWrite;
    plan.present_value = value_at(effect.if_present);
  }
  return plan;
}

}  // namespace gpm

#endif  // GPM_ENGINE_COMBINING_H_
