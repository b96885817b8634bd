#include "crash_sim/crash_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "table/elements.h"
#include "table/geometry.h"
#include "table/group.h"
#include "table/hash.h"
#include "table/operation.h"

namespace gpm::crash {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ull;

}  // namespace

std::string Shape::Key(std::uint64_t number) const {
  std::vector<std::uint64_t> words((key_size + 7) / 8);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = number < 2 ? 0 - number : Scramble(number + i * kGolden);
  }
  return std::string(reinterpret_cast<const char*>(words.data()), key_size);
}

std::string Shape::Value(std::uint64_t tag) const {
  std::string value(value_size, '\0');
  for (std::uint32_t i = 0; i < value_size; i += 8) {
    const std::uint64_t word = tag * (1 + i / 8 * 0x100) + i;
    std::memcpy(value.data() + i, &word, std::min(8u, value_size - i));
  }
  return value;
}

std::string Shape::Describe() const {
  return fmt::format(
      "keys of {} bytes, values of {} bytes, geometry {}, first levels of {} buckets, "
      "growth {}{}{}, {} threads, {} directory, "
      "pool of {} then {} bytes",
      key_size, value_size, GeometryName(geometry), fmt::join(levels, " + "), growth,
      growth_pause > 0 ? " by composed levels" : "", grow_above > 0 ? ", items are displaced" : "",
      threads, directory ? "a" : "no", max_bytes, max_bytes_later);
}

void BatchData::Add(Op op, std::uint64_t key_number, std::uint64_t value_tag) {
  ops_.push_back(op);
  keys_ += shape_.Key(key_number);
  values_ += shape_.Value(value_tag);
}

void BatchData::Fill(std::mt19937_64& random, std::size_t operations, std::uint64_t* tag) {
  constexpr Op kWriters[] = {Op::kInsert, Op::kUpsert,       Op::kUpdate,
                             Op::kErase,  Op::kFindOrInsert, Op::kAccumulate};
  const bool mixed = random() % 2 == 0;
  const auto any_kind = [&] {
    return random() % 8 == 0 ? Op::kFind : kWriters[random() % std::size(kWriters)];
  };
  const Op kind = any_kind();
  const std::uint64_t hot_key = random() % shape_.keys;
  for (std::size_t i = 0; i < operations; ++i) {
    const std::uint64_t key = random() % 4 == 0 ? hot_key : random() % shape_.keys;
    const Op op = mixed ? any_kind() : kind;
    Add(op, key, ++*tag);
  }
}

Batch BatchData::View() {
  found_.assign(values_.size(), '\x5A');
  results_.assign(ops_.size(), kNoResult);
  Batch batch;
  batch.ops = ops_;
  batch.keys = std::as_bytes(std::span(keys_));
  batch.values = std::as_bytes(std::span(values_));
  batch.found = std::as_writable_bytes(std::span(found_));
  batch.results = results_;
  batch.element = shape_.element();
  return batch;
}

/// A value to which a row was added.
std::string BatchData::Sum(std::string value, const std::string& row) const {
  Addends addends;
  addends.element = shape_.element();
  addends.sum = reinterpret_cast<std::byte*>(value.data());
  addends.rows = reinterpret_cast<const std::byte*>(row.data());
  AddRows(ThreadGroup{}, addends, shape_.value_size);
  return value;
}

/// Whether an operation on the same key that comes later was answered: operations on a key are
/// carried out in order, so that this one has ended, and its answer is the last one.
bool BatchData::IsAnsweredLater(std::size_t i) const {
  const auto key = [&](std::size_t j) {
    return std::string_view(keys_).substr(j * shape_.key_size, shape_.key_size);
  };
  for (std::size_t j = i + 1; j < ops_.size(); ++j) {
    if (results_[j] != kNoResult && results_[j] != Result::kNoSpace && key(j) == key(i))
      return true;
  }
  return false;
}

std::size_t BatchData::Apply(Contents& contents,
                             std::map<std::string, Promise::Alternatives>* in_flight, bool killed) {
  std::size_t no_space = 0;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const std::string key = keys_.substr(i * shape_.key_size, shape_.key_size);
    std::string value = values_.substr(i * shape_.value_size, shape_.value_size);
    const Op op = ops_[i];
    const auto item = contents.find(key);
    const bool present = item != contents.end();
    const auto note = [&](std::optional<std::string> now) {
      if (in_flight != nullptr) (*in_flight)[key].push_back(std::move(now));
    };
    if (in_flight != nullptr && !in_flight->contains(key)) {
      note(present ? std::optional(item->second) : std::nullopt);
    }
    Result expected = Result::kOk;
    if ((op == Op::kInsert || op == Op::kFindOrInsert) && present) expected = Result::kExists;
    if (!Inserts(op) && !present) expected = Result::kNotFound;
    const bool writes = Writes(op);
    if (op == Op::kAccumulate && shape_.element() == Element::kNone) expected = Result::kInvalid;
    if (op == Op::kAccumulate && expected == Result::kOk) value = Sum(item->second, value);
    const bool has_ended = !killed || IsAnsweredLater(i);
    if (has_ended && writes && expected == Result::kOk && results_[i] == Result::kNoSpace) {
      ++no_space;
      continue;
    }
    const std::string found = found_.substr(i * shape_.value_size, shape_.value_size);
    const bool right_value = !GivesValue(op) || (!present && op == Op::kFind) ||
                             found == (present ? item->second : value);
    // What is not finished reads as no-space until it is.
    const bool unknown = killed && (results_[i] == kNoResult || results_[i] == Result::kNoSpace);
    if (!unknown && (results_[i] != expected || !right_value)) {
      throw Violation(fmt::format("operation {} of {}, {} of key {}: result {}{}, expected {}", i,
                                  ops_.size(), OpName(op), Hex(key), ResultName(results_[i]),
                                  right_value ? "" : " with value " + Hex(found),
                                  ResultName(expected)));
    }
    if (expected != Result::kOk) continue;
    if (writes) {
      contents[key] = value;
      note(value);
    } else if (op == Op::kErase) {
      contents.erase(item);
      note(std::nullopt);
    }
  }
  return no_space;
}

}  // namespace gpm::crash
