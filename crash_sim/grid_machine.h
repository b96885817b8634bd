#ifndef GPM_CRASH_SIM_GRID_MACHINE_H_
#define GPM_CRASH_SIM_GRID_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "crash_sim/machine.h"
#include "engine/executor.h"

namespace gpm::crash {

/// The machine with a GPU on it, as far as memory goes (docs/CRASH_CONSISTENCY.md has the model and
/// why it is believed). What the GPU's threads store is *on its way* first: only they see it, and
/// those of their block behind a barrier. It arrives at any time and in any order, but that stores
/// to one address that a thread has seen arrive before its own; who loads sees it from then on. A
/// fence of device scope makes all arrive that its thread has seen; one of system scope also makes
/// it durable, if it is in the pool; and so is what a thread loads from there, which came over the
/// link. The end of a kernel is a fence of device scope.
///
/// Atomic operations are carried out in memory, and order nothing. Loads are carried out in order,
/// but for those at FenceReads, if that is left out.
///
/// What the host's threads do is as on Machine; so is all that is done outside the schedule.
///
/// Thread safety: as Machine.
class GridMachine : public Machine, public ExecutorSource {
 public:
  explicit GridMachine(Scheduler* scheduler) : Machine(scheduler) {}

  /// A schedule begins, on a machine with nothing on its way.
  /// @param seed of how soon stores arrive, and what batches do
  void BeginGrid(std::uint64_t seed);
  /// A random number, by the schedule's seed.
  std::uint64_t Random() { return random_(); }

  std::unique_ptr<Executor> MakeExecutor(unsigned threads, const Mapping& mapping) override;
  /// Each part is a thread of a kernel, which has ended before anybody is told.
  void RunParts(std::size_t parts, const std::function<void(std::size_t)>& part) override;
  /// @param ends else it is one that tells the host before it ends, as those do that carry out a
  ///        batch: at its end its stores arrive, and need not be durable
  void RunKernel(std::size_t threads, bool ends, const std::function<void(std::size_t)>& body);

  // What the GPU's threads do.
  std::uint64_t GridLoad(const std::uint64_t* word);
  void GridStore(std::uint64_t* word, std::uint64_t value);
  bool GridCas(Step step, std::uint64_t* word, std::uint64_t expected, std::uint64_t desired);
  void GridFlush(Step step, const void* address, std::uint64_t bytes);
  void FenceSystem(Step step);
  void FenceDevice(Step step);
  void FenceReads(Step step);
  /// @return whether it is taken; the caller has to wait if not
  bool TryAcquire(Step step, std::uint32_t* lock);
  void GridRelease(Step step, std::uint32_t* lock);
  template <class Word>
  Word LoadShared(const Word* word) {
    Word value;
    Read(word, sizeof value, &value);
    return value;
  }
  template <class Word>
  void StoreShared(Word* word, Word value) {
    Write(word, sizeof value, &value);
  }
  template <class Word>
  bool CasShared(Step step, Word* word, Word expected, Word desired) {
    const bool compares = Shared(step);
    ArriveAt(word);
    if (compares && *word != expected) return false;
    Remember(word, sizeof *word);
    *word = desired;
    return true;
  }
  /// The loads of shared memory from now to End are one access: all before any of the next one, if
  /// there is a FenceReads.
  void BeginCopy();
  void EndCopy();
  /// The thread waits for what another one stores.
  void GridPause();
  /// What any of these threads has seen all of them have.
  void JoinThreads(const std::vector<std::uint32_t>& threads);
  std::uint32_t thread() const { return Thread(); }
  bool on_grid() const { return Scheduled(); }
  /// A switch point.
  void SwitchPoint() { Begins(); }
  /// Whether a step is left out; counts it.
  bool Leaves(Step step) { return !Shared(step); }

 private:
  /// Threads that have seen something.
  class Seen {
   public:
    bool Has(std::uint32_t thread) const;
    void Add(std::uint32_t thread);

   private:
    std::vector<std::uint32_t> threads_;
  };
  /// A store on its way.
  struct Pending {
    std::uint64_t id;
    std::byte* target;
    std::uint32_t bytes;
    std::byte value[8];
    bool in_pool;
    std::uint32_t thread;
    std::uint64_t behind;  ///< id of the one that has to arrive first; 0: none
    Seen seen;
  };
  /// A store to the pool that has arrived, and is not surely durable.
  struct Arrived {
    std::uint64_t offset;
    std::size_t event;
    Seen seen;
  };
  /// Of shared memory, what was there before something arrived.
  struct Before {
    std::byte* target;
    std::uint32_t bytes;
    std::byte value[8];
  };
  /// What a left-out FenceReads needs to know.
  struct Reader {
    std::size_t begun = 0;  ///< when its last access did: Befores by then
    bool is_early = false;  ///< the next load is carried out as of then
    bool in_copy = false;
  };

  void Advance();
  void Put(std::byte* target, std::uint32_t bytes, const void* value, bool in_pool);
  void Read(const void* from, std::uint32_t bytes, void* value);
  void Write(void* to, std::uint32_t bytes, const void* value);
  void Overlay(const std::byte* from, std::uint32_t bytes, void* value) const;
  void Arrive(std::size_t index);
  void ArriveAt(const void* target);
  void ArriveSeen();
  void MakeDurable(Step step);
  void SeeWord(std::uint64_t offset);
  void Remember(void* target, std::uint32_t bytes);
  bool KeepsHistory() const;

  std::mt19937_64 random_;
  std::uint64_t arrives_of_64_ = 0;  ///< how often something arrives at an access, if it may
  bool pool_arrives_ = true;
  bool shared_arrives_ = true;
  std::uint64_t next_id_ = 1;
  std::vector<Pending> pending_;  ///< by id
  std::vector<Arrived> arrived_;  ///< by event
  std::vector<Before> history_;
  std::unordered_map<std::uint32_t, Reader> readers_;
};

/// The threads of a block, for which a tile is one: they wait for each other.
class GridBlock {
 public:
  GridBlock(GridMachine* machine, std::uint32_t size, std::uint32_t blocks)
      : machine_(machine), size_(size), blocks_(blocks) {}

  /// The running thread is this one of the block.
  void Enter(std::uint32_t rank);
  std::uint32_t size() const { return size_; }
  std::uint32_t blocks() const { return blocks_; }  ///< of the kernel
  std::uint32_t Rank() const;
  GridMachine* machine() const { return machine_; }
  /// Waits for all threads. @return whether the bit of any is set
  bool Meet(bool bit);

 private:
  GridMachine* const machine_;
  const std::uint32_t size_;
  const std::uint32_t blocks_;
  std::vector<std::uint32_t> threads_;
  std::uint32_t waiting_ = 0;
  std::uint64_t meetings_ = 0;
  bool any_ = false;
  bool result_ = false;
};

/// The same as a policy (TeamOfTiles).
struct GridThreads {
  GridBlock* block;

  std::uint32_t Rank() const { return block->Rank(); }
  std::uint32_t Size() const { return block->size(); }
  void Sync(Step step = Step::kOther) const {
    if (step == Step::kOther || !block->machine()->Leaves(step)) block->Meet(false);
  }
  bool Or(bool bit) const { return block->Meet(bit); }
  bool IsLastBlock(std::uint32_t* blocks_done, bool* is_last) const;
};

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_GRID_MACHINE_H_
