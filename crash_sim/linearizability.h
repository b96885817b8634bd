#ifndef GPM_CRASH_SIM_LINEARIZABILITY_H_
#define GPM_CRASH_SIM_LINEARIZABILITY_H_

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gpmstore/batch.h"

namespace gpm::crash {

/// Never returned: in flight at a crash.
inline constexpr std::uint64_t kPending = std::numeric_limits<std::uint64_t>::max();

/// One operation of a history. Keys and values by number: those of a pool's bytes are up to the
/// caller.
struct HistoryOp {
  std::uint64_t key = 0;
  Op op = Op::kFind;
  std::uint64_t written = 0;      ///< insert, update, upsert, find-or-insert; accumulate adds it
  Result result = Result::kOk;    ///< unless pending
  std::uint64_t found = 0;        ///< what it gave back, if it did (HasFound)
  std::uint64_t invoked_at = 0;   ///< moments of a clock that all threads share
  std::uint64_t returned_at = 0;  ///< or kPending
  std::uint64_t batch = 0;        ///< unique in the history
  std::uint32_t position = 0;     ///< in its batch

  bool pending() const { return returned_at == kPending; }
};

using History = std::vector<HistoryOp>;

/// Values by key, before the history began.
using KeyValues = std::map<std::uint64_t, std::uint64_t>;

/// Says whether a history is linearizable key by key: whether the operations on each key can be put
/// in an order, each at a moment between its invocation and its return, in which their results are
/// those of a map (Wing and Gong, "Testing and Verifying Concurrent Objects", 1993; states that
/// were tried are remembered, as Lowe's "Testing for linearizability", 2017, does).
///
///  - Operations of one batch on one key take effect in batch order.
///  - A pending operation took effect or did not; then neither did the later ones of its batch.
///  - kInvalid has no effect; neither has kNoSpace, which only an operation that would have written
///    has.
///
/// @param before what the keys held first @return empty, or what is wrong and the key's operations
/// @throws std::invalid_argument for more than 64 operations on one key
std::string FindNonlinearizable(const History& history, const KeyValues& before = {});

/// One line an operation, by moment of invocation.
std::string Describe(History history);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_LINEARIZABILITY_H_
