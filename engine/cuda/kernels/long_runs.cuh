#ifndef GPM_ENGINE_CUDA_KERNELS_LONG_RUNS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_LONG_RUNS_CUH_

#include <type_traits>

#include "engine/cuda/kernels/large_batch.cuh"

namespace gpm {

/// Key runs that add many rows to a value. A tile that carries out such a run would load one row
/// after the other, 2 M/s of 128 bytes. Here a warp has kRowsAhead of them on their way.

inline constexpr unsigned kAddingThreads = 128;
inline constexpr unsigned kAddingBlocks = 4;  ///< that a multiprocessor runs at once
/// Positions of which a block lists the long runs together.
inline constexpr std::uint32_t kListedSpan = 4096;

/// The rows of a run that are added by a warp, a word of each by a lane.
/// @tparam Word of 4 bytes, or the element if that is longer
template <Element kElement, class Word>
struct LongAddends {
  static constexpr std::uint32_t kRowsAhead = 64;

  const std::uint32_t* order;  ///< numbers of rows, `count` of them
  std::uint32_t count;
  const std::byte* words;  ///< this lane's of row 0
  std::uint32_t row_bytes;

  __device__ static Word Add(Word a, Word b) {
    if constexpr (sizeof(Word) == 8) {
      return AddWord<kElement>(a, b);
    } else {
      return Add4Bytes<kElement>(a, b);
    }
  }
  /// The next 32 numbers of rows, one for each lane; of the last row where there are no more.
  __device__ std::uint32_t Numbers(std::uint32_t first) const {
    return order[min(first + threadIdx.x % 32, count - 1)];
  }
  __device__ Word Load(std::uint32_t numbers, std::uint32_t lane) const {
    const std::uint32_t number = __shfl_sync(~0u, numbers, lane);
    return *reinterpret_cast<const Word*>(words + std::uint64_t{number} * row_bytes);
  }
  /// All lanes call it.
  __device__ Word AddTo(Word sum) const {
    constexpr std::uint32_t kLoadsOfNumbers = kRowsAhead / 32;
    Word ahead[kRowsAhead];
    std::uint32_t numbers[kLoadsOfNumbers];
    std::uint32_t next[kLoadsOfNumbers];
#pragma unroll
    for (std::uint32_t n = 0; n < kLoadsOfNumbers; ++n) {
      numbers[n] = Numbers(32 * n);
      next[n] = Numbers(kRowsAhead + 32 * n);
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kRowsAhead; ++k) ahead[k] = Load(numbers[k / 32], k % 32);
    std::uint32_t first = 0;
    for (; first + kRowsAhead <= count; first += kRowsAhead) {
#pragma unroll
      for (std::uint32_t n = 0; n < kLoadsOfNumbers; ++n) {
        numbers[n] = next[n];
        next[n] = Numbers(first + 2 * kRowsAhead + 32 * n);
      }
#pragma unroll
      for (std::uint32_t k = 0; k < kRowsAhead; ++k) {
        sum = Add(sum, ahead[k]);
        ahead[k] = Load(numbers[k / 32], k % 32);
      }
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kRowsAhead; ++k) {
      if (first + k < count) sum = Add(sum, ahead[k]);
    }
    return sum;
  }
};

/// Adds the rows of a run to the value in `sum`, by a block.
template <Element kElement>
__device__ void AddLongRun(const DeviceBatch& batch, const KeyRunEffect& effect, std::uint32_t uses,
                           std::uint32_t value_size, std::byte* sum) {
  using Word = std::conditional_t<kElement == Element::kUInt64, std::uint64_t, std::uint32_t>;
  const std::uint32_t lane = threadIdx.x % 32;
  for (std::uint32_t first = threadIdx.x - lane; first * sizeof(Word) < value_size;
       first += kAddingThreads) {
    const std::uint32_t at = (first + lane) * sizeof(Word);
    const bool active = at < value_size;
    const LongAddends<kElement, Word> addends{batch.order + effect.first, uses,
                                              batch.values + (active ? at : 0), value_size};
    auto* const word = reinterpret_cast<Word*>(sum + at);
    const Word total = addends.AddTo(active ? *word : Word{0});
    if (active) *word = static_cast<Word>(OneNan<kElement>(total));
  }
}

/// Makes the sums of long key runs, a block for each, before they are carried out: whoever does
/// that takes the sum if the key's value is then still the one that was found here.
/// REQUIRES: the batch's long_sums are zero.
__global__ void __launch_bounds__(kAddingThreads)
    AddLongRuns(const __grid_constant__ TableContext context,
                const __grid_constant__ DeviceBatch batch) {
  __shared__ std::uint32_t ends[kListedSpan / LongSum::kFewest + 1];
  __shared__ std::uint32_t listed;
  __shared__ Outcome found;
  const TableView& table = context.table;
  if (!LongSum::CanAdd(batch.element, table.value_size, batch.values) || batch.IsStuck(table))
    return;
  const std::uint32_t from = LongSum::From(batch.count);
  const CudaTile tile(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const CudaMedia media(context.dirty);
  const TableProbe<CudaTile, CudaMedia> search(table, context.accelerators, tile, media);
  const TableProbe<BlockGroup<kAddingThreads>, CudaMedia> read(table, context.accelerators, {},
                                                               media);
  const std::uint32_t share = (batch.count + gridDim.x - 1) / gridDim.x;
  const std::uint32_t end = min((blockIdx.x + 1) * share, batch.count);
  for (std::uint32_t begin = blockIdx.x * share; begin < end; begin += kListedSpan) {
    if (threadIdx.x == 0) listed = 0;
    __syncthreads();
    for (std::uint32_t p = begin + threadIdx.x; p < min(begin + kListedSpan, end);
         p += kAddingThreads) {
      const KeyRunEffect effect = batch.effects[p];
      if (EndsKeyRun(batch, p) && effect.accumulates() && !effect.collided() &&
          p - effect.first + 1 >= from) {
        ends[atomicAdd(&listed, 1)] = p;
      }
    }
    __syncthreads();
    const std::uint32_t runs = listed;
    for (std::uint32_t k = 0; k < runs; ++k) {
      const std::uint32_t p = ends[k];
      const KeyRunEffect effect = batch.effects[p];
      const std::uint32_t last = batch.order[p];
      const std::uint64_t* const key = batch.KeyOf(last, table.key_words);
      const Candidates candidates = search.Locate(key);
      if (threadIdx.x < kTileLanes) {
        const Outcome outcome = search.Find(candidates, key, 0);
        if (threadIdx.x == 0) found = outcome;
      }
      __syncthreads();
      const Outcome outcome = found;
      if (outcome.present) {
        std::byte* const sum = batch.AddendsFor(last, table.value_size).sum;
        read.ReadFound(candidates, outcome, sum);
        __syncthreads();
        WithElement(batch.element, [&](auto of) {
          AddLongRun<decltype(of)::kOf>(batch, effect, p - effect.first + 1, table.value_size, sum);
        });
        if (threadIdx.x == 0) {
          batch.long_sums[effect.first / LongSum::kFewest] =
              LongSum{outcome.reference, effect.first + 1};
        }
      }
      if (threadIdx.x == 0) AtomicAdd(&batch.sums->long_run_rows, p - effect.first + 1);
      __syncthreads();
    }
    __syncthreads();  // all have read `listed`
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_LONG_RUNS_CUH_
