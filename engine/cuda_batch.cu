#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <string>

#include "engine/cuda_executor.h"
#include "engine/cuda_finds.cuh"
#include "engine/cuda_small.cuh"

namespace gpm {
namespace {

/// Operations of a batch of finds from which on a thread for each is enough.
constexpr std::uint64_t kLargeFrom = std::uint64_t{1} << 14;
/// Operations of a batch from which on the first part is read while the rest is looked up, and that
/// part's share.
constexpr std::uint64_t kSplitFrom = std::uint64_t{1} << 18;
constexpr std::uint64_t kFirstShare = 3;
/// Blocks that read in order, in larger pools: few pages are then in use at a time.
constexpr unsigned kReadingBlocks = 64;
/// Blocks of CarryOutRuns, or of CarryOutParts, that a multiprocessor runs at once.
constexpr std::uint32_t kBusyBlocks = 3;

/// The effects of a sorted batch's operations, for a scan.
auto OneByOne(const DeviceBatch& batch, std::uint32_t key_words) {
  return thrust::make_transform_iterator(thrust::counting_iterator<std::uint32_t>(0),
                                         SingleEffects{batch, key_words});
}

/// Where an array of a batch lies. @throws Error(kInvalidArgument) for memory of another device
bool IsOnDevice(const void* pointer, int device, const char* name) {
  cudaPointerAttributes attributes{};
  CheckCuda(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
    return false;
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("batch: '") + name + "' is in the memory of device " +
                    std::to_string(attributes.device) + ", the store runs on device " +
                    std::to_string(device) + "; use host memory or that device's");
  }
  return true;
}

/// A batch on the cuda executor: its arrays where kernels reach them, and where it stands.
class CudaRun : public Run {
 public:
  CudaRun(CudaExecutor* executor, const Batch& batch, cudaStream_t stream)
      : executor_(executor),
        batch_(batch),
        stream_(stream),
        workspace_(executor->TakeWorkspace()) {}
  ~CudaRun() override;

  /// Finds out where the arrays are. @throws Error(kInvalidArgument)
  void Place();
  void Allocate();
  void Start(const Epochs::SlotRange& give_back, const CellGrant& grant) override;
  Progress Await() override;
  Progress Resume(bool give_up, const CellGrant& grant) override;

 private:
  /// How the operations are carried out (cuda_finds.cuh, cuda_runs.cuh).
  enum class Way : std::uint8_t { kFinds, kSmall, kSorted };

  template <class T>
  const T* Input(const void* host, std::uint64_t bytes, bool on_device, DeviceArray<std::byte>* to);
  void Enqueue(const Epochs::SlotRange& give_back, const CellGrant& grant);
  void MakeContext(const CellGrant& grant);
  void Sort();
  void CarryOut(bool again, bool give_up);
  void Find();
  template <class Item>
  std::uint64_t ShapeLists(std::uint64_t items, Workspace::Lists kind, PartLists<Item>* lists);
  void AllocateReads(std::uint64_t operations);
  /// Empties what plans reads. @param plans whether the plans too
  void ClearReads(bool plans);
  void SearchAndCarryOut();
  /// @param count_hits whether the cache's hits are counted there
  void ReadPlanned(const Reads& reads, bool count_hits);
  // What is enqueued on the side stream between Fork and Join runs beside what is enqueued on the
  // batch's own meanwhile.
  void Fork();
  /// Forks, and reads. What is enqueued on the side stream begins, as far as the GPU can tell, when
  /// all blocks that read have: there is one on each multiprocessor then, however much room the
  /// others take.
  void ForkAndRead(const Reads& reads, bool count_hits);
  void Join();
  /// Takes the answers to where the user wants them, and reports where no kernel did.
  void Finish();
  bool OnDevice() const {  ///< what the batch gives back
    return results_on_device_ && (batch_.found.empty() || found_on_device_);
  }

  CudaExecutor* executor_;
  Batch batch_;
  cudaStream_t stream_;
  std::unique_ptr<Workspace> workspace_;
  DeviceBatch device_{};
  TableContext context_{};
  Reads reads_;
  PartLists<std::uint64_t> second_lists_;  ///< of the second part of a large batch
  PartLists<std::uint32_t> pending_;       ///< sorted positions at which runs end
  PartLists<std::uint32_t> cells_;         ///< free ones, for those
  Reporter reporter_;                      ///< of this phase
  Reporter kernel_reporter_;  ///< the same for a kernel of the batch's, if one is to report
  bool ops_on_device_ = false;
  bool keys_on_device_ = false;
  bool values_on_device_ = false;
  bool found_on_device_ = false;
  bool results_on_device_ = false;
  Way way_ = Way::kSorted;
  bool searches_ = false;          ///< SearchRuns comes first
  std::uint64_t clear_bytes_ = 0;  ///< of `reads_`, from its flags on
  std::size_t sort_bytes_ = 0;     ///< temporary storage that CUB asks for
  std::size_t scan_bytes_ = 0;
  std::uint64_t found_before_ = 0;  ///< counted in the phase before
  std::uint64_t hits_before_ = 0;
  bool running_ = false;
  Progress progress_;
};

CudaRun::~CudaRun() {
  if (workspace_ == nullptr) return;
  try {
    Await();
  } catch (...) {
    return;
  }
  executor_->ReturnWorkspace(std::move(workspace_));
}

void CudaRun::Place() {
  const int device = executor_->device();
  const auto locate = [&](const void* pointer, std::size_t bytes, const char* name) {
    return bytes > 0 && IsOnDevice(pointer, device, name);
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

/// Allocates what the batch needs, so that nothing is short once it has begun.
void CudaRun::Allocate() {
  Workspace& w = *workspace_;
  const std::uint64_t n = batch_.results.size();
  if (!ops_on_device_) w.ops.Reserve(batch_.ops.size());
  if (!keys_on_device_) w.keys.Reserve(batch_.keys.size());
  if (!values_on_device_) w.values.Reserve(batch_.values.size());
  if (!found_on_device_) w.found.Reserve(batch_.found.size());
  if (!results_on_device_) w.results.Reserve(n);
  reads_.last = static_cast<std::uint32_t>(n);
  const bool wants_cells = executor_->cell_bytes() != 0 && !batch_.found.empty();
  const AccessOptions& access = executor_->access();
  const bool deferred = wants_cells && n <= Reads::kMaxOperations && access.by_address;
  way_ = n <= kSmallBatch ? Way::kSmall : Way::kSorted;
  // Unless values are read together or cached, several finds of a key had better be one; without a
  // directory too.
  const bool finds = batch_.ops.empty() && batch_.op == Op::kFind;
  const bool apart = (deferred && n >= kLargeFrom) || !wants_cells || executor_->has_cache();
  if (finds && (!access.combine || (executor_->has_directory() && apart))) way_ = Way::kFinds;
  searches_ = way_ == Way::kSorted && executor_->has_directory() && n <= Reads::kMaxOperations &&
              (deferred || !wants_cells);
  // The few reads of a small batch that also writes are made at once: a kernel of their own took
  // longer than they did.
  if (deferred && way_ != Way::kSmall) AllocateReads(n);
  if (way_ == Way::kFinds) return;
  w.effects.Reserve(n);
  w.records.Reserve(n);
  if (executor_->needs_flush()) {
    // (A value that was written ahead may be another one in the end.)
    const std::uint64_t cells = (way_ == Way::kSmall ? 2 : 1) * executor_->cell_bytes();
    w.dirty_lines.Reserve(n * (batch_.keys.size() / n + cells) / 64 + 6 * n);
    w.dirty_count.Reserve(1);
  }
  if (way_ == Way::kSmall) return;
  if (searches_) {
    w.pending.Reserve(ShapeLists(n, Workspace::kPending, &pending_));
    pending_.items = w.pending.data();
    if (executor_->cell_bytes() != 0) {
      w.dealt.Reserve(ShapeLists(n, Workspace::kDealt, &cells_));
      cells_.items = w.dealt.data();
    }
  }
  w.hashes.Reserve(n);
  w.sorted_hashes.Reserve(n);
  w.order.Reserve(n);
  w.sorted_order.Reserve(n);
  const int count = static_cast<int>(n);
  CheckCuda(
      cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes_, w.hashes.data(), w.sorted_hashes.data(),
                                      w.order.data(), w.sorted_order.data(), count, 0, 32, stream_),
      "DeviceRadixSort");
  CheckCuda(cub::DeviceScan::InclusiveScan(nullptr, scan_bytes_, OneByOne(device_, 0),
                                           w.effects.data(), ComposeEffects{}, count, stream_),
            "DeviceScan");
  w.library.Reserve(std::max(sort_bytes_, scan_bytes_));
}

/// Shapes lists of items by part, and gives them counts. @return elements that they need
template <class Item>
std::uint64_t CudaRun::ShapeLists(std::uint64_t items, Workspace::Lists kind,
                                  PartLists<Item>* lists) {
  lists->parts = PartLists<Item>::PartsFor(executor_->multiprocessors());
  lists->room = PartLists<Item>::RoomFor(items, lists->parts);
  lists->counts = workspace_->list_counts.data() + kind * PartLists<Item>::kCounts;
  return lists->SizeFor(items);
}

void CudaRun::AllocateReads(std::uint64_t operations) {
  static_assert(sizeof(ReadPlan) == 8);
  const bool large = operations >= kLargeFrom;
  const bool finds = way_ == Way::kFinds;
  Workspace& w = *workspace_;
  const bool plans = !finds || large;
  const bool in_order = large && executor_->pool_bytes() > executor_->access().dealt_up_to;
  // Each part has lists of its own, one behind the other: reads of one part alone (those of a later
  // phase) may run over into the second.
  const bool split = (finds || searches_) && !in_order && operations >= kSplitFrom;
  const std::uint64_t rows = RoundUp(operations, 2);  // so that the bins are 16-byte aligned
  const std::uint64_t some = split ? rows / kFirstShare : rows;
  std::uint64_t lists = RoundUp(ShapeLists(some, Workspace::kReads, &reads_.lists), 2);
  const std::uint64_t second = lists;
  if (split) lists += RoundUp(ShapeLists(rows - some, Workspace::kSecondReads, &second_lists_), 2);
  const std::uint64_t bin_words = in_order ? Reads::kBins / 2 : 0;
  const bool combines = finds && large && executor_->access().combine;
  const std::uint64_t claims = combines ? std::bit_ceil(2 * operations) : 0;
  w.reads.Reserve(lists + (plans ? rows + Reads::kFlags + bin_words + claims : 0));
  reads_.lists.items = w.reads.data();
  if (split) second_lists_.items = w.reads.data() + second;
  if (!plans) return;
  std::uint64_t* at = w.reads.data() + lists;
  reads_.plans = reinterpret_cast<ReadPlan*>(at);
  reads_.flags = reinterpret_cast<std::uint32_t*>(at += rows);
  at += Reads::kFlags;
  if (in_order) reads_.bins = reinterpret_cast<std::uint32_t*>(at);
  at += bin_words;
  if (combines) {
    reads_.claims = at;
    reads_.claim_bits = static_cast<std::uint32_t>(std::bit_width(claims) - 1);
  }
  clear_bytes_ = 8 * (Reads::kFlags + bin_words + claims);
}

template <class T>
const T* CudaRun::Input(const void* host, std::uint64_t bytes, bool on_device,
                        DeviceArray<std::byte>* to) {
  if (bytes == 0) return nullptr;
  if (on_device) return static_cast<const T*>(host);
  CheckCuda(cudaMemcpyAsync(to->data(), host, bytes, cudaMemcpyHostToDevice, stream_),
            "cudaMemcpyAsync to the device");
  return reinterpret_cast<const T*>(to->data());
}

void CudaRun::Start(const Epochs::SlotRange& give_back, const CellGrant& grant) {
  executor_->Activate();
  try {
    Enqueue(give_back, grant);
  } catch (...) {
    cudaStreamSynchronize(stream_);  // what was enqueued works on memory that is about to be reused
    workspace_.reset();              // and left it who knows how
    throw;
  }
}

void CudaRun::Enqueue(const Epochs::SlotRange& give_back, const CellGrant& grant) {
  Workspace& w = *workspace_;
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
  device_.sums = w.sums.data();
  MakeContext(grant);
  executor_->GiveBack(give_back, stream_);
  if (grant.count > 0) executor_->AwaitSortedCells(stream_);
  if (way_ == Way::kFinds) {
    Find();
    Finish();
    return;
  }
  if (way_ == Way::kSorted) Sort();
  CarryOut(false, false);
}

/// Takes the executor's context, with the cells granted and, where the medium needs flushing, a log
/// of the lines written; and begins a phase.
void CudaRun::MakeContext(const CellGrant& grant) {
  Workspace& w = *workspace_;
  context_ = executor_->NextContext();
  context_.reclaim.grant = grant;
  context_.reclaim.taken = &w.sums.data()->cells_taken;
  reporter_ = executor_->NextReport(grant, &w);
  reads_.cell_bytes = static_cast<std::uint32_t>(context_.table.cell_bytes);
  if (reads_.bins != nullptr) {
    const std::uint64_t cells = executor_->mapped_bytes() / reads_.cell_bytes;
    const auto bits = static_cast<std::uint32_t>(std::bit_width(cells));
    constexpr std::uint32_t kBinBits = std::bit_width(Reads::kBins) - 1;
    reads_.bin_shift = bits > kBinBits ? bits - kBinBits : 0;
  }
  kernel_reporter_ = OnDevice() ? reporter_ : Reporter{};
  if (!executor_->needs_flush() || way_ == Way::kFinds) return;
  CheckCuda(cudaMemsetAsync(w.dirty_count.data(), 0, 8, stream_), "cudaMemsetAsync");
  context_.dirty = DirtyLog{w.dirty_lines.data(), w.dirty_count.data(), w.dirty_lines.size()};
}

/// Sorts the batch by key hash and finds the effect of each run.
void CudaRun::Sort() {
  Workspace& w = *workspace_;
  const int n = static_cast<int>(device_.count);
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  HashKeys<<<blocks, kBlockThreads, 0, stream_>>>(context_, device_, w.hashes.data(),
                                                  w.order.data());
  CheckLaunch("HashKeys");
  CheckCuda(cub::DeviceRadixSort::SortPairs(w.library.data(), sort_bytes_, w.hashes.data(),
                                            w.sorted_hashes.data(), w.order.data(),
                                            w.sorted_order.data(), n, 0, 32, stream_),
            "DeviceRadixSort");
  device_.hashes = w.sorted_hashes.data();
  device_.order = w.sorted_order.data();
  CheckCuda(cub::DeviceScan::InclusiveScan(w.library.data(), scan_bytes_,
                                           OneByOne(device_, context_.table.key_words),
                                           w.effects.data(), ComposeEffects{}, n, stream_),
            "DeviceScan");
}

void CudaRun::CarryOut(bool again, bool give_up) {
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kTilesPerBlock));
  if (way_ == Way::kSmall) {
    workspace_->changes.Launch(
        {{CarryOutSmall, blocks, kSmallThreads, false, context_, device_, again, give_up},
         {AnswerOperations<kTileLanes>, blocks, kBlockThreads, true, context_, device_,
          kernel_reporter_}},
        stream_);
    Finish();
    return;
  }
  ClearReads(true);
  const bool searched = searches_ && !again;
  if (searched) {
    SearchAndCarryOut();
  } else {
    const std::uint32_t busy = executor_->multiprocessors() * kBusyBlocks;
    const std::uint32_t span =
        std::clamp<std::uint32_t>(device_.count / busy / 32 * 32, kTilesPerBlock, kBlockThreads);
    CarryOutRuns<<<static_cast<unsigned>(BlocksFor(device_.count, span)), kBlockThreads, 0,
                   stream_>>>(context_, device_, reads_, span, give_up);
    CheckLaunch("CarryOutRuns");
    ReadPlanned(reads_, false);
  }
  AnswerOperations<1><<<static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads)),
                        kBlockThreads, 0, stream_>>>(context_, device_, kernel_reporter_);
  CheckLaunch("AnswerOperations");
  Finish();
}

void CudaRun::Find() {
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  const bool at_once =
      !reads_.enabled() && device_.found != nullptr && !context_.table.inline_values();
  if (device_.count < kLargeFrom || at_once) {
    const auto tiles = static_cast<unsigned>(BlocksFor(device_.count, kTilesPerBlock));
    if (reads_.enabled()) {
      workspace_->finds.Launch(
          {{FindKeys, tiles, kBlockThreads, false, context_, device_, reads_, Reporter{}},
           {ReadFew, executor_->multiprocessors(), kBlockThreads, false, context_, device_, reads_,
            kernel_reporter_}},
          stream_);
    } else {
      FindKeys<<<tiles, kBlockThreads, 0, stream_>>>(context_, device_, reads_, kernel_reporter_);
      CheckLaunch("FindKeys");
    }
    return;
  }
  ClearReads(false);
  const bool reports = !reads_.enabled();
  const auto search = [&](const Reads& reads, cudaStream_t stream) {
    const std::uint32_t operations = reads.last - reads.first;
    SearchKeys<<<static_cast<unsigned>(BlocksFor(operations, kBlockThreads)), kBlockThreads, 0,
                 stream>>>(context_, device_, reads, reports ? kernel_reporter_ : Reporter{});
    CheckLaunch("SearchKeys");
  };
  Reads reads = reads_;
  if (second_lists_.enabled()) {  // read the first part while the rest is looked up
    reads.last = static_cast<std::uint32_t>(RoundUp(device_.count, 2) / kFirstShare);
    search(reads, stream_);
    ForkAndRead(reads, true);
    reads.first = reads.last;
    reads.last = device_.count;
    reads.lists = second_lists_;
    reads.flags += Reads::kFlags;
    search(reads, workspace_->side);
    Join();
  } else {
    search(reads, stream_);
    if (reports) return;
  }
  ReadPlanned(reads, true);
  CopyReads<<<std::min(blocks, kPassBlocks), kBlockThreads, 0, stream_>>>(context_, device_, reads_,
                                                                          kernel_reporter_);
  CheckLaunch("CopyReads");
}

void CudaRun::ClearReads(bool plans) {
  if (reads_.plans == nullptr) return;
  auto* const flags = reinterpret_cast<std::byte*>(reads_.flags);
  auto* const from = plans ? reinterpret_cast<std::byte*>(reads_.plans) : flags;
  const auto before = static_cast<std::uint64_t>(flags - from);
  CheckCuda(cudaMemsetAsync(from, 0, before + clear_bytes_, stream_), "cudaMemsetAsync");
}

/// Looks up the runs of a large batch, and carries out the others while what those want is read.
void CudaRun::SearchAndCarryOut() {
  Workspace& w = *workspace_;
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  const auto search = [&](const Reads& reads, cudaStream_t stream) {
    const std::uint32_t positions = reads.last - reads.first;
    SearchRuns<<<static_cast<unsigned>(BlocksFor(positions, kBlockThreads)), kBlockThreads, 0,
                 stream>>>(context_, device_, reads, pending_, cells_);
    CheckLaunch("SearchRuns");
  };
  Reads reads = reads_;
  if (second_lists_.enabled()) {  // read for the first part while the rest is looked up
    reads.last = static_cast<std::uint32_t>(RoundUp(device_.count, 2) / kFirstShare);
    search(reads, stream_);
    Reads first = reads;
    first.plans = nullptr;  // what the cache has is copied with the rest
    ForkAndRead(first, false);
    reads.first = reads.last;
    reads.last = device_.count;
    reads.lists = second_lists_;
    search(reads, workspace_->side);
    Join();
    reads.first = 0;  // plans are of operations, not of positions
  } else {
    search(reads, stream_);
  }
  ForkAndRead(reads, false);
  if (cells_.enabled()) {
    DealCells<<<std::min(blocks, kPassBlocks), kBlockThreads, 0, workspace_->side>>>(
        context_, device_.sums, cells_);
    CheckLaunch("DealCells");
  }
  CarryOutParts<<<executor_->multiprocessors() * kBusyBlocks, kBlockThreads, 0, workspace_->side>>>(
      context_, device_, reads_, pending_, cells_);
  CheckLaunch("CarryOutParts");
  Join();
}

void CudaRun::Fork() {
  CheckCuda(cudaEventRecord(workspace_->forked, stream_), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(workspace_->side, workspace_->forked, 0), "cudaStreamWaitEvent");
}
void CudaRun::ForkAndRead(const Reads& reads, bool count_hits) {
  Fork();
  if (!reads.enabled()) return;
  ReadPlanned(reads, count_hits);
  CheckCuda(cudaStreamWaitEvent(workspace_->side, workspace_->reading, 0), "cudaStreamWaitEvent");
}
void CudaRun::Join() {
  CheckCuda(cudaEventRecord(workspace_->joined, workspace_->side), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(stream_, workspace_->joined, 0), "cudaStreamWaitEvent");
}

void CudaRun::ReadPlanned(const Reads& reads, bool count_hits) {
  if (!reads.enabled()) return;
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  const bool copies = reads.plans != nullptr && context_.accelerators.cache.enabled();
  // One a multiprocessor is enough for a few reads; two leave room for another kernel beside.
  unsigned readers = executor_->multiprocessors();
  unsigned all = readers * (copies ? 2 : 1);
  if (reads.bins != nullptr) {
    PlaceBins<<<1, kPlacingThreads, 0, stream_>>>(reads);
    CheckLaunch("PlaceBins");
    PlaceReads<<<std::min(blocks, kPassBlocks), kBlockThreads, 0, stream_>>>(reads, device_.count);
    CheckLaunch("PlaceReads");
    readers = kReadingBlocks;
    if (!copies) all = readers;
  }
  cudaLaunchAttribute begun{};
  begun.id = cudaLaunchAttributeLaunchCompletionEvent;
  begun.val.launchCompletionEvent.event = workspace_->reading;
  cudaLaunchConfig_t launch{};
  launch.gridDim = all;
  launch.blockDim = kBlockThreads;
  launch.stream = stream_;
  launch.attrs = &begun;
  launch.numAttrs = 1;
  CheckCuda(cudaLaunchKernelEx(&launch, ReadValues, context_, device_, reads, readers,
                               count_hits ? &device_.sums->cache_hits : nullptr),
            "ReadValues");
}

void CudaRun::Finish() {
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
  if (kernel_reporter_.report == nullptr) executor_->Report(stream_, context_, reporter_);
  CheckCuda(cudaEventRecord(w.enqueued, stream_), "cudaEventRecord");
  running_ = true;
}

Progress CudaRun::Await() {
  if (running_) {
    running_ = false;
    try {
      progress_ = executor_->Collect(workspace_.get());
    } catch (...) {
      workspace_.reset();  // kernels may still use it: nobody else gets it
      throw;
    }
    // What is carried out in several phases is answered, and its finds counted, in each again.
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

Progress CudaRun::Resume(bool give_up, const CellGrant& grant) {
  executor_->Activate();
  MakeContext(grant);  // the table, and its queues, may have grown
  try {
    CarryOut(true, give_up);
  } catch (...) {
    cudaStreamSynchronize(stream_);
    workspace_.reset();
    throw;
  }
  return Await();
}

}  // namespace

std::shared_ptr<Run> CudaExecutor::Prepare(const Batch& batch, Stream stream) {
  Activate();
  auto run = std::make_shared<CudaRun>(this, batch, stream);
  run->Place();
  run->Allocate();
  return run;
}

}  // namespace gpm
