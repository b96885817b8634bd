#ifndef GPM_ENGINE_CUDA_SMALL_CUH_
#define GPM_ENGINE_CUDA_SMALL_CUH_

#include "engine/cuda_runs.cuh"

namespace gpm {

/// Batches that write, so small that each operation is compared with all others: CarryOutSmall
/// finds their runs and carries them out; AnswerOperations follows.

/// Operations of a small batch at most.
inline constexpr std::uint32_t kSmallBatch = 4096;
/// Threads of a block of CarryOutSmall.
inline constexpr unsigned kSmallThreads = 2 * kBlockThreads;

/// Which operations of a small batch are on the keys of a block's own ones, a bit each; in shared
/// memory. Keys are told apart by their marks (MarkKey).
struct BlockRuns {
  static constexpr std::uint32_t kPlaces = 256;  ///< of a hash table of kTilesPerBlock marks
  static constexpr std::uint32_t kWords = kSmallBatch / 32;
  static constexpr std::uint32_t kRounds = kSmallBatch / kSmallThreads;
  static constexpr std::uint32_t kWordsOfLane = kWords / kTileLanes;
  /// Words of a row of bits, with one left out after those of each lane: then the lanes of a warp,
  /// of which a tile's are at words side by side, use all banks.
  static constexpr std::uint32_t kRow = kWords + kTileLanes;

  std::uint64_t marks[kTilesPerBlock];
  std::uint32_t table[kPlaces];           ///< the mark's number + 1; 0: none
  std::uint32_t numbers[kTilesPerBlock];  ///< of each tile's mark: equal for equal marks
  std::uint32_t equal[kTilesPerBlock][kRow];
  // What operations are, and do (PlanOf):
  std::uint32_t finds[kRow];
  std::uint32_t inserts[kRow];  ///< write if the key is absent
  std::uint32_t updates[kRow];  ///< write if it is present
  std::uint32_t erases[kRow];

  /// Where a word of a row is.
  __device__ static std::uint32_t At(std::uint32_t word) { return word + word / kWordsOfLane; }

  /// By kSmallThreads threads, all of the block.
  __device__ void Make(const TableView& view, const DeviceBatch& batch) {
    const std::uint32_t words = view.key_words;
    const auto place_of = [](std::uint64_t mark) {
      return static_cast<std::uint32_t>((mark * 0x9E3779B97F4A7C15ull) >> 56);
    };
    static_assert(kPlaces == 256 && kTilesPerBlock <= 32);
    std::uint64_t mark[kRounds];  // of all operations, in flight while the table is made
    Op kind[kRounds];
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint32_t i = k * kSmallThreads + threadIdx.x;
      mark[k] = words == 1 && i < batch.count ? batch.keys[i] : 0;
      kind[k] = i < batch.count ? batch.KindOf(i) : Op::kFind;
    }
#pragma unroll 1
    for (std::uint32_t w = 0; words > 1 && w < words; ++w) {
#pragma unroll
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        const std::uint32_t i = k * kSmallThreads + threadIdx.x;
        if (i < batch.count) mark[k] += MarkTerm(view.hash_seed, batch.KeyOf(i, words)[w], w);
      }
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) mark[k] = words == 1 ? mark[k] : MarkOf(mark[k]);
    for (std::uint32_t i = threadIdx.x; i < kPlaces; i += kSmallThreads) table[i] = 0;
    for (std::uint32_t i = threadIdx.x; i < kTilesPerBlock * kRow; i += kSmallThreads) {
      (&equal[0][0])[i] = 0;
    }
    __syncthreads();
    const std::uint32_t own = blockIdx.x * kTilesPerBlock + threadIdx.x;
    if (threadIdx.x < kTilesPerBlock) {
      const std::uint64_t own_mark =
          own < batch.count ? MarkKey(view.hash_seed, batch.KeyOf(own, words), words) : 0;
      marks[threadIdx.x] = own_mark;
      __syncwarp();
      for (std::uint32_t at = place_of(own_mark); own < batch.count; at = (at + 1) % kPlaces) {
        const std::uint32_t there = atomicCAS(&table[at], 0u, threadIdx.x + 1);
        if (there != 0 && marks[there - 1] != own_mark) continue;
        numbers[threadIdx.x] = there == 0 ? threadIdx.x : there - 1;
        break;
      }
    }
    __syncthreads();
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint32_t i = k * kSmallThreads + threadIdx.x;
      const RunEffect effect = EffectOf(kind[k], batch.values != nullptr, 0, false, false);
      const std::uint32_t find = __ballot_sync(~0u, kind[k] == Op::kFind);
      const std::uint32_t insert = __ballot_sync(~0u, effect.if_absent == 0);
      const std::uint32_t update = __ballot_sync(~0u, effect.if_present == 0);
      const std::uint32_t erase = __ballot_sync(~0u, effect.if_present == kRemoved);
      const std::uint32_t word = At(i / 32);
      if (threadIdx.x % 32 == 0) {
        finds[word] = find;
        inserts[word] = insert;
        updates[word] = update;
        erases[word] = erase;
      }
      if (i >= batch.count) continue;
      for (std::uint32_t at = place_of(mark[k]); table[at] != 0; at = (at + 1) % kPlaces) {
        if (marks[table[at] - 1] != mark[k]) continue;
        atomicOr(&equal[table[at] - 1][word], 1u << (i % 32));
        break;
      }
    }
    __syncthreads();
  }

  /// The effect of the operations of some bits of a word, after `before`.
  __device__ RunEffect EffectOfWord(RunEffect before, std::uint32_t word,
                                    std::uint32_t bits) const {
    const std::uint32_t inserting = bits & inserts[At(word)];
    const std::uint32_t updating = bits & updates[At(word)];
    const std::uint32_t erasing = bits & erases[At(word)];
    if ((inserting | erasing) == 0) {  // updates alone: the last one counts
      if (updating == 0) return before;
      const std::uint32_t last = 32 * word + 31 - LeadingZeros(updating);
      if (PresentAfter(before.if_absent, false)) before.if_absent = last;
      if (PresentAfter(before.if_present, true)) before.if_present = last;
      return before;
    }
    for (std::uint32_t rest = inserting | updating | erasing; rest != 0; rest &= rest - 1) {
      const std::uint32_t bit = rest & (~rest + 1);
      const std::uint32_t position = 32 * word + LowestBit(rest);
      const RunEffect next{(inserting & bit) != 0 ? position : kUnchanged,
                           (updating & bit) != 0  ? position
                           : (erasing & bit) != 0 ? kRemoved
                                                  : kUnchanged,
                           kNoPosition, kNoPosition};
      before = ComposeEffects{}(before, next);
    }
    return before;
  }
};

/// Finds the run of an operation of a small batch.
/// @param i the operation, `equal` those on its key
/// @param before set to the effect of those before it, with the run's first position and first find
/// @param task set, but for its record
/// @return whether it is the run's last operation
__device__ inline bool FindRun(const BlockRuns& runs, const CudaTile& group,
                               const CudaTile::Tile& tile, std::uint32_t i,
                               const std::uint32_t* equal, RunEffect* before, RunTask* task) {
  // A lane looks at words side by side, whose effect it knows then.
  RunEffect effect{kUnchanged, kUnchanged, kNoPosition, kNoPosition};
  std::uint32_t first = kNoPosition;
  std::uint32_t first_find = kNoPosition;
  std::uint32_t first_change = kNoPosition;  // of a value that was there before
  std::uint32_t uses = 0;
  bool is_last = true;
  for (std::uint32_t k = 0; k < BlockRuns::kWordsOfLane; ++k) {
    const std::uint32_t word = group.Lane() * BlockRuns::kWordsOfLane + k;
    const std::uint32_t at = BlockRuns::At(word);
    std::uint32_t bits = equal[at];
    if (bits == 0) continue;
    const std::uint32_t begin = 32 * word;
    if (begin + 31 > i) {
      const std::uint32_t upto = i < begin ? 0 : 0xFFFFFFFFu >> (31 - (i - begin));
      if ((bits & ~upto) != 0) is_last = false;
      bits &= upto;
      if (bits == 0) continue;
    }
    uses += PopCount(bits);
    first = min(first, begin + LowestBit(bits));
    const std::uint32_t find = bits & runs.finds[at];
    if (find != 0) first_find = min(first_find, begin + LowestBit(find));
    const std::uint32_t change = bits & (runs.updates[at] | runs.erases[at]);
    if (change != 0) first_change = min(first_change, begin + LowestBit(change));
    if (i - begin < 32) bits &= ~(1u << (i - begin));  // without itself
    effect = runs.EffectOfWord(effect, word, bits);
  }
  for (std::uint32_t step = 1; step < kTileLanes; step *= 2) {
    first = min(first, tile.shfl_xor(first, step));
    first_find = min(first_find, tile.shfl_xor(first_find, step));
    first_change = min(first_change, tile.shfl_xor(first_change, step));
    uses += tile.shfl_xor(uses, step);
    // Of two neighbours of lanes' ranges, the lower one comes first.
    RunEffect other;
    other.if_absent = tile.shfl_xor(effect.if_absent, step);
    other.if_present = tile.shfl_xor(effect.if_present, step);
    other.first = other.find_and_mixed = kNoPosition;
    effect = (group.Lane() & step) == 0 ? ComposeEffects{}(effect, other)
                                        : ComposeEffects{}(other, effect);
  }
  effect.first = first;
  effect.find_and_mixed = first_find;
  *before = effect;
  task->effect = runs.EffectOfWord(effect, i / 32, 1u << i % 32);
  task->last = i;
  task->uses = uses;
  task->reads_old = first_find < first_change;
  return group.Ballot(is_last) == (1u << kTileLanes) - 1;
}

/// Finds and carries out the runs of a small batch: a tile for each operation, which carries out
/// the run that ends with it, if one does. kSmallThreads threads a block, of which the first
/// kBlockThreads are tiles: the others help to find the runs.
/// @param again the batch is a left over one, of which pending runs are carried out
/// @param give_up as for CarryOutRuns
__global__ void __launch_bounds__(kSmallThreads, 1)
    CarryOutSmall(const __grid_constant__ TableContext context,
                  const __grid_constant__ DeviceBatch batch, bool again, bool give_up) {
  cudaTriggerProgrammaticLaunchCompletion();  // AnswerOperations waits for the end
  __shared__ BlockCounts counts;
  counts.Clear();
  __shared__ BlockRuns runs;
  __shared__ std::uint64_t first_cell;
  const TableView& table = context.table;
  const auto tile =
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block());
  const CudaTile group(tile);
  const TileOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  group, CudaMedia(context.dirty));
  const std::uint32_t tile_number = threadIdx.x / kTileLanes;
  const std::uint32_t i = blockIdx.x * kTilesPerBlock + tile_number;
  bool active = tile_number < kTilesPerBlock && i < batch.count;
  RunTask task{};
  // The values of a batch that only writes are on their way while its runs are found, if there is a
  // cell for each operation and nobody needs another one: runs of one key each. What turns out not
  // to be needed is retired.
  if (!again && batch.ops == nullptr && Writes(batch.op) && batch.values != nullptr &&
      !table.inline_values() && table.key_words == 1 &&
      context.reclaim.grant.count >= batch.count) {
    if (threadIdx.x == 0) {
      const std::uint32_t rest = batch.count - blockIdx.x * kTilesPerBlock;
      first_cell = AtomicAdd(context.reclaim.taken, min(rest, kTilesPerBlock));
    }
    __syncthreads();
    if (active && context.reclaim.CellAt(first_cell + tile_number, &task.cell)) {
      operations.WriteAhead(task.cell, batch.ValueOf(i, table.value_size));
    }
  }
  runs.Make(table, batch);
  if (threadIdx.x >= kBlockThreads) return;
  if (active) {
    const std::uint32_t* const equal = runs.equal[runs.numbers[tile_number]];
    const std::uint32_t words = table.key_words;
    RunEffect before;
    active = FindRun(runs, group, tile, i, equal, &before, &task);
    if (group.IsLeader()) batch.effects[i] = before;
    bool other_key = false;
    if (active && words > 1 && task.uses > 1) {
      const std::uint64_t* const key = batch.KeyOf(i, words);
      for (std::uint32_t word = group.Lane(); word < BlockRuns::kWords; word += kTileLanes) {
        for (std::uint32_t bits = equal[BlockRuns::At(word)]; bits != 0; bits &= bits - 1) {
          const std::uint64_t* const other = batch.KeyOf(32 * word + LowestBit(bits), words);
          for (std::uint32_t w = 0; w < words; ++w) other_key |= other[w] != key[w];
        }
      }
      other_key = group.Ballot(other_key) != 0;
    }
    if (active) {
      task.record = &batch.records[task.effect.first];
      if (again) {
        active = task.record->status == RunStatus::kPending;
      } else if (group.IsLeader()) {
        *task.record = RunRecord{0, 0, RunStatus::kPending, task.effect.first};
      }
    }
    if (active && (other_key || give_up)) {
      RunOneByOne(operations, group, table, batch, task.record, i, give_up, &counts,
                  [&](std::uint32_t position) {
                    do {
                      ++position;
                    } while (position <= i &&
                             (equal[BlockRuns::At(position / 32)] >> (position % 32) & 1) == 0);
                    return position;
                  });
      active = false;
    }
  }
  if (!active && task.cell != 0 && group.IsLeader()) context.reclaim.RetireCell(task.cell);
  CarryOutTasks(operations, group, table, batch, Reads{}, task, nullptr, active);
  counts.AddTo(batch.sums);
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_SMALL_CUH_
