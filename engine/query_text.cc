// How a query is read from text (ParseQuery).

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "gpmstore/error.h"
#include "gpmstore/search.h"
#include "pm/text.h"

namespace gpm {
namespace {

/// Kinds of characters, in ASCII.
bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsWordCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool IsSign(char c) { return c == '<' || c == '=' || c == '>'; }

class Parser {
 public:
  Parser(std::string_view text, std::span<const Attribute> attributes)
      : text_(text), attributes_(attributes) {}

  Query Parse() {
    Query query;
    SkipSpaces();
    if (at_ == text_.size()) return query;
    for (;;) {
      query.push_back(ParseCondition());
      if (at_ == text_.size()) return query;
      const std::size_t start = at_;
      if (Take(IsWordCharacter) != "and") Refuse(start, "\"and\" or the end");
    }
  }

 private:
  Condition ParseCondition() {
    Condition condition;
    const std::size_t name_at = at_;
    const std::string_view name = Take(IsWordCharacter);
    if (name.empty()) Refuse(name_at, "the name of an attribute");
    condition.attribute = AttributeOf(name);
    const std::size_t sign_at = at_;
    const std::string_view sign = Take(IsSign);
    const std::uint64_t number = [&] {
      if (sign != "=" && sign != "<" && sign != "<=" && sign != ">" && sign != ">=") {
        Refuse(sign_at, "one of = < <= > >=");
      }
      return ParseNumber();
    }();
    if (sign == "=" || sign == ">=") condition.least = number;
    if (sign == "=" || sign == "<=") condition.most = number;
    const bool none = (sign == "<" && number == 0) || (sign == ">" && number == ~std::uint64_t{0});
    if (none) {
      condition.least = 1;
      condition.most = 0;
    } else if (sign == "<") {
      condition.most = number - 1;
    } else if (sign == ">") {
      condition.least = number + 1;
    }
    return condition;
  }

  std::uint64_t ParseNumber() {
    const std::size_t start = at_;
    std::string_view digits = Take(IsWordCharacter);
    const bool hexadecimal = digits.starts_with("0x") || digits.starts_with("0X");
    if (hexadecimal) digits.remove_prefix(2);
    std::uint64_t number = 0;
    const char* const end = digits.data() + digits.size();
    const auto [read, error] = std::from_chars(digits.data(), end, number, hexadecimal ? 16 : 10);
    if (error != std::errc{} || read != end) Refuse(start, "a whole number from 0 to 2^64 - 1");
    return number;
  }

  std::uint32_t AttributeOf(std::string_view name) const {
    const auto found = std::find_if(attributes_.begin(), attributes_.end(),
                                    [&](const Attribute& a) { return a.name == name; });
    if (found != attributes_.end()) return static_cast<std::uint32_t>(found - attributes_.begin());
    std::string names;
    for (const Attribute& attribute : attributes_) {
      names += (names.empty() ? "" : ", ") + attribute.name;
    }
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("query: there is no attribute {}; the pool has {}", Quoted(name),
                            names.empty() ? "none" : names));
  }

  /// The characters of a kind that come next; spaces behind them are skipped.
  std::string_view Take(bool (*of_kind)(char)) {
    const std::size_t start = at_;
    while (at_ < text_.size() && of_kind(text_[at_])) ++at_;
    const std::string_view taken = text_.substr(start, at_ - start);
    SkipSpaces();
    return taken;
  }
  void SkipSpaces() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
  }
  [[noreturn]] void Refuse(std::size_t at, std::string_view wanted) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("query: {} is expected at {}; such as \"session = 7 and model < 3\"",
                            wanted, at == text_.size() ? "the end" : Quoted(text_.substr(at))));
  }

  const std::string_view text_;
  const std::span<const Attribute> attributes_;
  std::size_t at_ = 0;
};

}  // namespace

Query ParseQuery(std::string_view text, std::span<const Attribute> attributes) {
  return Parser(text, attributes).Parse();
}

}  // namespace gpm
