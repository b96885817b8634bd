#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <bit>
#include <cub/device/device_scan.cuh>

#include "engine/cuda/batch_task.h"
#include "engine/cuda/kernels/finds.cuh"
#include "engine/cuda/kernels/large_batch.cuh"
#include "engine/cuda/kernels/resolve.cuh"
#include "engine/cuda/kernels/small_batch.cuh"
#include "engine/cuda/kernels/sort.cuh"

namespace gpm {
namespace {

/// Batches of so many finds or more have a thread for each find, smaller ones a tile. (2^14 - 1
/// finds take 14 to 53 us with a tile each; 2^14 take 30 to 73 with a thread each.)
constexpr std::uint64_t kLargeFrom = (std::uint64_t{1} << 14) + 1;
/// Small batches that also write deal out their reads from so many operations on. (With one write
/// in 20, 1024 operations take 37 us dealt out and 35 if each reads at once; 4096 take 39 and 47.)
constexpr std::uint64_t kDealtFrom = 2048;
/// Batches of so many operations or more are cut in two: the first slice is read while the second
/// one is looked up.
constexpr std::uint64_t kSplitFrom = std::uint64_t{1} << 18;
/// Batches of up to so many operations are sorted by a merge sort, which takes less time: a radix
/// sort's passes take some 12 us however few they sort.
constexpr std::uint64_t kMergedUpTo = std::uint64_t{1} << 17;
/// Blocks that read in the order of addresses, in larger pools: few, so that few pages are in use.
constexpr unsigned kReadingBlocks = 64;
/// Blocks of ApplyKeyRuns, or of ApplyQueuedKeyRuns, that a multiprocessor runs at once.
constexpr std::uint32_t kBusyBlocks = 3;

/// Operations of the first slice of a batch that is cut in two. (Measured: the reads of a smaller
/// one end before the second slice is looked up.)
std::uint32_t FirstSlice(std::uint64_t operations, bool finds) {
  return static_cast<std::uint32_t>(operations / (finds ? 3 : 4));
}

/// The effects of a sorted batch's operations, for a scan.
auto OneByOne(const DeviceBatch& batch, std::uint32_t key_words) {
  return thrust::make_transform_iterator(thrust::counting_iterator<std::uint32_t>(0),
                                         SingleEffects{batch, key_words});
}

}  // namespace

/// Allocates what the batch needs, so that nothing is short once it has begun.
void CudaBatchTask::Allocate() {
  Workspace& w = *workspace_;
  const std::uint64_t n = batch_.results.size();
  if (!ops_on_device_) w.ops.Reserve(batch_.ops.size());
  if (!keys_on_device_) w.keys.Reserve(batch_.keys.size());
  if (!values_on_device_) w.values.Reserve(batch_.values.size());
  if (!found_on_device_) w.found.Reserve(batch_.found.size());
  if (!results_on_device_) w.results.Reserve(n);
  reads_.last = static_cast<std::uint32_t>(n);
  const bool wants_cells = executor_->cell_bytes() != 0 && !batch_.found.empty();
  const AccessOptions& access = executor_->access();
  const bool deferred = wants_cells && n <= Reads::kMaxOperations && access.by_address;
  const std::uint64_t tiles = std::uint64_t{kTilesPerBlock} * executor_->multiprocessors();
  strategy_ =
      n <= std::min<std::uint64_t>(kSmallBatch, tiles) ? Strategy::kSmall : Strategy::kSorted;
  // Several finds of a key are one key run where that saves reads: without a directory, and where
  // values are neither read together nor cached.
  const bool finds = batch_.ops.empty() && batch_.op == Op::kFind;
  const bool apart = (deferred && n >= kLargeFrom) || !wants_cells || executor_->has_cache();
  if (finds && (!access.combine || (executor_->has_directory() && apart)))
    strategy_ = Strategy::kFinds;
  searches_ = strategy_ == Strategy::kSorted && executor_->has_directory() &&
              n <= Reads::kMaxOperations && (deferred || !wants_cells);
  if (deferred && (strategy_ != Strategy::kSmall || n >= kDealtFrom)) AllocateReads(n);
  if (strategy_ == Strategy::kFinds) return;
  w.records.Reserve(n);
  if (executor_->needs_flush()) {
    // (A value that is written ahead may not be the one that stays.)
    const std::uint64_t cells = (strategy_ == Strategy::kSmall ? 2 : 1) * executor_->cell_bytes();
    w.dirty_lines.Reserve(n * (batch_.keys.size() / n + cells) / 64 + 6 * n);
    w.dirty_count.Reserve(1);
  }
  if (strategy_ == Strategy::kSmall) {
    w.digests.Reserve(n);
    return;
  }
  w.effects.Reserve(n);
  if (searches_) {
    w.pending.Reserve(ShapeLists(n, Workspace::kPending, &pending_));
    pending_.items = w.pending.data();
    if (executor_->cell_bytes() != 0) {
      w.dealt.Reserve(ShapeLists(n, Workspace::kDealt, &cells_));
      cells_.items = w.dealt.data();
    }
  }
  w.hashes.Reserve(n);
  w.other_hashes.Reserve(n);
  w.order.Reserve(n);
  if (n > kMergedUpTo) w.other_order.Reserve(n);
  SortHashes(nullptr);
  CallCub("DeviceScan", [&] {
    return cub::DeviceScan::InclusiveScan(nullptr, scan_bytes_, OneByOne(device_, 0),
                                          w.effects.data(), ComposeEffects{}, static_cast<int>(n),
                                          stream_);
  });
  w.library.Reserve(std::max(sort_bytes_, scan_bytes_));
}

/// Shapes queues for so many items, and gives them counts. @return elements that they need
template <class Item>
std::uint64_t CudaBatchTask::ShapeLists(std::uint64_t items, Workspace::Lists kind,
                                        SmQueues<Item>* lists) {
  lists->queues = SmQueues<Item>::QueuesFor(executor_->multiprocessors());
  lists->room = SmQueues<Item>::RoomFor(items, lists->queues);
  lists->counts = workspace_->list_counts.data() + kind * SmQueues<Item>::kCounts;
  return lists->SizeFor(items);
}

void CudaBatchTask::AllocateReads(std::uint64_t operations) {
  static_assert(sizeof(ReadPlan) == 8);
  const bool large = operations >= kLargeFrom;
  const bool finds = strategy_ == Strategy::kFinds;
  Workspace& w = *workspace_;
  const bool plans = large || strategy_ == Strategy::kSorted;
  const bool in_order = large && executor_->pool_bytes() > executor_->access().dealt_up_to;
  // Each slice has lists of its own, one behind the other. A later phase has one slice alone, and
  // its lists may run over into the second's.
  const bool split = (finds || searches_) && !in_order && operations >= kSplitFrom;
  const std::uint64_t rows = RoundUp(operations, 2);  // so that the bins are 16-byte aligned
  const std::uint64_t some = split ? FirstSlice(operations, finds) : rows;
  std::uint64_t lists = RoundUp(ShapeLists(some, Workspace::kReads, &reads_.lists), 2);
  const std::uint64_t second = lists;
  if (split) lists += RoundUp(ShapeLists(rows - some, Workspace::kSecondReads, &second_lists_), 2);
  const std::uint64_t bin_words = in_order ? Reads::kBins / 2 : 0;
  const bool combines = finds && large && executor_->access().combine;
  const std::uint64_t copies = combines || searches_ ? rows : 0;
  const std::uint64_t claims = combines ? std::bit_ceil(2 * operations) : 0;
  w.reads.Reserve(lists + (plans ? rows + Reads::kFlags + bin_words + claims + copies : 0));
  reads_.lists.items = w.reads.data();
  if (split) second_lists_.items = w.reads.data() + second;
  if (!plans) return;
  std::uint64_t* at = w.reads.data() + lists;
  reads_.plans = reinterpret_cast<ReadPlan*>(at);
  reads_.flags = reinterpret_cast<std::uint32_t*>(at += rows);
  reads_.copy_count = reads_.flags + Reads::kCopies;
  at += Reads::kFlags;
  if (in_order) reads_.bins = reinterpret_cast<std::uint32_t*>(at);
  at += bin_words;
  if (combines) {
    reads_.claims = at;
    reads_.claim_bits = static_cast<std::uint32_t>(std::bit_width(claims) - 1);
  }
  at += claims;
  if (copies != 0) reads_.copies = at;
  clear_bytes_ = 8 * (Reads::kFlags + bin_words + claims);
}

/// Sorts the hashes, and the operations with them, and says where they are then. Without storage it
/// finds out how much it takes.
void CudaBatchTask::SortHashes(void* storage) {
  Workspace& w = *workspace_;
  const auto n = static_cast<std::uint32_t>(batch_.results.size());
  if (batch_.results.size() <= kMergedUpTo) {
    MergeSortPairs(storage, &sort_bytes_, w.hashes.data(), w.order.data(), n, stream_);
    device_.hashes = w.hashes.data();
    device_.order = w.order.data();
    device_.mispredictions = w.other_hashes.data();
  } else {
    RadixSortPairs(storage, &sort_bytes_, w.hashes.data(), w.other_hashes.data(), w.order.data(),
                   w.other_order.data(), n, stream_);
    device_.hashes = w.other_hashes.data();
    device_.order = w.other_order.data();
    device_.mispredictions = w.hashes.data();
  }
}

/// Sorts the batch by key hash and finds the effect of each key run.
void CudaBatchTask::Sort() {
  Workspace& w = *workspace_;
  const int n = static_cast<int>(device_.count);
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  Launch("HashKeys", HashKeys, blocks, kBlockThreads, stream_, context_, device_, w.hashes.data(),
         w.order.data());
  SortHashes(w.library.data());
  CallCub("DeviceScan", [&] {
    return cub::DeviceScan::InclusiveScan(w.library.data(), scan_bytes_,
                                          OneByOne(device_, context_.table.key_words),
                                          w.effects.data(), ComposeEffects{}, n, stream_);
  });
}

void CudaBatchTask::CarryOut(bool again, bool final_attempt) {
  if (strategy_ == Strategy::kSmall) {
    const auto tiles = static_cast<unsigned>(BlocksFor(device_.count, kTilesPerBlock));
    workspace_->changes.Launch(
        {ApplySmallBatch, std::max(tiles, executor_->multiprocessors()), kSmallThreads, context_,
         device_, reads_, again, final_attempt, kernel_reporter_},
        stream_);
    Finish();
    return;
  }
  ClearReads();
  const auto answer = [&](const Reads& reads, cudaStream_t stream, const Reporter& reporter) {
    Launch("ResolveResults", ResolveResults, BlocksFor(device_.count, kBlockThreads), kBlockThreads,
           stream, context_, device_, reads, reporter);
  };
  if (searches_ && !again) {
    SearchAndApply();
    if (reads_.enabled()) {
      Workspace& w = *workspace_;
      CheckCuda(cudaStreamWaitEvent(w.answering, w.forked, 0), "cudaStreamWaitEvent");
      CheckCuda(cudaStreamWaitEvent(w.answering, w.reading, 0), "cudaStreamWaitEvent");
      answer(reads_, w.answering, Reporter{});
      CheckCuda(cudaEventRecord(w.answered, w.answering), "cudaEventRecord");
      CheckCuda(cudaStreamWaitEvent(stream_, w.answered, 0), "cudaStreamWaitEvent");
      CopyRows(Reporter{});
      Launch("FixMispredictedRuns", FixMispredictedRuns, executor_->multiprocessors(),
             kBlockThreads, stream_, context_, device_, kernel_reporter_);
    } else {
      answer(Reads{}, stream_, kernel_reporter_);
    }
  } else {
    const std::uint32_t busy = executor_->multiprocessors() * kBusyBlocks;
    const std::uint32_t span =
        std::clamp<std::uint32_t>(device_.count / busy / 32 * 32, kTilesPerBlock, kBlockThreads);
    Launch("ApplyKeyRuns", ApplyKeyRuns, BlocksFor(device_.count, span), kBlockThreads, stream_,
           context_, device_, reads_, span, final_attempt);
    ReadPlanned(reads_, false);
    answer(Reads{}, stream_, kernel_reporter_);
  }
  Finish();
}

void CudaBatchTask::Find() {
  const bool at_once =
      !reads_.enabled() && device_.found != nullptr && !context_.table.inline_values();
  if (device_.count < kLargeFrom || at_once) {
    const auto tiles = static_cast<unsigned>(BlocksFor(device_.count, kTilesPerBlock));
    if (reads_.enabled()) {
      const unsigned multiprocessors = executor_->multiprocessors();
      const unsigned most =
          std::min(kFindingBlocks * multiprocessors, FewItemsConsumer<std::uint64_t>::kMaxBlocks);
      const unsigned blocks = std::clamp(tiles, std::min(multiprocessors, most), most);
      workspace_->finds.Launch(
          {FindKeys, blocks, kBlockThreads, context_, device_, reads_, kernel_reporter_}, stream_);
    } else {
      Launch("FindKeys", FindKeys, tiles, kBlockThreads, stream_, context_, device_, reads_,
             kernel_reporter_);
    }
    return;
  }
  ClearReads();
  const bool reports = !reads_.enabled();
  const auto search = [&](const Reads& reads, cudaStream_t stream) {
    const std::uint32_t operations = reads.last - reads.first;
    Launch("SearchKeys", SearchKeys, BlocksFor(operations, kBlockThreads), kBlockThreads, stream,
           context_, device_, reads, reports ? kernel_reporter_ : Reporter{});
  };
  Reads reads = reads_;
  if (second_lists_.enabled()) {  // read the first slice while the second one is looked up
    reads.last = FirstSlice(device_.count, true);
    search(reads, stream_);
    ForkAndRead(reads, true);
    reads.first = reads.last;
    reads.last = device_.count;
    reads.lists = second_lists_;
    reads.flags += Reads::kFlags;
    search(reads, workspace_->side);
    Join();
  } else {
    search(reads, stream_);
    if (reports) return;
  }
  ReadPlanned(reads, true);
  CopyRows(kernel_reporter_);
}

void CudaBatchTask::CopyRows(const Reporter& reporter) {
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  Launch("CopyReads", CopyReads, std::min(blocks, kGridStrideBlocks), kBlockThreads, stream_,
         context_, device_, reads_, reporter);
}

void CudaBatchTask::ClearReads() {
  if (reads_.plans == nullptr) return;
  auto* const flags = reinterpret_cast<std::byte*>(reads_.flags);
  // PlaceReads goes through all plans. A search of finds makes a plan for each operation, that of
  // key runs does not: what it leaves out has to be empty.
  const bool plans = reads_.bins != nullptr && strategy_ != Strategy::kFinds;
  auto* const from = plans ? reinterpret_cast<std::byte*>(reads_.plans) : flags;
  const auto before = static_cast<std::uint64_t>(flags - from);
  CheckCuda(cudaMemsetAsync(from, 0, before + clear_bytes_, stream_), "cudaMemsetAsync");
}

/// Searches the key runs of a large batch, which carries out those that change nothing. Then two
/// streams work at once: the batch's own reads the values that finds want, the side stream carries
/// out the runs that write.
void CudaBatchTask::SearchAndApply() {
  Workspace& w = *workspace_;
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  const auto search = [&](const Reads& reads, cudaStream_t stream) {
    const std::uint32_t positions = reads.last - reads.first;
    Launch("SearchKeyRuns", SearchKeyRuns, BlocksFor(positions, kBlockThreads), kBlockThreads,
           stream, context_, device_, reads, pending_, cells_);
    if (reads.last != device_.count || !cells_.enabled()) return;
    Launch("DealCells", DealCells, std::min(blocks, kGridStrideBlocks), kBlockThreads, stream,
           context_, device_.sums, cells_);
  };
  Reads reads = reads_;
  if (second_lists_.enabled()) {  // read for the first slice while the second one is looked up
    reads.last = FirstSlice(device_.count, false);
    search(reads, stream_);
    ForkAndRead(reads, false);
    reads.first = reads.last;
    reads.last = device_.count;
    reads.lists = second_lists_;
    search(reads, workspace_->side);
    Join();
    reads.first = 0;  // plans are of operations, not of positions
  } else {
    search(reads, stream_);
  }
  ForkAndRead(reads, false);
  Launch("ApplyQueuedKeyRuns", ApplyQueuedKeyRuns, executor_->multiprocessors() * kBusyBlocks,
         kBlockThreads, workspace_->side, context_, device_, reads_, pending_, cells_);
  Join();
}

void CudaBatchTask::Fork() {
  CheckCuda(cudaEventRecord(workspace_->forked, stream_), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(workspace_->side, workspace_->forked, 0), "cudaStreamWaitEvent");
}
void CudaBatchTask::ForkAndRead(const Reads& reads, bool copies) {
  Fork();
  if (!reads.enabled()) return;
  ReadPlanned(reads, copies);
  CheckCuda(cudaStreamWaitEvent(workspace_->side, workspace_->reading, 0), "cudaStreamWaitEvent");
}
void CudaBatchTask::Join() {
  CheckCuda(cudaEventRecord(workspace_->joined, workspace_->side), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(stream_, workspace_->joined, 0), "cudaStreamWaitEvent");
}

void CudaBatchTask::ReadPlanned(const Reads& reads, bool copies) {
  if (!reads.enabled()) return;
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  copies = copies && context_.accelerators.cache.enabled();
  // One a multiprocessor is enough for a few reads; two leave room for another kernel beside.
  unsigned readers = executor_->multiprocessors();
  unsigned all = readers * (copies ? 2 : 1);
  if (reads.bins != nullptr) {
    Launch("PlaceBins", PlaceBins, 1, kPlacingThreads, stream_, reads);
    Launch("PlaceReads", PlaceReads, std::min(blocks, kGridStrideBlocks), kBlockThreads, stream_,
           reads, device_.count);
    readers = kReadingBlocks;
    if (!copies) all = readers;
  }
  cudaLaunchAttribute begun{};
  begun.id = cudaLaunchAttributeLaunchCompletionEvent;
  begun.val.launchCompletionEvent.event = workspace_->reading;
  cudaLaunchConfig_t launch{};
  launch.gridDim = all;
  launch.blockDim = kBlockThreads;
  launch.stream = stream_;
  launch.attrs = &begun;
  launch.numAttrs = 1;
  CheckCuda(cudaLaunchKernelEx(&launch, ReadValues, context_, device_, reads, readers,
                               copies ? &device_.sums->cache_hits : nullptr),
            "ReadValues");
}

}  // namespace gpm
