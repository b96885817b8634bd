#ifndef GPM_ENGINE_CUDA_BATCH_TASK_H_
#define GPM_ENGINE_CUDA_BATCH_TASK_H_

#include <memory>

#include "engine/cuda/executor.h"
#include "engine/cuda/io/read_plans.cuh"
#include "engine/cuda/strategy.h"

namespace gpm {

/// A batch on the cuda executor: its arrays where kernels reach them, and where it stands.
class CudaBatchTask : public BatchTask {
 public:
  CudaBatchTask(CudaExecutor* executor, const Batch& batch, cudaStream_t stream)
      : executor_(executor),
        batch_(batch),
        stream_(stream),
        workspace_(executor->TakeWorkspace()) {}
  ~CudaBatchTask() override;

  /// Finds out where the arrays are. @throws Error(kInvalidArgument)
  void Place();
  void Allocate();
  void Start(const Epochs::SlotRange& recycle, const CellGrant& grant) override;
  bool Touched() const override { return touched_; }
  bool ResultsOnHost() const override { return !results_on_device_; }
  Progress Await() override;
  bool Done() override;
  Progress Resume(bool final_attempt, const CellGrant& grant) override;

 private:
  template <class T>
  const T* Input(const void* host, std::uint64_t bytes, bool on_device, DeviceArray<std::byte>* to);
  Strategy Choose() const;
  void Enqueue(const Epochs::SlotRange& recycle, const CellGrant& grant);
  void MakeContext(const CellGrant& grant);
  void SortHashes(void* storage);
  void Sort();
  void CarryOut(bool again, bool final_attempt);
  void Find();
  template <class Item>
  std::uint64_t ShapeQueues(std::uint64_t items, Workspace::Queues kind, SmQueues<Item>* queues);
  void AllocateReads(std::uint64_t operations);
  /// Empties what plans reads.
  void ClearReads();
  void SearchAndApply();
  /// @param copies whether what the cache has is copied, and counted, too
  void ReadPlanned(const Reads& reads, bool copies);
  /// Copies what several operations want of what was read.
  void CopyRows(const Reporter& reporter);
  // Between Fork and Join, the side stream runs beside the batch's own.
  void Fork();
  /// Forks, and reads on the batch's own stream. The side stream begins, as far as the GPU can
  /// tell, when all blocks that read have begun: each multiprocessor then has one, however much
  /// room the side stream's kernels take.
  void ForkAndRead(const Reads& reads, bool copies);
  void Join();
  /// Takes the results to where the user wants them, and reports where no kernel did.
  void Finish();
  /// Whether all that the batch gives back is in GPU memory: a kernel may then report.
  bool OnDevice() const {
    return results_on_device_ && (batch_.found.empty() || found_on_device_) && !managed_;
  }

  CudaExecutor* executor_;
  Batch batch_;
  cudaStream_t stream_;
  std::unique_ptr<Workspace> workspace_;
  DeviceBatch device_{};
  TableContext context_{};
  Reads reads_;
  SmQueues<std::uint64_t> second_queues_;  ///< of the second slice of a large batch
  SmQueues<std::uint32_t> pending_;        ///< sorted positions at which runs end
  SmQueues<std::uint32_t> cells_;          ///< free ones, for those
  Reporter reporter_;                      ///< of this phase
  Reporter kernel_reporter_;  ///< the same for a kernel of the batch's, if one is to report
  bool ops_on_device_ = false;
  bool keys_on_device_ = false;
  bool values_on_device_ = false;
  bool found_on_device_ = false;
  bool results_on_device_ = false;
  bool managed_ = false;  ///< some array is in managed memory
  Strategy strategy_;
  std::uint64_t clear_bytes_ = 0;  ///< of `reads_`, from its flags on
  std::size_t sort_bytes_ = 0;     ///< temporary storage that CUB asks for
  std::size_t scan_bytes_ = 0;
  std::uint64_t found_before_ = 0;  ///< counted in the phase before
  std::uint64_t hits_before_ = 0;
  bool running_ = false;
  bool touched_ = false;  ///< something was launched that uses what Start was given
  Progress progress_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_BATCH_TASK_H_
