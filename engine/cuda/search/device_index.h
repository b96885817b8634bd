#ifndef GPM_ENGINE_CUDA_SEARCH_DEVICE_INDEX_H_
#define GPM_ENGINE_CUDA_SEARCH_DEVICE_INDEX_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/cuda/search/tier_builder.h"
#include "engine/search_index.h"
#include "engine/search_tiers.h"

namespace gpm {

/// A SearchIndex in GPU memory, in two sorted tiers (engine/search_tiers.h). The base is made of
/// all items by sorts, and stays; a search that follows what changed marks rows of it dead, and
/// makes the delta anew: at a cost that depends on what has changed since the base was made, not on
/// the table. (GHSH, Ren et al. 2021, changes its super nodes in place, which is why a batch of its
/// either changes or searches.)
///
/// It outlives neither the executor nor the pool's mapping.
class DeviceIndex : public SearchIndex {
 public:
  static std::uint64_t BytesFor(std::uint64_t items, const IndexShape& shape);
  /// Whether memory is not short when so many items are indexed. REQUIRES: the device is current.
  static bool HasRoom(std::uint64_t items, const IndexShape& shape);
  /// @param copy of all items; their values are held @param version Admission::changers
  /// @throws Error(kGpu), where memory is short, too
  DeviceIndex(CudaExecutor& executor, DeviceMemory* memory, const CudaTableCopy& copy,
              const IndexShape& shape, std::uint64_t version);
  ~DeviceIndex() override;

  std::uint64_t bytes() const override;
  /// Searches look at many dead rows, or follow a large delta.
  bool IsWorn() const override;
  std::unique_ptr<Changes> Read(HeldItems& items, ThreadPool* threads) override;
  void Follow(const Changes& changes, ThreadPool* threads) override;
  std::unique_ptr<MatchedRows> Ask(std::span<const Query> queries, bool rows, std::uint64_t limit,
                                   ThreadPool* threads) const override;
  std::optional<std::uint64_t> AskArrays(const QueryArray& queries, std::uint64_t limit,
                                         Matches* matches) const override;

  // For who asks.
  CudaExecutor& executor() const { return executor_; }
  const SearchTiers& tiers() const { return tiers_; }

 private:
  struct ReadChanges;

  void DropOrder(std::uint32_t attribute) override;
  void SortByPair(std::uint32_t attribute, std::uint32_t partner, ThreadPool* threads) override;
  /// (To sort the base anew would want memory, at a time when that is short.)
  std::uint32_t LosePartner(std::uint32_t, ThreadPool*) override { return AttributePairs::kLost; }
  void SetViews();

  CudaExecutor& executor_;
  DeviceMemory* const memory_;
  // Of Read and Follow, kept from one time to the next: who asks does not look there. (Who asks, by
  // a stream of his own, has ended before what he looks at changes.)
  TierBuilder builder_;
  StagedItems found_;
  std::atomic<std::uint64_t> found_bytes_{0};  ///< that it has, while Read changes it
  std::uint64_t dead_ = 0;                     ///< rows of the base
  TierArrays base_;
  TierArrays delta_;
  TierArrays next_delta_;
  StagedItems merged_;
  DeviceArray<std::uint32_t> dead_bits_;
  DeviceArray<std::uint32_t> places_;
  DeviceArray<std::uint32_t> kept_;
  DeviceArray<std::uint8_t> stay_;
  DeviceArray<std::uint64_t> died_;
  SearchTiers tiers_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_SEARCH_DEVICE_INDEX_H_
