#include "ycsb/device_buffers.h"

namespace gpm::ycsb {

DeviceBatchBuffers::DeviceBatchBuffers(const Shape& shape, Memory memory)
    : BatchBuffers(shape),
      device_ops_(memory, ops().size()),
      device_keys_(memory, keys().size()),
      device_values_(memory, values().size()),
      device_found_(memory, found().size()),
      device_results_(memory, results().size()) {}

void DeviceBatchBuffers::Upload(std::size_t rows) {
  device_ops_.CopyFrom(std::as_bytes(ops().first(rows)));
  device_keys_.CopyFrom(keys().first(rows * shape().key_size));
  if (shape().values) device_values_.CopyFrom(values().first(rows * shape().value_size));
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

void DeviceBatchBuffers::Download(std::size_t rows) {
  if (shape().found) device_found_.CopyTo(found().first(rows * shape().value_size));
  device_results_.CopyTo(std::as_writable_bytes(results().first(rows)));
}

}  // namespace gpm::ycsb
