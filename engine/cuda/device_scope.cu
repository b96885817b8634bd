#include "engine/cuda/executor.h"
#include "engine/store_impl.h"
#include "gpmstore/device_view.cuh"

namespace gpm {

/// The scope as a batch of the store's: what the store waits for when it needs to be alone.
class ScopeTask : public BatchTask {
 public:
  ScopeTask(CudaExecutor* executor, Stream stream) : executor_(executor), stream_(stream) {
    // (Any thread may end a scope, and each means another stream by that handle.)
    if (stream == cudaStreamPerThread) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a device scope can't be on cudaStreamPerThread; make a stream for it");
    }
    RefuseStream(stream, executor->device(), "device scope");
    workspace_ = executor->TakeWorkspace();
  }
  void Start(const Epochs::SlotRange& recycle, const CellGrant& grant,
             const BucketRange&) override {
    const CurrentDevice current = executor_->Activate();
    workspace_->ContinueOn(stream_);
    context_ = executor_->NextContext();
    context_.reclaim.grant = grant;
    touched_ = true;
    try {
      executor_->RecycleSlots(recycle, stream_);
      if (grant.count > 0) executor_->AwaitSortedCells(stream_);
    } catch (...) {
      cudaStreamSynchronize(stream_);  // what was launched uses the queues
      throw;
    }
    reporter_ = executor_->NextReport(grant, workspace_.get());
    context_.reclaim.taken = &reporter_.sums->cells_taken;
  }
  bool Touched() const override { return touched_; }
  Progress Await() override {
    if (reported_) return progress_;
    const CurrentDevice current = executor_->Activate();
    try {
      executor_->Report(stream_, context_, reporter_);
      CheckCuda(cudaEventRecord(workspace_->enqueued, stream_), "cudaEventRecord");
      progress_ = executor_->Collect(workspace_.get());
    } catch (...) {
      cudaStreamSynchronize(stream_);  // kernels may still be running
      workspace_.reset();
      throw;
    }
    // (Now, as the store may be closed before the scope's owner lets go of this.)
    executor_->ReturnWorkspace(std::move(workspace_));
    reported_ = true;
    executor_->FlushPool();
    const Progress progress = progress_;
    progress_.items_added = 0;
    return progress;
  }
  Progress Resume(bool, const CellGrant&) override { return progress_; }  // nothing is left over
  /// The user may launch kernels until the scope is closed.
  bool Complete() const override { return closed_; }
  void SetClosed() { closed_ = true; }
  DeviceView view() const { return DeviceView{context_, reporter_.sums}; }

 private:
  CudaExecutor* executor_;
  Stream stream_;
  std::shared_ptr<Workspace> workspace_;
  TableContext context_{};
  Reporter reporter_;
  Progress progress_;
  bool touched_ = false;
  bool reported_ = false;
  std::atomic<bool> closed_{false};
};

class DeviceScope::State {
 public:
  State(Store& store, Stream stream, std::uint64_t max_writes, std::uint64_t max_erases)
      : store_(store.impl()) {
    auto* executor = dynamic_cast<CudaExecutor*>(&store_->executor());
    if (executor == nullptr) {
      throw Error(ErrorCode::kUnsupported,
                  "a device scope needs a store that was opened with executor cuda");
    }
    task_ = std::make_shared<ScopeTask>(executor, stream);
    // More than any pool has room for, and sums of them do not overflow.
    constexpr std::uint64_t kMost = std::uint64_t{1} << 48;
    max_writes = std::min(max_writes, kMost);
    max_erases = std::min(max_erases, kMost);
    const std::uint64_t cells = InlineValues(store_->value_size()) ? 0 : max_writes;
    in_flight_ = store_->StartScope(task_, {.most = {cells, max_erases},
                                            .writes = max_writes + max_erases > 0,
                                            .inserts = max_writes > 0,
                                            .most_added = max_writes});
    view_ = task_->view();
  }

  void Close() {
    task_->SetClosed();
    store_->Wait(in_flight_);
  }
  const DeviceView& view() const { return view_; }

 private:
  std::shared_ptr<StoreImpl> store_;
  std::shared_ptr<ScopeTask> task_;
  std::shared_ptr<StoreImpl::InFlight> in_flight_;
  DeviceView view_{};
};

DeviceScope::DeviceScope(Store& store, Stream stream, std::uint64_t max_writes,
                         std::uint64_t max_erases)
    : state_(std::make_unique<State>(store, stream, max_writes, max_erases)) {}

DeviceScope::~DeviceScope() {
  try {
    Close();
  } catch (...) {
    // A destructor can't report it; Close can.
  }
}

const DeviceView& DeviceScope::view() const { return state_->view(); }
void DeviceScope::Close() { state_->Close(); }

}  // namespace gpm
