#include "cli/validators.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

#include "gpmstore/error.h"
#include "pm/text.h"
#include "table/geometry.h"

namespace gpm::cli {
namespace {

/// The message of a text that is not a `kind` of number between the two, or nothing.
template <class Number>
std::string NumberDefect(const std::string& text, const char* kind, Number least, Number most) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  // NaN is between no two numbers.
  if (error == std::errc() && stop == end && number >= least && number <= most) return {};
  return fmt::format("{} is not a {} from {} to {}", Quoted(text), kind, least, most);
}

}  // namespace

CLI::Validator WholeNumber(std::uint64_t least, std::uint64_t most) {
  return CLI::Validator(
      [=](const std::string& text) { return NumberDefect(text, "whole number", least, most); }, "");
}

CLI::Validator NumberBetween(double least, double most) {
  return CLI::Validator(
      [=](const std::string& text) { return NumberDefect(text, "number", least, most); }, "");
}

CLI::Validator GeometryText() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        try {
          ParseGeometry(text);
        } catch (const Error& error) {
          return error.what();
        }
        return {};
      },
      "");
}

}  // namespace gpm::cli
