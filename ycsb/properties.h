#ifndef GPM_YCSB_PROPERTIES_H_
#define GPM_YCSB_PROPERTIES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gpm::ycsb {

/// A YCSB property file (the syntax of Java's): `name=value`, `name: value` or `name value` lines,
/// comments after '#' or '!' at the start of a line, and lines continued by a backslash at the end.
/// A name that stands twice has its last value. Each getter names file and line when a value is not
/// of its kind. Thread safety: const members may be called from several threads.
class Properties {
 public:
  /// @throws Error kNotFound, kIo (the file can't be read), kInvalidArgument (a line without name)
  static Properties Read(const std::string& path);

  bool Has(const std::string& name) const { return entries_.contains(name); }

  /// The value of a property, or `otherwise` where the file does not set it.
  /// @throws Error(kInvalidArgument) when the value is not of that kind
  std::string Text(const std::string& name, const std::string& otherwise) const;
  std::uint64_t Count(const std::string& name, std::uint64_t otherwise) const;
  double Number(const std::string& name, double otherwise) const;
  /// A number in [0, 1].
  double Fraction(const std::string& name, double otherwise) const;

  /// In alphabetical order.
  std::vector<std::string> Names() const;
  /// Where a property stands, as "FILE:LINE", or the file where it does not stand.
  std::string Where(const std::string& name) const;
  /// @throws Error(kInvalidArgument) "FILE:LINE: NAME=VALUE: `reason`"
  [[noreturn]] void Refuse(const std::string& name, const std::string& reason) const;

 private:
  struct Entry {
    std::string value;
    std::uint64_t line;
  };
  std::string path_;
  std::map<std::string, Entry> entries_;
};

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_PROPERTIES_H_
