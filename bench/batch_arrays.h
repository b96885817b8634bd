#ifndef GPM_BENCH_BATCH_ARRAYS_H_
#define GPM_BENCH_BATCH_ARRAYS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpmstore/batch.h"
#include "ycsb/buffer.h"
#include "ycsb/items.h"

namespace gpm::bench {

/// The arrays of a batch: made on the host, and copied to where the store finds them.
/// Thread safety: none.
class BatchArrays {
 public:
  BatchArrays(std::uint64_t rows, std::uint32_t key_size, std::uint32_t value_size,
              ycsb::Memory memory)
      : key_size_(key_size),
        value_size_(value_size),
        host_keys_(rows * key_size),
        host_values_(rows * value_size),
        host_results_(rows),
        keys_(memory, rows * key_size),
        values_(memory, rows * value_size),
        found_(memory, rows * value_size),
        results_(memory, rows) {}

  std::uint64_t rows() const { return host_results_.size(); }
  std::span<std::byte> key(std::uint64_t row) {
    return std::span(host_keys_).subspan(row * key_size_, key_size_);
  }
  std::span<std::byte> value(std::uint64_t row) {
    return std::span(host_values_).subspan(row * value_size_, value_size_);
  }
  void Put(std::uint64_t row, std::uint64_t record) {
    ycsb::WriteKey(ycsb::KeyWord(record, ycsb::KeyOrder::kHashed), key(row));
    ycsb::WriteValue(record, 0, value(row));
  }
  /// The first rows were put.
  void Upload(std::uint64_t rows) {
    UploadKeys(rows);
    values_.CopyFrom(std::span(host_values_).first(rows * value_size_));
  }
  void UploadKeys(std::uint64_t rows) {
    keys_.CopyFrom(std::span(host_keys_).first(rows * key_size_));
  }
  /// Results of the last batch, on the host.
  std::span<const Result> Results() {
    results_.CopyTo(std::as_writable_bytes(std::span(host_results_)));
    return host_results_;
  }
  std::vector<std::byte> Found() const {
    std::vector<std::byte> found(host_values_.size());
    found_.CopyTo(found);
    return found;
  }
  Batch View(std::uint64_t rows, Op op) {
    return {.op = op,
            .keys = keys_.bytes().first(rows * key_size_),
            .values = values_.bytes().first(rows * value_size_),
            .found = found_.bytes().first(rows * value_size_),
            .results = results_.as<Result>().first(rows)};
  }

 private:
  const std::uint32_t key_size_;
  const std::uint32_t value_size_;
  std::vector<std::byte> host_keys_;
  std::vector<std::byte> host_values_;
  std::vector<Result> host_results_;
  ycsb::Buffer keys_;
  ycsb::Buffer values_;
  ycsb::Buffer found_;
  ycsb::Buffer results_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_BATCH_ARRAYS_H_
