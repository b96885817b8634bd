#include "criteo.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string_view>

namespace {

constexpr double kEmpty = 0.03;  // of the fields

/// Values of each category in the Kaggle data.
constexpr std::array<double, kCategories> kValues{
    1460, 583,   10131227, 2202608, 305,  24,   12517, 633,     3,  93145, 5683,   8351593, 3194,
    27,   14992, 5461306,  10,      5652, 2173, 4,     7046547, 18, 15,    286181, 105,     142572};

/// Takes a field from the front of a line. @return whether there was one
bool TakeField(std::string_view* line, bool* is_last, std::string_view* field) {
  if (*is_last) return false;
  const std::size_t tab = line->find('\t');
  *field = line->substr(0, tab);
  *is_last = tab == std::string_view::npos;
  if (!*is_last) line->remove_prefix(tab + 1);
  return true;
}

template <class Number>
bool Parse(std::string_view field, int base, Number* number) {
  const auto [end, error] =
      std::from_chars(field.data(), field.data() + field.size(), *number, base);
  return error == std::errc{} && end == field.data() + field.size();
}

/// @return whether it is a line of the format
bool ParseLine(std::string_view line, Impression* impression) {
  bool is_last = false;
  std::string_view field;
  if (!TakeField(&line, &is_last, &field) || (field != "0" && field != "1")) return false;
  impression->is_clicked = field == "1";
  for (auto& number : impression->numbers) {
    if (!TakeField(&line, &is_last, &field)) return false;
    if (!field.empty() && !Parse(field, 10, &number)) return false;
  }
  for (std::size_t column = 0; column < kCategories; ++column) {
    if (!TakeField(&line, &is_last, &field)) return false;
    std::uint32_t value = 0;
    if (!field.empty() && !Parse(field, 16, &value)) return false;
    impression->keys[column] = CategoryKey(column, field.empty() ? 0 : std::uint64_t{value} + 1);
  }
  return is_last;
}

/// One of `values` ranks, from 0: r comes about as (r + 1)^-1.05.
std::uint64_t DrawRank(double drawn, double values) {
  constexpr double kExponent = -0.05;  // 1 - 1.05
  const double rank =
      std::pow(1 + drawn * (std::pow(values + 1, kExponent) - 1), 1 / kExponent) - 1;
  return static_cast<std::uint64_t>(std::min(rank, values - 1));
}

}  // namespace

std::vector<Impression> ReadCriteo(const std::string& path, std::size_t limit) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": can't be read");
  std::vector<Impression> impressions;
  std::string line;
  while (impressions.size() < limit && std::getline(file, line)) {
    if (line.ends_with('\r')) line.pop_back();
    if (!ParseLine(line, &impressions.emplace_back())) {
      throw std::runtime_error(path + ", line " + std::to_string(impressions.size()) +
                               ": Criteo's format has 0 or 1, 13 integers and 26 hexadecimal "
                               "numbers of 32 bits, separated by tabs");
    }
  }
  if (impressions.empty()) throw std::runtime_error(path + ": has no lines");
  return impressions;
}

void WriteCriteo(const std::vector<Impression>& impressions, const std::string& path) {
  std::ofstream file(path);
  for (const Impression& impression : impressions) {
    file << impression.is_clicked;
    for (const std::int32_t number : impression.numbers) {
      file << '\t';
      if (number != 0) file << number;
    }
    for (std::size_t column = 0; column < kCategories; ++column) {
      const std::uint64_t value_and_1 = impression.keys[column] - CategoryKey(column, 0);
      char hex[9] = "";
      if (value_and_1 != 0) {
        std::snprintf(hex, sizeof(hex), "%08x", static_cast<std::uint32_t>(value_and_1 - 1));
      }
      file << '\t' << hex;
    }
    file << '\n';
  }
  if (!file.flush()) throw std::runtime_error(path + ": can't be written");
}

std::vector<Impression> DrawCriteo(std::size_t lines, std::uint64_t seed) {
  std::vector<Impression> impressions(lines);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform;
  const auto draw = [&] { return uniform(random); };
  for (Impression& impression : impressions) {
    impression.is_clicked = draw() < 0.25;
    for (auto& number : impression.numbers) {
      // As often as each number before it, by a factor of 0.9.
      const auto drawn = static_cast<std::int32_t>(std::log(1 - draw()) / std::log(0.9));
      number = draw() < kEmpty ? 0 : drawn;
    }
    for (std::size_t column = 0; column < kCategories; ++column) {
      const std::uint64_t rank = DrawRank(draw(), kValues[column]);
      const auto value = static_cast<std::uint32_t>((rank + 1) * 2654435761);  // all differ
      impression.keys[column] = CategoryKey(column, draw() < kEmpty ? 0 : std::uint64_t{value} + 1);
    }
  }
  return impressions;
}
