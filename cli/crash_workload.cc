#include "cli/crash_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ycsb/generators.h"

namespace gpm::cli {
namespace {

using ycsb::Mix64;
using ycsb::Random;

// A version says who writes it: round + 1, thread, batch and operation, high bits first.
constexpr unsigned kIndexBits = 13;
constexpr unsigned kBatchBits = 22;
constexpr unsigned kThreadBits = 6;
static_assert(kMaxCrashBatch < 1 << kIndexBits && kMaxCrashThreads <= 1 << kThreadBits &&
              kMaxCrashRounds < std::uint64_t{1} << (64 - kIndexBits - kBatchBits - kThreadBits));

constexpr std::uint64_t kFirstKeys = 1024;
constexpr std::uint64_t kAllZeroKey = 0;
constexpr std::uint64_t kAllOneKey = 1;
constexpr std::uint64_t kAllOnes = ~std::uint64_t{0};

/// Of 100 operations, by kind in Op's order: find, insert, update, upsert, erase.
constexpr unsigned kGrowing[kOpKinds] = {15, 35, 15, 20, 15};
constexpr unsigned kErasing[kOpKinds] = {15, 10, 10, 10, 55};

Op DrawOp(const CrashRound& round, Random& random) {
  const auto& shares = round.erases() ? kErasing : kGrowing;
  std::uint64_t draw = random.NextBelow(100);
  std::uint8_t op = 0;
  while (draw >= shares[op]) draw -= shares[op++];
  return static_cast<Op>(op);
}

/// As many batches of one operation, of a few, of hundreds and of thousands.
std::size_t DrawBatchSize(Random& random) {
  constexpr std::size_t kBelow[] = {1, 32, 512, kMaxCrashBatch};
  const std::uint64_t kind = random.NextBelow(std::size(kBelow));
  return kind == 0 ? 1 : 1 + random.NextBelow(kBelow[kind]);
}

/// Word `i` of a value.
std::uint64_t ValueWord(std::uint64_t key, std::uint64_t version, std::size_t i) {
  return Mix64(version ^ Mix64(key ^ (std::uint64_t{i} << 32)));
}

}  // namespace

std::uint64_t CrashRound::keys() const { return age >= 3 ? kCrashKeys : kFirstKeys << (2 * age); }

CrashBatch MakeCrashBatch(const CrashRound& round, unsigned thread, std::uint64_t batch) {
  Random random(Mix64(round.seed ^ Mix64(round.number)), (std::uint64_t{thread} << 32) ^ batch);
  CrashBatch made;
  made.operations.resize(DrawBatchSize(random));
  made.one_kind = random.NextBelow(4) == 0;
  const Op kind = DrawOp(round, random);
  // One batch in four keeps to few keys, each of which it meets again and again.
  const std::uint64_t own_keys = round.keys() / round.threads;
  const std::uint64_t keys = random.NextBelow(4) == 0 ? 1 + random.NextBelow(64) : own_keys;
  const std::uint64_t first = random.NextBelow(own_keys - keys + 1);
  std::uint64_t version = round.number + 1;
  version = version << kThreadBits | thread;
  version = version << kBatchBits | (batch & ((std::uint64_t{1} << kBatchBits) - 1));
  version <<= kIndexBits;
  for (CrashOperation& operation : made.operations) {
    operation.op = made.one_kind ? kind : DrawOp(round, random);
    // The reserved keys, which have a place of their own in the pool, come often.
    std::uint64_t place = first + random.NextBelow(keys);
    if (random.NextBelow(32) == 0) place = round.threads == 1 ? random.NextBelow(2) : 0;
    operation.key = place * round.threads + thread;
    operation.version = version++;
  }
  return made;
}

std::string VersionText(std::uint64_t version) {
  const auto take = [&](unsigned bits) {
    const std::uint64_t field = version & ((std::uint64_t{1} << bits) - 1);
    version >>= bits;
    return field;
  };
  const std::uint64_t index = take(kIndexBits);
  const std::uint64_t batch = take(kBatchBits);
  const std::uint64_t thread = take(kThreadBits);
  return fmt::format("operation {} of batch {} of thread {} in round {}", index, batch, thread,
                     version - 1);
}

void CrashItems::PutKey(std::uint64_t number, std::byte* key) const {
  if (number == kAllZeroKey || number == kAllOneKey) {
    std::memset(key, number == kAllOneKey ? 0xFF : 0, key_size_);
    return;
  }
  for (std::size_t at = 0; at < key_size_; at += 8) {
    const std::uint64_t word = at + 8 == key_size_ ? number
                               : number % 3 == 0   ? 0
                                                   : Mix64(number + at);
    std::memcpy(key + at, &word, 8);
  }
}

std::optional<std::uint64_t> CrashItems::KeyNumber(std::span<const std::byte> key) const {
  std::uint64_t number = 0;
  std::memcpy(&number, key.data() + key_size_ - 8, 8);
  if (number == kAllOnes) number = kAllOneKey;
  if (number >= kCrashKeys) return std::nullopt;
  std::vector<std::byte> right(key_size_);
  PutKey(number, right.data());
  return std::equal(right.begin(), right.end(), key.begin(), key.end()) ? std::optional(number)
                                                                        : std::nullopt;
}

void CrashItems::PutValue(std::uint64_t key, std::uint64_t version, std::byte* value) const {
  for (std::size_t at = 0; at < value_size_; at += 8) {
    const std::uint64_t word =
        at == 0 && value_size_ >= 8 ? version : ValueWord(key, version, at / 8);
    std::memcpy(value + at, &word, std::min<std::size_t>(8, value_size_ - at));
  }
}

std::string CrashItems::ValueText(std::uint64_t key, std::span<const std::byte> value) const {
  if (value_size_ < 8) {
    std::string text = "the value 0x";
    for (const std::byte byte : value) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
    return text;
  }
  std::uint64_t version = 0;
  std::memcpy(&version, value.data(), 8);
  std::vector<std::byte> whole(value_size_);
  PutValue(key, version, whole.data());
  const auto differs = std::mismatch(whole.begin(), whole.end(), value.begin()).first;
  if (differs == whole.end()) return "the value of " + VersionText(version);
  return fmt::format("a torn value: that of {} up to byte {}, then something else",
                     VersionText(version), differs - whole.begin());
}

void CrashDigest::Add(Result result, std::span<const std::byte> found) {
  // The place is mixed in, so that two operations that are wrong alike do not look like one.
  std::uint64_t answer = Mix64(++added_ << 8 | static_cast<std::uint64_t>(result));
  for (std::size_t at = 0; at < found.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, found.data() + at, std::min<std::size_t>(8, found.size() - at));
    answer = Mix64(answer ^ word);
  }
  sum_ += answer;
  weighted_ += answer * added_;
}

std::optional<std::size_t> CrashDigest::Difference(const CrashDigest& other,
                                                   std::size_t operations) const {
  const std::uint64_t difference = sum_ - other.sum_;
  for (std::size_t i = 0; difference != 0 && i < operations; ++i) {
    if (difference * (i + 1) == weighted_ - other.weighted_) return i;
  }
  return std::nullopt;
}

}  // namespace gpm::cli
