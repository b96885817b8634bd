#include "cli/crash/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "table/elements.h"
#include "table/group.h"
#include "table/operation.h"
#include "ycsb/generators.h"

namespace gpm::cli {
namespace {

using ycsb::Mix64;
using ycsb::Random;

// A version says who writes it: round + 1, writer, batch and operation, high bits first.
constexpr unsigned kIndexBits = 18;
constexpr unsigned kBatchBits = 21;
constexpr unsigned kWriterBits = 8;
static_assert(kMaxCrashBatch <= 1 << kIndexBits &&
              kMaxCrashThreads * kMaxCrashTickets < 1 << kWriterBits &&
              kMaxCrashRounds < std::uint64_t{1} << (64 - kIndexBits - kBatchBits - kWriterBits));

constexpr std::uint64_t kFewKeys = std::uint64_t{1} << 17;  ///< of rounds with small batches
constexpr std::uint64_t kAllZeroKey = 0;
constexpr std::uint64_t kAllOneKey = 1;
constexpr std::uint64_t kAllOnes = ~std::uint64_t{0};

/// Of 100 operations, by kind in Op's order: find, insert, update, upsert, erase, find-or-insert,
/// accumulate.
constexpr unsigned kGrowing[kOpKinds] = {15, 20, 10, 15, 15, 10, 15};
constexpr unsigned kErasing[kOpKinds] = {15, 5, 5, 5, 50, 5, 15};
/// The same of what a DeviceView does.
constexpr unsigned kGrowingInScope[kOpKinds] = {15, 35, 15, 20, 15};
constexpr unsigned kErasingInScope[kOpKinds] = {15, 10, 10, 10, 55};

Op DrawOp(const CrashRound& round, bool in_scope, Random& random) {
  const auto& shares = in_scope         ? round.erases() ? kErasingInScope : kGrowingInScope
                       : round.erases() ? kErasing
                                        : kGrowing;
  std::uint64_t draw = random.NextBelow(100);
  std::uint8_t op = 0;
  while (draw >= shares[op]) draw -= shares[op++];
  return static_cast<Op>(op);
}

/// Any that values of this size consist of; kNone: there is none.
Element DrawElement(std::uint32_t value_size, Random& random) {
  constexpr Element kElements[] = {Element::kUInt64, Element::kFloat32, Element::kFloat16,
                                   Element::kBFloat16};
  std::vector<Element> fit;
  for (const Element element : kElements) {
    if (value_size % ElementBytes(element) == 0) fit.push_back(element);
  }
  return fit.empty() ? Element::kNone : fit[random.NextBelow(fit.size())];
}

/// As many batches of one operation, of a few, of hundreds, of thousands, and of any number.
std::size_t DrawBatchSize(std::size_t max_batch, Random& random) {
  const std::size_t below[] = {1, 32, 512, 4096, max_batch};
  const std::size_t size = below[random.NextBelow(std::size(below))];
  return 1 + random.NextBelow(std::min(size, max_batch));
}

/// Word `i` of a value.
std::uint64_t ValueWord(std::uint64_t key, std::uint64_t version, std::size_t i) {
  constexpr std::uint64_t kExponents = 0x7F8000007F800000ull;
  constexpr std::uint64_t kOnes = 0x3F8000003F800000ull;
  return (Mix64(version ^ Mix64(key ^ (std::uint64_t{i} << 32))) & ~kExponents) | kOnes;
}

}  // namespace

std::uint64_t CrashRound::keys() const {
  const std::uint64_t most = std::clamp<std::uint64_t>(8 * max_batch, kFewKeys, kCrashKeys);
  // The last number that such keys have room for would be the all-one key.
  const std::uint64_t of_size = key_size < 8 ? (std::uint64_t{1} << 8 * key_size) - 1 : kAllOnes;
  return std::min(age >= 3 ? most : most >> (7 - 2 * age), of_size);
}

bool CrashRound::snapshots() const { return Mix64(seed ^ Mix64(~number)) % 2 == 0; }

OpenOptions MakeCrashOpening(const CrashRound& round) {
  Random random(Mix64(round.seed ^ Mix64(round.number)), kAllOnes);
  OpenOptions open;
  CacheOptions& cache = open.cache;
  const std::uint64_t kind = random.NextBelow(4);
  cache.directory = kind != 0;
  cache.fraction = kind < 2 ? 0 : 0.1 + 0.6 * random.NextDouble();
  constexpr CachePolicy kPolicies[] = {CachePolicy::kTinyLfu, CachePolicy::kLfu, CachePolicy::kLru,
                                       CachePolicy::kRandom};
  cache.policy = kPolicies[random.NextBelow(std::size(kPolicies))];
  const std::uint64_t interval = std::uint64_t{1000} << random.NextBelow(12);
  if (random.NextBelow(4) != 0) cache.refresh_interval = interval;  // else when it pays
  constexpr double kGrowths[] = {2, 2, 1.2, 1.5};
  open.growth = kGrowths[random.NextBelow(std::size(kGrowths))];
  if (random.NextBelow(2) == 0) open.growth_pause = 0;
  return open;
}

CrashBatch MakeCrashBatch(const CrashRound& round, unsigned writer, std::uint64_t batch) {
  Random random(Mix64(round.seed ^ Mix64(round.number)), (std::uint64_t{writer} << 32) ^ batch);
  CrashBatch made;
  std::size_t size = DrawBatchSize(round.max_batch, random);
  const bool loads = round.IsFirstLoad(writer, batch);
  if (loads) size = round.max_batch;
  made.one_kind = random.NextBelow(4) == 0 || loads;
  const bool distinct = round.IsInScope(writer);
  const Op kind = loads ? Op::kInsert : DrawOp(round, distinct, random);
  constexpr std::uint64_t kSteps = 8;
  constexpr std::uint64_t kBatchesOfStep = 4;
  const std::uint64_t step = std::min(kSteps, 1 + batch / kBatchesOfStep);
  const std::uint64_t own_keys =
      std::max<std::uint64_t>(1, round.keys() / round.writers() * (loads ? kSteps : step) / kSteps);
  // One batch in four keeps to few keys, each of which it meets again and again.
  std::uint64_t keys = random.NextBelow(4) == 0 && !loads ? 1 + random.NextBelow(64) : own_keys;
  keys = std::min(keys, own_keys);
  const std::uint64_t first = random.NextBelow(own_keys - keys + 1);
  if (distinct) size = std::min<std::size_t>(size, keys);
  const std::uint64_t rotation = random.NextBelow(keys);
  std::uint64_t version = round.number + 1;
  version = version << kWriterBits | writer;
  version = version << kBatchBits | (batch & ((std::uint64_t{1} << kBatchBits) - 1));
  version <<= kIndexBits;
  made.element = DrawElement(round.value_size, random);
  // (A batch of sums of nothing is refused.)
  if (kind == Op::kAccumulate && made.element == Element::kNone) made.one_kind = false;
  made.operations.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    CrashOperation& operation = made.operations[i];
    operation.op = made.one_kind ? kind : DrawOp(round, distinct, random);
    std::uint64_t place = first + (distinct ? (rotation + i) % keys : random.NextBelow(keys));
    // The reserved keys, which have a place of their own in the pool, come often.
    if (!distinct && random.NextBelow(32) == 0) {
      place = round.writers() == 1 ? random.NextBelow(2) : 0;
    }
    operation.key = place * round.writers() + writer;
    operation.version = version + i;
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
  const std::uint64_t writer = take(kWriterBits);
  return fmt::format("operation {} of batch {} of writer {} in round {}", index, batch, writer,
                     version - 1);
}

void CrashItems::PutKey(std::uint64_t number, std::byte* key) const {
  if (number == kAllZeroKey || number == kAllOneKey) {
    std::memset(key, number == kAllOneKey ? 0xFF : 0, key_size_);
    return;
  }
  const std::size_t number_bytes = std::min<std::size_t>(8, key_size_);
  const std::size_t last = key_size_ - number_bytes;
  for (std::size_t at = 0; at < last; at += 8) {
    const std::uint64_t word = number % 3 == 0 ? 0 : Mix64(number + at);
    std::memcpy(key + at, &word, std::min<std::size_t>(8, last - at));
  }
  std::memcpy(key + last, &number, number_bytes);
}

std::optional<std::uint64_t> CrashItems::KeyNumber(std::span<const std::byte> key) const {
  std::uint64_t number = 0;
  const std::size_t number_bytes = std::min<std::size_t>(8, key_size_);
  std::memcpy(&number, key.data() + key_size_ - number_bytes, number_bytes);
  if (number == kAllOnes >> (64 - 8 * number_bytes)) number = kAllOneKey;
  if (number >= kCrashKeys) return std::nullopt;
  std::vector<std::byte> right(key_size_);
  PutKey(number, right.data());
  return std::equal(right.begin(), right.end(), key.begin(), key.end()) ? std::optional(number)
                                                                        : std::nullopt;
}

void CrashItems::PutValue(std::uint64_t key, std::uint64_t version, std::byte* value) const {
  const std::size_t words = value_size_ / 8;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = i == 0 ? version : ValueWord(key, version, i);
    std::memcpy(value + 8 * i, &word, 8);
  }
  if (const std::size_t rest = value_size_ % 8; rest > 0) {
    const std::uint64_t word = ValueWord(key, version, words);
    std::memcpy(value + 8 * words, &word, rest);
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

std::pair<Result, std::uint64_t> CrashValues::Apply(const CrashOperation& operation,
                                                    Element element, std::uint64_t version) {
  const bool sums = operation.op == Op::kAccumulate;
  const Result result = ResultOf(operation.op, version != 0, !sums || element != Element::kNone);
  if (result != Result::kOk || operation.op == Op::kFind) return {result, version};
  if (operation.op == Op::kErase) return {result, 0};
  if (sums) sums_.try_emplace(operation.version, version, element);
  return {result, operation.version};
}

std::span<const std::byte> CrashValues::ValueOf(std::uint64_t key, std::uint64_t version) {
  const std::uint32_t value_size = items_.value_size();
  value_.resize(value_size);
  if (!sums_.contains(version)) {
    items_.PutValue(key, version, value_.data());
    return value_;
  }
  // Back to a value that is known or was written, and from there row by row.
  Known& known = known_[key];
  std::vector<std::pair<std::uint64_t, Element>> added;
  std::uint64_t first = version;
  for (auto sum = sums_.find(first); sum != sums_.end() && first != known.version;
       sum = sums_.find(first)) {
    added.emplace_back(first, sum->second.element);
    first = sum->second.before;
  }
  if (first == known.version) {
    value_ = known.value;
  } else {
    items_.PutValue(key, first, value_.data());
  }
  row_.resize(value_size);
  for (auto row = added.rbegin(); row != added.rend(); ++row) {
    items_.PutValue(key, row->first, row_.data());
    AddRows(ThreadGroup{}, {.element = row->second, .sum = value_.data(), .rows = row_.data()},
            value_size);
  }
  known = {version, value_};
  return value_;
}

void CrashValues::KeepOnly(std::span<const std::uint64_t> versions) {
  std::unordered_map<std::uint64_t, Sum> kept;
  for (const std::uint64_t version : versions) {
    for (auto sum = sums_.find(version); sum != sums_.end(); sum = sums_.find(sum->second.before)) {
      kept.insert(*sum);
    }
  }
  sums_ = std::move(kept);
  known_.clear();
}

std::uint64_t CrashToken(std::span<const std::byte> value) {
  std::uint64_t token = value.size();
  for (std::size_t at = 0; at < value.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, value.data() + at, std::min<std::size_t>(8, value.size() - at));
    token = Mix64(token ^ word);
  }
  return token;
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
