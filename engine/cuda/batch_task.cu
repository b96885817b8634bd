#include <algorithm>
#include <bit>
#include <string>

#include "engine/cuda/batch_task.h"

namespace gpm {
namespace {

/// Where an array of a batch lies. @throws Error(kInvalidArgument) for memory of another device
/// @param managed set if the host may look there as soon as it knows that the batch has ended
bool IsOnDevice(const void* pointer, int device, const char* name, bool* managed) {
  cudaPointerAttributes attributes{};
  CheckCuda(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
    return false;
  }
  *managed |= attributes.type == cudaMemoryTypeManaged;
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("batch: '") + name + "' is in the memory of device " +
                    std::to_string(attributes.device) + ", the store runs on device " +
                    std::to_string(device) + "; use host memory or that device's");
  }
  return true;
}

}  // namespace

CudaBatchTask::~CudaBatchTask() {
  if (workspace_ == nullptr) return;
  try {
    Await();
  } catch (...) {
    return;
  }
  executor_->ReturnWorkspace(std::move(workspace_));
}

void CudaBatchTask::Place() {
  const int device = executor_->device();
  const auto locate = [&](const void* pointer, std::size_t bytes, const char* name) {
    return bytes > 0 && IsOnDevice(pointer, device, name, &managed_);
  };
  ops_on_device_ = locate(batch_.ops.data(), batch_.ops.size(), "ops");
  keys_on_device_ = locate(batch_.keys.data(), batch_.keys.size(), "keys");
  values_on_device_ = locate(batch_.values.data(), batch_.values.size(), "values");
  found_on_device_ = locate(batch_.found.data(), batch_.found.size(), "found");
  results_on_device_ = locate(batch_.results.data(), batch_.results.size(), "results");
  if (keys_on_device_ && reinterpret_cast<std::uintptr_t>(batch_.keys.data()) % 8 != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "batch: 'keys' in device memory must be 8-byte aligned");
  }
}

template <class T>
const T* CudaBatchTask::Input(const void* host, std::uint64_t bytes, bool on_device,
                              DeviceArray<std::byte>* to) {
  if (bytes == 0) return nullptr;
  if (on_device) return static_cast<const T*>(host);
  CheckCuda(cudaMemcpyAsync(to->data(), host, bytes, cudaMemcpyHostToDevice, stream_),
            "cudaMemcpyAsync to the device");
  return reinterpret_cast<const T*>(to->data());
}

void CudaBatchTask::Start(const Epochs::SlotRange& recycle, const CellGrant& grant) {
  const CurrentDevice current = executor_->Activate();
  try {
    Enqueue(recycle, grant);
  } catch (...) {
    cudaStreamSynchronize(stream_);  // what was enqueued works on memory that is about to be reused
    workspace_.reset();              // and left it who knows how
    throw;
  }
}

void CudaBatchTask::Enqueue(const Epochs::SlotRange& recycle, const CellGrant& grant) {
  Workspace& w = *workspace_;
  w.ContinueOn(stream_);
  device_.count = static_cast<std::uint32_t>(batch_.results.size());
  device_.op = batch_.op;
  device_.ops = Input<Op>(batch_.ops.data(), batch_.ops.size(), ops_on_device_, &w.ops);
  device_.keys =
      Input<std::uint64_t>(batch_.keys.data(), batch_.keys.size(), keys_on_device_, &w.keys);
  device_.values =
      Input<std::byte>(batch_.values.data(), batch_.values.size(), values_on_device_, &w.values);
  device_.found = batch_.found.empty() ? nullptr
                  : found_on_device_   ? batch_.found.data()
                                       : w.found.data();
  device_.results =
      results_on_device_ ? batch_.results.data() : reinterpret_cast<Result*>(w.results.data());
  device_.effects = w.effects.data();
  device_.records = w.records.data();
  device_.digests = w.digests.data();
  MakeContext(grant);
  touched_ = true;
  executor_->RecycleSlots(recycle, stream_);
  if (grant.count > 0) executor_->AwaitSortedCells(stream_);
  if (strategy_.finds()) {
    Find();
    Finish();
    return;
  }
  if (strategy_.sorts()) Sort();
  CarryOut(false, false);
}

/// Takes the executor's context, with the cells granted and, where the medium needs flushing, a log
/// of the lines written; and begins a phase.
void CudaBatchTask::MakeContext(const CellGrant& grant) {
  Workspace& w = *workspace_;
  context_ = executor_->NextContext();
  context_.reclaim.grant = grant;
  reporter_ = executor_->NextReport(grant, &w);
  device_.sums = reporter_.sums;
  context_.reclaim.taken = &device_.sums->cells_taken;
  reads_.cell_bytes = static_cast<std::uint32_t>(context_.table.cell_bytes);
  if (reads_.order.enabled()) {
    const std::uint64_t cells = executor_->mapped_bytes() / reads_.cell_bytes;
    const auto bits = static_cast<std::uint32_t>(std::bit_width(cells));
    constexpr std::uint32_t kBinBits = std::bit_width(AddressOrder::kBins) - 1;
    reads_.order.bin_shift = bits > kBinBits ? bits - kBinBits : 0;
  }
  kernel_reporter_ = OnDevice() ? reporter_ : Reporter{};
  if (!executor_->needs_flush() || strategy_.finds()) return;
  CheckCuda(cudaMemsetAsync(w.dirty_count.data(), 0, 8, stream_), "cudaMemsetAsync");
  context_.dirty = DirtyLog{w.dirty_lines.data(), w.dirty_count.data(), w.dirty_lines.size()};
}

void CudaBatchTask::Finish() {
  Workspace& w = *workspace_;
  if (!found_on_device_ && !batch_.found.empty()) {
    CheckCuda(cudaMemcpyAsync(batch_.found.data(), w.found.data(), batch_.found.size(),
                              cudaMemcpyDeviceToHost, stream_),
              "cudaMemcpyAsync to the host");
  }
  if (!results_on_device_) {
    CheckCuda(cudaMemcpyAsync(batch_.results.data(), w.results.data(), batch_.results.size(),
                              cudaMemcpyDeviceToHost, stream_),
              "cudaMemcpyAsync to the host");
  }
  if (kernel_reporter_.words == nullptr) executor_->Report(stream_, context_, reporter_);
  CheckCuda(cudaEventRecord(w.enqueued, stream_), "cudaEventRecord");
  running_ = true;
}

bool CudaBatchTask::Done() {
  return !running_ || cudaEventQuery(workspace_->enqueued) != cudaErrorNotReady;
}

Progress CudaBatchTask::Await() {
  if (running_) {
    running_ = false;
    try {
      progress_ = executor_->Collect(workspace_.get());
    } catch (...) {
      cudaStreamSynchronize(stream_);  // what is still running writes to the workspace and arrays
      workspace_.reset();
      throw;
    }
    // Each phase answers the whole batch, and counts its finds, again.
    const auto anew = [](std::uint64_t* counted, std::uint64_t* before) {
      const std::uint64_t all = *counted;
      *counted -= std::min(*counted, *before);
      *before = all;
    };
    anew(&progress_.found, &found_before_);
    anew(&progress_.cache_hits, &hits_before_);
  }
  return progress_;
}

Progress CudaBatchTask::Resume(bool final_attempt, const CellGrant& grant) {
  const CurrentDevice current = executor_->Activate();
  try {
    MakeContext(grant);  // the table, and its queues, may have grown
    CarryOut(true, final_attempt);
  } catch (...) {
    cudaStreamSynchronize(stream_);
    workspace_.reset();
    throw;
  }
  return Await();
}

std::shared_ptr<BatchTask> CudaExecutor::Prepare(const Batch& batch, Stream stream) {
  const CurrentDevice current = Activate();
  auto run = std::make_shared<CudaBatchTask>(this, batch, stream);
  run->Place();
  run->Allocate();
  return run;
}

}  // namespace gpm
