#include "ycsb/device_buffers.h"

namespace gpm::ycsb {

DeviceBatchBuffers::DeviceBatchBuffers(const Shape& shape, Memory memory)
    : BatchBuffers(shape),
      device_ops_(memory, ops().size()),
      device_keys_(memory, keys().size()),
      device_values_(memory, values().size()),
      device_found_(memory, found().size()),
      device_results_(memory, results().size()),
      device_bounds_(memory, bounds().size_bytes()),
      device_counts_(memory, counts().size_bytes()),
      device_offsets_(memory, offsets().size_bytes()),
      device_matched_(memory, matched().size()) {}

void DeviceBatchBuffers::Upload(std::size_t rows) {
  device_ops_.CopyFrom(std::as_bytes(ops().first(rows)));
  device_keys_.CopyFrom(keys().first(rows * shape().key_size));
  if (shape().values) device_values_.CopyFrom(values().first(rows * shape().value_size));
  if (shape().searches) device_bounds_.CopyFrom(std::as_bytes(bounds().first(2 * rows)));
}

Batch DeviceBatchBuffers::View(std::size_t first, std::size_t rows, std::optional<Op> only) {
  const std::size_t key_size = shape().key_size;
  const std::size_t value_size = shape().value_size;
  const auto part = [&](const Buffer& buffer, std::size_t row) {
    return buffer.bytes().subspan(first * row, rows * row);
  };
  Batch batch;
  if (only) {
    batch.op = *only;
  } else {
    batch.ops = device_ops_.as<const Op>().subspan(first, rows);
  }
  batch.keys = part(device_keys_, key_size);
  if (shape().values) batch.values = part(device_values_, value_size);
  if (shape().found) batch.found = part(device_found_, value_size);
  batch.results = device_results_.as<Result>().subspan(first, rows);
  return batch;
}

SearchBatch DeviceBatchBuffers::SearchView(std::size_t first, std::size_t rows, std::size_t batch,
                                           const std::uint32_t& attribute) {
  const std::size_t key_size = shape().key_size;
  return {
      .queries = {.attributes = {&attribute, 1},
                  .bounds = device_bounds_.as<const std::uint64_t>().subspan(2 * first, 2 * rows)},
      .matches = {
          .counts = device_counts_.as<std::uint64_t>().subspan(first, rows),
          .offsets = device_offsets_.as<std::uint64_t>().subspan(OffsetAt(first, batch), rows + 1),
          .keys = device_matched_.bytes().subspan(first * key_size, rows * key_size)}};
}

void DeviceBatchBuffers::Download(std::size_t rows) {
  if (shape().found) device_found_.CopyTo(found().first(rows * shape().value_size));
  device_results_.CopyTo(std::as_writable_bytes(results().first(rows)));
  if (!shape().searches) return;
  device_counts_.CopyTo(std::as_writable_bytes(counts().first(rows)));
  device_offsets_.CopyTo(std::as_writable_bytes(offsets()));
  device_matched_.CopyTo(matched().first(rows * shape().key_size));
}

}  // namespace gpm::ycsb
