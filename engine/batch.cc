#include "gpmstore/batch.h"

#include <fmt/format.h>

#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "gpmstore/options.h"
#include "table/operation.h"

namespace gpm {

std::string_view OpName(Op op) {
  switch (op) {
    case Op::kFind:
      return "find";
    case Op::kInsert:
      return "insert";
    case Op::kUpdate:
      return "update";
    case Op::kUpsert:
      return "upsert";
    case Op::kErase:
      return "erase";
  }
  return "unknown";
}

std::string_view ResultName(Result result) {
  switch (result) {
    case Result::kOk:
      return "ok";
    case Result::kNotFound:
      return "not-found";
    case Result::kExists:
      return "exists";
    case Result::kNoSpace:
      return "no-space";
    case Result::kInvalid:
      return "invalid";
  }
  return "unknown";
}

std::string_view ExecutorName(ExecutorKind kind) {
  switch (kind) {
    case ExecutorKind::kAuto:
      return "auto";
    case ExecutorKind::kCpu:
      return "cpu";
    case ExecutorKind::kCuda:
      return "cuda";
  }
  return "unknown";
}

void ValidateBatch(const Batch& batch, std::uint32_t key_size, std::uint32_t value_size) {
  const std::size_t n = batch.results.size();
  const auto expect = [&](const char* name, std::size_t bytes, std::size_t row) {
    if (bytes != n * row) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("batch of {} operations: '{}' has {} bytes, it must have {} ({} for "
                              "each operation)",
                              n, name, bytes, n * row, row));
    }
  };
  const auto expect_address = [&](const char* name, const void* array, std::size_t bytes) {
    if (bytes > 0 && array == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("batch of {} operations: '{}' is a null pointer", n, name));
    }
  };
  expect_address("results", batch.results.data(), n);
  expect_address("keys", batch.keys.data(), batch.keys.size());
  expect_address("ops", batch.ops.data(), batch.ops.size());
  expect_address("values", batch.values.data(), batch.values.size());
  expect_address("found", batch.found.data(), batch.found.size());
  if (n > (std::size_t{1} << 31) - 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("batch of {} operations: at most 2^31 - 1 fit in one batch", n));
  }
  expect("keys", batch.keys.size(), key_size);
  if (!batch.ops.empty()) expect("ops", batch.ops.size(), 1);
  if (!batch.values.empty()) expect("values", batch.values.size(), value_size);
  if (!batch.found.empty()) expect("found", batch.found.size(), value_size);
  if (batch.ops.empty() && static_cast<std::uint8_t>(batch.op) >= kOpKinds) {
    throw Error(ErrorCode::kInvalidArgument, "batch: its kind is not one of Op's");
  }
  if (n > 0 && batch.ops.empty() && Writes(batch.op) && batch.values.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("batch of {}s: 'values' is missing", OpName(batch.op)));
  }
}

}  // namespace gpm
