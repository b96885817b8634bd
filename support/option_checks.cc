#include "support/option_checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>

#include "gpmstore/error.h"
#include "pm/text.h"
#include "table/geometry.h"

namespace gpm {
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

bool IsDigit(const std::string& text, std::size_t at) {
  return at < text.size() && text[at] >= '0' && text[at] <= '9';
}

/// CLI11 would take it for an octal number.
std::string LeadingZeroDefect(const std::string& text) {
  if (!text.starts_with('0') || !IsDigit(text, 1)) return {};
  return fmt::format("{} has a leading zero; write it without", Quoted(text));
}

}  // namespace

CLI::Validator WholeNumber(std::uint64_t least, std::uint64_t most) {
  return CLI::Validator(
      [=](const std::string& text) {
        const std::string defect = LeadingZeroDefect(text);
        return defect.empty() ? NumberDefect(text, "whole number", least, most) : defect;
      },
      "");
}

CLI::Validator ByteCount() {
  return CLI::Validator(
      [](std::string& text) {
        if (!IsDigit(text, 0)) {
          return fmt::format("{} is not a number of bytes, such as 512M or 8G", Quoted(text));
        }
        const std::string defect = LeadingZeroDefect(text);
        return defect.empty() ? CLI::AsSizeValue(false)(text) : defect;
      },
      "");
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

void RequireWritable(const char* option, const std::string& path) {
  if (path.empty() || path == "-") return;
  const auto refuse = [&](int error) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: {}: can't be written: {}", option, path, std::strerror(error)));
  };
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) {  // (A pipe's reader would see the end.)
    if (S_ISDIR(status.st_mode)) refuse(EISDIR);
    if (access(path.c_str(), W_OK) != 0) refuse(errno);
    return;
  }
  if (errno != ENOENT) refuse(errno);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) refuse(errno);
  close(file);
  unlink(path.c_str());
}

}  // namespace gpm
