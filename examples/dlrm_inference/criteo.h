#ifndef GPM_EXAMPLES_DLRM_INFERENCE_CRITEO_H_
#define GPM_EXAMPLES_DLRM_INFERENCE_CRITEO_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

inline constexpr std::size_t kNumbers = 13;
inline constexpr std::size_t kCategories = 26;

/// A line of Criteo's data: an advertisement that was shown to somebody.
struct Impression {
  bool is_clicked = false;
  std::array<std::int32_t, kNumbers> numbers{};  ///< 0 where the line has none
  /// One for each value of each category: the column, then the value of 32 bits and 1, or 0 where
  /// the line has none (as in examples/dlrm/criteo.py).
  std::array<std::uint64_t, kCategories> keys{};
};

constexpr std::uint64_t CategoryKey(std::size_t column, std::uint64_t value_and_1) {
  return std::uint64_t{column} << 33 | value_and_1;
}

/// Reads lines of Criteo's format (Kaggle, Display Advertising Challenge, 2014): 0 or 1, 13
/// integers and 26 hexadecimal numbers of 32 bits, separated by tabs; any may be empty but for the
/// first.
/// @param limit the lines behind so many are left out
/// @throws std::runtime_error naming the line
std::vector<Impression> ReadCriteo(const std::string& path, std::size_t limit);

/// Writes the same; what is 0 is written as none.
void WriteCriteo(const std::vector<Impression>& impressions, const std::string& path);

/// Draws lines. Each category has as many values as in the Kaggle data (of which the DLRM
/// repository lists the sizes of its tables); the r-th most frequent one comes about as r^-1.05.
/// Of all fields, 3% are empty.
std::vector<Impression> DrawCriteo(std::size_t lines, std::uint64_t seed);

#endif  // GPM_EXAMPLES_DLRM_INFERENCE_CRITEO_H_
