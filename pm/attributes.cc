#include "pm/attributes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "pm/text.h"

namespace gpm {
namespace {

constexpr std::size_t kMostNameBytes = sizeof AttributeEntry::name;

/// (Of ASCII alone, whatever the locale.)
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes && name != "and" && IsLetter(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return IsLetter(c) || IsDigit(c); });
}

bool IsUnused(const AttributeEntry& entry) {
  const AttributeEntry unused{};
  return std::memcmp(&entry, &unused, sizeof entry) == 0;
}

std::string NameIn(const AttributeEntry& entry) {
  const char* const end = std::find(entry.name, entry.name + kMostNameBytes, '\0');
  return {entry.name, end};
}

}  // namespace

std::string AttributesDefect(std::span<const Attribute> attributes, std::uint32_t value_size) {
  if (attributes.size() > kMaxAttributes) {
    return fmt::format("{} attributes; there may be {} at most", attributes.size(), kMaxAttributes);
  }
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    const Attribute& attribute = attributes[i];
    if (!IsName(attribute.name)) {
      return fmt::format(
          "attribute name {} is not 1 to {} letters, digits and _, with no digit "
          "first, and other than \"and\"",
          Quoted(attribute.name), kMostNameBytes);
    }
    const auto has_name = [&](const Attribute& other) { return other.name == attribute.name; };
    if (std::any_of(attributes.begin(), attributes.begin() + static_cast<std::ptrdiff_t>(i),
                    has_name)) {
      return fmt::format("two attributes have the name {}", attribute.name);
    }
    if (attribute.bytes != 4 && attribute.bytes != 8) {
      return fmt::format("attribute {} has {} bytes; it must have 4 or 8", attribute.name,
                         attribute.bytes);
    }
    if (std::uint64_t{attribute.offset} + attribute.bytes > value_size) {
      return fmt::format("attribute {}, of {} bytes at offset {}, is not within values of {} bytes",
                         attribute.name, attribute.bytes, attribute.offset, value_size);
    }
  }
  return "";
}

std::string AttributesDefect(std::span<const AttributeEntry, kMaxAttributes> entries,
                             std::uint32_t value_size) {
  const auto unused = std::find_if(entries.begin(), entries.end(), IsUnused);
  if (!std::all_of(unused, entries.end(), IsUnused)) return "attributes have a gap between them";
  for (auto entry = entries.begin(); entry != unused; ++entry) {
    const std::size_t used = NameIn(*entry).size();
    if (std::any_of(entry->name + used, entry->name + kMostNameBytes,
                    [](char c) { return c != '\0'; })) {
      return "the name of an attribute is not zero behind its end";
    }
  }
  return AttributesDefect(ReadAttributes(entries), value_size);
}

void WriteAttributes(std::span<const Attribute> attributes,
                     std::span<AttributeEntry, kMaxAttributes> entries) {
  std::fill(entries.begin(), entries.end(), AttributeEntry{});
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    const Attribute& attribute = attributes[i];
    std::copy(attribute.name.begin(), attribute.name.end(), entries[i].name);
    entries[i].bytes = static_cast<std::uint8_t>(attribute.bytes);
    entries[i].offset = attribute.offset;
  }
}

std::vector<Attribute> ReadAttributes(std::span<const AttributeEntry, kMaxAttributes> entries) {
  std::vector<Attribute> attributes;
  for (const AttributeEntry& entry : entries) {
    if (IsUnused(entry)) break;
    attributes.push_back({NameIn(entry), entry.offset, entry.bytes});
  }
  return attributes;
}

}  // namespace gpm
