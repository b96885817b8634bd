#include "ycsb/batch_buffers.h"

namespace gpm::ycsb {

// Zeroed, so that no page is touched for the first time while a batch is timed.
BatchBuffers::BatchBuffers(const Shape& shape)
    : shape_(shape),
      ops_(shape.rows),
      keys_(shape.rows * shape.key_size),
      values_(shape.values ? shape.rows * shape.value_size : 0),
      found_(shape.found ? shape.rows * shape.value_size : 0),
      results_(shape.rows),
      bounds_(shape.searches ? 2 * shape.rows : 0),
      counts_(shape.searches ? shape.rows : 0),
      // A batch has a row at least, and one offset more than rows.
      offsets_(shape.searches ? 2 * shape.rows : 0),
      matched_(shape.searches ? shape.rows * shape.key_size : 0) {}

void BatchBuffers::Upload(std::size_t) {}

Batch BatchBuffers::View(std::size_t first, std::size_t rows, std::optional<Op> only) {
  const std::size_t key_size = shape_.key_size;
  const std::size_t value_size = shape_.value_size;
  Batch batch;
  if (only) {
    batch.op = *only;
  } else {
    batch.ops = ops().subspan(first, rows);
  }
  batch.keys = keys().subspan(first * key_size, rows * key_size);
  if (shape_.values) batch.values = values().subspan(first * value_size, rows * value_size);
  if (shape_.found) batch.found = found().subspan(first * value_size, rows * value_size);
  batch.results = results().subspan(first, rows);
  return batch;
}

SearchBatch BatchBuffers::SearchView(std::size_t first, std::size_t rows, std::size_t batch,
                                     const std::uint32_t& attribute) {
  return {
      .queries = {.attributes = {&attribute, 1}, .bounds = bounds().subspan(2 * first, 2 * rows)},
      .matches = {.counts = counts().subspan(first, rows),
                  .offsets = offsets().subspan(OffsetAt(first, batch), rows + 1),
                  .keys = matched().subspan(first * shape_.key_size, rows * shape_.key_size)}};
}

void BatchBuffers::Download(std::size_t) {}

}  // namespace gpm::ycsb
