#include "ycsb/trace.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

#include "gpmstore/error.h"
#include "pm/text.h"

namespace gpm::ycsb {
namespace {

constexpr std::array<std::pair<std::string_view, Op>, 4> kWords = {{
    {"READ", Op::kFind},
    {"INSERT", Op::kInsert},
    {"UPDATE", Op::kUpdate},
    {"DELETE", Op::kErase},
}};

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

/// Lines of a plain or compressed file; zlib tells the two apart.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : path_(path) {
    errno = 0;
    file_.reset(gzopen(path.c_str(), "rb"));
    if (!file_) {
      const bool missing = errno == ENOENT;
      throw Error(missing ? ErrorCode::kNotFound : ErrorCode::kIo,
                  fmt::format("{}: can't open the trace: {}", path, std::strerror(errno)));
    }
    gzbuffer(file_.get(), 1 << 17);
  }

  /// The next line without its end, valid until the next call; nothing at the file's end.
  std::optional<std::string_view> Next() {
    while (true) {
      const std::size_t newline = buffer_.find('\n', searched_);
      if (newline != std::string::npos) return Take(newline, newline + 1);
      searched_ = buffer_.size();
      if (!FillBuffer()) break;
    }
    if (at_ == buffer_.size()) return std::nullopt;
    return Take(buffer_.size(), buffer_.size());
  }

 private:
  struct Close {
    void operator()(gzFile_s* file) const { gzclose(file); }
  };

  std::string_view Take(std::size_t end, std::size_t next) {
    std::string_view line(buffer_.data() + at_, end - at_);
    at_ = searched_ = next;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    return line;
  }

  bool FillBuffer() {
    buffer_.erase(0, at_);
    at_ = 0;
    const std::size_t filled = buffer_.size();
    buffer_.resize(filled + kBlockBytes);
    const int bytes = gzread(file_.get(), buffer_.data() + filled, kBlockBytes);
    buffer_.resize(filled + static_cast<std::size_t>(std::max(bytes, 0)));
    searched_ = filled;
    // Compressed data that ends too early is reported only by gzerror, after the last bytes.
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    if (bytes < 0 || (bytes == 0 && code != Z_OK && code != Z_STREAM_END)) {
      throw Error(ErrorCode::kIo, fmt::format("{}: can't read the trace: {}", path_,
                                              code == Z_ERRNO ? std::strerror(errno) : message));
    }
    return bytes > 0;
  }

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::string buffer_;
  std::size_t at_ = 0;        ///< start of the next line
  std::size_t searched_ = 0;  ///< no line ends in [at_, searched_)
};

bool IsBlank(char c) { return c == ' ' || c == '\t'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

/// Cuts the first word off `rest`, and the one blank after it if there is one.
std::string_view CutWord(std::string_view& rest) {
  const std::size_t end = std::min(rest.size(), rest.find_first_of(" \t"));
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(std::min(rest.size(), end + 1));
  return word;
}

/// One line being read; its errors name file and line.
class LineParser {
 public:
  LineParser(const std::string& path, std::uint64_t number, std::string_view line)
      : path_(path), number_(number), line_(line) {}

  [[noreturn]] void Fail(const std::string& reason) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}:{}: {}; the line is {}", path_, number_, reason, Quoted(line_)));
  }

  TraceLine Parse() const {
    if (line_.find('\0') != std::string_view::npos) Fail("a trace line can't hold a NUL byte");
    std::string_view rest = line_;
    // A value ends with " ]", so blanks at the end of a line never belong to one.
    while (!rest.empty() && IsBlank(rest.back())) rest.remove_suffix(1);
    TraceLine result;
    result.op = ParseWord(CutWord(rest));
    const std::string_view second = CutWord(rest);
    if (rest.empty()) {  // bare style: a word and a key
      ParseKey(second, result);
      return result;
    }
    ParseKey(CutWord(rest), result);
    switch (result.op) {
      case Op::kInsert:
      case Op::kUpdate:
        result.value = ParseFields(rest);
        break;
      case Op::kFind:
        if (rest.size() < 2 || rest.front() != '[' || rest.back() != ']') {
          Fail("a READ with a table names its fields, as in READ usertable user1 [ <all fields>]");
        }
        break;
      default:
        if (!rest.empty()) Fail("nothing can follow the key of a DELETE");
    }
    return result;
  }

 private:
  Op ParseWord(std::string_view word) const {
    for (const auto& [text, op] : kWords) {
      if (text == word) return op;
    }
    if (word == "SCAN") Fail("scans are not supported: a hash index has no key order to scan in");
    Fail("a trace line begins with INSERT, READ, UPDATE or DELETE");
  }

  void ParseKey(std::string_view text, TraceLine& result) const {
    std::size_t digits = 0;
    while (digits < text.size() && !IsDigit(text[digits])) ++digits;
    const char* const end = text.data() + text.size();
    if (text.size() > Trace::kMaxKeyBytes) {
      Fail(fmt::format("the key {} is longer than {} bytes", Quoted(text), Trace::kMaxKeyBytes));
    }
    if (!IsPrintable(text)) {
      Fail(fmt::format("the key {} is not printable text, in which it must be", Quoted(text)));
    }
    const auto [stop, error] = std::from_chars(text.data() + digits, end, result.key);
    if (error == std::errc::result_out_of_range) {
      Fail(fmt::format("the key {} is beyond 64 bits", Quoted(text)));
    }
    if (error != std::errc() || stop != end) {
      Fail(fmt::format("the key {} is not a decimal number after a prefix without digits",
                       Quoted(text)));
    }
    if (text.starts_with('-') || text.starts_with('+')) {
      Fail(fmt::format("the key {} has a sign: keys are numbers from 0 to 2^64 - 1", Quoted(text)));
    }
    result.text = text;
  }

  /// @param fields "[ name=value ]", or several "name=value " inside
  std::string_view ParseFields(std::string_view fields) const {
    if (fields == "[ ]") return {};
    if (!fields.starts_with("[ ") || !fields.ends_with(" ]") || fields.size() < 4) {
      Fail("the fields must stand between '[ ' and ' ]', as in [ field0=VALUE ]");
    }
    const std::string_view inside = fields.substr(2, fields.size() - 4);
    const std::size_t equals = inside.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      Fail("a field must be written NAME=VALUE, as in [ field0=VALUE ]");
    }
    std::string_view value = inside.substr(equals + 1);
    if (HasSecondField(value, inside.substr(0, equals))) value = inside;
    if (value.size() > Trace::kMaxValueBytes) {
      Fail(fmt::format("the value has {} bytes, and a store's values have at most {}", value.size(),
                       Trace::kMaxValueBytes));
    }
    return value;
  }

  /// Whether another field of the same naming (field0, field1, ...) stands in `value`.
  static bool HasSecondField(std::string_view value, std::string_view name) {
    const std::size_t last = name.find_last_not_of("0123456789");
    const std::string start = " " + std::string(name.substr(0, last + 1));
    for (std::size_t at = value.find(start); at != std::string_view::npos;
         at = value.find(start, at + 1)) {
      std::size_t end = at + start.size();
      const std::size_t digits = end;
      while (end < value.size() && IsDigit(value[end])) ++end;
      if (end > digits && end < value.size() && value[end] == '=') return true;
    }
    return false;
  }

  const std::string& path_;
  std::uint64_t number_;
  std::string_view line_;
};

bool IsSkipped(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t");
  return first == std::string_view::npos ||
         std::string_view("*[\"#-").find(line[0]) != std::string_view::npos;
}

}  // namespace

std::string_view TraceWord(Op op) {
  for (const auto& [text, kind] : kWords) {
    if (kind == op) return text;
  }
  return "UNKNOWN";
}

std::string_view Trace::Keep(std::string_view text) {
  if (text.empty()) return {};
  if (texts_.empty() || texts_.back().capacity() - texts_.back().size() < text.size()) {
    texts_.emplace_back().reserve(std::max(kBlockBytes, text.size()));
  }
  std::string& block = texts_.back();
  const std::size_t at = block.size();
  block += text;
  return std::string_view(block).substr(at);
}

std::string Trace::KeyForm::Add(std::string_view key) {
  const std::size_t prefix_bytes = std::min(key.find_first_of("0123456789"), key.size());
  const std::string_view key_prefix = key.substr(0, prefix_bytes);
  const std::string_view digits = key.substr(prefix_bytes);
  if (prefix && *prefix != key_prefix) {
    return fmt::format(
        "the key {} has another prefix than the keys before, {}; keys are told apart by their "
        "numbers alone",
        Quoted(key), Quoted(*prefix));
  }
  if (!prefix) prefix = key_prefix;
  const bool padded = digits.size() > 1 && digits.front() == '0';
  if (padded && padded_digits == 0) padded_digits = digits.size();
  if (!padded) least_digits = std::min(least_digits, digits.size());
  if (padded ? digits.size() != padded_digits || least_digits < padded_digits
             : digits.size() < padded_digits) {
    return fmt::format(
        "the key {} has another number of digits than the keys before with, or without, leading "
        "zeros; keys are told apart by their numbers alone",
        Quoted(key));
  }
  return {};
}

Trace Trace::Read(const std::string& path, const Trace* before) {
  Trace trace;
  if (before != nullptr) trace.key_form_ = before->key_form_;
  LineReader reader(path);
  std::uint64_t number = 0;
  while (const std::optional<std::string_view> line = reader.Next()) {
    ++number;
    if (IsSkipped(*line)) continue;
    const LineParser parser(path, number, *line);
    TraceLine parsed = parser.Parse();
    const std::string defect = trace.key_form_.Add(parsed.text);
    if (!defect.empty()) parser.Fail(defect);
    parsed.text = trace.Keep(parsed.text);
    parsed.value = trace.Keep(parsed.value);
    trace.longest_value_ = std::max(trace.longest_value_, parsed.value.size());
    trace.longest_key_ = std::max(trace.longest_key_, parsed.text.size());
    trace.lines_.push_back(parsed);
  }
  return trace;
}

}  // namespace gpm::ycsb
