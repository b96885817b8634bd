#include "cli/shown_bytes.h"

#include <string_view>

#include "pm/text.h"

namespace gpm::cli {

std::string HexText(std::span<const std::byte> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "0x";
  text.reserve(2 + 2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

std::string ShownBytes(std::span<const std::byte> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text = text.substr(0, text.find_last_not_of('\0') + 1);
  return IsPrintable(text) && !text.starts_with("0x") ? std::string(text) : HexText(bytes);
}

}  // namespace gpm::cli
