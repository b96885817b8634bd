#include "crash_sim/grid_run.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "table/key_rows.h"

namespace gpm {

using crash::GridBlock;
using crash::GridReads;
using crash::GridThreads;

namespace {

constexpr std::uint32_t kMostTilesOfBlock = 4;

/// Old values are read by threads beside the tiles.
struct OthersReadApart {
  bool deals;
  crash::GridMachine& machine;
  std::vector<GridReads::Read>& reads;
  std::uint32_t& blocks_begun;

  bool enabled() const { return deals; }
  void ReadApart(std::uint32_t cell, std::uint32_t reader) const {
    reads.push_back({cell, reader});
  }
  void Begun() const {
    machine.FenceDevice(Step::kOther);
    ++blocks_begun;
  }
};

}  // namespace

CpuBatchTask<crash::GridSetup>::GridMachine& CpuBatchTask<crash::GridSetup>::machine() const {
  return static_cast<GridMachine&>(*executor_->persist_.tracer());
}

CpuBatchTask<crash::GridSetup>::Tile CpuBatchTask<crash::GridSetup>::MakeTile() const {
  return Tile(executor_->table_, reclaim_, executor_->locks_, accelerators_, ThreadGroup{},
              executor_->media_);
}

void CpuBatchTask<crash::GridSetup>::Place() {
  const TableView& table = executor_->table_;
  const auto n = static_cast<std::uint32_t>(batch_.results.size());
  grid_.count = n;
  grid_.op = batch_.op;
  grid_.element = batch_.element;
  grid_.ops = batch_.ops.empty() ? nullptr : batch_.ops.data();
  keys_.resize(std::size_t{n} * table.key_words);
  for (std::size_t i = 0; i < n; ++i) {
    PadKey(batch_.keys.data() + i * table.key_size, table.key_size, &keys_[i * table.key_words]);
  }
  grid_.keys = keys_.data();
  grid_.values = batch_.values.empty() ? nullptr : batch_.values.data();
  grid_.found = batch_.found.empty() ? nullptr : batch_.found.data();
  grid_.results = batch_.results.data();
  const auto adds = [](Op op) { return op == Op::kAccumulate; };
  if (batch_.element != Element::kNone &&
      (batch_.ops.empty() ? adds(batch_.op)
                          : std::any_of(batch_.ops.begin(), batch_.ops.end(), adds))) {
    added_.resize(std::size_t{n} * table.value_size);
    grid_.added = added_.data();
  }
  // Sorted by key instead of by hash: there are no runs of several keys.
  order_.resize(n);
  std::iota(order_.begin(), order_.end(), 0);
  const auto compare = [&](std::uint32_t a, std::uint32_t b) {
    return std::memcmp(grid_.KeyOf(a, table.key_words), grid_.KeyOf(b, table.key_words),
                       8 * table.key_words);
  };
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return compare(a, b) < 0; });
  grid_.order = order_.data();
  effects_.resize(n);
  records_.resize(n);
  for (std::uint32_t p = 0; p < n; ++p) {
    const bool begins = p == 0 || compare(order_[p - 1], order_[p]) != 0;
    const Op kind = grid_.KindOf(order_[p]);
    const KeyRunEffect own = EffectOf(kind, grid_.HasValueFor(kind), p, begins, false);
    effects_[p] = begins ? own : ComposeEffects{}(effects_[p - 1], own);
    records_[p] = KeyRunRecord{0, 0, KeyRunStatus::kPending, p};
  }
  mispredictions_.resize(n);
  plans_.resize(n);
  grid_.effects = effects_.data();
  grid_.records = records_.data();
  grid_.mispredictions = mispredictions_.data();
  grid_.sums = &sums_;
}

void CpuBatchTask<crash::GridSetup>::Phase(const CellGrant& grant) {
  accelerators_ = executor_->NextAccelerators();
  sums_ = {};
  grant_ = grant;
  reclaim_ = executor_->queues_.View(grant, &sums_.cells_taken);
  tiles_of_block_ = 1;
  if (machine().on_grid()) tiles_of_block_ += machine().Random() % kMostTilesOfBlock;
}

void CpuBatchTask<crash::GridSetup>::EndPhase() {
  progress_ = Progress{};
  progress_.items_added = static_cast<std::int64_t>(sums_.items_added);
  progress_.short_of_slots = sums_.short_of_slots + (sums_.stuck != 0 ? 1 : 0);
  progress_.short_of_cells = sums_.short_of_cells;
  progress_.carried_out = sums_.carried_out;
  progress_.drained = sums_.undrained == 0;
  progress_.cells_left = grant_.count - std::min(grant_.count, sums_.cells_taken);
  progress_.positions = executor_->Positions();
}

bool CpuBatchTask<crash::GridSetup>::DrainBeside(const BucketRange& drain) {
  const TableView& table = executor_->table_;
  if (!table.draining()) return true;
  const auto slots = static_cast<std::uint32_t>(drain.count() << table.slot_bits);
  std::vector<std::function<void()>> bring_up;
  for (std::uint32_t i = 0; i < grid_.count; ++i) {
    bring_up.emplace_back([&, i] {
      const Tile tile = MakeTile();
      if (!BringUp(tile, tile.Locate(grid_.KeyOf(i, table.key_words)))) ++sums_.stuck;
    });
  }
  Kernels(
      slots,
      [&](GridBlock& block, std::uint32_t i) {
        Slot slot;
        if (i < slots) {
          slot = {table.Bucket(table.levels, drain.first + (i >> table.slot_bits)),
                  i & (table.slots - 1)};
        }
        const Team team(crash::GridThreads{&block});
        if (!DrainSlotsBesideBatches(team, MakeTile(), slot)) ++sums_.undrained;
      },
      bring_up, true);
  return sums_.stuck == 0;
}

void CpuBatchTask<crash::GridSetup>::Start(const Epochs::SlotRange& recycle, const CellGrant& grant,
                                           const BucketRange& drain) {
  Phase(grant);
  Place();
  const std::size_t threads = (recycle.to - recycle.from + 1) / 2;
  machine().RunParts(threads, [&](std::size_t i) {
    MakeTile().RecycleSlots(recycle.from + i, recycle.to, threads);
  });
  const bool finds = batch_.ops.empty() ? batch_.op == Op::kFind
                                        : std::all_of(batch_.ops.begin(), batch_.ops.end(),
                                                      [](Op op) { return op == Op::kFind; });
  constexpr Strategy kWays[] = {Strategy::kSmall, Strategy::kSearched, Strategy::kRuns,
                                Strategy::kAlone};
  strategy_ = kWays[machine().Random() % 4];
  const bool directory = accelerators_.directory.enabled();
  if (strategy_ == Strategy::kSearched && !directory) strategy_ = Strategy::kRuns;
  if (!machine().on_grid()) strategy_ = Strategy::kAlone;  // where nobody waits for anybody
  if (finds && machine().Random() % 4 != 0) strategy_ = Strategy::kFinds;
  if (!DrainBeside(drain)) {
    strategy_ = Strategy::kRuns;
    EndPhase();
    return;
  }
  if (strategy_ != Strategy::kAlone && CanWrite() && machine().Random() % 2 == 0) {
    strategy_ = Strategy::kWritten;
  }
  switch (strategy_) {
    case Strategy::kFinds:
      Find();
      break;
    case Strategy::kWritten:
      ApplyWritten();
      break;
    case Strategy::kSmall:
      ApplySmallBatch(false);
      break;
    case Strategy::kSearched:
      AddLongRuns();
      CarryOutSearched();
      break;
    default:
      AddLongRuns();
      ApplyKeyRuns(false);
      break;
  }
  EndPhase();
}

SlotsMade CpuBatchTask<crash::GridSetup>::MakeSlots(std::uint64_t most, std::uint64_t) {
  accelerators_ = executor_->NextAccelerators();
  reclaim_ = executor_->queues_.View();
  SlotsMade slots;
  machine().RunParts(grid_.count, [&](std::size_t i) {
    const auto operation = static_cast<std::uint32_t>(i);
    const Tile tile = MakeTile();
    const std::uint64_t* const key = grid_.KeyOf(operation, executor_->table_.key_words);
    MakeSlotFor(tile, grid_.KindOf(operation), tile.Locate(key), key, most, &slots);
  });
  return slots;
}

Progress CpuBatchTask<crash::GridSetup>::Resume(bool final_attempt, const CellGrant& grant) {
  Phase(grant);
  made_.clear();
  const bool can_run = DrainBeside({});
  if (can_run && strategy_ == Strategy::kSmall && !final_attempt) {
    ApplySmallBatch(true);
  } else if (can_run) {
    ApplyKeyRuns(final_attempt);
  }
  EndPhase();
  return progress_;
}

void CpuBatchTask<crash::GridSetup>::Kernel(
    std::uint32_t tiles, const std::function<void(GridBlock&, std::uint32_t)>& body) {
  Kernels(tiles, body, {});
}

void CpuBatchTask<crash::GridSetup>::Kernels(
    std::uint32_t tiles, const std::function<void(GridBlock&, std::uint32_t)>& body,
    const std::vector<std::function<void()>>& beside, bool ends) {
  const std::uint32_t of_block = tiles_of_block_;
  const std::uint32_t blocks = (tiles + of_block - 1) / of_block;
  std::vector<GridBlock> grid;
  for (std::uint32_t b = 0; b < blocks; ++b) grid.emplace_back(&machine(), of_block, blocks);
  const std::uint32_t threads = blocks * of_block;
  machine().RunKernel(threads + beside.size(), ends, [&](std::size_t i) {
    if (i >= threads) return beside[i - threads]();
    GridBlock& block = grid[i / of_block];
    block.Enter(static_cast<std::uint32_t>(i % of_block));
    block.Meet(false);  // all have entered
    body(block, static_cast<std::uint32_t>(i));
    // The block reports that it is done (ReportWhenLast).
    block.Meet(false);
    if (block.Rank() == 0) machine().FenceDevice(Step::kOther);
  });
}

bool CpuBatchTask<crash::GridSetup>::EndsKeyRun(std::uint32_t p) const {
  return p < grid_.count && (p + 1 == grid_.count || effects_[p + 1].first != effects_[p].first);
}

KeyRunTask CpuBatchTask<crash::GridSetup>::TaskAt(std::uint32_t p) const {
  KeyRunTask task{};
  task.effect = effects_[p];
  task.record = grid_.records + task.effect.first;
  task.was_present = task.record->present != 0;
  task.last = order_[p];
  task.uses = p - task.effect.first + 1;
  if (p < made_.size() && made_[p]) task.made_of = &*made_[p];
  const std::uint32_t find = task.effect.first_find();
  task.reads_old = find != kNoPosition && effects_[find].if_present == kUnchanged;
  return task;
}

/// Finds alone: what is found is read later, by others.
void CpuBatchTask<crash::GridSetup>::Find() {
  const TableView& table = executor_->table_;
  reads_list_.clear();
  Kernel(grid_.count, [&](GridBlock&, std::uint32_t i) {
    if (i >= grid_.count) return;
    const Tile tile = MakeTile();
    const std::uint64_t* const key = grid_.KeyOf(i, table.key_words);
    const Candidates candidates = tile.Locate(key);
    const Outcome outcome = tile.Find(candidates, key);
    grid_.results[i] = ResultOf(Op::kFind, outcome.present);
    if (!outcome.present || grid_.found == nullptr) return;
    std::byte* const row = grid_.FoundOf(i, table.value_size);
    if (table.inline_values()) {
      tile.ReadValue(outcome.reference, row);
    } else if (!tile.ReadCached(candidates, outcome, row)) {
      reads_list_.push_back({tile.CellOf(outcome.reference), i});
    }
  });
  ReadPlanned();
}

void CpuBatchTask<crash::GridSetup>::ReadPlanned() {
  const TableView& table = executor_->table_;
  machine().RunParts(reads_list_.size(), [&](std::size_t k) {
    const GridReads::Read read = reads_list_[k];
    executor_->media_.ReadCell(ThreadGroup{}, grid_.FoundOf(read.operation, table.value_size),
                               table.Cell(read.cell * table.cell_bytes), table.value_size);
  });
  reads_list_.clear();
}

/// One kernel. Values may be on their way before it is known which are wanted, and values as they
/// were are read by the other half of the blocks.
void CpuBatchTask<crash::GridSetup>::ApplySmallBatch(bool again) {
  const TableView& table = executor_->table_;
  const bool ahead = !again && grid_.values != nullptr && !table.inline_values() &&
                     grant_.count >= grid_.count && machine().Random() % 4 != 0 &&
                     (grid_.ops == nullptr || grid_.added == nullptr);
  const bool at_once = ahead && machine().Random() % 2 == 0;
  const bool deals = !table.inline_values() && machine().Random() % 2 == 0;
  reads_list_.clear();
  reads_ = GridReads{};
  reads_.list = &reads_list_;
  std::uint32_t come = 0;
  std::uint32_t done = 0;
  const std::uint32_t blocks = (grid_.count + tiles_of_block_ - 1) / tiles_of_block_;
  const auto await = [&](const std::uint32_t& met) {
    while (met < blocks) machine().Pause();
  };
  std::vector<std::function<void()>> readers;
  if (deals) {
    readers.emplace_back([&] {
      await(come);
      for (std::size_t k = 0; k < reads_list_.size(); ++k) {
        const GridReads::Read read = reads_list_[k];
        executor_->media_.ReadCell(ThreadGroup{}, grid_.FoundOf(read.operation, table.value_size),
                                   table.Cell(read.cell * table.cell_bytes), table.value_size);
      }
      machine().FenceDevice(Step::kOther);
      ++done;
    });
  }
  const std::uint32_t all_done = blocks + static_cast<std::uint32_t>(readers.size());
  Kernels(
      grid_.count,
      [&](GridBlock& block, std::uint32_t p) {
        const Tile tile = MakeTile();
        const bool has_one = p < grid_.count;
        KeyRunTask task{};
        const auto write_ahead = [&](std::uint32_t writer) {
          if (!reclaim_.TakeCell(false, &task.cell)) return;
          task.written = order_[writer];
          tile.WriteAhead(task.cell, grid_.ValueOf(task.written, table.value_size));
        };
        if (at_once && has_one && Writes(grid_.KindOf(order_[p])) &&
            grid_.KindOf(order_[p]) != Op::kAccumulate) {
          write_ahead(p);
        }
        const KeyRunTask ahead_of = task;
        bool ends_run = false;
        bool one_by_one = false;
        if (has_one) {
          task = TaskAt(p);
          task.cell = ahead_of.cell;
          task.written = ahead_of.written;
          ends_run = EndsKeyRun(p) && task.record->status == KeyRunStatus::kPending &&
                     !task.effect.collided();
          one_by_one = EndsKeyRun(p) && task.record->status == KeyRunStatus::kPending && !ends_run;
          const std::uint32_t writer =
              task.effect.if_present < kRemoved ? task.effect.if_present : task.effect.if_absent;
          const bool needs_cell = ends_run && writer < kRemoved;
          if (ahead && !at_once && needs_cell && task.effect.accumulates()) {
            reclaim_.TakeCell(false, &task.cell);  // its value is not known yet
          } else if (ahead && !at_once && needs_cell) {
            write_ahead(writer);
          }
          if (task.cell != 0 && !needs_cell) {
            reclaim_.RetireCell(task.cell);
            task.cell = 0;
          }
        }
        task.active = ends_run;
        ApplyKeyRunTasks(Team(GridThreads{&block}), tile, grid_, reads_, NoCells{}, task,
                         OthersReadApart{deals, machine(), reads_list_, come});
        if (one_by_one) OneByOne(p, false);
        block.Meet(false);
        if (block.Rank() == 0) {
          machine().FenceDevice(Step::kOther);
          ++done;
          while (done < all_done) machine().Pause();
        }
        block.Meet(false);
        if (has_one) AnswerAt(p, false);
      },
      readers);
}

/// Adds the rows of some runs to the values that they find, before they are carried out: here they
/// need not be long.
void CpuBatchTask<crash::GridSetup>::AddLongRuns() {
  made_.clear();
  if (grid_.added == nullptr) return;
  const TableView& table = executor_->table_;
  made_.resize(grid_.count);
  const std::uint64_t some = machine().Random();
  Kernel(grid_.count, [&](GridBlock&, std::uint32_t p) {
    if (!EndsKeyRun(p) || !effects_[p].accumulates() || effects_[p].collided()) return;
    if ((some >> p % 64 & 1) == 0) return;
    const Tile tile = MakeTile();
    const Candidates candidates = tile.Locate(grid_.KeyOf(order_[p], table.key_words));
    const Outcome outcome = tile.Find(candidates, grid_.KeyOf(order_[p], table.key_words), 0);
    if (!outcome.present) return;
    const Addends addends = AddendsOf(grid_, TaskAt(p), table.value_size);
    tile.ReadFound(candidates, outcome, addends.sum);
    AddRows(ThreadGroup{}, addends, table.value_size);
    made_[p] = outcome.reference;
  });
}

/// Looks up the run that ends at a position, and plans how values are read (SearchKeyRuns).
void CpuBatchTask<crash::GridSetup>::Search(std::uint32_t p) {
  const TableView& table = executor_->table_;
  const Tile tile = MakeTile();
  const KeyRunTask task = TaskAt(p);
  const KeyRunEffect& effect = task.effect;
  const std::uint64_t* const key = grid_.KeyOf(task.last, table.key_words);
  const Candidates candidates = tile.Locate(key);
  const Outcome outcome = tile.Find(candidates, key, 0);
  const bool changes = effect.collided() || Changes(effect, outcome.present);
  if (!changes && outcome.present) tile.CountUses(candidates, outcome, task.uses);
  bool hit = false;
  if (grid_.found != nullptr && task.reads_old && !effect.collided()) {
    const std::uint32_t reader = order_[effect.first_find()];
    std::byte* const row = grid_.FoundOf(reader, table.value_size);
    if (outcome.present && !reads_.has_plans()) {
      tile.ReadValue(outcome.reference, row);
    } else if (outcome.present) {
      hit = tile.ReadCached(candidates, outcome, row);
      if (!hit) reads_.PlanFirst(tile.CellOf(outcome.reference), reader);
    }
  }
  const Plan change = PlanOfKeyRun(effect, [](std::uint32_t) { return nullptr; });
  if (changes && !effect.collided() &&
      WritesValue(outcome.present ? change.if_present : change.if_absent)) {
    ++asked_;
    needs_cell_[p] = 1;
  }
  *task.record = KeyRunRecord{static_cast<std::uint16_t>(outcome.present ? 1 : 0),
                              static_cast<std::uint16_t>(hit ? 1 : 0),
                              effect.collided() ? KeyRunStatus::kCollided
                              : changes         ? KeyRunStatus::kPending
                                                : KeyRunStatus::kDone,
                              effect.first};
}

/// Runs are looked up first. Then they are carried out, what was planned is read, and they are
/// answered, all at once; and those that met something else than was found are answered again.
void CpuBatchTask<crash::GridSetup>::CarryOutSearched() {
  const TableView& table = executor_->table_;
  reads_ = GridReads{};
  reads_.list = &reads_list_;
  if (!table.inline_values() && grid_.found != nullptr) {
    reads_.plans = plans_.data();
    reads_.early = true;
  }
  const bool early = reads_.early;
  asked_ = 0;
  needs_cell_.assign(grid_.count, 0);
  reads_list_.clear();
  copies_.clear();
  Kernel(grid_.count, [&](GridBlock&, std::uint32_t p) {
    if (EndsKeyRun(p)) Search(p);
  });
  crash::GridCells lists;
  dealt_.clear();
  if (!table.inline_values() && machine().Random() % 4 != 0) {
    lists.items = &dealt_;
    lists.taken = &dealt_taken_;
    // One more than is asked for: what a block leaves goes back.
    for (std::uint32_t k = 0; k <= asked_; ++k) {
      std::uint32_t cell = 0;
      if (reclaim_.CellAt(k, &cell)) dealt_.push_back(cell);
    }
    sums_.cells_taken += dealt_.size();
  }
  const std::uint32_t blocks = (grid_.count + tiles_of_block_ - 1) / tiles_of_block_;
  std::vector<Cells> cells(blocks);
  std::uint32_t blocks_done = 0;
  const auto is_last = std::make_unique<bool[]>(blocks);
  std::vector<std::function<void()>> beside;
  if (early) {
    for (std::uint32_t p = 0; p < grid_.count; ++p) {
      beside.emplace_back([this, p] { AnswerAt(p, true); });
    }
    for (const GridReads::Read read : std::vector(reads_list_)) {
      beside.emplace_back([this, &table, read] {
        executor_->media_.ReadCell(ThreadGroup{}, grid_.FoundOf(read.operation, table.value_size),
                                   table.Cell(read.cell * table.cell_bytes), table.value_size);
      });
    }
  }
  Kernels(
      grid_.count,
      [&](GridBlock& block, std::uint32_t p) {
        const Tile tile = MakeTile();
        const GridThreads threads{&block};
        Cells& own = cells[p / tiles_of_block_];
        if (block.Rank() == 0) own.at.block = &block;
        own.Begin(threads, lists);
        KeyRunTask task{};
        if (EndsKeyRun(p)) task = TaskAt(p);
        task.active = EndsKeyRun(p) && task.record->status != KeyRunStatus::kDone;
        if (task.active && task.effect.collided()) {
          OneByOne(p, false);
          task.active = false;
        }
        const bool needs_cell = p < grid_.count && needs_cell_[p] != 0;
        const CellsAsked<Cells, GridThreads> asked{&own, threads,
                                                   own.Ask(threads, tile.group(), needs_cell)};
        ApplyKeyRunTasks(Team(threads), tile, grid_, reads_, asked, task, NobodyReadsApart{});
        if (threads.IsLastBlock(&blocks_done, &is_last[p / tiles_of_block_])) {
          own.ReturnLeft(threads, reclaim_);
        }
      },
      beside);
  reads_list_.clear();
  if (!early) return AnswerAll(false);
  for (const GridReads::Read copy : copies_) {
    std::memcpy(grid_.FoundOf(copy.operation, table.value_size),
                grid_.FoundOf(copy.cell, table.value_size), table.value_size);
  }
  CorrectAll();
}

/// Without a search before, or what one left; in the way that goes through operations one by one,
/// or when nothing more can be done for what lacks room.
void CpuBatchTask<crash::GridSetup>::ApplyKeyRuns(bool final_attempt) {
  const TableView& table = executor_->table_;
  reads_ = GridReads{};
  reads_.list = &reads_list_;
  reads_list_.clear();
  if (!table.inline_values() && machine().Random() % 2 == 0) reads_.plans = plans_.data();
  Kernel(grid_.count, [&](GridBlock& block, std::uint32_t p) {
    KeyRunTask task{};
    if (EndsKeyRun(p)) task = TaskAt(p);
    task.active = EndsKeyRun(p) && (task.record->status == KeyRunStatus::kPending ||
                                    task.record->status == KeyRunStatus::kCollided);
    if (task.active && (strategy_ == Strategy::kAlone || final_attempt || task.effect.collided())) {
      OneByOne(p, final_attempt);
      task.active = false;
    }
    ApplyKeyRunTasks(Team(GridThreads{&block}), MakeTile(), grid_, reads_, NoCells{}, task,
                     NobodyReadsApart{});
  });
  ReadPlanned();
  AnswerAll(false);
}

/// Whether all operations are of one kind that writes what the batch gives, and has a cell for
/// each.
bool CpuBatchTask<crash::GridSetup>::CanWrite() const {
  return batch_.ops.empty() && Writes(batch_.op) && !GivesValue(batch_.op) &&
         batch_.op != Op::kAccumulate && grid_.values != nullptr &&
         !executor_->table_.inline_values() &&
         grant_.count - (batch_.op == Op::kUpdate ? 0 : grant_.kept) >= grid_.count;
}

/// Two parts, in the order of the operations: the runs of one are carried out when its values are
/// there, while a thread of the host writes those of the next.
void CpuBatchTask<crash::GridSetup>::ApplyWritten() {
  const TableView& table = executor_->table_;
  constexpr std::uint32_t kParts = 2;
  const auto part_of = [&](std::uint32_t i) { return i * kParts / grid_.count; };
  reads_ = GridReads{};
  reads_.list = &reads_list_;
  std::vector<std::uint32_t> cells(grid_.count);
  for (std::uint32_t i = 0; i < grid_.count; ++i) reclaim_.CellAt(i, &cells[i]);
  reclaim_.grant.assigned = grid_.count;
  std::uint32_t written = 0;  // parts
  const auto write = [&] {
    for (std::uint32_t i = 0; i < grid_.count; ++i) {
      executor_->media_.WriteCell(ThreadGroup{}, table.Cell(cells[i] * table.cell_bytes),
                                  grid_.ValueOf(i, table.value_size), table.value_size);
      if (i + 1 < grid_.count && part_of(i + 1) == part_of(i)) continue;
      machine().FenceSystem(Step::kHostWrittenFence);
      written = part_of(i) + 1;
    }
  };
  Kernels(grid_.count,
          [&](GridBlock& block, std::uint32_t p) {
            KeyRunTask task{};
            if (EndsKeyRun(p)) {
              task = TaskAt(p);
              task.active = true;
              task.written = order_[task.effect.writer()];
              const bool waits = !machine().Leaves(Step::kHostWrittenAwait);
              while (waits && written <= part_of(task.written)) machine().Pause();
              task.cell = reclaim_.TakeAssigned(task.written);
            }
            ApplyKeyRunTasks(Team(GridThreads{&block}), MakeTile(), grid_, reads_, NoCells{}, task,
                             NobodyReadsApart{});
          },
          {write});
  for (std::uint32_t i = 0; i < grid_.count; ++i) reclaim_.ReturnAssigned(i);
  sums_.cells_taken = grid_.count;
  AnswerAll(false);
}

/// ApplyOneByOne.
void CpuBatchTask<crash::GridSetup>::OneByOne(std::uint32_t p, bool final_attempt) {
  const TableView& table = executor_->table_;
  const Tile tile = MakeTile();
  KeyRunRecord& record = records_[effects_[p].first];
  for (; record.next <= p; ++record.next) {
    const std::uint32_t i = order_[record.next];
    const Op op = grid_.KindOf(i);
    const std::uint64_t* const key = grid_.KeyOf(i, table.key_words);
    const Candidates candidates = tile.Locate(key);
    const std::byte* const value =
        grid_.HasValueFor(op) ? grid_.ValueOf(i, table.value_size) : nullptr;
    Plan plan = PlanOf(op, value);
    Addends addends;
    if (plan.if_present == Action::kAdd) {
      addends = grid_.AddendsFor(i, table.value_size);
      addends.rows = value;
      plan.addends = &addends;
    }
    const Outcome outcome = tile.Apply(candidates, key, plan);
    sums_.items_added += static_cast<std::uint64_t>(std::int64_t{ItemsAdded(plan, outcome)});
    if (outcome.shortage != Shortage::kNothing && !final_attempt) {
      ++(outcome.shortage == Shortage::kSlot ? sums_.short_of_slots : sums_.short_of_cells);
      for (std::uint32_t left = record.next; left <= p; ++left) {
        grid_.results[order_[left]] = Result::kNoSpace;
      }
      return;
    }
    if (GivesValue(op, value != nullptr) && outcome.present && grid_.found != nullptr) {
      tile.ReadAndKeep(candidates, outcome, grid_.FoundOf(i, table.value_size));
    } else if (op == Op::kFindOrInsert && value != nullptr && grid_.found != nullptr) {
      std::memcpy(grid_.FoundOf(i, table.value_size), value, table.value_size);
    }
    grid_.results[i] = outcome.shortage != Shortage::kNothing
                           ? Result::kNoSpace
                           : ResultOf(op, outcome.present, grid_.HasValueFor(op));
    ++sums_.carried_out;
  }
  record.status = KeyRunStatus::kSequential;
}

void CpuBatchTask<crash::GridSetup>::AnswerAll(bool early) {
  for (std::uint32_t p = 0; p < grid_.count; ++p) AnswerAt(p, early);
}

/// ResolveResults, ResolveSmall.
void CpuBatchTask<crash::GridSetup>::AnswerAt(std::uint32_t p, bool early) {
  machine().SwitchPoint();
  const TableView& table = executor_->table_;
  const ResultQuery query = QueryAt(grid_, p);
  const KeyRunRecord record = records_[query.first];
  if (record.status != KeyRunStatus::kDone && !(early && record.status == KeyRunStatus::kPending)) {
    ResolvePending(grid_, record, p, query.operation);
    return;
  }
  const Resolved answer = ResolveResult(grid_, query, record.present != 0);
  if (!answer.gives || grid_.found == nullptr) return;
  std::byte* const row = grid_.FoundOf(query.operation, table.value_size);
  if (answer.writer != kUnchanged) {
    std::memcpy(row, grid_.ValueOf(order_[answer.writer], table.value_size), table.value_size);
  } else if (query.operation == query.reader) {
    return;
  } else if (early) {
    copies_.push_back({query.reader, query.operation});
  } else {
    std::memcpy(row, grid_.FoundOf(query.reader, table.value_size), table.value_size);
  }
}

void CpuBatchTask<crash::GridSetup>::CorrectAll() {
  const TableView& table = executor_->table_;
  for (std::uint64_t k = 0; k < sums_.mispredictions; ++k) {
    const std::uint32_t first = mispredictions_[k];
    const KeyRunRecord record = records_[first];
    std::uint32_t last = first;
    while (!EndsKeyRun(last)) ++last;
    machine().RunParts(last - first + 1, [&](std::size_t i) {
      FixMispredicted(ThreadGroup{}, executor_->media_, table, grid_,
                      first + static_cast<std::uint32_t>(i), record);
    });
    if (record.status != KeyRunStatus::kDone) continue;
    records_[first].present = record.present == 0 ? 1 : 0;
    records_[first].hit = 0;
  }
}

}  // namespace gpm

namespace gpm::crash {

std::unique_ptr<Executor> GridMachine::MakeExecutor(unsigned threads, const Mapping& mapping) {
  return std::make_unique<CpuExecutor<GridSetup>>(threads, mapping);
}

}  // namespace gpm::crash
