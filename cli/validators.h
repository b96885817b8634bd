#ifndef GPM_CLI_VALIDATORS_H_
#define GPM_CLI_VALIDATORS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

namespace gpm::cli {

/// Checks of options, which say what would be right. (CLI11's own take -1 for 2^64 - 1, and write
/// out all 309 digits of the largest double.)

/// A decimal number without sign.
CLI::Validator WholeNumber(std::uint64_t least = 0,
                           std::uint64_t most = std::numeric_limits<std::uint64_t>::max());

/// A finite number.
CLI::Validator NumberBetween(double least, double most);

/// A geometry that can be used.
CLI::Validator GeometryText();

/// More seconds than anybody waits, and few enough for every clock.
inline constexpr double kMostSeconds = 1e9;

}  // namespace gpm::cli

#endif  // GPM_CLI_VALIDATORS_H_
