#ifndef GPM_YCSB_BATCH_BUFFERS_H_
#define GPM_YCSB_BATCH_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/search.h"

namespace gpm::ycsb {

/// The searches of a batch: one condition each, that a number is one. Room for one match each.
struct SearchBatch {
  QueryArray queries;
  Matches matches;
};

/// The arrays that a run's batches are views of: generated into, applied from and verified in host
/// memory. A class that keeps a copy of them elsewhere (GPU memory) overrides the virtual
/// functions; those are called in the order Upload, views for each batch, Download, of which only
/// what happens to a View is timed.
///
/// Thread safety: distinct rows may be written by several threads.
class BatchBuffers {
 public:
  struct Shape {
    std::size_t rows = 0;
    std::uint32_t key_size = 8;    ///< bytes
    std::uint32_t value_size = 8;  ///< bytes
    bool values = true;            ///< some operation writes a value
    bool found = true;             ///< some operation reads one
    bool searches = false;         ///< some operation is a search
  };

  explicit BatchBuffers(const Shape& shape);
  virtual ~BatchBuffers() = default;
  BatchBuffers(const BatchBuffers&) = delete;
  BatchBuffers& operator=(const BatchBuffers&) = delete;

  const Shape& shape() const { return shape_; }
  std::span<Op> ops() { return ops_; }
  std::span<std::byte> keys() { return keys_; }
  std::span<std::byte> values() { return values_; }  ///< empty when the shape has none
  std::span<std::byte> found() { return found_; }    ///< empty when the shape has none
  std::span<Result> results() { return results_; }
  /// Of searches: two numbers a row, that the attribute is from and to; the matches of a row; where
  /// they begin (OffsetAt), and the rows' room for keys that matched. Empty when the shape has
  /// none.
  std::span<std::uint64_t> bounds() { return bounds_; }
  std::span<std::uint64_t> counts() { return counts_; }
  std::span<std::uint64_t> offsets() { return offsets_; }
  std::span<std::byte> matched() { return matched_; }
  /// Where the offset of a row's first match is, the next one's behind it; each batch has one more
  /// than it has searches. @param batch its number in the buffers
  static std::size_t OffsetAt(std::size_t row, std::size_t batch) { return row + batch; }
  std::span<std::byte> key(std::size_t row) {
    return keys().subspan(row * shape_.key_size, shape_.key_size);
  }
  std::span<std::byte> value(std::size_t row) {
    return values().subspan(row * shape_.value_size, shape_.value_size);
  }
  std::span<std::byte> found(std::size_t row) {
    return found().subspan(row * shape_.value_size, shape_.value_size);
  }

  /// The first `rows` rows of ops, keys, values and bounds were written.
  virtual void Upload(std::size_t rows);
  /// A batch of the rows [first, first + rows).
  /// @param only the one kind of all operations in it; without, ops() says
  virtual Batch View(std::size_t first, std::size_t rows, std::optional<Op> only);
  /// The searches of batch `batch`: the rows [first, first + rows).
  /// @param attribute the place of the attribute, which outlives what is returned
  virtual SearchBatch SearchView(std::size_t first, std::size_t rows, std::size_t batch,
                                 const std::uint32_t& attribute);
  /// found, results and what searches gave, of the first `rows` rows are about to be read.
  virtual void Download(std::size_t rows);

 private:
  Shape shape_;
  std::vector<Op> ops_;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
  std::vector<std::byte> found_;
  std::vector<Result> results_;
  std::vector<std::uint64_t> bounds_;
  std::vector<std::uint64_t> counts_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::byte> matched_;
};

/// Makes the buffers of a run; the default is host memory.
using BatchBuffersFactory =
    std::function<std::unique_ptr<BatchBuffers>(const BatchBuffers::Shape& shape)>;

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_BATCH_BUFFERS_H_
