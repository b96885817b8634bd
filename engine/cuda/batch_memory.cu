#include <bit>
#include <cstring>

#include "engine/cuda/batch_task.h"
#include "pm/driver_turns.h"

// How a batch is to be carried out, and the GPU memory that this takes.

namespace gpm {

Strategy CudaBatchTask::Choose() const {
  StrategyInputs inputs;
  inputs.operations = batch_.results.size();
  inputs.finds_only = batch_.ops.empty() && batch_.op == Op::kFind;
  inputs.writes_only = batch_.ops.empty() && Writes(batch_.op) && !GivesValue(batch_.op);
  inputs.accumulates = inputs.writes_only && batch_.op == Op::kAccumulate;
  // (A thread writes a key of several words as so many stores.)
  const bool writes_keys = batch_.op != Op::kUpdate && KeyWords(executor_->key_size()) > 1;
  inputs.host_can_write = !writes_keys && places_.values == Place::kPinned &&
                          !batch_.values.empty() && batch_.found.empty() &&
                          batch_.op != Op::kAccumulate && executor_->cell_bytes() != 0 &&
                          !executor_->needs_flush();
  inputs.writes_most = executor_->find_history().WritesMost();
  inputs.adds_long_runs =
      Accumulates() && executor_->find_history().AddsLongRuns() &&
      LongSum::CanAdd(batch_.element, executor_->value_size(), places_.values_at);
  inputs.to_host = places_.found != Place::kDevice;
  inputs.reads_cells = executor_->cell_bytes() != 0 && !batch_.found.empty();
  inputs.has_directory = executor_->has_directory();
  inputs.has_cache = executor_->has_cache();
  inputs.shares = MayShare(inputs) && executor_->find_history().Shares();
  inputs.mostly_cached = executor_->find_history().MostlyCached();
  inputs.tiles = std::uint64_t{kTilesPerBlock} * executor_->multiprocessors();
  inputs.read_share = executor_->find_history().ReadShare();
  inputs.pool_bytes = executor_->pool_bytes();
  inputs.value_size = executor_->value_size();
  inputs.access = executor_->access();
  return ChooseStrategy(inputs);
}

bool CudaBatchTask::MayWriteOut() const {
  if (places_.found == Place::kDevice && places_.results == Place::kDevice) return false;
  if (places_.managed) return false;  // no kernel of the batch's tells the host then
  const bool pageable = places_.found == Place::kPageable || places_.results == Place::kPageable;
  if (pageable && !stages_) return false;
  if (places_.results == Place::kPinned && places_.results_at == nullptr) return false;
  if (places_.found != Place::kDevice) {
    // (A row of another length, or of 8 bytes by a thread, or as a copy, is many small writes.)
    const std::uint32_t row = executor_->value_size();
    const bool tiles = strategy_.kernels == Strategy::Kernels::kFindTiles;
    if (row % 16 != 0 && (row != 8 || !tiles)) return false;
    const auto at = reinterpret_cast<std::uintptr_t>(places_.found_at);
    if (places_.found == Place::kPinned && (at == 0 || at % 16 != 0)) return false;
  }
  using Kernels = Strategy::Kernels;
  switch (strategy_.kernels) {
    case Kernels::kFindLong:
      return true;
    case Kernels::kSmall:  // (finds of a key copy the row of the first one, from over the link)
      return places_.found == Place::kDevice ||
             executor_->value_size() <= StrategyThresholds::kAheadUpToBytes;
    case Kernels::kFindTiles:  // (who shares a read copies the row of another find)
      return !strategy_.shares_reads;
    case Kernels::kFindThreads:  // (the same, but of what the cache has)
      return batch_.results.size() <= StrategyThresholds::kChunk &&
             (strategy_.copies_cached || !strategy_.plans_reads);
    default:  // results are written in the order of keys
      return false;
  }
}

void CudaBatchTask::StageInputs() {
  const auto stage = [&](std::span<const std::byte> array, const std::byte** at) {
    try {
      workspace_->staged_input.Reserve(array.size());
    } catch (const Error&) {
      return;  // where such memory is short it is copied to the GPU's
    }
    std::byte* const to = workspace_->staged_input.data();
    *at = to;
    if (array.size() <= HostCopier::kLeftToDriver) {
      std::memcpy(to, array.data(), array.size());
      return;
    }
    const DriverTurns::Break pause;
    executor_->Copier().CopyHost(to, array.data(), array.size());
  };
  const auto may_stage = [](Place place, std::span<const std::byte> array) {
    return place == Place::kPageable && array.size() <= HostCopier::kStagedInputUpTo;
  };
  const bool few = batch_.results.size() < StrategyThresholds::kThreadsFrom || writes_out_;
  if (strategy_.finds() && few && !ArePadded(executor_->key_size())) {
    if (may_stage(places_.keys, batch_.keys)) stage(batch_.keys, &places_.keys_at);
    const auto at = reinterpret_cast<std::uintptr_t>(places_.keys_at);
    keys_there_ = places_.keys != Place::kDevice && at != 0 && at % 8 == 0;
  } else if (strategy_.kernels == Strategy::Kernels::kSmall && !Accumulates() && !MakesValues() &&
             may_stage(places_.values, batch_.values)) {
    stage(batch_.values, &places_.values_at);
  }
}

/// Chooses the strategy and allocates what it needs, so that nothing is short once it has begun.
void CudaBatchTask::Allocate() {
  Workspace& w = *workspace_;
  const std::uint64_t n = batch_.results.size();
  bool copies = false;
  const auto reserve = [&](Place place, auto array, DeviceArray<std::byte>* to) {
    if (place != Place::kDevice) to->Reserve(array.size_bytes());
    copies |= place == Place::kPageable && array.size_bytes() > HostCopier::kLeftToDriver;
  };
  strategy_ = Choose();
  const std::uint64_t outputs =
      PageableBytes(places_.results, batch_.results) + PageableBytes(places_.found, batch_.found);
  stages_ = strategy_.chunk == 0 && outputs != 0 && outputs <= HostCopier::kStagedUpTo;
  if (stages_) {
    try {
      w.staged.Reserve(outputs);
    } catch (const Error&) {
      stages_ = false;  // where such memory is short they come in pieces
    }
  }
  writes_out_ = MayWriteOut();
  StageInputs();
  reserve(places_.ops, batch_.ops, &w.ops);
  if (!keys_there_) reserve(places_.keys, batch_.keys, &w.keys);
  if (ArePadded(executor_->key_size())) {
    w.padded_keys.Reserve(n * KeyWords(executor_->key_size()));
  }
  if (MakesValues()) {
    w.values.Reserve(n * executor_->value_size());
    w.initial.Reserve(batch_.initial.row.size());
    copies |=
        places_.values == Place::kPageable || batch_.initial.row.size() > HostCopier::kLeftToDriver;
  } else if (places_.values_at == nullptr) {
    reserve(places_.values, batch_.values, &w.values);
  }
  if (Accumulates()) w.added.Reserve(batch_.values.size());
  if (!writes_out_) {
    reserve(places_.found, batch_.found, &w.found);
    reserve(places_.results, batch_.results, &w.results);
  }
  copies |= stages_ && outputs > HostCopier::kLeftToDriver;
  if (copies) executor_->Copier();  // is made
  reads_.last = static_cast<std::uint32_t>(n);
  if (strategy_.queues_reads) AllocateReads(n);
  if (strategy_.reads_by_host) host_ = executor_->TakeHostReader();
  reads_.copies_cached = strategy_.copies_cached;
  if (strategy_.finds()) return;
  w.records.Reserve(n);
  const bool small = strategy_.kernels == Strategy::Kernels::kSmall;
  if (executor_->needs_flush()) {
    // (A value that is written ahead may not be the one that stays.)
    const std::uint64_t cells = (small ? 2 : 1) * executor_->cell_bytes();
    w.dirty_lines.Reserve(n * (8 * KeyWords(executor_->key_size()) + cells) / 64 + 6 * n);
    w.dirty_count.Reserve(1);
  }
  if (small) {
    w.digests.Reserve(n);
    return;
  }
  w.effects.Reserve(n);
  if (Accumulates()) w.long_sums.Reserve(n / LongSum::kFewest + 1);
  if (strategy_.searches()) {
    w.pending.Reserve(ShapeQueues(n, Workspace::kPending, &pending_));
    pending_.items = w.pending.data();
    if (executor_->cell_bytes() != 0) {
      w.dealt.Reserve(ShapeQueues(n, Workspace::kDealt, &cells_));
      cells_.items = w.dealt.data();
    }
  }
  w.hashes.Reserve(n);
  w.other_hashes.Reserve(n);
  w.order.Reserve(n);
  w.other_order.Reserve(n);
  if (strategy_.groups) {
    w.digests.Reserve(n);
    w.bin_counts.Reserve(BinCounts());
    return;
  }
  SortHashes(nullptr);
  ScanEffects(nullptr);
  w.library.Reserve(std::max(sort_bytes_, scan_bytes_));
}

/// Shapes queues for so many items, and gives them counts. @return elements that they need
template <class Item>
std::uint64_t CudaBatchTask::ShapeQueues(std::uint64_t items, Workspace::Queues kind,
                                         SmQueues<Item>* queues) {
  queues->queues = SmQueues<Item>::QueuesFor(executor_->multiprocessors());
  queues->room = SmQueues<Item>::RoomFor(items, queues->queues);
  queues->counts = workspace_->queue_counts.data() + kind * SmQueues<Item>::kCounts;
  return queues->SizeFor(items);
}

void CudaBatchTask::AllocateReads(std::uint64_t operations) {
  static_assert(sizeof(ReadPlan) == 8);
  Workspace& w = *workspace_;
  // Each slice has queues of its own, one behind the other. A later phase has one slice alone, and
  // its queues may run over into the second's.
  const std::uint64_t rows = RoundUp(operations, 2);  // so that the bins are 16-byte aligned
  const std::uint64_t first = strategy_.first_slice != 0 ? strategy_.first_slice
                              : strategy_.chunk != 0     ? strategy_.chunk
                                                         : rows;
  const std::uint64_t second = RoundUp(ShapeQueues(first, Workspace::kReads, &reads_.queues), 2);
  std::uint64_t queued = second;
  if (strategy_.first_slice != 0) {
    queued += RoundUp(ShapeQueues(rows - first, Workspace::kSecondReads, &second_queues_), 2);
  }
  const std::uint64_t bin_words = strategy_.orders_reads ? AddressOrder::kBins / 2 : 0;
  const std::uint64_t claims = strategy_.shares_reads ? std::bit_ceil(2 * operations) : 0;
  const std::uint64_t copies = strategy_.copies_rows ? rows : 0;
  const bool plans = strategy_.plans_reads;
  const std::uint64_t flag_words = Reads::kFlags / 2 * StrategyThresholds::kMostChunks;
  w.reads.Reserve(queued + (plans ? rows + flag_words + bin_words + claims + copies : 0));
  reads_.queues.items = w.reads.data();
  if (strategy_.first_slice != 0) second_queues_.items = w.reads.data() + second;
  if (!plans) return;
  std::uint64_t* at = w.reads.data() + queued;
  reads_.plans = reinterpret_cast<ReadPlan*>(at);
  reads_.flags = reinterpret_cast<std::uint32_t*>(at += rows);
  reads_.copies.count = reads_.flags + Reads::kCopies;
  at += flag_words;
  if (bin_words != 0) reads_.order.bins = reinterpret_cast<std::uint32_t*>(at);
  at += bin_words;
  if (claims != 0) {
    reads_.sharing.claims = at;
    reads_.sharing.claim_bits = static_cast<std::uint32_t>(std::bit_width(claims) - 1);
  }
  at += claims;
  if (copies != 0) reads_.copies.rows = at;
  clear_words_ = flag_words + bin_words + claims;
}

}  // namespace gpm
