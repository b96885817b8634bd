#ifndef GPM_ENGINE_CUDA_SEARCH_TIER_KERNELS_CUH_
#define GPM_ENGINE_CUDA_SEARCH_TIER_KERNELS_CUH_

#include "engine/cuda/search/launches.cuh"
#include "engine/search_tiers.h"

namespace gpm {

/// The kernels that make tiers: grid-stride loops of one thread a thing.

__global__ void CountUp(std::uint32_t* numbers, std::uint32_t count) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    numbers[i] = static_cast<std::uint32_t>(i);
  }
}

/// Makes the ordered words of keys.
__global__ void OrderWords(const std::uint64_t* keys, std::uint64_t words, std::uint64_t* ordered) {
  for (std::uint64_t i = FirstOfGrid(); i < words; i += GridStep())
    ordered[i] = OrderedWord(keys[i]);
}

/// Where ReadNumbers finds numbers in values, and puts them.
struct NumbersOfValues {
  struct Field {
    std::uint32_t offset;
    std::uint32_t bytes;
    std::uint64_t* numbers;  ///< by item
  };
  std::uint32_t fields = 0;
  Field field[kMaxAttributes]{};
};

/// Reads the attributes of items from their values.
/// @param base of the pool; null: values are inline, and so the references themselves
/// @param items the item of each reference; null: they are in the order of items
__global__ void ReadNumbers(const std::byte* base, const std::uint64_t* references,
                            const std::uint32_t* items, std::uint64_t count,
                            const __grid_constant__ NumbersOfValues to) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    const std::uint64_t item = items == nullptr ? i : items[i];
    const std::uint64_t reference = references[i];
    // A cell is whole words.
    const std::uint64_t* const words =
        base == nullptr ? &reference : reinterpret_cast<const std::uint64_t*>(base + reference);
    for (std::uint32_t f = 0; f < to.fields; ++f) {
      const NumbersOfValues::Field field = to.field[f];
      const std::uint32_t shift = 8 * (field.offset % 8);
      std::uint64_t number = words[field.offset / 8] >> shift;
      if (shift + 8 * field.bytes > 64) number |= words[field.offset / 8 + 1] << (64 - shift);
      if (field.bytes < 8) number &= (std::uint64_t{1} << (8 * field.bytes)) - 1;
      field.numbers[item] = number;
    }
  }
}

/// One word of the keys of some rows, to sort by.
__global__ void TakeWord(const std::uint64_t* keys, std::uint32_t words, std::uint32_t word,
                         const std::uint32_t* rows, std::uint32_t count, std::uint64_t* taken) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    taken[i] = keys[std::uint64_t{rows[i]} * words + word];
  }
}

/// Flags those of sorted rows whose key the one before does not have.
__global__ void FlagFirstOfKey(const std::uint64_t* keys, std::uint32_t words,
                               const std::uint32_t* rows, std::uint32_t count,
                               std::uint8_t* flags) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    flags[i] = i == 0 || CompareOrdered(keys + std::uint64_t{rows[i]} * words,
                                        keys + std::uint64_t{rows[i - 1]} * words, words) != 0;
  }
}

/// Copies rows of some words. @param rows of `from`, in the order in which they are wanted
__global__ void GatherKeys(const std::uint64_t* from, std::uint32_t words,
                           const std::uint32_t* rows, std::uint64_t count, std::uint64_t* to) {
  for (std::uint64_t i = FirstOfGrid(); i < count * words; i += GridStep()) {
    to[i] = from[std::uint64_t{rows[i / words]} * words + i % words];
  }
}
template <class From, class To>
__global__ void GatherNumbers(const From* from, const std::uint32_t* rows, std::uint64_t count,
                              To* to) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    to[i] = static_cast<To>(from[rows == nullptr ? i : rows[i]]);
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_SEARCH_TIER_KERNELS_CUH_
