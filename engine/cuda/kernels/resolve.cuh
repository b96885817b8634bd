#ifndef GPM_ENGINE_CUDA_KERNELS_RESOLVE_CUH_
#define GPM_ENGINE_CUDA_KERNELS_RESOLVE_CUH_

#include "engine/cuda/io/reads.cuh"
#include "engine/resolve.h"

namespace gpm {

/// The kernels that answer the operations of key runs (engine/cuda/kernels/large_batch.cuh). The
/// result of an operation depends on those before it in its run, and on one bit: whether the key
/// was there before the run. The search finds that bit, and almost always it is still right when
/// the run is carried out. So large batches are answered while they are carried out. Runs whose bit
/// another batch changed in between are answered anew (FixMispredictedRuns).

/// Answers the operation at a position, of a key run that was carried out with one write. If
/// `reads` has copies, the runs are still being carried out and the planned values are being read:
/// an operation that wants one of these asks for a copy. All threads of a block call it.
/// @param p behind the batch's end: this thread has none
__device__ inline void AnswerAt(const TableContext& context, const DeviceBatch& batch,
                                const Reads& reads, std::uint32_t p) {
  const std::uint32_t value_size = context.table.value_size;
  const bool early = reads.answers_early() && !batch.IsStuck(context.table);
  ResultQuery query{};
  Resolved answer;
  bool hit = false;
  const std::byte* source = nullptr;  // of the value, unless it was, or is, read already
  std::byte* target = nullptr;
  ReadPlan plan;
  if (p < batch.count) {
    query = QueryAt(batch, p);
    const KeyRunRecord record = batch.records[query.first];
    if (record.status == KeyRunStatus::kDone ||
        (early && record.status == KeyRunStatus::kPending)) {
      answer = ResolveResult(batch, query, record.present != 0);
      hit = answer.found && (answer.writer != kUnchanged || record.hit != 0);
    } else {
      ResolvePending(batch, record, p, query.operation);
    }
    if (answer.gives && batch.found != nullptr) {
      target = batch.FoundOf(query.operation, value_size);
      if (answer.writer != kUnchanged) {
        source = batch.ValueOf(batch.OperationAt(answer.writer), value_size);
      } else if (early) {
        plan = reads.plans[query.reader];
        if (plan.Is(ReadPlan::kThere)) {
          plan = ReadPlan{};
          if (query.operation != query.reader) source = batch.FoundOf(query.reader, value_size);
        }
      } else if (query.operation != query.reader) {
        source = batch.FoundOf(query.reader, value_size);
      }
    }
  }
  if (__any_sync(~0u, source != nullptr)) CopyValues<false>(source, target, value_size);
  if (early) {
    const bool cached = plan.Is(ReadPlan::kCached);
    if (__any_sync(~0u, cached)) CopyPlanned(context, plan, cached ? target : nullptr);
    AddCopies(reads, plan.cell != 0 && !cached && query.operation != query.reader, query.reader,
              query.operation);
  }
  const int finds = __syncthreads_count(answer.found);
  const int hits = __syncthreads_count(hit);
  if (threadIdx.x == 0 && finds != 0) {
    AtomicAdd(&batch.sums->found, static_cast<std::uint64_t>(finds));
    AtomicAdd(&batch.sums->cache_hits, static_cast<std::uint64_t>(hits));
  }
}

/// Answers all operations, a thread each (AnswerAt).
__global__ void __launch_bounds__(kBlockThreads)
    ResolveResults(const __grid_constant__ TableContext context,
                   const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
                   const __grid_constant__ Reporter reporter) {
  AwaitKernelBefore();
  AnswerAt(context, batch, reads, blockIdx.x * kBlockThreads + threadIdx.x);
  ReportWhenLast(context, reporter);
}

/// Answers anew the operations of key runs that were answered wrongly, or that found no room, when
/// all others are answered. A block for each run.
__global__ void __launch_bounds__(kBlockThreads)
    FixMispredictedRuns(const __grid_constant__ TableContext context,
                        const __grid_constant__ DeviceBatch batch,
                        const __grid_constant__ Reporter reporter) {
  AwaitKernelBefore();
  const ThreadGroup alone;
  const CudaMedia media(DirtyLog{});
  const std::uint64_t mispredictions = AtomicLoad(&batch.sums->mispredictions);
  for (std::uint64_t k = blockIdx.x; k < mispredictions; k += gridDim.x) {
    const std::uint32_t first = batch.mispredictions[k];
    const KeyRunRecord record = batch.records[first];
    __syncthreads();
    for (std::uint32_t p = first + threadIdx.x;
         p < batch.count && batch.hashes[p] == batch.hashes[first]; p += kBlockThreads) {
      FixMispredicted(alone, media, context.table, batch, p, record);
    }
    if (threadIdx.x == 0 && record.status == KeyRunStatus::kDone) {
      batch.records[first].present = record.present == 0 ? 1 : 0;
      batch.records[first].hit = 0;
    }
  }
  ReportWhenLast(context, reporter);
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_RESOLVE_CUH_
