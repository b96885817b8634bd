#ifndef GPM_CRASH_SIM_PROMISE_H_
#define GPM_CRASH_SIM_PROMISE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpm::crash {

/// Something that the store must not do; the text says what.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Items, as bytes.
using Contents = std::unordered_map<std::string, std::string>;

/// What a pool may hold (docs/CRASH_CONSISTENCY.md): exactly the acknowledged items, but that each
/// key of the batch in flight is as before the batch or as after one of its operations on it.
struct Promise {
  /// What an operation left of an item: its value, or nothing.
  using Alternatives = std::vector<std::optional<std::string>>;

  Contents acknowledged;
  std::map<std::string, Alternatives> in_flight;
  bool being_created = false;  ///< the pool may also be one that Open refuses

  /// Compares. @throws Violation
  void Check(const Contents& contents) const;
  /// Equal promises have equal hashes.
  std::uint64_t Hash() const;
};

/// The first bytes of a key or value, for messages.
std::string Hex(const std::string& bytes);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_PROMISE_H_
