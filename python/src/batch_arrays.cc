#include "python/src/batch_arrays.h"

#include <algorithm>
#include <string>

#include "gpmstore/error.h"
#include "python/src/convert.h"

namespace gpm::python {

Arrays::Arrays(const Call& call, std::uint32_t key_size, std::uint32_t value_size,
               ExecutorKind executor) {
  keys_ = Array(call.keys, {.name = "keys", .elements = Elements::kIntegers});
  const std::size_t n = keys_.rows();
  keys_.CheckRows(
      n, key_size,
      key_size == 8 ? "an int64 or uint64, or 8 bytes (uint8)" : "the bytes of a key (uint8)");
  results_ =
      Array(call.results, {.name = "results", .elements = Elements::kCodes, .written = true});
  results_.CheckRows(n, 1, "a byte");
  batch_.op = call.op;
  batch_.keys = keys_.As<const std::byte>();
  batch_.results = results_.As<Result>();
  batch_.element = call.element;
  if (!call.initial.is_none()) {
    const auto row = nb::cast<nb::bytes>(call.initial[1]);
    initial_row_ = {BytesOf(row).begin(), BytesOf(row).end()};
    batch_.initial = {.from = nb::cast<InitialValue::From>(call.initial[0]),
                      .row = initial_row_,
                      .seed = nb::cast<std::uint64_t>(call.initial[2]),
                      .first = nb::cast<float>(call.initial[3]),
                      .second = nb::cast<float>(call.initial[4]),
                      .drawn_bytes = nb::cast<std::uint32_t>(call.initial[5])};
  }
  if (!call.ops.object.is_none()) {
    ops_ = Array(call.ops, {.name = "ops", .elements = Elements::kCodes});
    ops_.CheckRows(n, 1, "a byte");
    batch_.ops = ops_.As<const Op>();
  }
  if (!call.values.object.is_none()) {
    values_ = Array(call.values, {.name = "values"});
    values_.CheckRows(n, value_size, "the bytes of a value");
    batch_.values = values_.As<const std::byte>();
  }
  if (!call.found.object.is_none()) {
    found_ = Array(call.found, {.name = "out", .written = true});
    found_.CheckRows(n, value_size, "the bytes of a value");
    batch_.found = found_.As<std::byte>();
  }
  for (const Array* input : {&keys_, &ops_, &values_}) {
    found_.CheckApart(*input);
    results_.CheckApart(*input);
  }
  found_.CheckApart(results_);
  if (executor == ExecutorKind::kCuda) return;
  for (const Array* array : {&keys_, &ops_, &values_, &found_, &results_}) {
    if (!array->on_device()) continue;
    throw Error(ErrorCode::kUnsupported, std::string(array->name()) +
                                             ": the array is in the memory of a GPU, and this runs "
                                             "on executor cpu; copy it to host memory");
  }
}

std::optional<std::uint64_t> Arrays::CountNotOk() const {
  if (results_.on_device()) return {};
  constexpr std::size_t kBlock = 255;  // whose count is a byte: the compiler counts many at once
  std::uint64_t failed = 0;
  for (std::size_t first = 0; first < batch_.results.size(); first += kBlock) {
    const std::size_t n = std::min(kBlock, batch_.results.size() - first);
    std::uint8_t of_block = 0;
    for (const Result result : batch_.results.subspan(first, n)) of_block += result != Result::kOk;
    failed += of_block;
  }
  return failed;
}

void RequireDefaultStream(std::uintptr_t stream, ExecutorKind executor, const char* store) {
  constexpr std::uintptr_t kLegacyDefault = 1;  // cudaStreamLegacy
  if (stream <= kLegacyDefault || executor != ExecutorKind::kCuda) return;
  throw Error(ErrorCode::kUnsupported,
              std::string("stream: a batch of ") + store +
                  " is in the order of the default stream; wait for what it needs on others, and "
                  "call it on that");
}

}  // namespace gpm::python
