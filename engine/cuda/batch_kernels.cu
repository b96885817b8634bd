#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cub/device/device_scan.cuh>

#include "engine/cuda/batch_task.h"
#include "engine/cuda/kernels/draining.cuh"
#include "engine/cuda/kernels/group_by_key.cuh"
#include "engine/cuda/kernels/initial_values.cuh"
#include "engine/cuda/kernels/key_rows.cuh"
#include "engine/cuda/kernels/large_batch.cuh"
#include "engine/cuda/kernels/long_runs.cuh"
#include "engine/cuda/kernels/middle_batch.cuh"
#include "engine/cuda/kernels/resolve.cuh"
#include "engine/cuda/kernels/small_batch.cuh"
#include "engine/cuda/kernels/sort.cuh"
#include "engine/cuda/kernels/written_batch.cuh"
#include "engine/cuda/load_kernels.h"
#include "pm/driver_turns.h"

namespace gpm {
namespace {

/// Of which architecture kernels have to be compiled to wait for the one before
/// (AwaitKernelBefore).
constexpr int kBeginsEarlyFrom = 90;

}  // namespace

using WholeTiles = SmallShape<kTileLanes>;
using HalfTiles = SmallShape<kTileLanes / 2>;
static_assert(HalfTiles::kUpTo == StrategyThresholds::kHalfTilesUpTo);
static_assert(sizeof(BlockKeyRuns<HalfTiles>) + sizeof(OldValues) < kMostSharedOfBatch);

/// ApplySmallBatch with the shared memory that it needs.
/// @param operations of the part @param of_block SmallPart::of_block
template <class Shape, class... Arguments>
KernelCall SmallBatchCall(std::uint32_t operations, std::uint32_t of_block, unsigned least_blocks,
                          const Arguments&... arguments) {
  const auto blocks = static_cast<unsigned>(BlocksFor(operations, of_block));
  return KernelCall(ApplySmallBatch<Shape>, std::max(blocks, least_blocks), kSmallThreads,
                    arguments...)
      .WithSharedMemory(sizeof(BlockKeyRuns<Shape>));
}

void CudaExecutor::LoadBatchKernels() {
  LoadFindKernels();
  LoadKernelsBeside(reinterpret_cast<const void*>(SearchKeyRuns));
  cudaFuncAttributes attributes{};
  CheckCuda(cudaFuncGetAttributes(&attributes, SearchKeyRuns), "cudaFuncGetAttributes");
  begins_early_ = attributes.ptxVersion >= kBeginsEarlyFrom;
}

/// Makes the initial values, a row for each operation that may need one: that takes GPU memory, but
/// kernels then read them as they read any other value.
void CudaBatchTask::MakeValues() {
  if (!MakesValues()) return;
  Workspace& w = *workspace_;
  const InitialValue& initial = batch_.initial;
  const bool is_constant = initial.from == InitialValue::From::kConstant;
  if (is_constant) Input(std::span<const std::byte>(initial.row), Place::kPageable, &w.initial);
  if (places_.values_at != nullptr) {
    CheckCuda(cudaMemcpyAsync(w.values.data(), batch_.values.data(), batch_.values.size(),
                              cudaMemcpyDefault, stream_),
              "cudaMemcpyAsync to the device");
  } else if (!batch_.values.empty()) {
    CopyValues(stream_);
  }
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kTilesPerBlock));
  Launch("FillInitialValues", FillInitialValues, std::min(blocks, kGridStrideBlocks), kBlockThreads,
         stream_, context_, device_, w.values.data(), is_constant ? w.initial.data() : nullptr,
         RowDrawer::Of(initial, batch_.element));
}

void CudaBatchTask::PadKeys(const std::byte* rows) {
  const std::uint32_t key_size = executor_->key_size();
  if (!ArePadded(key_size)) {
    device_.keys = reinterpret_cast<const std::uint64_t*>(rows);
    return;
  }
  std::uint64_t* const words = workspace_->padded_keys.data();
  const std::uint64_t blocks =
      BlocksFor(std::uint64_t{device_.count} * KeyWords(key_size), kBlockThreads);
  Launch("PadKeys", gpm::PadKeys,
         static_cast<unsigned>(std::min<std::uint64_t>(blocks, kGridStrideBlocks)), kBlockThreads,
         stream_, rows, key_size, device_.count, words);
  device_.keys = words;
}

/// Sorts the hashes, and the operations with them. Without storage it finds out how much it takes.
void CudaBatchTask::SortHashes(void* storage) {
  Workspace& w = *workspace_;
  RadixSortPairs(storage, &sort_bytes_, {w.hashes.data(), w.order.data()},
                 {w.other_hashes.data(), w.other_order.data()},
                 static_cast<std::uint32_t>(batch_.results.size()), stream_);
}

/// The sorted batch; what is as large, and was sorted, is free.
CollidedRuns CudaBatchTask::Collided() const {
  const Workspace& w = *workspace_;
  constexpr std::size_t kWords = sizeof(KeyMeeting) / sizeof(std::uint32_t);
  return {w.other_hashes.data(), w.other_order.data(), w.order.data(),
          reinterpret_cast<KeyMeeting*>(w.hashes.data()),
          static_cast<std::uint32_t>(batch_.results.size() / kWords)};
}

/// Composes the effects of the sorted operations. Without storage, as SortHashes.
void CudaBatchTask::ScanEffects(void* storage) {
  const auto effects =
      thrust::make_transform_iterator(thrust::counting_iterator<std::uint32_t>(0),
                                      SingleEffects{device_, context_.table.key_words, Collided()});
  CallCub("DeviceScan", [&] {
    return cub::DeviceScan::InclusiveScan(storage, scan_bytes_, effects, workspace_->effects.data(),
                                          ComposeEffects{}, static_cast<int>(batch_.results.size()),
                                          stream_);
  });
}

void CudaBatchTask::ReserveWrittenRuns() {
  workspace_->written_runs.Reserve(WrittenRuns::Words(batch_.results.size()));
}

unsigned CudaBatchTask::GroupingBlocks() const {
  return std::min(executor_->multiprocessors(), KeyGroups::kMaxBins);
}
std::uint64_t CudaBatchTask::BinCounts() const {
  return std::uint64_t{GroupingBlocks()} * KeyGroups::kMaxBins;
}

std::optional<cudaLaunchAttribute> CudaBatchTask::EarlyIf(bool follows) const {
  if (!follows || !executor_->begins_early()) return std::nullopt;
  return BeginsEarly();
}

/// Brings the operations on each key together and finds their effects.
void CudaBatchTask::FindKeyRuns() {
  Workspace& w = *workspace_;
  if (strategy_.groups) {
    const std::span<std::uint64_t> words = ClearedReads();
    device_.hashes = w.hashes.data();
    device_.order = w.order.data();
    device_.mispredictions = w.other_hashes.data();
    const KeyGroups groups{w.hashes.data(),     w.order.data(),
                           w.bin_counts.data(), w.other_order.data(),
                           w.digests.data(),    w.other_hashes.data(),
                           words.data(),        static_cast<std::uint32_t>(words.size())};
    LaunchWith(BeginsTogether(), "GroupByKey", GroupByKey, GroupingBlocks(), kGroupThreads, stream_,
               context_, device_, groups);
    return;
  }
  ClearReads();
  device_.hashes = w.other_hashes.data();
  device_.order = w.other_order.data();
  device_.mispredictions = w.hashes.data();
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  Launch("HashKeys", HashKeys, blocks, kBlockThreads, stream_, context_, device_, w.hashes.data(),
         w.order.data());
  SortHashes(w.library.data());
  ScanEffects(w.library.data());
  Launch("PartCollidedRuns", PartCollidedRuns, kPartBlocks, kPartThreads, stream_, context_,
         device_, Collided());
}

void CudaBatchTask::DrainBeside(const BucketRange& drain) {
  const TableView& table = context_.table;
  if (!table.draining()) return;
  const auto blocks = [](std::uint64_t things, std::uint64_t of_block) {
    return static_cast<unsigned>(
        std::min<std::uint64_t>(kGridStrideBlocks, BlocksFor(things, of_block)));
  };
  // A tile looks at several keys where there are more than tiles at once.
  const std::uint64_t tiles = std::uint64_t{kGridStrideBlocks} * kTilesPerBlock;
  const auto keys_of_tile = context_.accelerators.directory.drained == nullptr
                                ? 1
                                : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
                                      device_.count / tiles, 1, kTileLanes));
  const unsigned draining = blocks(drain.count() << table.slot_bits, kBlockThreads);
  Launch("DrainBesideBatches", DrainBesideBatches,
         draining + blocks(BlocksFor(device_.count, keys_of_tile), kTilesPerBlock), kBlockThreads,
         stream_, context_, device_, drain, draining, keys_of_tile);
}

void CudaBatchTask::CarryOut(bool again, bool final_attempt) {
  if (strategy_.finds()) {
    Find();
    Finish();
    return;
  }
  if (strategy_.kernels == Strategy::Kernels::kSmall) {
    if (!again) BringValues(stream_);
    CarryOutSmall(Attempt{again, final_attempt});
    Finish();
    return;
  }
  if (again) ClearReads();
  const bool filled = context_.reclaim.grant.filled();
  reported_early_ = Reporter{};
  answers_early_ = strategy_.searches() && !again && !writer_ && reads_.enabled();
  if (writer_) {
    ApplyWritten();
  } else if (strategy_.searches() && !again) {
    if (strategy_.one_kernel()) {
      SearchAndCarryOut();
    } else {
      SearchAndApply();
    }
    if (!answers_early_) {
      Answer(Reads{}, stream_, kernel_reporter_, strategy_.one_kernel());
    } else if (reported_early_.words == nullptr) {
      FinishAnswers(stream_, kernel_reporter_, strategy_.one_kernel());
    }
  } else {
    if (!again && !AddAhead(stream_) && !filled) BringValues(stream_);
    const std::uint32_t busy = executor_->multiprocessors() * kApplyingBlocks;
    const std::uint32_t span =
        std::clamp<std::uint32_t>(device_.count / busy / 32 * 32, kTilesPerBlock, kBlockThreads);
    Launch("ApplyKeyRuns", ApplyKeyRuns, BlocksFor(device_.count, span), kBlockThreads, stream_,
           context_, device_, reads_, span, final_attempt);
    const bool by_host = reads_.by_host.enabled();
    ReadPlanned(reads_, EarlyIf(!by_host));
    Answer(Reads{}, stream_, kernel_reporter_, !by_host);
  }
  if (filled) {
    Launch("QueueCellsLeft", QueueCellsLeft, kGridStrideBlocks, kBlockThreads, stream_, context_,
           device_);
  }
  Finish();
}

/// All parts, in order. Afterwards the one in turn alone, and those before it, which are done, and
/// behind it, which wait, say so again.
void CudaBatchTask::CarryOutSmall(const Attempt& attempt) {
  const std::uint32_t most = strategy_.small_part;
  for (std::uint32_t number = 0, first = 0; first < device_.count; ++number, first += most) {
    const std::uint32_t count = std::min(most, device_.count - first);
    const bool is_last = first + count == device_.count;
    const Attempt own{attempt.again, attempt.final && number == part_};
    const bool waits = attempt.again && number > part_;
    const DeviceBatch part = device_.Part(first, count, context_.table);
    const unsigned blocks = executor_->multiprocessors();
    const std::uint32_t lanes = strategy_.half_tiles ? HalfTiles::kLanes : WholeTiles::kLanes;
    const std::uint32_t of_block =
        OperationsOfBlock(count, blocks, 32 / lanes, kBlockThreads / lanes);
    const SmallPart place{of_block, number, device_.count, waits};
    const Reporter reporter = is_last ? kernel_reporter_ : Reporter{};
    const auto call = [&](auto shape) {
      return SmallBatchCall<decltype(shape)>(count, of_block, blocks, context_, part, reads_, own,
                                             place, reporter);
    };
    if (strategy_.half_tiles) {
      workspace_->half_tiles.Launch(call(HalfTiles{}), stream_);
    } else {
      workspace_->changes.Launch(call(WholeTiles{}), stream_);
    }
  }
}

SmQueues<std::uint32_t> CudaBatchTask::DealtCells() const {
  return context_.reclaim.grant.filled() ? SmQueues<std::uint32_t>{} : cells_;
}

bool CudaBatchTask::AddAhead(cudaStream_t stream) {
  if (!Accumulates() || context_.reclaim.grant.filled()) return false;
  BringValues(stream);
  const std::uint64_t sums = device_.count / LongSum::kFewest + 1;
  device_.long_sums = workspace_->long_sums.data();
  CheckCuda(cudaMemsetAsync(device_.long_sums, 0, sums * sizeof(LongSum), stream),
            "cudaMemsetAsync");
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kAddingThreads));
  Launch("AddLongRuns", AddLongRuns, std::min(blocks, kAddingBlocks * executor_->multiprocessors()),
         kAddingThreads, stream, context_, device_);
  return true;
}

/// Searches the key runs of a batch of middle size, which carries out those that change nothing,
/// and carries out the others: two kernels, each of which may begin while the one before it ends.
void CudaBatchTask::SearchAndCarryOut() {
  const bool added = AddAhead(stream_);
  LaunchWith(EarlyIf(true), "SearchKeyRuns", SearchKeyRuns, BlocksFor(device_.count, kBlockThreads),
             kBlockThreads, stream_, context_, device_, reads_, pending_, DealtCells());
  const bool brings = !added && !context_.reclaim.grant.filled() && BringValues(stream_);
  if (answers_early_ && ReportsEarly()) reported_early_ = kernel_reporter_;
  const unsigned multiprocessors = executor_->multiprocessors();
  LaunchWith(EarlyIf(!brings), "CarryOutSearched", CarryOutSearched,
             multiprocessors * kApplyingBlocks, kBlockThreads, stream_, context_, device_, reads_,
             pending_, DealtCells(), answers_early_ ? multiprocessors : 0, reported_early_);
}

/// The same of a large batch. Then three streams work at once: the batch's own reads the values
/// that finds want, the side stream carries out the runs that write, and the third one answers.
void CudaBatchTask::SearchAndApply() {
  Workspace& w = *workspace_;
  const SmQueues<std::uint32_t> cells = DealtCells();
  if (Accumulates()) Fork();  // AddAhead runs beside the search
  const auto search = [&](const Reads& reads, cudaStream_t stream) {
    Launch("SearchKeyRuns", SearchKeyRuns, BlocksFor(reads.last - reads.first, kBlockThreads),
           kBlockThreads, stream, context_, device_, reads, pending_, cells);
  };
  Reads reads = reads_;
  if (second_queues_.enabled()) {  // read for the first slice while the second one is looked up
    reads.last = strategy_.first_slice;
    search(reads, stream_);
    ForkAndRead(reads);
    reads.first = reads.last;
    reads.last = device_.count;
    reads.queues = second_queues_;
    search(reads, workspace_->side);
    Join();
    reads.first = 0;  // plans are of operations, not of positions
  } else {
    search(reads, stream_);
  }
  const bool added = AddAhead(w.side);
  ForkAndRead(reads);
  if (!added && !context_.reclaim.grant.filled()) BringValues(w.side);
  const unsigned blocks = answers_early_ ? kApplyingBesideAnswers : kApplyingBlocks;
  Launch("ApplyQueuedKeyRuns", ApplyQueuedKeyRuns, executor_->multiprocessors() * blocks,
         kBlockThreads, w.side, context_, device_, reads_, pending_, cells);
  Join();
  if (!answers_early_) return;
  CheckCuda(cudaStreamWaitEvent(w.answering, w.forked, 0), "cudaStreamWaitEvent");
  CheckCuda(cudaStreamWaitEvent(w.answering, w.reading, 0), "cudaStreamWaitEvent");
  Answer(reads_, w.answering, Reporter{}, false);
  CheckCuda(cudaEventRecord(w.answered, w.answering), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(stream_, w.answered, 0), "cudaStreamWaitEvent");
}

/// Carries out a batch whose values the host writes to cells, part by part, as it does. Where the
/// cache may want them, or the GPU can't read them where they are, they come to it, too.
void CudaBatchTask::ApplyWritten() {
  Workspace& w = *workspace_;
  WrittenRuns runs{};
  runs.ends = w.written_runs.data();
  runs.apart = runs.ends + device_.count;
  runs.counts = runs.apart + device_.count / 2 + 1;
  runs.parts = writer_->Parts();
  for (std::uint32_t k = 1; k < runs.parts; ++k) runs.begins[k] = writer_->BeginOf(k);
  runs.begins[runs.parts] = device_.count;
  CheckCuda(
      cudaMemsetAsync(runs.counts, 0, (WrittenRuns::kMostParts + 1) * sizeof *runs.counts, stream_),
      "cudaMemsetAsync");
  Launch("ListWrittenRuns", ListWrittenRuns, BlocksFor(device_.count, kRunSpan), kBlockThreads,
         stream_, context_, device_, runs);
  Fork();
  const bool brings = places_.values_at == nullptr;
  if (brings) {
    CheckCuda(cudaStreamWaitEvent(w.answering, writer_->Followed(), 0), "cudaStreamWaitEvent");
  }
  // (One part's last blocks run beside the next one's first.)
  const auto stream_of = [&](std::uint32_t part) { return part % 2 == 0 ? stream_ : w.side; };
  const auto await_part = [&](std::uint32_t part, cudaStream_t stream) {
    if (brings) {
      CheckCuda(cudaStreamWaitEvent(stream, w.chunks[part], 0), "cudaStreamWaitEvent");
    }
    CheckCuda(cudaStreamWaitEvent(stream, writer_->Written(part), 0), "cudaStreamWaitEvent");
  };
  for (std::uint32_t part = 0; part < runs.parts; ++part) {
    const std::uint64_t first = runs.begins[part];
    const std::uint64_t operations = runs.begins[part + 1] - first;
    if (brings) {
      const std::uint64_t row = executor_->value_size();
      CopyIn(batch_.values.data() + first * row, operations * row, places_.values,
             w.values.data() + first * row, w.answering);
      CheckCuda(cudaEventRecord(w.chunks[part], w.answering), "cudaEventRecord");
    }
    await_part(part, stream_of(part));
    Launch("ApplyWrittenRuns", ApplyWrittenRuns, BlocksFor(operations, kWrittenThreads),
           kWrittenThreads, stream_of(part), context_, device_, runs, part);
  }
  await_part(runs.parts - 1, stream_of(runs.parts));
  Launch("ApplyRunsApart", ApplyRunsApart, executor_->multiprocessors(), kBlockThreads,
         stream_of(runs.parts), context_, device_, runs);
  Join();
  Launch("QueueAssignedLeft", QueueAssignedLeft, kGridStrideBlocks, kBlockThreads, stream_,
         context_, device_);
  Answer(Reads{}, stream_, kernel_reporter_, true);
}

void CudaBatchTask::Answer(const Reads& reads, cudaStream_t stream, const Reporter& reporter,
                           bool follows) {
  LaunchWith(EarlyIf(follows), "ResolveResults", ResolveResults,
             BlocksFor(device_.count, kBlockThreads), kBlockThreads, stream, context_, device_,
             reads, reporter);
}

bool CudaBatchTask::ReportsEarly() const {
  return answers_ == Answers::kWhenAwaited && !executor_->find_history().LeavesAnswers();
}

void CudaBatchTask::FinishAnswers(cudaStream_t stream, const Reporter& reporter, bool follows) {
  CopyRows(reads_, stream, Reporter{}, follows);
  LaunchWith(EarlyIf(true), "FixMispredictedRuns", FixMispredictedRuns,
             executor_->multiprocessors(), kBlockThreads, stream, context_, device_, reporter);
}

void CudaBatchTask::FinishReported() {
  Workspace& w = *workspace_;
  const DriverTurns::Launching turn;
  Reporter reporter = reported_early_;  // of the same sums: their turn is the number's lowest bit
  reporter.number = w.reports += 2;
  CheckCuda(cudaStreamWaitEvent(w.answering, w.enqueued, 0), "cudaStreamWaitEvent");
  FinishAnswers(w.answering, reporter, false);
  CheckCuda(cudaEventRecord(w.enqueued, w.answering), "cudaEventRecord");
  w.last_stream = ~0ull;  // whoever has the workspace next waits for that
}

void CudaBatchTask::Fork() {
  CheckCuda(cudaEventRecord(workspace_->forked, stream_), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(workspace_->side, workspace_->forked, 0), "cudaStreamWaitEvent");
}
void CudaBatchTask::ForkAndRead(const Reads& reads) {
  Fork();
  if (!reads.enabled()) return;
  ReadPlanned(reads, RecordsBegin(workspace_->reading));
  CheckCuda(cudaStreamWaitEvent(workspace_->side, workspace_->reading, 0), "cudaStreamWaitEvent");
}
void CudaBatchTask::Join() {
  CheckCuda(cudaEventRecord(workspace_->joined, workspace_->side), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(stream_, workspace_->joined, 0), "cudaStreamWaitEvent");
}

}  // namespace gpm
