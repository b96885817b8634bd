#ifndef GPM_BENCH_PREPARED_RUN_H_
#define GPM_BENCH_PREPARED_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpmstore/store.h"
#include "pm/thread_pool.h"
#include "ycsb/batch_buffers.h"
#include "ycsb/buffer.h"
#include "ycsb/items.h"
#include "ycsb/operations.h"
#include "ycsb/workload.h"

namespace gpm::bench {

/// The version of each record's value in a store that only prepared runs write to.
using Contents = std::vector<ycsb::Version>;

/// What a run is generated from.
struct RunSpec {
  /// Any, but of finds of keys that are missing all must be or none; `operations` is the sum of the
  /// parts.
  ycsb::WorkloadSpec workload;
  ycsb::Phase phase = ycsb::Phase::kRun;
  std::vector<std::uint64_t> parts;  ///< operations of each part; a read-modify-write is one
};

/// The operations of a YCSB phase, generated once, in the memory that batches are to be in, and
/// applied as often as is wanted, part by part, in batches of any size. A part always begins where
/// the one before it ended, whichever parts are applied. One that inserts or erases
/// (changes_items) is right on a store that had the parts before it, and not itself, applied.
///
/// Operations here are the store's: a read-modify-write is two of them, a find and an update.
///
/// What is generated, and how, does not depend on the number of threads. It passes through memory
/// of one chunk on its way to the rows: those are gigabytes, of which the host needs no copy where
/// batches are in GPU memory.
///
/// Found values go to the same rows batch after batch, as an application would have it; so those of
/// the last batch of a part are the ones that are verified.
///
/// Thread safety: none.
class PreparedRun {
 public:
  /// @param max_batch operations of the largest batch
  /// @param threads fill and verify; outlive this
  /// @throws as OperationSource and Buffer; Error(kInvalidArgument) where some finds find and some
  ///         do not, or where there are read-modify-writes
  PreparedRun(const RunSpec& spec, std::uint32_t key_size, std::uint32_t value_size,
              std::uint64_t max_batch, ycsb::Memory memory, ThreadPool& threads);

  bool writes() const { return source_.writes(); }  ///< whether some operation writes a value
  bool missing() const { return missing_; }         ///< whether finds find nothing
  /// Whether some operation is not a find.
  bool changes() const { return source_.only_kind() != Op::kFind; }
  /// Whether the run inserts or erases records beside the loaded ones.
  bool changes_items() const { return changes_items_; }
  /// Items that all parts together add to a store, or take from it when negative.
  std::int64_t added_items() const { return added_items_; }
  /// Above all records that the parts work on.
  std::uint64_t record_count() const { return record_count_; }
  /// Operations of the workload in a part: a read-modify-write is one.
  std::uint64_t workload_operations(std::size_t part) const { return parts_[part]; }
  std::uint64_t operations(std::size_t part) const { return starts_[part + 1] - starts_[part]; }
  /// The record of each operation of a part.
  std::span<const std::uint32_t> records(std::size_t part) const {
    return {records_.get() + starts_[part], operations(part)};
  }
  /// The kind of each operation of a part.
  std::span<const Op> kinds(std::size_t part) const {
    return {kinds_.get() + starts_[part], operations(part)};
  }

  /// Makes the store ready for batches of this size that write, without changing it: what it
  /// allocates for the first of them is there then. Updates the first keys of a part, which the
  /// store must not have. REQUIRES: writes(). @throws as Store::Apply
  void Rehearse(Store& store, std::size_t part, std::uint64_t batch);

  /// Applies a part. @param done called after each batch with its number of operations
  /// @return seconds @throws as Store::Apply
  using BatchDone = std::function<void(std::uint64_t operations)>;
  double Apply(Store& store, std::size_t part, std::uint64_t batch, const BatchDone& done = {});
  /// The same by a function that applies a batch. @throws what it throws
  using ApplyBatch = std::function<void(const Batch& batch)>;
  double Apply(const ApplyBatch& apply, std::size_t part, std::uint64_t batch,
               const BatchDone& done = {});

  /// Inserts a part by one call of Store::BulkLoad. REQUIRES: a part of a load.
  /// @return seconds @throws as Store::BulkLoad
  double BulkLoad(Store& store, std::size_t part);

  /// After a part was applied: verifies all results and the values that the last batch found, and
  /// takes what the part wrote over into `contents`.
  /// @throws Error(kDamaged) naming the first operation that went wrong
  void Settle(std::size_t part, std::uint64_t batch, Contents& contents);

 private:
  static constexpr std::uint32_t kNone = ~0u;

  void Generate(const RunSpec& spec);
  /// Rows [first, end) of a chunk that begins with operation `start`, to where batches are to be.
  void CopyRows(ycsb::BatchBuffers& from, std::uint64_t start, std::uint64_t first,
                std::uint64_t end);
  void LinkWrites(std::uint64_t max_batch);
  void CountItems();
  Result Expected(std::uint64_t row) const {
    return missing_ || (gone_ && gone_[row]) ? Result::kNotFound : Result::kOk;
  }
  bool Writes(std::uint64_t row) const { return kinds_[row] != Op::kFind; }
  /// A batch of rows. @param only the one kind of all operations in it; without, kinds_ says
  Batch View(std::uint64_t first, std::uint64_t rows, std::optional<Op> only) const;

  /// Calls check(row) for rows [first, end), by all threads.
  /// @return the first row for which it says what is wrong, and that; or `end`
  using Check = std::function<std::string_view(std::uint64_t row)>;
  std::pair<std::uint64_t, std::string> FirstWrong(std::uint64_t first, std::uint64_t end,
                                                   const Check& check);

  ycsb::OperationSource source_;
  ThreadPool& threads_;
  bool missing_;
  const std::uint32_t key_size_;
  const std::uint32_t value_size_;
  const ycsb::Memory memory_;
  const std::vector<std::uint64_t> parts_;
  bool changes_items_ = false;
  std::int64_t added_items_ = 0;
  std::uint64_t record_count_;
  std::vector<std::uint64_t> starts_;  ///< first operation of each part, and the end
  // Rows of all operations, where batches are to be.
  ycsb::Buffer ops_;  ///< a copy of kinds_; empty where those are there, or all are the same
  ycsb::Buffer keys_;
  ycsb::Buffer values_;
  ycsb::Buffer results_;
  ycsb::Buffer found_;       ///< of one batch
  ycsb::Buffer host_found_;  ///< a copy, to be verified
  std::vector<Result> host_results_;
  std::unique_ptr<Op[]> kinds_;               ///< of operations
  std::unique_ptr<std::uint32_t[]> records_;  ///< of operations
  std::unique_ptr<bool[]> gone_;              ///< of operations; none where nothing is erased
  /// Of a part: before each of its last operations (those of the largest batch), the last write in
  /// the part of its record. Empty where not both finds and writes are.
  std::vector<std::vector<std::uint32_t>> last_write_;
  std::vector<std::vector<std::uint32_t>> final_writes_;  ///< of a part: the last one of a record
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_PREPARED_RUN_H_
