#ifndef GPM_SUPPORT_OPTION_CHECKS_H_
#define GPM_SUPPORT_OPTION_CHECKS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace gpm {

/// Checks of the programs' options, which say what would be right. (CLI11's own take -1 for
/// 2^64 - 1, 010 for 8 and NaN for any number, and write out all 309 digits of the largest double.)

/// A decimal number without sign and leading zeros.
CLI::Validator WholeNumber(std::uint64_t least = 0,
                           std::uint64_t most = std::numeric_limits<std::uint64_t>::max());

/// A finite number.
CLI::Validator NumberBetween(double least, double most);

/// A number of bytes, such as 512M or 8G, which it becomes.
CLI::Validator ByteCount();

/// A geometry that can be used.
CLI::Validator GeometryText();

/// Refuses what can be seen not to be writable, without changing it: a path, or nothing, or "-".
/// @param option named in the error @throws Error(kIo)
void RequireWritable(const char* option, const std::string& path);

/// More seconds than anybody waits, and few enough for every clock.
inline constexpr double kMostSeconds = 1e9;

}  // namespace gpm

#endif  // GPM_SUPPORT_OPTION_CHECKS_H_
