#ifndef GPM_ENGINE_CUDA_ANSWERS_CUH_
#define GPM_ENGINE_CUDA_ANSWERS_CUH_

#include "engine/cuda_reads.cuh"

namespace gpm {

/// The kernels that answer the operations of runs (cuda_runs.cuh). What an operation is answered
/// depends on those before it in its run and on one bit, whether the key was there before the run.
/// A search knows that bit, and almost always it still is so when the run is carried out: so large
/// batches are answered while they are carried out. What another batch changed in between is
/// answered anew (CorrectAnswers).

/// An operation, as far as a batch says it.
struct Question {
  std::uint32_t operation;
  std::uint32_t first;       ///< where its run begins
  std::uint32_t reader;      ///< the operation that reads the value as it was before the run
  std::uint32_t if_absent;   ///< effect of the operations of the run before this one
  std::uint32_t if_present;  ///< the same, when the key was there before
  Op op;
};

/// @param p a position of a sorted batch
__device__ inline Question QuestionAt(const DeviceBatch& batch, std::uint32_t p) {
  // As few loads as possible one behind the other.
  const RunEffect effect = batch.effects[p];
  const RunEffect before = p != 0 ? batch.effects[p - 1] : effect;
  Question question;
  question.operation = batch.OperationAt(p);
  question.first = effect.first;
  const std::uint32_t find = effect.first_find();
  question.reader = find == kNoPosition ? 0 : batch.OperationAt(find);
  question.if_absent = p == effect.first ? kUnchanged : before.if_absent;
  question.if_present = p == effect.first ? kUnchanged : before.if_present;
  question.op = batch.KindOf(question.operation);
  return question;
}

struct Answer {
  bool found = false;  ///< a find, and the key is there
  /// Position of the operation that wrote what is found; kUnchanged: it was there before the run.
  std::uint32_t writer = kUnchanged;
};

/// What found no room says so until it is finished, after growth.
/// @param p the operation's position
__device__ inline void AnswerPending(const DeviceBatch& batch, const RunRecord& record,
                                     std::uint32_t p, std::uint32_t operation) {
  if (record.status == RunStatus::kPending && p >= record.next) {
    batch.results[operation] = Result::kNoSpace;
  }
}

/// Answers an operation, but for what it found.
__device__ inline Answer AnswerOne(const DeviceBatch& batch, const Question& question,
                                   bool present_before) {
  const std::uint32_t before = present_before ? question.if_present : question.if_absent;
  const bool present = PresentAfter(before, present_before);
  batch.results[question.operation] = ResultOf(question.op, present, batch.values != nullptr);
  return Answer{question.op == Op::kFind && present, before};
}

/// Answers the operations of runs that were carried out with one write, or, if `reads` has copies,
/// are being carried out: what was planned is then being read, and who wants the same is put there.
__global__ void __launch_bounds__(kBlockThreads)
    AnswerOperations(const __grid_constant__ TableContext context,
                     const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
                     const __grid_constant__ Reporter reporter) {
  const std::uint32_t value_size = context.table.value_size;
  const std::uint32_t p = blockIdx.x * kBlockThreads + threadIdx.x;
  const bool early = reads.copies != nullptr;
  Question question{};
  Answer answer;
  bool hit = false;
  const std::byte* source = nullptr;  // of the value, unless it was, or is, read already
  std::byte* target = nullptr;
  ReadPlan plan;
  if (p < batch.count) {
    question = QuestionAt(batch, p);
    const RunRecord record = batch.records[question.first];
    if (record.status == RunStatus::kDone || (early && record.status == RunStatus::kPending)) {
      answer = AnswerOne(batch, question, record.present != 0);
      hit = answer.found && (answer.writer != kUnchanged || record.hit != 0);
    } else {
      AnswerPending(batch, record, p, question.operation);
    }
    if (answer.found && batch.found != nullptr) {
      target = batch.FoundOf(question.operation, value_size);
      if (answer.writer != kUnchanged) {
        source = batch.ValueOf(batch.OperationAt(answer.writer), value_size);
      } else if (early) {
        plan = reads.plans[question.reader];
      } else if (question.operation != question.reader) {
        source = batch.FoundOf(question.reader, value_size);
      }
    }
  }
  if (__any_sync(~0u, source != nullptr)) CopyValues<false>(source, target, value_size);
  if (early) {
    const bool cached = plan.Is(ReadPlan::kCached);
    if (__any_sync(~0u, cached)) CopyFromCache(context, plan, cached ? target : nullptr);
    AddCopies(reads, plan.cell != 0 && !cached && question.operation != question.reader,
              question.reader, question.operation);
  }
  const int finds = __syncthreads_count(answer.found);
  const int hits = __syncthreads_count(hit);
  if (threadIdx.x == 0 && finds != 0) {
    AtomicAdd(&batch.sums->found, static_cast<std::uint64_t>(finds));
    AtomicAdd(&batch.sums->cache_hits, static_cast<std::uint64_t>(hits));
  }
  ReportWhenLast(context, reporter);
}

/// Answers the operations of runs that met another state of the item than the one by which they
/// were answered, or found no room, when all others are; a block for each run.
__global__ void __launch_bounds__(kBlockThreads)
    CorrectAnswers(const __grid_constant__ TableContext context,
                   const __grid_constant__ DeviceBatch batch,
                   const __grid_constant__ Reporter reporter) {
  const std::uint32_t value_size = context.table.value_size;
  const ThreadGroup alone;
  const CudaMedia media(DirtyLog{});
  const std::uint64_t surprises = AtomicLoad(&batch.sums->surprises);
  for (std::uint64_t k = blockIdx.x; k < surprises; k += gridDim.x) {
    const std::uint32_t first = batch.surprises[k];
    const RunRecord record = batch.records[first];
    const bool found_no_room = record.status != RunStatus::kDone;
    const bool present = record.present == 0;
    const std::byte* const old = context.table.Cell(record.next * context.table.cell_bytes);
    __syncthreads();
    for (std::uint32_t p = first + threadIdx.x;
         p < batch.count && batch.hashes[p] == batch.hashes[first]; p += kBlockThreads) {
      const Question question = QuestionAt(batch, p);
      if (found_no_room) {
        AnswerPending(batch, record, p, question.operation);
        continue;
      }
      const Answer before = AnswerOne(batch, question, !present);
      const Answer answer = AnswerOne(batch, question, present);
      if (before.found) {
        const bool was_hit = before.writer != kUnchanged || record.hit != 0;
        AtomicAdd(&batch.sums->found, ~std::uint64_t{0});
        if (was_hit) AtomicAdd(&batch.sums->cache_hits, ~std::uint64_t{0});
      }
      if (!answer.found) continue;
      AtomicAdd(&batch.sums->found, 1);
      std::byte* const row = batch.FoundOf(question.operation, value_size);
      if (answer.writer == kUnchanged) {  // (not written again before the batch ends)
        media.ReadCell(alone, row, old, value_size);
      } else {
        AtomicAdd(&batch.sums->cache_hits, 1);
        CopyBytes(alone, row, batch.ValueOf(batch.OperationAt(answer.writer), value_size),
                  value_size);
      }
    }
    if (threadIdx.x == 0 && !found_no_room) {
      batch.records[first].present = present ? 1 : 0;
      batch.records[first].hit = 0;
    }
  }
  ReportWhenLast(context, reporter);
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_ANSWERS_CUH_
