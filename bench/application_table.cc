#include "bench/application_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "gpmstore/error.h"

namespace gpm::bench {
namespace {

/// Keys of applications begin with 0, which most peers reserve, as they do ~0. So this is added.
constexpr std::uint64_t kFirstKey = std::uint64_t{1} << 62;

}  // namespace

ApplicationTable::ApplicationTable(std::unique_ptr<KvAdapter> adapter, const Capabilities& can,
                                   std::uint64_t max_batch, std::uint32_t value_bytes)
    : adapter_(std::move(adapter)),
      max_batch_(max_batch),
      value_bytes_(value_bytes),
      is_elsewhere_(can.memory != ycsb::Memory::kHost) {
  if (!IsFor(can)) {
    throw Error(ErrorCode::kInvalidArgument, "an application finds, inserts and updates");
  }
  if (!is_elsewhere_) return;
  there_keys_ = ycsb::Buffer(can.memory, max_batch * sizeof(std::uint64_t));
  there_values_ = ycsb::Buffer(can.memory, max_batch * value_bytes);
  there_results_ = ycsb::Buffer(can.memory, max_batch * sizeof(Result));
}

bool ApplicationTable::IsFor(const Capabilities& can) {
  return can.Has(Op::kFind) && can.Has(Op::kInsert) && can.Has(Op::kUpdate) && !can.builds_once;
}

std::uint64_t ApplicationTable::Find(Keys keys, std::span<std::byte> values) {
  keys_.assign(keys.begin(), keys.end());
  const std::span<const Result> results = Apply(Op::kFind, {}, values);
  std::uint64_t missing = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (results[i] == Result::kOk) continue;
    if (results[i] != Result::kNotFound) {
      throw Error(ErrorCode::kDamaged, fmt::format("a find was {}", ResultName(results[i])));
    }
    std::ranges::fill(values.subspan(i * value_bytes_, value_bytes_), std::byte{0});
    ++missing;
  }
  return missing;
}

void ApplicationTable::Write(Keys keys, std::span<const std::byte> values) {
  keys_.assign(keys.begin(), keys.end());
  const std::span<const Result> updates = Apply(Op::kUpdate, values, {});
  std::vector<std::uint64_t> new_keys;
  new_values_.clear();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (updates[i] == Result::kOk) continue;
    if (updates[i] != Result::kNotFound) {
      throw Error(ErrorCode::kDamaged, fmt::format("an update was {}", ResultName(updates[i])));
    }
    const auto value = values.subspan(i * value_bytes_, value_bytes_);
    new_keys.push_back(keys[i]);
    new_values_.insert(new_values_.end(), value.begin(), value.end());
  }
  if (new_keys.empty()) return;
  keys_ = std::move(new_keys);
  for (const Result result : Apply(Op::kInsert, new_values_, {})) {
    if (result == Result::kOk) continue;
    throw Error(result == Result::kNoSpace ? ErrorCode::kNoSpace : ErrorCode::kDamaged,
                fmt::format("an insert was {}", ResultName(result)));
  }
  items_ += keys_.size();
}

/// Of keys_, which it changes. @return the results, until the next call
std::span<const Result> ApplicationTable::Apply(Op op, std::span<const std::byte> values,
                                                std::span<std::byte> found) {
  const std::size_t n = keys_.size();
  if (n > max_batch_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a batch of {}, where {} are the most", n, max_batch_));
  }
  for (std::uint64_t& key : keys_) key += kFirstKey;
  results_.assign(n, Result::kInvalid);
  Batch batch;
  batch.op = op;
  if (!is_elsewhere_) {
    batch.keys = std::as_bytes(std::span(keys_));
    batch.values = values;
    batch.found = found;
    batch.results = results_;
    adapter_->Apply(batch);
    return results_;
  }
  const std::span<std::byte> there = there_values_.bytes();
  there_keys_.CopyFrom(std::as_bytes(std::span(keys_)));
  there_values_.CopyFrom(values);
  batch.keys = there_keys_.bytes().first(n * sizeof(std::uint64_t));
  batch.values = there.first(values.size());
  batch.found = there.first(found.size());
  batch.results = there_results_.as<Result>().first(n);
  adapter_->Apply(batch);
  there_results_.CopyTo(std::as_writable_bytes(std::span(results_)));
  there_values_.CopyTo(found);
  return results_;
}

}  // namespace gpm::bench
