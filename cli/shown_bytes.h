#ifndef GPM_CLI_SHOWN_BYTES_H_
#define GPM_CLI_SHOWN_BYTES_H_

#include <cstddef>
#include <span>
#include <string>

namespace gpm::cli {

/// Keys (of more than 8 bytes) and values as get and dump print them, and as put reads them: two of
/// the same size never look the same. Thread safety: pure functions.

/// "0x" and two digits a byte.
std::string HexText(std::span<const std::byte> bytes);

/// The text in `bytes`, but for zeros at their end, when all of it is printable UTF-8 and does not
/// begin as hex does; else their HexText.
std::string ShownBytes(std::span<const std::byte> bytes);

}  // namespace gpm::cli

#endif  // GPM_CLI_SHOWN_BYTES_H_
