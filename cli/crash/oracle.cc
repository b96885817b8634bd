#include "cli/crash/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "table/operation.h"

namespace gpm::cli {
namespace {

constexpr std::size_t kMaxDefects = 16;

/// Version of a key that is there with a value that it must not have.
constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

std::string StateText(std::uint64_t version) {
  return version == 0 ? "absent" : "the value of " + VersionText(version);
}

}  // namespace

void CrashOracle::Renew() {
  std::fill(versions_.begin(), versions_.end(), 0);
  values_.KeepOnly({});
  in_flight_.clear();
  present_ = 0;
}

void CrashOracle::Start(unsigned writer, std::uint64_t number, CrashBatch batch) {
  const bool started = in_flight_.try_emplace(writer, number, std::move(batch)).second;
  if (!started) Defect(fmt::format("writer {} started batch {} inside another", writer, number));
}

void CrashOracle::Acknowledge(unsigned writer, const CrashDigest& answers) {
  const auto in_flight = in_flight_.find(writer);
  if (in_flight == in_flight_.end()) {
    return Defect(fmt::format("writer {} acknowledged a batch that it had not started", writer));
  }
  const auto [number, batch] = std::move(in_flight->second);
  in_flight_.erase(in_flight);

  CrashDigest expected;
  for (const CrashOperation& operation : batch.operations) {
    std::uint64_t& version = versions_[operation.key];
    const auto [result, after] = values_.Apply(operation, batch.element, version);
    const bool finds = HasFound(operation.op, result);
    expected.Add(result,
                 finds ? values_.ValueOf(operation.key, after) : std::span<const std::byte>());
    version = after;
  }
  if (answers == expected) return;
  std::string which = "several operations";
  if (const auto one = expected.Difference(answers, batch.operations.size())) {
    const CrashOperation& operation = batch.operations[*one];
    which = fmt::format("operation {}, {} of key {}", *one, OpName(operation.op), operation.key);
  }
  Defect(
      fmt::format("batch {} of writer {}, {} operations, was acknowledged with other answers than "
                  "its operations one by one: {}",
                  number, writer, batch.operations.size(), which));
}

std::size_t CrashOracle::AcknowledgeSome(unsigned writer, std::span<const Result> answers) {
  InFlightBatch& in_flight = in_flight_.at(writer);
  std::vector<CrashOperation> rest;
  std::size_t answered = 0;
  for (std::size_t i = 0; i < in_flight.batch.operations.size(); ++i) {
    const CrashOperation& operation = in_flight.batch.operations[i];
    if (answers[i] > Result::kInvalid || answers[i] == Result::kNoSpace) {
      rest.push_back(operation);
      continue;
    }
    ++answered;
    std::uint64_t& version = versions_[operation.key];
    const auto [result, after] = values_.Apply(operation, in_flight.batch.element, version);
    version = after;
    if (answers[i] != result) {
      Defect(
          fmt::format("operation {} of batch {} of writer {}, {} of key {}, was answered by "
                      "itself with {}, which must be {}",
                      i, in_flight.number, writer, OpName(operation.op), operation.key,
                      ResultName(answers[i]), ResultName(result)));
    }
  }
  in_flight.batch.operations = std::move(rest);
  return answered;
}

void CrashOracle::BeginItems() {
  found_.assign(kCrashKeys, 0);
  allowed_count_.assign(in_flight_.empty() ? 0 : kCrashKeys, 0);
  if (in_flight_.empty()) return;
  for (const auto& [writer, in_flight] : in_flight_) {
    for (const CrashOperation& operation : in_flight.batch.operations) {
      ++allowed_count_[operation.key];
    }
  }
  first_allowed_.resize(kCrashKeys);
  std::uint32_t end = 0;
  for (std::uint64_t key = 0; key < kCrashKeys; ++key) {
    first_allowed_[key] = end;
    if (const std::uint32_t operations = std::exchange(allowed_count_[key], 0)) {
      end += 1 + operations;
    }
  }
  allowed_.resize(end);
  for (const auto& [writer, in_flight] : in_flight_) {
    for (const CrashOperation& operation : in_flight.batch.operations) {
      std::uint64_t* const versions = &allowed_[first_allowed_[operation.key]];
      std::uint32_t& count = allowed_count_[operation.key];
      if (count == 0) versions[count++] = versions_[operation.key];
      const std::uint64_t after =
          values_.Apply(operation, in_flight.batch.element, versions[count - 1]).second;
      if (after != versions[count - 1]) versions[count++] = after;
    }
  }
}

void CrashOracle::Found(std::span<const std::byte> key, std::span<const std::byte> value) {
  const std::optional<std::uint64_t> number = values_.items().KeyNumber(key);
  if (!number) {
    std::string hex;
    for (const std::byte byte : key) hex += fmt::format("{:02x}", static_cast<unsigned>(byte));
    return Defect(fmt::format("key 0x{} is there, which no operation has", hex));
  }
  std::uint64_t& found = found_[*number];
  if (found != 0) Defect(fmt::format("key {} is there twice", *number));
  found = kUnknown;
  for (const std::uint64_t version : Allowed(*number)) {
    if (version != 0 && Holds(*number, version, value)) found = version;
  }
  if (found == kUnknown) {
    Defect(fmt::format("key {} is there with {}, but must be: {}", *number,
                       values_.items().ValueText(*number, value), AllowedText(*number)));
  }
}

void CrashOracle::EndItems() {
  for (std::uint64_t key = 0; key < kCrashKeys; ++key) {
    const std::span<const std::uint64_t> allowed = Allowed(key);
    if (found_[key] == 0 && std::find(allowed.begin(), allowed.end(), 0) == allowed.end()) {
      Defect(fmt::format("key {} is absent, but must be: {}", key, AllowedText(key)));
    }
  }
  versions_ = std::move(found_);
  values_.KeepOnly(versions_);
  present_ = static_cast<std::uint64_t>(
      std::count_if(versions_.begin(), versions_.end(), [](std::uint64_t v) { return v != 0; }));
  in_flight_.clear();
  allowed_count_.clear();
}

void CrashOracle::CheckFind(std::uint64_t key, Result result, std::span<const std::byte> value) {
  const std::uint64_t version = versions_[key];
  const Result right = version == 0 ? Result::kNotFound : Result::kOk;
  if (result != right) {
    Defect(fmt::format("find of key {} answers {}, but the key must be: {}", key,
                       ResultName(result), StateText(version)));
  } else if (version != 0 && !Holds(key, version, value)) {
    Defect(fmt::format("find of key {} gives {}, but it must be: {}", key,
                       values_.items().ValueText(key, value), StateText(version)));
  }
}

void CrashOracle::Defect(std::string text) {
  if (defects_.size() < kMaxDefects) defects_.push_back(std::move(text));
}

bool CrashOracle::Holds(std::uint64_t key, std::uint64_t version,
                        std::span<const std::byte> value) {
  const std::span<const std::byte> right = values_.ValueOf(key, version);
  return std::equal(right.begin(), right.end(), value.begin(), value.end());
}

std::span<const std::uint64_t> CrashOracle::Allowed(std::uint64_t key) const {
  if (allowed_count_.empty() || allowed_count_[key] == 0) return std::span(&versions_[key], 1);
  return std::span(allowed_).subspan(first_allowed_[key], allowed_count_[key]);
}

std::string CrashOracle::AllowedText(std::uint64_t key) const {
  constexpr std::size_t kNamed = 4;
  const std::span<const std::uint64_t> allowed = Allowed(key);
  std::string text;
  for (const std::uint64_t version : allowed.first(std::min(allowed.size(), kNamed))) {
    text += (text.empty() ? "" : ", or ") + StateText(version);
  }
  if (allowed.size() > kNamed) text += fmt::format(", or one of {} more", allowed.size() - kNamed);
  return text;
}

}  // namespace gpm::cli
