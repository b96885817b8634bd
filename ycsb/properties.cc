#include "ycsb/properties.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "gpmstore/error.h"
#include "pm/text.h"

namespace gpm::ycsb {
namespace {

constexpr const char* kBlank = " \t\f\r";

/// Takes `text` apart into a name and a value; both without blanks around them.
std::pair<std::string, std::string> Split(const std::string& text) {
  const std::size_t name_end = text.find_first_of(std::string("=:") + kBlank);
  if (name_end == std::string::npos) return {text, ""};
  // Blanks may stand before the '=' or ':', or instead of it.
  std::size_t value = text.find_first_not_of(kBlank, name_end);
  if (value != std::string::npos && (text[value] == '=' || text[value] == ':')) {
    value = text.find_first_not_of(kBlank, value + 1);
  }
  if (value == std::string::npos) return {text.substr(0, name_end), ""};
  const std::size_t value_end = text.find_last_not_of(kBlank) + 1;
  return {text.substr(0, name_end), text.substr(value, value_end - value)};
}

/// Whether the line goes on in the next: it ends with an odd number of backslashes.
bool Continues(const std::string& line) {
  const std::size_t last = line.find_last_not_of('\\');
  const std::size_t backslashes = line.size() - (last == std::string::npos ? 0 : last + 1);
  return backslashes % 2 == 1;
}

}  // namespace

Properties Properties::Read(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw Error(ErrorCode::kNotFound, fmt::format("{}: no such property file", path));
  }
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  errno = 0;
  std::ifstream file(path);
  if (!file || is_folder) {
    throw Error(ErrorCode::kIo, fmt::format("{}: can't be read as a property file: {}", path,
                                            std::strerror(is_folder ? EISDIR : errno)));
  }
  Properties properties;
  properties.path_ = path;
  std::string line;
  std::string logical;
  std::uint64_t line_number = 0;
  std::uint64_t first_line = 0;
  while (std::getline(file, line)) {
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const std::size_t start = line.find_first_not_of(kBlank);
    const std::string text = start == std::string::npos ? "" : line.substr(start);
    if (logical.empty()) {
      if (text.empty() || text[0] == '#' || text[0] == '!') continue;
      first_line = line_number;
    }
    logical += text;
    if (Continues(logical)) {
      logical.pop_back();
      if (!file.eof() && file.peek() != std::ifstream::traits_type::eof()) continue;
    }
    const auto [name, value] = Split(logical);
    logical.clear();
    if (name.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}:{}: a property needs a name before '='", path, first_line));
    }
    properties.entries_[name] = {value, first_line};
  }
  if (file.bad()) throw Error(ErrorCode::kIo, fmt::format("{}: {}", path, std::strerror(errno)));
  return properties;
}

std::string Properties::Text(const std::string& name, const std::string& otherwise) const {
  const auto entry = entries_.find(name);
  return entry == entries_.end() ? otherwise : entry->second.value;
}

std::uint64_t Properties::Count(const std::string& name, std::uint64_t otherwise) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) return otherwise;
  const std::string& text = entry->second.value;
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size()) {
    Refuse(name, "must be a whole number from 0 to 2^64 - 1");
  }
  return count;
}

double Properties::Number(const std::string& name, double otherwise) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) return otherwise;
  const std::string& text = entry->second.value;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) {
    Refuse(name, "must be a number");
  }
  return number;
}

double Properties::Fraction(const std::string& name, double otherwise) const {
  const double fraction = Number(name, otherwise);
  if (fraction < 0 || fraction > 1) Refuse(name, "must be from 0 to 1");
  return fraction;
}

std::vector<std::string> Properties::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::string Properties::Where(const std::string& name) const {
  const auto entry = entries_.find(name);
  return entry == entries_.end() ? path_ : fmt::format("{}:{}", path_, entry->second.line);
}

void Properties::Refuse(const std::string& name, const std::string& reason) const {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: {}={}: {}", Where(name), name, Quoted(Text(name, "")), reason));
}

}  // namespace gpm::ycsb
