#include "bench/operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "gpmstore/error.h"
#include "table/hash.h"
#include "ycsb/generators.h"

namespace gpm::bench {
namespace {

/// Word `index` of the value of `key` in `version`.
std::uint64_t ValueWord(std::uint64_t key, std::uint32_t version, std::uint64_t index) {
  return Scramble(key ^ (std::uint64_t{version} << 32)) + index * 0x9E3779B97F4A7C15ull;
}

void FillValue(std::uint64_t key, std::uint32_t version, std::span<std::byte> value) {
  for (std::uint64_t offset = 0; offset < value.size(); offset += 8) {
    const std::uint64_t word = ValueWord(key, version, offset / 8);
    std::memcpy(value.data() + offset, &word,
                std::min<std::uint64_t>(sizeof(word), value.size() - offset));
  }
}

std::uint64_t Combine(std::uint64_t checksum, std::uint64_t word) {
  return FoldMultiply(checksum ^ word, 0x9E3779B97F4A7C15ull) + 1;
}

}  // namespace

std::vector<std::uint64_t> MakeKeys(Choice choice, Records records, std::uint64_t n, double theta,
                                    std::uint64_t seed) {
  const ycsb::ScrambledZipfian zipfian(records.count, theta);
  ycsb::Random random(seed);
  std::vector<std::uint64_t> keys(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    std::uint64_t record = i % records.count;
    if (choice == Choice::kUniform) record = random.NextBelow(records.count);
    if (choice == Choice::kZipf) record = zipfian.Draw(random);
    keys[i] = ycsb::FnvHash64(records.first + record);
  }
  return keys;
}

void FillValues(std::span<const std::uint64_t> keys, std::uint32_t version,
                std::uint32_t value_size, std::span<std::byte> values) {
  for (std::uint64_t i = 0; i < keys.size(); ++i) {
    FillValue(keys[i], version, values.subspan(i * value_size, value_size));
  }
}

std::uint64_t Verify(const Phase& phase, std::uint32_t value_size, std::span<const Result> results,
                     std::span<const std::byte> found) {
  std::uint64_t checksum = 0;
  std::vector<std::byte> expected(value_size, std::byte{0});
  for (std::uint64_t i = 0; i < phase.keys.size(); ++i) {
    if (results[i] != phase.expected) {
      throw Error(ErrorCode::kDamaged,
                  fmt::format("{}: operation {} (key {}) gave {}, not {}", phase.name, i,
                              phase.keys[i], ResultName(results[i]), ResultName(phase.expected)));
    }
    checksum = Combine(checksum, static_cast<std::uint64_t>(results[i]));
    if (found.empty()) continue;
    if (phase.expected == Result::kOk) FillValue(phase.keys[i], phase.version, expected);
    const auto row = found.subspan(i * value_size, value_size);
    if (!std::ranges::equal(row, expected)) {
      throw Error(ErrorCode::kDamaged, fmt::format("{}: operation {} (key {}) gave a wrong value",
                                                   phase.name, i, phase.keys[i]));
    }
    std::uint64_t first = 0;
    std::memcpy(&first, row.data(), std::min<std::size_t>(sizeof(first), row.size()));
    checksum = Combine(checksum, first);
  }
  return checksum;
}

}  // namespace gpm::bench
