#include "crash_sim/promise.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "table/hash.h"

namespace gpm::crash {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ull;

std::string Describe(const std::optional<std::string>& value) {
  return value ? "value " + Hex(*value) : "no item";
}

std::uint64_t HashText(const std::string& text) {
  return Scramble(std::hash<std::string>()(text) + kGolden);
}

}  // namespace

std::string Hex(const std::string& bytes) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 16); ++i) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
  }
  return bytes.size() > 16 ? text + "..." : text;
}

void Promise::Check(const Contents& contents) const {
  for (const auto& [key, alternatives] : in_flight) {
    const auto item = contents.find(key);
    const std::optional<std::string> value =
        item == contents.end() ? std::nullopt : std::optional(item->second);
    if (std::find(alternatives.begin(), alternatives.end(), value) != alternatives.end()) continue;
    std::string allowed;
    for (const auto& alternative : alternatives) {
      allowed += (allowed.empty() ? "" : " or ") + Describe(alternative);
    }
    throw Violation(fmt::format("key {} of the batch in flight has {}, allowed is {}", Hex(key),
                                Describe(value), allowed));
  }
  for (const auto& [key, value] : acknowledged) {
    if (in_flight.contains(key)) continue;
    const auto item = contents.find(key);
    if (item == contents.end()) {
      throw Violation(fmt::format("key {}, acknowledged, is lost", Hex(key)));
    }
    if (item->second != value) {
      throw Violation(fmt::format("key {} has value {}, acknowledged is {}", Hex(key),
                                  Hex(item->second), Hex(value)));
    }
  }
  for (const auto& [key, value] : contents) {
    if (!acknowledged.contains(key) && !in_flight.contains(key)) {
      throw Violation(fmt::format("key {} is there and should not be", Hex(key)));
    }
  }
}

std::uint64_t Promise::Hash() const {
  std::uint64_t hash = being_created ? kGolden : 0;
  for (const auto& [key, value] : acknowledged) {
    if (!in_flight.contains(key)) hash += Scramble(HashText(key) ^ (HashText(value) << 1));
  }
  for (const auto& [key, alternatives] : in_flight) {
    std::uint64_t values = 0;
    for (const auto& value : alternatives) values += value ? HashText(*value) : kGolden;
    hash += Scramble(HashText(key) ^ (values << 1) ^ kGolden);
  }
  return hash;
}

}  // namespace gpm::crash
