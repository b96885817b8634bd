#include "gpmstore/batch.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "gpmstore/options.h"
#include "table/elements.h"
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
    case Op::kFindOrInsert:
      return "find-or-insert";
    case Op::kAccumulate:
      return "accumulate";
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

std::string_view ElementName(Element element) {
  switch (element) {
    case Element::kNone:
      return "none";
    case Element::kFloat32:
      return "float32";
    case Element::kFloat16:
      return "float16";
    case Element::kBFloat16:
      return "bfloat16";
    case Element::kUInt64:
      return "uint64";
  }
  return "unknown";
}

namespace {

[[noreturn]] void Refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "batch: " + why);
}

void ValidateElement(Element element, std::uint32_t value_size) {
  if (static_cast<std::uint8_t>(element) > static_cast<std::uint8_t>(Element::kUInt64)) {
    Refuse("its element is not one of Element's");
  }
  const std::uint32_t bytes = ElementBytes(element);
  if (bytes != 0 && value_size % bytes != 0) {
    Refuse(fmt::format("values of {} bytes are not elements of {} ({} bytes each)", value_size,
                       ElementName(element), bytes));
  }
}

/// The nearest number that a floating point element can be.
float RoundTo(Element element, float number) {
  if (element == Element::kFloat16) return FloatOfHalf(HalfOfFloat(number));
  if (element == Element::kBFloat16) return FloatOfBFloat(BFloatOfFloat(number));
  return number;
}

void ValidateInitialValue(const InitialValue& initial, Element element, std::uint32_t value_size) {
  using From = InitialValue::From;
  switch (initial.from) {
    case From::kValues:
      return;
    case From::kConstant:
      if (initial.row.size() != value_size || initial.row.data() == nullptr) {
        Refuse(fmt::format("the initial value has {} bytes, it must have {}", initial.row.size(),
                           value_size));
      }
      RequireHostMemory(initial.row.data(), initial.row.size(), "initial.row");
      return;
    case From::kUniform:
    case From::kNormal: {
      if (element == Element::kNone || element == Element::kUInt64) {
        Refuse(fmt::format(
            "initial values of element {} can't be drawn; it has to be a floating point number",
            ElementName(element)));
      }
      const bool is_normal = initial.from == From::kNormal;
      const float least = is_normal ? 0 : initial.first;
      const auto is_finite = [&](float number) { return std::isfinite(RoundTo(element, number)); };
      if (!is_finite(initial.first) || !is_finite(initial.second) || initial.second < least) {
        Refuse(fmt::format("initial values with {} {} and {} {} can't be drawn as {}",
                           is_normal ? "mean" : "low", initial.first,
                           is_normal ? "deviation" : "high", initial.second, ElementName(element)));
      }
      if (initial.drawn_bytes > value_size && initial.drawn_bytes != InitialValue{}.drawn_bytes) {
        Refuse(fmt::format("{} bytes of its initial values can't be drawn: a value has {}",
                           initial.drawn_bytes, value_size));
      }
      if (initial.drawn_bytes < value_size && initial.drawn_bytes % ElementBytes(element) != 0) {
        Refuse(fmt::format("{} bytes of its initial values can't be drawn: {} has {} bytes",
                           initial.drawn_bytes, ElementName(element), ElementBytes(element)));
      }
      return;
    }
  }
  Refuse("its initial value is from none of InitialValue's sources");
}

}  // namespace

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
  ValidateElement(batch.element, value_size);
  const bool may_insert = !batch.ops.empty() || batch.op == Op::kFindOrInsert;
  if (may_insert) ValidateInitialValue(batch.initial, batch.element, value_size);
  const bool has_initial = may_insert && batch.initial.from != InitialValue::From::kValues;
  if (batch.ops.empty() && batch.op == Op::kAccumulate && batch.element == Element::kNone) {
    Refuse("to accumulate, it has to say of which element values are");
  }
  if (n > 0 && !batch.ops.empty() && has_initial && batch.values.empty()) {
    Refuse("of mixed kinds, with an initial value: 'values' is missing");
  }
  if (n > 0 && batch.ops.empty() && Writes(batch.op) && batch.values.empty() && !has_initial) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("batch of {}s: 'values' is missing", OpName(batch.op)));
  }
}

}  // namespace gpm
