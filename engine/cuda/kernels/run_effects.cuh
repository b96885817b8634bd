#ifndef GPM_ENGINE_CUDA_KERNELS_RUN_EFFECTS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_RUN_EFFECTS_CUH_

#include "engine/cuda/context.cuh"
#include "table/operation.h"

namespace gpm {

/// The effects of operations in the order of their keys (KeyRunEffect), a warp 32 of them at a
/// time, by votes. (A scan with ComposeEffects takes twice as long.)

/// What an operation does (PlanOf), a bit each.
struct KindBits {
  static constexpr std::uint32_t kFinds = 1;    ///< gives back a value
  static constexpr std::uint32_t kInserts = 2;  ///< writes if the key is absent
  static constexpr std::uint32_t kUpdates = 4;  ///< writes if it is present
  static constexpr std::uint32_t kErases = 8;
  static constexpr std::uint32_t kAdds = 16;  ///< it updates, and accumulates (OfWithAdds)
  static constexpr std::uint32_t kAll = 31;

  /// Of all kinds, 4 bits each.
  static constexpr std::uint32_t OfAll(bool has_values) {
    constexpr std::byte value{};
    std::uint32_t bits = 0;
    for (std::uint32_t op = 0; op < kOpKinds; ++op) {
      const Plan plan = PlanOf(static_cast<Op>(op), has_values ? &value : nullptr);
      const std::uint32_t of_op = (GivesValue(static_cast<Op>(op), has_values) ? kFinds : 0) |
                                  (plan.if_absent == Action::kWrite ? kInserts : 0) |
                                  (WritesValue(plan.if_present) ? kUpdates : 0) |
                                  (plan.if_present == Action::kErase ? kErases : 0);
      bits |= of_op << (4 * op);
    }
    return bits;
  }
  /// (Bits above kErases are not of this kind.)
  __device__ static std::uint32_t Of(Op op, bool has_values) {
    constexpr std::uint32_t kWith = OfAll(true);
    constexpr std::uint32_t kWithout = OfAll(false);
    static_assert(4 * kOpKinds <= 28);  // what is no kind has no bits
    return (has_values ? kWith : kWithout) >> (4 * min(static_cast<std::uint32_t>(op), 7u));
  }
  __device__ static std::uint32_t OfWithAdds(Op op, bool has_values) {
    const std::uint32_t bits = Of(op, has_values) & 15;
    return bits | (op == Op::kAccumulate && (bits & kUpdates) != 0 ? kAdds : 0);
  }
};
// No kind both writes an item that is absent and removes one that is present.
static_assert((KindBits::OfAll(true) >> 1 & KindBits::OfAll(true) >> 3 & 0x1111111) == 0);

/// What the operations before come to, as far as they are of the last one's run.
struct RunSoFar {
  KeyRunEffect effect{kUnchanged, kUnchanged, kNoPosition, kNoPosition};
  bool adds = false;    ///< some of them accumulate
  bool others = false;  ///< some do not
};

/// A lane's operation, or none.
struct LaneOperation {
  std::uint32_t bits = 0;  ///< KindBits::OfWithAdds; 0 where there is none
  bool begins = false;     ///< a run
  bool other_key = false;  ///< than the one before, in one run
};

/// The effect of the run's operations up to each lane's, including it. All lanes of a warp call it.
/// (Behind an operation that writes an absent item, or removes one that is present, it is known
/// whether there is one.)
/// @param first position of lane 0's
/// @param so_far before that; becomes that of all lanes, if all have operations
__device__ inline KeyRunEffect EffectUpTo(const LaneOperation& own, std::uint32_t first,
                                          RunSoFar* so_far) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t up_to = ~0u >> (31 - lane);
  const auto high_bit = [](std::uint32_t bits) { return 31 - __clz(static_cast<int>(bits)); };
  const auto vote = [&](bool bit) { return __ballot_sync(~0u, bit); };
  const auto has = [&](std::uint32_t bits) { return (own.bits & bits) != 0; };
  const RunSoFar before = *so_far;
  const std::uint32_t begins = vote(own.begins) & up_to;
  const bool goes_on = begins == 0;
  const std::uint32_t of_run = (goes_on ? ~0u : ~0u << high_bit(begins)) & up_to;

  const std::uint32_t makes = vote(has(KindBits::kInserts));
  const std::uint32_t settles = (makes | vote(has(KindBits::kErases))) & of_run & up_to >> 1;
  const bool made = settles != 0 && (makes >> high_bit(settles) & 1) != 0;
  const auto effect_if = [&](bool present_before, std::uint32_t effect_before) {
    bool present = present_before;
    if (goes_on) present = PresentAfter(effect_before, present_before);
    if (settles != 0) present = made;
    const std::uint32_t writes = vote(has(present ? KindBits::kUpdates : KindBits::kInserts));
    const std::uint32_t removes = vote(has(present ? KindBits::kErases : KindBits::kAdds));
    const std::uint32_t changes = (writes | removes) & of_run;
    if (changes == 0) return goes_on ? effect_before : kUnchanged;
    const std::uint32_t last = high_bit(changes);
    return (removes >> last & 1) != 0 ? kRemoved : first + last;
  };
  KeyRunEffect effect;
  effect.if_absent = effect_if(false, before.effect.if_absent);
  effect.if_present = effect_if(true, before.effect.if_present);
  effect.first = goes_on ? before.effect.first : first + high_bit(begins);

  const std::uint32_t gives = vote(has(KindBits::kFinds)) & of_run;
  const std::uint32_t find_before = goes_on ? before.effect.first_find() : kNoPosition;
  const std::uint32_t find = find_before != kNoPosition ? find_before
                             : gives != 0               ? first + LowestBit(gives)
                                                        : kNoPosition;
  const std::uint32_t adding = vote(has(KindBits::kAdds));
  const bool adds = (adding & of_run) != 0 || (goes_on && before.adds);
  const bool others = (~adding & of_run) != 0 || (goes_on && before.others);
  const bool collided = (vote(own.other_key) & of_run) != 0 || (adds && others) ||
                        (goes_on && before.effect.collided());
  effect.find_and_collided = find | (collided ? ~kNoPosition : 0);

  const auto of_last = [](std::uint32_t word) { return __shfl_sync(~0u, word, 31); };
  so_far->effect.if_absent = of_last(effect.if_absent);
  so_far->effect.if_present = of_last(effect.if_present);
  so_far->effect.first = of_last(effect.first);
  so_far->effect.find_and_collided = of_last(effect.find_and_collided);
  const std::uint32_t flags = of_last((adds ? 1 : 0) | (others ? 2 : 0));
  so_far->adds = (flags & 1) != 0;
  so_far->others = (flags & 2) != 0;
  return effect;
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_RUN_EFFECTS_CUH_
