#include <algorithm>

#include "engine/cuda/batch_task.h"
#include "engine/cuda/io/host_reads.cuh"
#include "engine/cuda/io/read_kernels.cuh"
#include "engine/cuda/kernels/finds.cuh"
#include "engine/cuda/load_kernels.h"

// Finds, and the reads that batches of any kind have planned.

namespace gpm {

void CudaExecutor::LoadFindKernels() { LoadKernelsBeside(reinterpret_cast<const void*>(FindKeys)); }

void CudaBatchTask::Find() {
  if (strategy_.kernels == Strategy::Kernels::kFindLong) {
    const unsigned most = kLongFindingBlocks * executor_->multiprocessors();
    Launch("FindLongValues", FindLongValues, std::min(device_.count, most), kBlockThreads, stream_,
           context_, device_, kernel_reporter_);
    return;
  }
  ClearReads();
  if (strategy_.kernels == Strategy::Kernels::kFindTiles) {
    const auto tiles = static_cast<unsigned>(BlocksFor(device_.count, kTilesPerBlock));
    if (reads_.enabled()) {
      const unsigned multiprocessors = executor_->multiprocessors();
      const unsigned at_once = executor_->refreshing() ? kFindingBesideRefresh : kFindingBlocks;
      const unsigned most =
          std::min(at_once * multiprocessors, FewItemsConsumer<std::uint64_t>::kMaxBlocks);
      const unsigned blocks = std::clamp(tiles, std::min(multiprocessors, most), most);
      workspace_->finds.Launch(
          {FindKeys, blocks, kBlockThreads, context_, device_, reads_, kernel_reporter_}, stream_);
    } else {
      Launch("FindKeys", FindKeys, tiles, kBlockThreads, stream_, context_, device_, reads_,
             kernel_reporter_);
    }
    return;
  }
  if (!reads_.enabled()) {
    SearchFinds(reads_, stream_, kernel_reporter_);
    return;
  }
  if (strategy_.chunk != 0) {
    FindInChunks();
    return;
  }
  Reads reads = reads_;
  if (second_queues_.enabled()) {  // read the first slice while the second one is looked up
    reads.last = strategy_.first_slice;
    SearchFinds(reads, stream_, Reporter{});
    ForkAndRead(reads);
    reads.first = reads.last;
    reads.last = device_.count;
    reads.queues = second_queues_;
    reads.flags += Reads::kFlags;
    SearchFinds(reads, workspace_->side, Reporter{});
    Join();
  } else {
    SearchFinds(reads, stream_, Reporter{});
  }
  const bool by_host = reads.by_host.enabled();
  ReadPlanned(reads, EarlyIf(!second_queues_.enabled() && !by_host));
  CopyRows(reads, stream_, kernel_reporter_, !by_host);
}

/// Copies the rows of a chunk to pinned memory, and keys from there, while others are looked up;
/// rows that go to pageable memory are copied by the host (CopyChunks).
void CudaBatchTask::FindInChunks() {
  Workspace& w = *workspace_;
  Reads reads = reads_;
  if (keys_in_chunks_) Fork();  // for the side stream to copy; no Join, as each copy is waited for
  for (std::uint32_t k = 0; reads.first < device_.count; ++k) {
    reads.last = std::min(reads.first + strategy_.chunk, device_.count);
    const bool is_last = reads.last == device_.count;
    if (keys_in_chunks_) {
      const std::uint64_t row = executor_->key_size();
      CopyIn(batch_.keys.data() + reads.first * row, (reads.last - reads.first) * row, places_.keys,
             w.keys.data() + reads.first * row, w.side);
      CheckCuda(cudaEventRecord(w.arrived, w.side), "cudaEventRecord");
      CheckCuda(cudaStreamWaitEvent(stream_, w.arrived, 0), "cudaStreamWaitEvent");
    }
    SearchFinds(reads, stream_, Reporter{});
    ReadPlanned(reads, EarlyIf(true));
    CopyRows(reads, stream_, is_last ? kernel_reporter_ : Reporter{}, true);
    CheckCuda(cudaEventRecord(w.chunks[k], stream_), "cudaEventRecord");
    if (places_.found == Place::kPinned) {
      const std::uint64_t row = batch_.found.size() / device_.count;
      CheckCuda(cudaStreamWaitEvent(w.answering, w.chunks[k], 0), "cudaStreamWaitEvent");
      CheckCuda(cudaMemcpyAsync(
                    batch_.found.data() + reads.first * row, w.found.data() + reads.first * row,
                    (reads.last - reads.first) * row, cudaMemcpyDeviceToHost, w.answering),
                "cudaMemcpyAsync to the host");
    }
    if (reads.copies.rows != nullptr) reads.copies.rows += reads.last - reads.first;
    reads.flags += Reads::kFlags;
    reads.copies.count = reads.flags + Reads::kCopies;
    reads.first = reads.last;
  }
  keys_in_chunks_ = false;
  if (places_.found != Place::kPinned) return;
  CheckCuda(cudaEventRecord(w.answered, w.answering), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(stream_, w.answered, 0), "cudaStreamWaitEvent");
}

void CudaBatchTask::SearchFinds(const Reads& reads, cudaStream_t stream, const Reporter& reporter) {
  Launch("SearchKeys", SearchKeys, BlocksFor(reads.last - reads.first, kBlockThreads),
         kBlockThreads, stream, context_, device_, reads, reporter);
}

void CudaBatchTask::CopyRows(const Reads& reads, cudaStream_t stream, const Reporter& reporter,
                             bool follows) {
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  LaunchWith(EarlyIf(follows), "CopyReads", CopyReads, std::min(blocks, kGridStrideBlocks),
             kBlockThreads, stream, context_, device_, reads, reporter);
}

std::span<std::uint64_t> CudaBatchTask::ClearedReads() const {
  if (!reads_.has_plans()) return {};
  auto* const flags = reinterpret_cast<std::uint64_t*>(reads_.flags);
  // PlaceReads goes through all plans. A search of finds makes a plan for each operation, that of
  // key runs does not: what it leaves out has to be empty.
  const bool plans = reads_.order.enabled() && !strategy_.finds();
  auto* const from = plans ? reinterpret_cast<std::uint64_t*>(reads_.plans) : flags;
  return {from, static_cast<std::size_t>(flags - from) + clear_words_};
}

void CudaBatchTask::ClearReads() {
  const std::span<std::uint64_t> words = ClearedReads();
  if (words.empty()) return;
  CheckCuda(cudaMemsetAsync(words.data(), 0, words.size_bytes(), stream_), "cudaMemsetAsync");
}

void CudaBatchTask::ReadPlanned(const Reads& reads,
                                const std::optional<cudaLaunchAttribute>& attribute) {
  if (!reads.enabled()) return;
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  const bool copies =
      strategy_.finds() && context_.accelerators.cache.enabled() && !reads.copies_cached;
  if (reads.order.enabled()) {
    Launch("PlaceBins", PlaceBins, 1, kPlacingThreads, stream_, reads);
    Launch("PlaceReads", PlaceReads, std::min(blocks, kGridStrideBlocks), kBlockThreads, stream_,
           reads, device_.count);
  }
  BeginOnHost(reads);
  const ReadingBlocks reading =
      ReadingBlocks::Of(reads_.order.enabled(), copies, executor_->multiprocessors());
  LaunchWith(attribute, "ReadValues", ReadValues, reading.all, kBlockThreads, stream_, context_,
             device_, reads, reading.readers, copies ? &device_.sums->cache_hits : nullptr);
  TakeFromHost(reads);
}

void CudaBatchTask::BeginOnHost(const Reads& reads) {
  if (!reads.by_host.enabled()) return;
  Launch("ListHostReads", ListHostReads, executor_->multiprocessors(), kBlockThreads, stream_,
         reads);
  host_->Begin(stream_, executor_->cells_base(), reads.cell_bytes);
}

void CudaBatchTask::TakeFromHost(const Reads& reads) {
  if (!reads.by_host.enabled()) return;
  for (std::uint32_t part = 0; part < HostReads::kParts; ++part) {
    Launch("TakeHostRows", TakeHostRows, executor_->multiprocessors(), kBlockThreads,
           host_->Await(part), context_, device_, reads, part);
  }
  host_->Join(stream_);
}

}  // namespace gpm
