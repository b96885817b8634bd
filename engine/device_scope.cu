#include "engine/cuda_executor.h"
#include "engine/device_view.cuh"
#include "engine/store_impl.h"

namespace gpm {

/// The scope as a batch of the store's: what the store waits for when it needs to be alone.
class ScopeRun : public Run {
 public:
  ScopeRun(CudaExecutor* executor, Stream stream)
      : executor_(executor), stream_(stream), workspace_(executor->TakeWorkspace()) {
    workspace_->sums.Reserve(1);
    CheckCuda(cudaMemsetAsync(workspace_->sums.data(), 0, sizeof(BatchSums), stream_),
              "cudaMemsetAsync");
  }
  ~ScopeRun() override { executor_->ReturnWorkspace(std::move(workspace_)); }

  Progress Await() override {
    executor_->Activate();
    executor_->Report(stream_, executor_->context(), workspace_.get());
    progress_ = executor_->Collect(workspace_.get());
    executor_->FlushPool();
    const Progress progress = progress_;
    progress_.items_added = 0;
    return progress;
  }
  Progress RemoveDuplicates() override { return progress_; }  // each insert saw to it itself
  Progress Resume(bool) override { return Progress{}; }       // a scope leaves nothing over
  BatchSums* sums() const { return workspace_->sums.data(); }

 private:
  CudaExecutor* executor_;
  Stream stream_;
  std::unique_ptr<Workspace> workspace_;
  Progress progress_;
};

class DeviceScope::State {
 public:
  State(Store& store, Stream stream, std::uint64_t max_writes, std::uint64_t max_erases)
      : store_(store.impl()) {
    auto* executor = dynamic_cast<CudaExecutor*>(&store_.executor());
    if (executor == nullptr) {
      throw Error(ErrorCode::kUnsupported,
                  "a device scope needs a store that was opened with executor cuda");
    }
    executor->Activate();
    Epochs::SlotRange give_back;
    std::uint64_t cells_limit = 0;
    in_flight_ = store_.Admit(Reservation{max_writes, max_erases + max_writes}, max_writes > 0,
                              &give_back, &cells_limit);
    try {
      auto run = std::make_shared<ScopeRun>(executor, stream);
      executor->Begin(stream, give_back, cells_limit);
      view_ = DeviceView{executor->context(), run->sums()};
      run_ = run;
    } catch (...) {
      store_.Abandon(in_flight_);
      throw;
    }
  }

  void Close() {
    if (run_ == nullptr) return;
    store_.Launch(in_flight_, std::move(run_));
    run_ = nullptr;
    store_.Wait(*in_flight_);
  }
  const DeviceView& view() const { return view_; }

 private:
  StoreImpl& store_;
  std::shared_ptr<StoreImpl::InFlight> in_flight_;
  std::shared_ptr<Run> run_;
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
