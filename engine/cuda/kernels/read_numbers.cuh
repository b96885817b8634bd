#ifndef GPM_ENGINE_CUDA_KERNELS_READ_NUMBERS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_READ_NUMBERS_CUH_

#include <cooperative_groups.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "engine/cuda/kernels/grid_stride.cuh"
#include "gpmstore/options.h"
#include "pm/count_pm.cuh"

namespace gpm {

/// Numbers that are read out of values, and where they go.
class NumbersOfValues {
 public:
  /// A little-endian number of 4 or 8 bytes.
  /// @param numbers by item
  void Add(std::uint32_t offset, std::uint32_t bytes, std::uint64_t* numbers) {
    const std::uint32_t last = (offset + bytes - 1) / 8;
    fields_[count_++] = {LaneOf(offset / 8), LaneOf(last), 8 * (offset % 8), bytes, numbers};
  }
  bool empty() const { return count_ == 0; }
  /// That each read a word of a value: a power of two.
  std::uint32_t lanes() const { return std::bit_ceil(words_); }

  /// A lane's word, which it has read, and what the others have, make the numbers of an item.
  template <class Tile>
  __device__ void Put(const Tile& tile, std::uint64_t word, std::uint64_t item) const {
    for (std::uint32_t f = 0; f < count_; ++f) {
      const Field& field = fields_[f];
      const std::uint64_t low = tile.shfl(word, field.first);
      const std::uint64_t high = tile.shfl(word, field.last);
      if (tile.thread_rank() != f % tile.size()) continue;
      std::uint64_t number = low >> field.shift;
      if (field.shift + 8 * field.bytes > 64) number |= high << (64 - field.shift);
      if (field.bytes < 8) number &= (std::uint64_t{1} << (8 * field.bytes)) - 1;
      field.numbers[item] = number;
    }
  }
  /// The word that a lane reads, by its number in the value.
  __device__ std::uint32_t WordOf(std::uint32_t lane) const {
    return word_[lane < words_ ? lane : 0];
  }

 private:
  struct Field {
    std::uint32_t first;  ///< lane that has its first word
    std::uint32_t last;   ///< the same of its last one
    std::uint32_t shift;  ///< bits
    std::uint32_t bytes;
    std::uint64_t* numbers;
  };
  static constexpr std::uint32_t kMostWords = 2 * kMaxAttributes;

  std::uint32_t LaneOf(std::uint32_t word) {
    const auto* const found = std::find(word_, word_ + words_, word);
    if (found == word_ + words_) word_[words_++] = word;
    return static_cast<std::uint32_t>(found - word_);
  }

  std::uint32_t count_ = 0;
  std::uint32_t words_ = 0;
  Field fields_[kMaxAttributes] = {};
  std::uint32_t word_[kMostWords] = {};
};

/// Reads numbers out of values, by as many lanes for each item as words are wanted: what they read
/// of one sector goes over the link once. (16 M items with two numbers side by side, on an H100: 25
/// ms; a thread that reads one after the other takes 46.)
/// @param base of the pool; null: values are inline, and so the references themselves
/// @param items the item of each reference; null: they are in the order of items
template <std::uint32_t kLanes>
__global__ void ReadNumbers(const std::byte* base, const std::uint64_t* references,
                            const std::uint32_t* items, std::uint64_t count,
                            const __grid_constant__ NumbersOfValues to) {
  namespace cg = cooperative_groups;
  const auto tile = cg::tiled_partition<kLanes>(cg::this_thread_block());
  for (std::uint64_t i = FirstOfGrid() / kLanes; i < count; i += GridStep() / kLanes) {
    const auto* const value = base == nullptr
                                  ? references + i
                                  : reinterpret_cast<const std::uint64_t*>(base + references[i]);
    const std::uint64_t* const word = value + to.WordOf(tile.thread_rank());
    const auto counted = CountPm(PmPlace::kValues, PmAccess::kRead, word, sizeof *word);
    const std::uint64_t number = *word;
    counted.End(number);
    to.Put(tile, number, items == nullptr ? i : items[i]);
  }
}

inline void LaunchReadNumbers(const std::byte* base, const std::uint64_t* references,
                              const std::uint32_t* items, std::uint64_t count,
                              const NumbersOfValues& to, cudaStream_t stream) {
  const auto launch = [&](auto* kernel) {
    LaunchFor("ReadNumbers", count * to.lanes(), stream, kernel, base, references, items, count,
              to);
  };
  switch (to.lanes()) {
    case 1:
      return launch(ReadNumbers<1>);
    case 2:
      return launch(ReadNumbers<2>);
    case 4:
      return launch(ReadNumbers<4>);
    case 8:
      return launch(ReadNumbers<8>);
    default:
      return launch(ReadNumbers<16>);
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_READ_NUMBERS_CUH_
