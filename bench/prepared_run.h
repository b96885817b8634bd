#ifndef GPM_BENCH_PREPARED_RUN_H_
#define GPM_BENCH_PREPARED_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/store.h"
#include "engine/thread_pool.h"
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
  ycsb::WorkloadSpec workload;  ///< of finds and updates; `operations` is the sum of the parts
  ycsb::Phase phase = ycsb::Phase::kRun;
  std::vector<std::uint64_t> parts;  ///< operations of each part
  /// Added to every record (modulo their number), so that others are the popular ones.
  std::uint64_t record_shift = 0;
};

/// The operations of a YCSB phase, generated once, in the memory that batches are to be in, and
/// applied as often as is wanted, part by part, in batches of any size. A part always begins where
/// the one before it ended, whichever parts are applied.
///
/// Found values go to the same rows batch after batch, as an application would have it; so those of
/// the last batch of a part are the ones that are verified.
///
/// Thread safety: none.
class PreparedRun {
 public:
  /// @param max_batch operations of the largest batch @throws as OperationSource and Buffer
  PreparedRun(const RunSpec& spec, std::uint32_t key_size, std::uint32_t value_size,
              std::uint64_t max_batch, ycsb::Memory memory, ThreadPool& threads);

  bool writes() const { return source_.writes(); }  ///< whether some operation writes a value
  std::uint64_t operations(std::size_t part) const { return starts_[part + 1] - starts_[part]; }
  /// The record of each operation of a part.
  std::span<const std::uint32_t> records(std::size_t part) const {
    return std::span(records_).subspan(starts_[part], operations(part));
  }

  /// Applies a part. @param done called after each batch with its number of operations
  /// @return seconds @throws as Store::Apply
  using BatchDone = std::function<void(std::uint64_t operations)>;
  double Apply(Store& store, std::size_t part, std::uint64_t batch, const BatchDone& done = {});

  /// After a part was applied: verifies all results and the values that the last batch found, and
  /// takes what the part wrote over into `contents`.
  /// @throws Error(kDamaged) naming the first operation that went wrong
  void Settle(std::size_t part, std::uint64_t batch, Contents& contents);

 private:
  static constexpr std::uint32_t kNone = ~0u;

  void Shift(std::uint64_t records, std::uint64_t shift, ycsb::KeyOrder order, ThreadPool& threads);
  void LinkWrites(std::uint64_t records);
  bool Writes(std::uint64_t row) const { return buffers_->ops()[row] != Op::kFind; }

  ycsb::OperationSource source_;
  std::vector<std::uint64_t> starts_;  ///< first operation of each part, and the end
  std::unique_ptr<ycsb::BatchBuffers> buffers_;
  ycsb::Buffer found_;
  std::vector<std::uint32_t> records_;     ///< of operations
  std::vector<std::uint32_t> last_write_;  ///< before an operation, in its part, of its record
  std::vector<std::vector<std::uint32_t>> final_writes_;  ///< of a part: the last one of a record
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_PREPARED_RUN_H_
