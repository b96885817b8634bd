#ifndef GPM_CRASH_SIM_GRID_RUN_H_
#define GPM_CRASH_SIM_GRID_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "crash_sim/grid_media.h"
#include "engine/cpu/accelerators.h"
#include "engine/cpu/maintenance.h"
#include "engine/key_runs.h"
#include "engine/resolve.h"

namespace gpm::crash {

/// Of a CpuExecutor that runs batches as the cuda executor does, on a GridMachine.
struct GridSetup {
  using Media = GridMedia;
  using Threads = TracerThreads;
  static constexpr std::uint64_t kKeyLocks = 2;  ///< so that tiles of a block want the same one
  static constexpr std::uint64_t kBucketsAtATime = 2;
  static constexpr std::size_t kMinPerThread = 2;
};

/// What DeviceBatch, Reads and SmQueues are to the kernels.
struct GridSums {
  std::uint64_t items_added = 0;
  std::uint64_t short_of_slots = 0;
  std::uint64_t short_of_cells = 0;
  std::uint64_t carried_out = 0;
  std::uint64_t cells_taken = 0;
  std::uint64_t found = 0;
  std::uint64_t cache_hits = 0;
  std::uint64_t mispredictions = 0;
  std::uint64_t stuck = 0;
  std::uint64_t undrained = 0;
};

struct GridBatch {
  std::uint32_t count = 0;
  Op op = Op::kFind;
  Element element = Element::kNone;
  const Op* ops = nullptr;
  const std::uint64_t* keys = nullptr;
  const std::byte* values = nullptr;
  std::byte* found = nullptr;
  Result* results = nullptr;
  const std::uint32_t* order = nullptr;
  KeyRunEffect* effects = nullptr;
  KeyRunRecord* records = nullptr;
  std::uint32_t* mispredictions = nullptr;
  std::byte* added = nullptr;
  GridSums* sums = nullptr;

  std::uint32_t OperationAt(std::uint32_t p) const { return order[p]; }
  const std::uint64_t* KeyOf(std::uint32_t i, std::uint32_t key_words) const {
    return keys + std::uint64_t{i} * key_words;
  }
  Op KindOf(std::uint32_t i) const { return ops == nullptr ? op : ops[i]; }
  const std::byte* ValueOf(std::uint32_t i, std::uint32_t value_size) const {
    return values == nullptr ? nullptr : values + std::uint64_t{i} * value_size;
  }
  bool HasValueFor(Op kind) const {
    return values != nullptr && (kind != Op::kAccumulate || added != nullptr);
  }
  Addends AddendsFor(std::uint32_t i, std::uint32_t value_size) const {
    Addends addends;
    addends.element = element;
    addends.sum = added + std::uint64_t{i} * value_size;
    return addends;
  }
  std::byte* FoundOf(std::uint32_t i, std::uint32_t value_size) const {
    return found + std::uint64_t{i} * value_size;
  }
};

struct GridPlan {};  ///< what is to be read is in GridReads::list

struct GridReads {
  struct Read {
    std::uint32_t cell;
    std::uint32_t operation;
  };
  GridPlan* plans = nullptr;
  bool early = false;  ///< the batch is answered while it is carried out
  std::vector<Read>* list = nullptr;

  bool has_plans() const { return plans != nullptr; }
  bool answers_early() const { return early; }
  GridPlan PlanFirst(std::uint32_t cell, std::uint32_t operation) const {
    list->push_back({cell, operation});
    return {};
  }
};

struct GridCells {
  std::uint32_t* taken = nullptr;
  std::vector<std::uint32_t>* items = nullptr;

  bool enabled() const { return items != nullptr; }
  void Clear() const {
    *taken = 0;
    items->clear();
  }
};

/// SmQueueCursor's part: takes some of the cells that are left, for all threads of a block.
struct GridCursor {
  using Lists = GridCells;
  GridBlock* block = nullptr;
  std::uint32_t first = 0;
  std::uint32_t some = 0;

  void Begin(const Lists&) {}
  std::uint32_t Ask(const Lists&, std::uint32_t) const { return 0; }
  bool HasMore(const Lists& lists) const { return *lists.taken < lists.items->size(); }
  std::uint32_t TakeSome(const Lists& lists, std::uint32_t most, std::uint32_t = 0) {
    block->Meet(false);
    if (block->Rank() == 0) {
      const auto all = static_cast<std::uint32_t>(lists.items->size());
      first = *lists.taken;
      some = std::min(most, all - std::min(all, first));
      *lists.taken += some;
    }
    block->Meet(false);
    return some;
  }
  std::uint32_t At(const Lists& lists, std::uint32_t k) const { return (*lists.items)[k]; }
};

}  // namespace gpm::crash

namespace gpm {

/// A batch as the cuda executor carries it out: in one of its ways, by chance. Kernels' shells are
/// made here; what their threads do is the text that runs on the GPU.
template <>
class CpuBatchTask<crash::GridSetup> : public BatchTask {
 public:
  CpuBatchTask(CpuExecutor<crash::GridSetup>* executor, const Batch& batch)
      : executor_(executor), batch_(batch) {}

  void Start(const Epochs::SlotRange& recycle, const CellGrant& grant,
             const BucketRange& drain) override;
  Progress Await() override { return progress_; }
  SlotsMade MakeSlots(std::uint64_t most, std::uint64_t room) override;
  Progress Resume(bool final_attempt, const CellGrant& grant) override;

 private:
  using GridMachine = crash::GridMachine;
  using Tile = Operations<ThreadGroup, crash::GridMedia>;
  using Team = TeamOfTiles<crash::GridThreads>;
  using Cells = BlockCells<crash::GridThreads, crash::GridCursor>;

  enum class Strategy : std::uint8_t {
    kFinds,     ///< FindKeys, SearchKeys
    kSmall,     ///< ApplySmallBatch
    kSearched,  ///< SearchKeyRuns, then ApplyQueuedKeyRuns and ResolveResults, or CarryOutSearched
                ///< for both, then FixMispredictedRuns
    kRuns,      ///< ApplyKeyRuns, ResolveResults
    kWritten,   ///< ApplyWrittenRuns, while a thread of the host writes the values to cells
    kAlone,     ///< ApplyOneByOne, and what a DeviceView does
  };

  GridMachine& machine() const;
  Tile MakeTile() const;
  /// Drains the buckets, and brings the items of its keys up: one kernel, before the batch's own.
  /// @return whether the batch can be carried out
  bool DrainBeside(const BucketRange& drain);
  void Place();
  void Phase(const CellGrant& grant);
  void EndPhase();
  /// Runs a kernel of `tiles` tiles, a few to a block. @param body body(block, tile)
  void Kernel(std::uint32_t tiles,
              const std::function<void(crash::GridBlock&, std::uint32_t)>& body);
  /// The same, and threads beside it, from other kernels. @param ends as for RunKernel
  void Kernels(std::uint32_t tiles,
               const std::function<void(crash::GridBlock&, std::uint32_t)>& body,
               const std::vector<std::function<void()>>& beside, bool ends = false);
  bool EndsKeyRun(std::uint32_t p) const;
  KeyRunTask TaskAt(std::uint32_t p) const;

  void Find();
  void ApplySmallBatch(bool again);
  void CarryOutSearched();
  void ApplyKeyRuns(bool final_attempt);
  bool CanWrite() const;
  void ApplyWritten();
  void AddLongRuns();
  void Search(std::uint32_t p);
  void OneByOne(std::uint32_t p, bool final_attempt);
  void ReadPlanned();
  void AnswerAll(bool early);
  void AnswerAt(std::uint32_t p, bool early);
  void CorrectAll();

  CpuExecutor<crash::GridSetup>* executor_;
  Batch batch_;
  Strategy strategy_ = Strategy::kAlone;
  std::uint32_t tiles_of_block_ = 1;
  Accelerators accelerators_;
  Reclaim reclaim_{};
  CellGrant grant_;
  Progress progress_;
  crash::GridSums sums_;
  crash::GridBatch grid_;
  crash::GridReads reads_;
  std::vector<std::uint64_t> keys_;  ///< padded
  std::vector<std::uint32_t> order_;
  std::vector<KeyRunEffect> effects_;
  std::vector<KeyRunRecord> records_;
  std::vector<std::uint32_t> mispredictions_;
  std::vector<std::byte> added_;
  std::vector<std::optional<std::uint64_t>> made_;  ///< AddLongRuns: of runs, by where they end
  std::vector<crash::GridPlan> plans_;
  std::vector<crash::GridReads::Read> reads_list_;
  std::vector<crash::GridReads::Read> copies_;  ///< source operation, target
  std::vector<std::uint32_t> dealt_;
  std::vector<std::uint8_t> needs_cell_;  ///< of the run that ends at a position
  std::uint32_t asked_ = 0;
  std::uint32_t dealt_taken_ = 0;
};

}  // namespace gpm

#endif  // GPM_CRASH_SIM_GRID_RUN_H_
