#include "ycsb/items.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "gpmstore/error.h"
#include "ycsb/generators.h"

namespace gpm::ycsb {
namespace {

constexpr std::size_t kWordBytes = 8;

std::uint64_t FirstWord(std::uint64_t record, Version version) { return Mix64(record) ^ version; }

/// The word at byte `at` of a value of `size` bytes, behind the first one.
std::uint64_t WordAt(std::size_t at, std::uint64_t record, std::uint64_t first, std::size_t size) {
  return at == kRecordAt && size >= kLeastSearchedBytes ? record : Mix64(first + at);
}

}  // namespace

Attribute RecordAttribute() { return {"record", kRecordAt, kRecordBytes}; }

std::uint64_t KeyWord(std::uint64_t record, KeyOrder order, bool missing) {
  const std::uint64_t word = order == KeyOrder::kHashed ? FnvHash64(record) : record;
  return missing ? word | (std::uint64_t{1} << 63) : word;
}

void RequireKeyBytes(std::uint32_t key_size) {
  if (key_size >= kLeastKeyBytes) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the keys of records have at least {} bytes, and the pool's have {}",
                          kLeastKeyBytes, key_size));
}

void WriteKey(std::uint64_t word, std::span<std::byte> key) {
  std::memcpy(key.data(), &word, std::min(kWordBytes, key.size()));
  for (std::size_t at = kWordBytes; at < key.size(); at += kWordBytes) {
    const std::uint64_t next = Mix64(word + at);
    std::memcpy(key.data() + at, &next, std::min(kWordBytes, key.size() - at));
  }
}

void WriteValue(std::uint64_t record, Version version, std::span<std::byte> value) {
  const std::uint64_t first = FirstWord(record, version);
  std::memcpy(value.data(), &first, std::min(kWordBytes, value.size()));
  std::size_t at = kWordBytes;
  for (; at + kWordBytes <= value.size(); at += kWordBytes) {
    const std::uint64_t next = WordAt(at, record, first, value.size());
    std::memcpy(value.data() + at, &next, kWordBytes);
  }
  if (at < value.size()) {
    const std::uint64_t next = WordAt(at, record, first, value.size());
    std::memcpy(value.data() + at, &next, value.size() - at);
  }
}

bool CheckValue(std::uint64_t record, std::optional<Version> version,
                std::span<const std::byte> value) {
  std::uint64_t first = 0;
  std::memcpy(&first, value.data(), std::min(kWordBytes, value.size()));
  if (value.size() < kWordBytes) {
    if (!version) return true;
    const std::uint64_t expected = FirstWord(record, *version);
    return std::memcmp(&expected, value.data(), value.size()) == 0;
  }
  if (version ? first != FirstWord(record, *version) : (first ^ Mix64(record)) >> 32 != 0) {
    return false;
  }
  for (std::size_t at = kWordBytes; at < value.size(); at += kWordBytes) {
    const std::uint64_t next = WordAt(at, record, first, value.size());
    if (std::memcmp(value.data() + at, &next, std::min(kWordBytes, value.size() - at)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace gpm::ycsb
