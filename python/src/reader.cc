#include "python/src/reader.h"

#include <algorithm>
#include <span>
#include <vector>

#include "python/src/batch_arrays.h"
#include "python/src/calls.h"
#include "python/src/convert.h"

namespace gpm::python {
namespace {

using Use = Gate::Use;

}  // namespace

PyReader::PyReader(const std::string& path)
    : reader_(WithoutGil([&] { return PoolReader(path); })),
      key_size_(reader_->key_size()),
      value_size_(reader_->value_size()) {}

PyReader::~PyReader() {
  const ReleasedGil released;
  reader_.reset();
}

std::optional<nb::bytes> PyReader::Get(const nb::bytes& key) {
  CheckBytes("key", key.size(), key_size_);
  std::vector<std::byte> value(value_size_);
  const bool found = WithoutGil([&] {
    const Use use(gate_, "the reader");
    return reader_->Get(BytesOf(key), value);
  });
  if (!found) return {};
  return PythonBytes(value);
}

std::optional<std::uint64_t> PyReader::Find(nb::handle keys, nb::handle found, nb::handle results) {
  const Arrays arrays({.op = Op::kFind,
                       .ops = nb::none(),
                       .keys = keys,
                       .values = nb::none(),
                       .found = found,
                       .results = results},
                      key_size_, value_size_, ExecutorKind::kCpu);
  return WithoutGil([&] {
    const Use use(gate_, "the reader");
    const Batch& batch = arrays.batch();
    std::vector<std::byte> unwanted(batch.found.empty() ? value_size_ : 0);
    for (std::size_t i = 0; i < batch.results.size(); ++i) {
      const bool is_there =
          reader_->Get(batch.keys.subspan(i * key_size_, key_size_),
                       batch.found.empty() ? std::span(unwanted)
                                           : batch.found.subspan(i * value_size_, value_size_));
      batch.results[i] = is_there ? Result::kOk : Result::kNotFound;
    }
    return arrays.CountNotOk();
  });
}

bool PyReader::ForEach(const nb::callable& visit, std::size_t rows) {
  return WithoutGil([&] {
    const Use use(gate_, "for_each");
    return Pages(visit, rows,
                 key_size_)([&](const VisitItem& item) { return reader_->ForEach(item); });
  });
}

nb::dict PyReader::Stats() {
  return DictOf(WithoutGil([&] {
    const Use use(gate_, "the reader");
    return reader_->Stats();
  }));
}

void PyReader::Close() {
  WithoutGil([&] { gate_.Close([&] { reader_.reset(); }); });
}

}  // namespace gpm::python
