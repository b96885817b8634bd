#include "pm/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace gpm {
namespace {

struct CodePoints {
  std::uint32_t first;
  std::uint32_t last;
};

/// Not printable; the two last ones of each plane, which are no characters either, come on top.
constexpr std::array<CodePoints, 11> kUnprintable = {{
    {0x0000, 0x001F},    // controls
    {0x007F, 0x009F},    // delete, and more controls
    {0x00AD, 0x00AD},    // soft hyphen
    {0x061C, 0x061C},    // Arabic letter mark
    {0x200B, 0x200F},    // without width; direction marks
    {0x2028, 0x202E},    // line and paragraph separators; direction
    {0x2060, 0x206F},    // without width; direction
    {0xD800, 0xDFFF},    // surrogates
    {0xFDD0, 0xFDEF},    // noncharacters
    {0xFEFF, 0xFEFF},    // byte order mark
    {0xE0000, 0xE0FFF},  // tags
}};

/// The bytes of the printable character that `text` begins with; 0: it begins with none.
/// REQUIRES: not empty.
std::size_t PrintableBytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t lead = byte(0);
  if (lead >= 0x20 && lead < 0x7F) return 1;
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return 0;
  std::uint32_t point = lead & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3F);
  }
  constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  if (point < kLeast[bytes] || point > 0x10FFFF || (point & 0xFFFE) == 0xFFFE) return 0;
  const bool unprintable =
      std::any_of(kUnprintable.begin(), kUnprintable.end(),
                  [&](CodePoints some) { return point >= some.first && point <= some.last; });
  return unprintable ? 0 : bytes;
}

}  // namespace

bool IsPrintable(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = PrintableBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string Quoted(std::string_view text) {
  std::string shown;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t bytes = PrintableBytes(rest);
    if (shown.size() + std::max<std::size_t>(bytes, 1) > kQuotedBytes) {
      return fmt::format("'{}...' ({} bytes)", shown, text.size());
    }
    if (bytes == 0) {
      shown += '?';
    } else {
      shown += rest.substr(0, bytes);
    }
    rest.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return fmt::format("'{}'", shown);
}

}  // namespace gpm
