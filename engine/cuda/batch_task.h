#ifndef GPM_ENGINE_CUDA_BATCH_TASK_H_
#define GPM_ENGINE_CUDA_BATCH_TASK_H_

#include <memory>
#include <optional>

#include "engine/cuda/executor.h"
#include "engine/cuda/io/read_plans.cuh"
#include "engine/cuda/strategy.h"

namespace gpm {

struct Attempt;
struct CollidedRuns;

/// Where the arrays of a batch lie.
struct BatchPlaces {
  enum class Place : std::uint8_t {
    kDevice,    ///< memory of the executor's device, or managed memory
    kPinned,    ///< host memory that the GPU reaches
    kPageable,  ///< other host memory
  };
  Place ops = Place::kDevice;
  Place keys = Place::kDevice;
  Place values = Place::kDevice;
  Place found = Place::kDevice;
  Place results = Place::kDevice;
  // Where kernels reach an array; null: nowhere, it is copied.
  const std::byte* keys_at = nullptr;
  const std::byte* values_at = nullptr;
  std::byte* found_at = nullptr;
  Result* results_at = nullptr;
  bool managed = false;  ///< some array is in managed memory

  bool InputsOnDevice() const {
    return ops == Place::kDevice && keys == Place::kDevice && values == Place::kDevice;
  }
  /// @throws Error(kInvalidArgument) for memory of another device, and for keys of whole words that
  /// are not aligned
  static BatchPlaces Of(const Batch& batch, std::uint32_t key_size, int device);
};

/// A batch on the cuda executor: its arrays where kernels reach them, and where it stands.
class CudaBatchTask : public BatchTask {
 public:
  CudaBatchTask(CudaExecutor* executor, const Batch& batch, const BatchPlaces& places,
                cudaStream_t stream, Answers answers)
      : executor_(executor),
        batch_(batch),
        places_(places),
        workspace_(executor->TakeWorkspace()),
        stream_(stream),
        answers_(answers) {
    // Rows for one key are read one after the other: over the link that would take too long.
    if (Accumulates() && places_.values == BatchPlaces::Place::kPinned) places_.values_at = nullptr;
  }
  ~CudaBatchTask() override;

  void Allocate();
  void Start(const Epochs::SlotRange& recycle, const CellGrant& grant,
             const BucketRange& drain) override;
  bool Touched() const override { return touched_; }
  bool ResultsOnHost() const override { return places_.results != Place::kDevice; }
  Progress Await() override;
  bool Done() override;
  SlotsMade MakeSlots(std::uint64_t most, std::uint64_t) override {
    return executor_->MakeSlots(device_, most);
  }
  Progress Resume(bool final_attempt, const CellGrant& grant) override;

 private:
  using Place = BatchPlaces::Place;
  /// Where kernels find an input: where it is, or a copy of it that is under way.
  template <class T>
  const T* Input(std::span<const T> array, Place place, DeviceArray<std::byte>* to);
  /// Copies an input behind what `stream` has.
  void CopyIn(const void* from, std::uint64_t bytes, Place place, std::byte* to,
              cudaStream_t stream);
  /// Copies the values, beside what the batch's stream has; what `stream` gets next finds them.
  /// @return whether they had to be copied
  bool BringValues(cudaStream_t stream);
  /// The same, whatever kernels make of them; the stream that answers finds them, too.
  void CopyValues(cudaStream_t stream);
  /// Whether kernels read values that are made here: rows of `values`, and initial values.
  bool MakesValues() const {
    return batch_.initial.from != InitialValue::From::kValues &&
           (!batch_.ops.empty() || batch_.op == Op::kFindOrInsert);
  }
  void MakeValues();
  /// Makes the kernels' keys of these rows, in GPU memory.
  void PadKeys(const std::byte* rows);
  bool Accumulates() const {
    return batch_.element != Element::kNone && !batch_.values.empty() &&
           (!batch_.ops.empty() || batch_.op == Op::kAccumulate);
  }
  Strategy Choose() const;
  /// Whether kernels may write the outputs where the host reads them: each row by few stores,
  /// mostly once, and it is hardly read again.
  bool MayWriteOut() const;
  /// Decides whether kernels read the keys of finds, each once or twice, where the host has them.
  /// Small inputs in pageable memory that are read so are copied to pinned memory now.
  void StageInputs();
  /// Waits for what still writes to the workspace and arrays, which are left who knows how.
  void Abandon();
  /// For ApplyWritten. @throws Error(kGpu)
  void ReserveWrittenRuns();
  void Enqueue(const Epochs::SlotRange& recycle, const CellGrant& grant, const BucketRange& drain);
  /// Takes the turn to have the host write the values to cells, if that may be had, and the grant
  /// has a cell for each operation. @return the grant, as it is used
  CellGrant TakeWriter(const CellGrant& grant);
  /// Has the host begin, if there is a turn.
  void BeginWriting();
  /// Drains the buckets and brings the items of its keys up, while a level is being drained.
  void DrainBeside(const BucketRange& drain);
  void MakeContext(const CellGrant& grant);
  void SortHashes(void* storage);
  CollidedRuns Collided() const;
  void ScanEffects(void* storage);
  /// How a kernel is launched that waits by itself for the one in front of it (AwaitKernelBefore).
  /// @param follows that one is the last thing that its stream has (below, too)
  std::optional<cudaLaunchAttribute> EarlyIf(bool follows) const;
  void FindKeyRuns();
  /// Of GroupByKey, which has a bin for each.
  unsigned GroupingBlocks() const;
  std::uint64_t BinCounts() const;  ///< that these have
  void CarryOut(bool again, bool final_attempt);
  void CarryOutSmall(const Attempt& attempt);
  void Find();
  void FindInChunks();
  void SearchFinds(const Reads& reads, cudaStream_t stream, const Reporter& reporter);
  template <class Item>
  std::uint64_t ShapeQueues(std::uint64_t items, Workspace::Queues kind, SmQueues<Item>* queues);
  void AllocateReads(std::uint64_t operations);
  /// What has to be empty before reads are planned.
  std::span<std::uint64_t> ClearedReads() const;
  void ClearReads();
  /// Cells that are dealt out to key runs that were searched.
  SmQueues<std::uint32_t> DealtCells() const;
  /// Brings the values of a batch that accumulates, and adds the rows of its long key runs
  /// (AddLongRuns). @return false, with nothing done, if it does not, or its cells are filled
  bool AddAhead(cudaStream_t stream);
  void SearchAndCarryOut();
  void SearchAndApply();
  void ApplyWritten();
  /// Answers the operations of key runs, a kernel of its own.
  void Answer(const Reads& reads, cudaStream_t stream, const Reporter& reporter, bool follows);
  /// Whether a batch of middle size reports before FinishAnswers: nobody needs what that does
  /// before the report (Answers), and it is expected to have nothing to do.
  bool ReportsEarly() const;
  /// What a batch that is answered while it is carried out leaves for when it has been: rows that
  /// several operations want, and runs that were answered wrongly. Mostly there is neither.
  void FinishAnswers(cudaStream_t stream, const Reporter& reporter, bool follows);
  /// The same once the report has told of it.
  void FinishReported();
  /// Of finds alone, what the cache has is copied, and counted, too.
  /// @param attribute how ReadValues begins
  void ReadPlanned(const Reads& reads, const std::optional<cudaLaunchAttribute>& attribute);
  /// Copies what several operations want of what was read.
  void CopyRows(const Reads& reads, cudaStream_t stream, const Reporter& reporter, bool follows);
  // The host's share of the planned reads: it begins; and the GPU takes what was read, beside what
  // the batch's stream has, for which what that gets next waits.
  void BeginOnHost(const Reads& reads);
  void TakeFromHost(const Reads& reads);
  // Between Fork and Join, the side stream runs beside the batch's own.
  void Fork();
  /// Forks, and reads on the batch's own stream. The side stream begins, as far as the GPU can
  /// tell, when all blocks that read have begun: each multiprocessor then has one, however much
  /// room the side stream's kernels take.
  void ForkAndRead(const Reads& reads);
  void Join();
  /// Takes the outputs to pinned memory, the caller's or (stages_) the workspace's, if kernels did
  /// not, and reports where no kernel did.
  void Finish();
  /// Takes the rows of finds in chunks to pageable memory, while kernels run.
  void CopyChunks();
  /// Takes everything else there, when they have ended.
  void CopyToPageable();
  /// Whether the host sees what the kernels gave back when one of them reports: nothing is copied
  /// behind them, but what the host copies.
  bool KernelsMayReport() const {
    const bool copied =
        places_.results == Place::kPinned || places_.found == Place::kPinned || stages_;
    return (writes_out_ || !copied) && !places_.managed;
  }
  /// Bytes of an output that is in pageable memory; 0 of another.
  template <class Array>
  static std::uint64_t PageableBytes(Place place, const Array& array) {
    return place == Place::kPageable ? array.size_bytes() : 0;
  }

  CudaExecutor* executor_;
  Batch batch_;
  BatchPlaces places_;
  std::shared_ptr<Workspace> workspace_;
  HostReader::Turn host_;
  HostWriter::Turn writer_;
  cudaStream_t stream_;
  Answers answers_;
  bool stages_ = false;      ///< what goes to pageable memory comes to Workspace::staged first
  bool writes_out_ = false;  ///< kernels write outputs there, or to the caller's pinned memory
  bool keys_there_ = false;  ///< kernels read the keys at BatchPlaces::keys_at
  DeviceBatch device_{};
  TableContext context_{};
  Reads reads_;
  SmQueues<std::uint64_t> second_queues_;  ///< of the second slice of a large batch
  SmQueues<PendingRun> pending_;           ///< runs that change something
  SmQueues<std::uint32_t> cells_;          ///< free ones, for those
  Reporter reporter_;                      ///< of this phase
  Reporter kernel_reporter_;  ///< the same for a kernel of the batch's, if one is to report
  Reporter reported_early_;   ///< the same, if that was one before FinishAnswers
  Strategy strategy_;
  std::uint64_t clear_words_ = 0;  ///< of `reads_`, from its flags on
  std::size_t sort_bytes_ = 0;     ///< temporary storage that CUB asks for
  std::size_t scan_bytes_ = 0;
  std::uint64_t found_before_ = 0;  ///< counted in the phase before
  std::uint64_t hits_before_ = 0;
  std::uint32_t part_ = 0;       ///< of a small batch that was left over: whose turn it is
  bool keys_in_chunks_ = false;  ///< FindInChunks is yet to bring the keys
  bool answers_early_ = false;   ///< this phase answers while it is carried out
  bool is_first_phase_ = true;   ///< nothing was told of the batch yet
  bool running_ = false;
  bool touched_ = false;  ///< something was launched that uses what Start was given
  Progress progress_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_BATCH_TASK_H_
