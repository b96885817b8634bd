#ifndef GPM_YCSB_OPERATIONS_H_
#define GPM_YCSB_OPERATIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "pm/thread_pool.h"
#include "ycsb/batch_buffers.h"
#include "ycsb/items.h"
#include "ycsb/workload.h"

namespace gpm::ycsb {

enum class Phase {
  kLoad,  ///< inserts records 0 ... records - 1, in order
  kRun,   ///< the workload's operations
};

/// Turns a workload into rows of batches.
///
/// Operation i of a run, its kind and its key, follows from the seed, i and the numbers of inserts
/// and erases before it alone. So the operations are the same for every batch size and number of
/// threads.
///
/// Erases take the records in order, from the first, each once; one that finds no record left
/// erases the last of those again. A record that is chosen after it was erased gives way to the one
/// that was inserted in its stead, so many records further on as were loaded: it takes over its
/// popularity. Where that has not come yet, the operation is on the erased one (Row::gone).
///
/// The searches of a batch come behind its other operations, so they see what those leave.
///
/// Thread safety: one thread at a time; Fill itself spreads its work over the thread pool.
class OperationSource {
 public:
  /// What a row of the buffers is, for verifying what came back.
  struct Row {
    std::uint64_t record = 0;     ///< record number
    std::uint64_t oldest = 0;     ///< records below this one have been erased
    std::uint32_t operation = 0;  ///< counted from the first of its chunk
    bool missing = false;         ///< the key is not the record's but one never inserted
    bool paired = false;          ///< the update of a read-modify-write
    bool search = false;          ///< for the record; its op has no meaning

    bool gone() const { return record < oldest; }  ///< whether the record was erased before
  };
  /// Rows of a batch: [first, first + rows), and behind those its searches.
  struct Range {
    std::size_t first = 0;
    std::size_t rows = 0;
    std::size_t searches = 0;
    std::uint64_t operations_end = 0;  ///< counted from the chunk's first
  };
  /// Some batches that were generated together.
  struct Chunk {
    std::uint64_t first_operation = 0;
    std::uint64_t operations = 0;
    std::size_t rows = 0;
    std::vector<Range> batches;
    std::vector<Row> row;
  };

  /// @param batch_rows rows of a batch, at least 1; a read-modify-write (two rows) that begins on
  ///        the last row of a batch makes it one row longer
  /// @throws Error(kInvalidArgument) as ValidateWorkload
  OperationSource(const WorkloadSpec& spec, Phase phase, std::size_t batch_rows);

  bool reads() const;   ///< whether some operation finds
  bool writes() const;  ///< whether some operation writes a value
  bool searches() const;
  /// The one kind of all rows, where there is only one and no search.
  std::optional<Op> only_kind() const;
  std::uint64_t operations() const { return operations_; }
  bool done() const { return next_ == operations_; }
  /// Rows that buffers need for `batches` batches.
  std::size_t RowsFor(std::size_t batches) const { return batches * batch_rows_ + 1; }

  /// Fills `buffers` with the next whole batches, as many as fit (the last may be short).
  /// REQUIRES: !done(); the buffers have RowsFor(1) rows at least, and arrays for values if
  /// writes(), for searches if searches().
  void Fill(BatchBuffers& buffers, ThreadPool& threads, Chunk& chunk);

  /// The version of the values that an operation writes.
  Version VersionOf(std::uint64_t operation) const;

  /// Rows that operations [first, end) have. REQUIRES: first <= end <= operations().
  std::uint64_t RowsOf(std::uint64_t first, std::uint64_t end) const;

 private:
  enum class Kind : std::uint8_t {
    kFind,
    kMissing,
    kUpdate,
    kInsert,
    kErase,
    kSearch,
    kReadModifyWrite,
  };
  Kind KindOf(std::uint64_t operation) const;
  /// Of as many of the next operations as the buffers may take.
  void ChooseKinds(std::size_t rows, ThreadPool& threads);
  void Plan(BatchBuffers& buffers, Chunk& chunk);
  void FillRows(BatchBuffers& buffers, Chunk& chunk, std::size_t first, std::size_t end) const;
  class Chooser;

  WorkloadSpec spec_;
  Phase phase_;
  std::size_t batch_rows_;
  std::uint64_t operations_;
  std::vector<Kind> kinds_;        ///< of the operations that are planned next
  std::vector<Row> searches_;      ///< of the batch that is planned
  std::uint64_t next_ = 0;         ///< operation
  std::uint64_t next_record_ = 0;  ///< that an insert takes
  std::uint64_t next_erased_ = 0;  ///< that an erase takes
};

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_OPERATIONS_H_
