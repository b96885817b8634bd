#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "engine/cuda/batch_task.h"
#include "pm/driver_turns.h"
#include "table/key_rows.h"

namespace gpm {
namespace {

using Place = BatchPlaces::Place;

/// Where an array of a batch lies.
/// @param managed set if the host may look there as soon as it knows that the batch has ended
/// @param attributes for kernels
template <class T>
Place PlaceOf(std::span<T> array, int device, const char* name, bool* managed,
              cudaPointerAttributes* of) {
  if (array.empty()) return Place::kDevice;
  cudaPointerAttributes& attributes = *of;
  CheckCuda(cudaPointerGetAttributes(&attributes, array.data()), "cudaPointerGetAttributes");
  switch (attributes.type) {
    case cudaMemoryTypeManaged:
      *managed = true;
      return Place::kDevice;
    case cudaMemoryTypeDevice:
      break;
    case cudaMemoryTypeHost:
      return Place::kPinned;
    default:
      return Place::kPageable;
  }
  if (attributes.device != device) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("batch: '") + name + "' is in the memory of device " +
                    std::to_string(attributes.device) + ", the store runs on device " +
                    std::to_string(device) + "; use host memory or that device's");
  }
  return Place::kDevice;
}

/// Whether a pinned array is slow to read for the host.
bool IsWriteCombined(const std::byte* array) {
  unsigned flags = 0;
  if (cudaHostGetFlags(&flags, const_cast<std::byte*>(array)) != cudaSuccess) {
    cudaGetLastError();  // it was made otherwise
    return false;
  }
  return (flags & cudaHostAllocWriteCombined) != 0;
}

}  // namespace

BatchPlaces BatchPlaces::Of(const Batch& batch, std::uint32_t key_size, int device) {
  BatchPlaces places;
  cudaPointerAttributes attributes{};
  const auto place = [&](auto array, const char* name) {
    attributes = {};
    return PlaceOf(array, device, name, &places.managed, &attributes);
  };
  places.ops = place(batch.ops, "ops");
  // (In a thread that has not used CUDA yet, the runtime knows no address for its device.)
  const auto address = [&](Place of, auto array) {
    using Pointer = decltype(array.data());
    return of == Place::kDevice   ? array.data()
           : of == Place::kPinned ? static_cast<Pointer>(attributes.devicePointer)
                                  : nullptr;
  };
  places.keys = place(batch.keys, "keys");
  places.keys_at = address(places.keys, batch.keys);
  places.values = place(batch.values, "values");
  places.values_at = address(places.values, batch.values);
  places.found = place(batch.found, "found");
  places.found_at = address(places.found, batch.found);
  places.results = place(batch.results, "results");
  places.results_at = address(places.results, batch.results);
  if (places.keys == Place::kDevice && !ArePadded(key_size) &&
      reinterpret_cast<std::uintptr_t>(batch.keys.data()) % 8 != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "batch: 'keys' in device memory, of whole words, must be 8-byte aligned");
  }
  return places;
}

CudaBatchTask::~CudaBatchTask() {
  if (workspace_ == nullptr) return;
  try {
    Await();
  } catch (...) {
    return;
  }
  executor_->ReturnWorkspace(std::move(workspace_));
}

template <class T>
const T* CudaBatchTask::Input(std::span<const T> array, Place place, DeviceArray<std::byte>* to) {
  if (array.empty()) return nullptr;
  if (place == Place::kDevice) return array.data();
  // (Host arrays are complete when the batch is started, whatever its stream still has to do. But
  // one that the GPU reaches may be what the stream is about to write.)
  const bool waits = place == Place::kPageable && array.size_bytes() > HostCopier::kLeftToDriver;
  const cudaStream_t stream = waits ? workspace_->answering : stream_;
  CopyIn(array.data(), array.size_bytes(), place, to->data(), stream);
  if (waits) {
    CheckCuda(cudaEventRecord(workspace_->arrived, stream), "cudaEventRecord");
    CheckCuda(cudaStreamWaitEvent(stream_, workspace_->arrived, 0), "cudaStreamWaitEvent");
  }
  return reinterpret_cast<const T*>(to->data());
}

template const std::byte* CudaBatchTask::Input(std::span<const std::byte> array, Place place,
                                               DeviceArray<std::byte>* to);

void CudaBatchTask::CopyIn(const void* from, std::uint64_t bytes, Place place, std::byte* to,
                           cudaStream_t stream) {
  if (place == Place::kPageable && bytes > HostCopier::kLeftToDriver) {
    const DriverTurns::Break pause;
    executor_->Copier().ToDevice(to, static_cast<const std::byte*>(from), bytes, stream);
  } else {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync to the device");
  }
}

bool CudaBatchTask::BringValues(cudaStream_t stream) {
  if (batch_.values.empty() || places_.values_at != nullptr || MakesValues()) return false;
  CopyValues(stream);
  return true;
}

void CudaBatchTask::CopyValues(cudaStream_t stream) {
  Workspace& w = *workspace_;
  if (places_.values == Place::kPinned) {  // the stream may be about to write them
    CopyIn(batch_.values.data(), batch_.values.size(), places_.values, w.values.data(), stream);
    CheckCuda(cudaEventRecord(w.arrived, stream), "cudaEventRecord");
    CheckCuda(cudaStreamWaitEvent(w.answering, w.arrived, 0), "cudaStreamWaitEvent");
    return;
  }
  CopyIn(batch_.values.data(), batch_.values.size(), places_.values, w.values.data(), w.answering);
  CheckCuda(cudaEventRecord(w.arrived, w.answering), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(stream, w.arrived, 0), "cudaStreamWaitEvent");
}

void CudaBatchTask::Abandon() {
  cudaStreamSynchronize(stream_);
  host_ = {};
  writer_ = {};
  workspace_.reset();
}

void CudaBatchTask::Start(const Epochs::SlotRange& recycle, const CellGrant& grant,
                          const BucketRange& drain) {
  const CurrentDevice current = executor_->Activate();
  try {
    Enqueue(recycle, grant, drain);
  } catch (...) {
    Abandon();
    throw;
  }
}

void CudaBatchTask::Enqueue(const Epochs::SlotRange& recycle, const CellGrant& grant,
                            const BucketRange& drain) {
  const DriverTurns::Launching turn;
  Workspace& w = *workspace_;
  w.ContinueOn(stream_);
  if (!places_.InputsOnDevice()) {
    CheckCuda(cudaStreamWaitEvent(w.answering, w.enqueued, 0), "cudaStreamWaitEvent");
  }
  device_.count = static_cast<std::uint32_t>(batch_.results.size());
  MakeContext(TakeWriter(grant));
  BeginWriting();
  device_.op = batch_.op;
  device_.element = batch_.element;
  device_.ops = Input(batch_.ops, places_.ops, &w.ops);
  // (Who drains beside the batch looks at all of its keys first.)
  keys_in_chunks_ = strategy_.chunk != 0 && places_.keys == Place::kPinned &&
                    !ArePadded(executor_->key_size()) && !executor_->context().table.draining();
  if (keys_in_chunks_) {
    device_.keys = reinterpret_cast<const std::uint64_t*>(w.keys.data());
  } else if (keys_there_) {
    device_.keys = reinterpret_cast<const std::uint64_t*>(places_.keys_at);
  } else {
    PadKeys(Input(batch_.keys, places_.keys, &w.keys));
  }
  device_.values = MakesValues()                  ? w.values.data()
                   : batch_.values.empty()        ? nullptr
                   : places_.values_at != nullptr ? places_.values_at
                                                  : w.values.data();
  std::byte* staged = w.staged.data();
  const auto output = [&](Place place, auto array, auto at, const DeviceArray<std::byte>& copied) {
    using Pointer = decltype(at);
    if (array.empty()) return Pointer{};
    if (place == Place::kDevice || (place == Place::kPinned && writes_out_)) return at;
    if (!writes_out_) return reinterpret_cast<Pointer>(copied.data());
    return reinterpret_cast<Pointer>(std::exchange(staged, staged + array.size_bytes()));
  };
  device_.found = output(places_.found, batch_.found, places_.found_at, w.found);
  device_.results = output(places_.results, batch_.results, places_.results_at, w.results);
  device_.effects = w.effects.data();
  device_.records = w.records.data();
  device_.digests = w.digests.data();
  device_.added = Accumulates() ? w.added.data() : nullptr;
  device_.long_sums = nullptr;
  touched_ = true;
  executor_->RecycleSlots(recycle, stream_);
  MakeValues();
  DrainBeside(drain);
  // (Sorting the batch takes no cells. Where it is grouped, the kernels behind that begin early,
  // which goes with no wait between them.)
  const bool sorts = strategy_.by_key_runs() && !strategy_.groups;
  if (sorts) FindKeyRuns();
  if (grant.count > 0) executor_->AwaitSortedCells(stream_);
  if (strategy_.groups) FindKeyRuns();
  CarryOut(false, false);
}

CellGrant CudaBatchTask::TakeWriter(const CellGrant& grant) {
  const std::uint64_t cells = grant.count - (batch_.op == Op::kUpdate ? 0 : grant.kept);
  if (!strategy_.writes_by_host || grant.filled() || cells < device_.count) return grant;
  if (IsWriteCombined(batch_.values.data())) return grant;
  writer_ = executor_->TakeHostWriter();
  if (!writer_) return grant;
  try {
    ReserveWrittenRuns();
    if (executor_->context().accelerators.cache.enabled()) {
      workspace_->values.Reserve(batch_.values.size());
      places_.values_at = nullptr;  // they are brought
    }
  } catch (const Error&) {  // where memory is short, kernels write them
    writer_ = {};
    return grant;
  }
  CellGrant assigned = grant;
  assigned.assigned = device_.count;
  return assigned;
}

void CudaBatchTask::BeginWriting() {
  if (!writer_) return;
  executor_->AwaitSortedCells(writer_->Follow(stream_));
  writer_->Begin(batch_.values.data(), device_.count, context_.reclaim, executor_->cells_base(),
                 executor_->cell_bytes());
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
  reads_.by_host = host_ ? host_->View() : HostReads{};
  if (reads_.order.enabled()) {
    reads_.order.bin_shift = AddressOrder::ShiftFor(executor_->mapped_bytes() / reads_.cell_bytes);
  }
  // (The kernel that queues what is left of a filled grant comes last.)
  reporter_.outputs_on_host = writes_out_;
  kernel_reporter_ = KernelsMayReport() && !grant.filled() ? reporter_ : Reporter{};
  if (strategy_.searches()) {
    reads_.copies.count = reinterpret_cast<std::uint32_t*>(&device_.sums->row_copies);
  }
  if (!executor_->needs_flush() || strategy_.finds()) return;
  CheckCuda(cudaMemsetAsync(w.dirty_count.data(), 0, 8, stream_), "cudaMemsetAsync");
  context_.dirty = DirtyLog{w.dirty_lines.data(), w.dirty_count.data(), w.dirty_lines.size()};
}

void CudaBatchTask::Finish() {
  Workspace& w = *workspace_;
  std::byte* staged = w.staged.data();
  const auto copy = [&](Place place, auto array, const DeviceArray<std::byte>& from) {
    const auto bytes = std::as_writable_bytes(array);
    std::byte* to = bytes.data();
    if (stages_ && place == Place::kPageable) {
      to = std::exchange(staged, staged + bytes.size());
    } else if (place != Place::kPinned) {
      return;
    }
    CheckCuda(cudaMemcpyAsync(to, from.data(), bytes.size(), cudaMemcpyDeviceToHost, stream_),
              "cudaMemcpyAsync to the host");
  };
  if (strategy_.chunk == 0 && !writes_out_) copy(places_.found, batch_.found, w.found);
  if (!writes_out_) copy(places_.results, batch_.results, w.results);
  if (kernel_reporter_.words == nullptr) executor_->Report(stream_, context_, reporter_);
  CheckCuda(cudaEventRecord(w.enqueued, stream_), "cudaEventRecord");
  running_ = true;
}

void CudaBatchTask::CopyChunks() {
  if (strategy_.chunk == 0 || places_.found != Place::kPageable) return;
  Workspace& w = *workspace_;
  const std::uint64_t bytes = strategy_.chunk * (batch_.found.size() / device_.count);
  // (The copier is for other batches, too, until there is something to copy.)
  CheckCuda(cudaEventSynchronize(w.chunks[0]), "cudaEventSynchronize");
  const auto await = [&](std::uint64_t end) {
    CheckCuda(cudaStreamWaitEvent(w.answering, w.chunks[(end - 1) / bytes], 0),
              "cudaStreamWaitEvent");
  };
  executor_->Copier().ToHost(batch_.found.data(), w.found.data(), batch_.found.size(), w.answering,
                             await);
}

void CudaBatchTask::CopyToPageable() {
  Workspace& w = *workspace_;
  const std::byte* staged = w.staged.data();
  bool waited = false;
  const auto copy = [&](Place place, auto to, const DeviceArray<std::byte>& from) {
    if (place != Place::kPageable) return;
    const auto bytes = std::as_writable_bytes(to);
    if (stages_) {
      const std::byte* const at = std::exchange(staged, staged + bytes.size());
      if (bytes.size() <= HostCopier::kLeftToDriver) {
        std::memcpy(bytes.data(), at, bytes.size());
      } else {
        executor_->Copier().CopyHost(bytes.data(), at, bytes.size());
      }
      return;
    }
    if (!std::exchange(waited, true)) {
      CheckCuda(cudaStreamWaitEvent(w.answering, w.enqueued, 0), "cudaStreamWaitEvent");
    }
    if (bytes.size() <= HostCopier::kLeftToDriver) {
      CheckCuda(cudaMemcpyAsync(bytes.data(), from.data(), bytes.size(), cudaMemcpyDeviceToHost,
                                w.answering),
                "cudaMemcpyAsync to the host");
      CheckCuda(cudaStreamSynchronize(w.answering), "cudaStreamSynchronize");
      return;
    }
    executor_->Copier().ToHost(bytes.data(), from.data(), bytes.size(), w.answering);
  };
  if (strategy_.chunk == 0) copy(places_.found, batch_.found, w.found);
  copy(places_.results, batch_.results, w.results);
}

bool CudaBatchTask::Done() {
  const RelaxedCapture relaxed;
  return !running_ || cudaEventQuery(workspace_->enqueued) != cudaErrorNotReady;
}

Progress CudaBatchTask::Await() {
  if (running_) {
    running_ = false;
    const CurrentDevice current = executor_->Activate();
    std::exception_ptr copy_failure;
    const auto copy = [&](void (CudaBatchTask::*copies)()) {
      try {
        if (!copy_failure) (this->*copies)();
      } catch (...) {
        copy_failure = std::current_exception();
      }
    };
    try {
      copy(&CudaBatchTask::CopyChunks);
      progress_ = executor_->Collect(workspace_.get());
      if (host_) progress_.read_by_host = host_->RowsRead();
      host_ = {};
      if (writer_) progress_.written_by_host = workspace_->cells_taken;
      writer_ = {};
      if (answers_early_) {
        executor_->find_history().AddAnswers(workspace_->answers_left != 0);
      }
      if (std::exchange(is_first_phase_, false)) {
        FindHistory& history = executor_->find_history();
        if (Accumulates()) history.AddLongRuns(device_.count, workspace_->long_run_rows);
        if (strategy_.tells_of_writes && progress_.shortages() == 0) {
          history.AddWrites(device_.count, workspace_->cells_taken);
        }
      }
      if (reported_early_.words != nullptr && workspace_->answers_left != 0) {
        FinishReported();
        progress_ = executor_->Collect(workspace_.get());
      }
      if ((strategy_.finds() || strategy_.searches()) && strategy_.queues_reads) {
        executor_->find_history().AddHits(progress_.found, progress_.cache_hits);
      }
      if (strategy_.kernels == Strategy::Kernels::kFindTiles && strategy_.queues_reads) {
        executor_->find_history().Add(device_.count, progress_.found, progress_.cache_hits,
                                      strategy_.shares_reads, workspace_->reads_shared);
      }
      copy(&CudaBatchTask::CopyToPageable);
      progress_.copy_failure = copy_failure;
    } catch (...) {
      Abandon();
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
  const auto carry_out = [&](bool final, const CellGrant& cells) {
    try {
      const DriverTurns::Launching turn;
      workspace_->ContinueOn(stream_);  // which may be the calling thread's own
      const bool was_filled = context_.reclaim.grant.filled();
      MakeContext(cells);  // the table, and its queues, may have grown
      device_.long_sums = nullptr;
      if (was_filled) BringValues(stream_);
      DrainBeside({});
      CarryOut(true, final);
    } catch (...) {
      Abandon();
      throw;
    }
    return Await();
  };
  Progress all = carry_out(final_attempt, grant);
  // The next part begins with what is left of the cells, and with room to be made for it.
  while (all.shortages() == 0 && strategy_.small_part != 0 &&
         (part_ + 1) * strategy_.small_part < device_.count) {
    ++part_;
    CellGrant left{grant.first + grant.count - all.cells_left, all.cells_left};
    left.kept = std::min(grant.kept, left.count);
    const Progress next = carry_out(false, left);
    all.items_added += next.items_added;
    all.found += next.found;
    all.cache_hits += next.cache_hits;
    all.carried_out += next.carried_out + strategy_.small_part;
    all.short_of_slots = next.short_of_slots;
    all.short_of_cells = next.short_of_cells;
    all.cells_left = next.cells_left;
    all.positions = next.positions;
    if (next.copy_failure) all.copy_failure = next.copy_failure;
  }
  progress_ = all;
  return all;
}

std::shared_ptr<BatchTask> CudaExecutor::Prepare(const Batch& batch, Stream stream,
                                                 Answers answers) {
  RefuseStream(stream, device_, "batch");
  const DriverTurns::Launching turn;
  const CurrentDevice current = Activate();
  auto task = std::make_shared<CudaBatchTask>(
      this, batch, BatchPlaces::Of(batch, key_size_, device_), stream, answers);
  task->Allocate();
  return task;
}

}  // namespace gpm
