#ifndef GPM_ENGINE_CUDA_SEARCH_TIER_BUILDER_H_
#define GPM_ENGINE_CUDA_SEARCH_TIER_BUILDER_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/cuda/memory.h"
#include "engine/cuda/table_copy.h"
#include "engine/maintenance.h"
#include "engine/search_tiers.h"

namespace gpm {

/// A SearchTier and its memory.
struct TierArrays {
  TierArrays(DeviceMemory* memory, LastUse last_use);
  SearchTier View() const;
  std::uint64_t bytes() const;
  /// An attribute is indexed no more.
  void Drop(std::uint32_t attribute);

  std::uint32_t rows = 0;
  DeviceArray<std::uint64_t> keys;
  DeviceArray<std::uint64_t> wide[kMaxAttributes];    ///< by attribute; none where
  DeviceArray<std::uint32_t> narrow[kMaxAttributes];  ///< all its numbers fit into 4 bytes
  DeviceArray<std::uint32_t> order[kMaxAttributes];
};

/// Items in any order, with what a tier is to have of them.
struct StagedItems {
  StagedItems(DeviceMemory* memory, LastUse last_use);
  void Reserve(std::uint64_t items, const IndexShape& shape);
  std::uint64_t bytes() const;

  std::uint32_t count = 0;
  DeviceArray<std::uint64_t> keys;                     ///< ordered words
  DeviceArray<std::uint64_t> numbers[kMaxAttributes];  ///< by attribute; of those indexed
};

/// Makes tiers, of fewer than 2^31 rows, by sorts, on a stream of its own. What it needs for that
/// it keeps.
///
/// Thread safety: one thread at a time, with the device current.
class TierBuilder {
 public:
  /// @param memory outlives it, as does the executor
  TierBuilder(DeviceMemory* memory, const IndexShape& shape, const CudaExecutor& executor);

  /// So that none is loaded while batches run. REQUIRES, as Asking's: the device is current.
  static void LoadKernels();

  /// Takes keys from the copy, and reads the attributes, in the order of addresses.
  void Stage(const CudaTableCopy& copy, SearchIndex::Mask mask, StagedItems* items);
  /// Makes a tier of them. @param unique of several with one key, which are equal, one is taken
  void Build(const StagedItems& items, SearchIndex::Mask mask, const AttributePairs& pairs,
             bool unique, TierArrays* tier);
  /// Sorts the rows of a tier that has its numbers by an attribute's, and, where those are equal,
  /// by its partner's (AttributePairs::PartnerOf), if it has one: for PutOrder, which is next.
  /// REQUIRES: it has rows.
  void SortByNumber(const TierArrays& tier, std::uint32_t attribute, std::uint32_t partner);
  /// Gives the tier the attribute's order.
  void PutOrder(std::uint32_t attribute, TierArrays* tier);
  /// Puts rows of a tier into the first `count` of the items.
  void Restage(const TierArrays& tier, SearchIndex::Mask mask,
               const DeviceArray<std::uint32_t>& rows, std::uint32_t count, StagedItems* items);
  /// Selects numbers 0, 1, ... that have a flag into `rows`. @return how many
  std::uint32_t Select(const std::uint8_t* flags, std::uint32_t count,
                       DeviceArray<std::uint32_t>* rows);
  void Await() { CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  cudaStream_t stream() const { return stream_; }
  /// Of memory that nobody else is using when it is freed.
  LastUse last_use() const { return &stream_; }
  const IndexShape& shape() const { return shape_; }

 private:
  /// Sorts `rows_` by 64-bit numbers, stably. @param numbers one for each, in their order
  void Sort(const std::uint64_t* numbers, std::uint32_t count, std::uint32_t bits);
  /// The numbers of a tier's rows. @param rows in whose order; null: one behind the other
  const std::uint64_t* NumbersOf(const TierArrays& tier, std::uint32_t attribute,
                                 const std::uint32_t* rows);
  /// Whether some number of an attribute needs more than 4 bytes.
  bool IsWide(const StagedItems& items, std::uint32_t attribute);
  /// Puts rows of items into `rows_`, in the order of their keys.
  void SortByKey(const StagedItems& items);
  std::uint32_t SelectRows(const std::uint32_t* from, const std::uint8_t* flags,
                           std::uint32_t count, DeviceArray<std::uint32_t>* to);

  const IndexShape shape_;
  const CudaExecutor& executor_;
  CudaStream stream_;
  DeviceArray<std::uint32_t> rows_, other_rows_;
  DeviceArray<std::uint64_t> numbers_, sorted_;
  DeviceArray<std::uint8_t> flags_;
  DeviceArray<std::uint32_t> selected_;  ///< how many
  DeviceArray<std::uint64_t> most_;      ///< the largest number
  DeviceArray<std::byte> library_;       ///< temporary storage of CUB
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_SEARCH_TIER_BUILDER_H_
