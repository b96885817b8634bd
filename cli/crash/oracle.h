#ifndef GPM_CLI_CRASH_ORACLE_H_
#define GPM_CLI_CRASH_ORACLE_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/crash/workload.h"

namespace gpm::cli {

/// Knows what a pool may hold after a crash, from the batches that were started and acknowledged
/// before it (docs/CRASH_CONSISTENCY.md), and says where the pool or an answer differs.
///
/// Thread safety: none.
///
/// Invariants:
///  1. versions_[k] is the version of key k after the batches that were acknowledged, or 0 when the
///     key is absent then. A batch that is acknowledged has no other outcome.
///  2. A writer has at most one batch in flight, and no other writer's batches touch its keys. So
///     the order in which batches of different writers took effect is of no account, and what a
///     key in flight may hold follows from versions_ and that one batch.
class CrashOracle {
 public:
  explicit CrashOracle(const CrashItems& items) : values_(items), versions_(kCrashKeys) {}

  /// The pool is a new, empty one.
  void Renew();

  /// A writer is about to start a batch.
  void Start(unsigned writer, std::uint64_t number, CrashBatch batch);
  /// The batch that the writer has in flight was acknowledged with these answers, which must be
  /// those of its operations applied one by one.
  void Acknowledge(unsigned writer, const CrashDigest& answers);
  /// Of the batch that the writer has in flight, on different keys, some operations were answered
  /// by themselves: those are acknowledged, and the others stay in flight. Operations that found no
  /// room were not.
  /// @param answers one for each operation; those that are none of Result's: not answered
  /// @return how many were
  std::size_t AcknowledgeSome(unsigned writer, std::span<const Result> answers);
  bool InFlight(unsigned writer) const { return in_flight_.contains(writer); }
  std::size_t batches_in_flight() const { return in_flight_.size(); }

  /// A pool's items, each told once, between these two: each key must hold what invariant 1 says,
  /// or, when a batch in flight has operations on it, that or what one of them left. Then the items
  /// are what the pool holds, and nothing is in flight.
  void BeginItems();
  void Found(std::span<const std::byte> key, std::span<const std::byte> value);
  void EndItems();

  /// The answer of a find while nothing is in flight. @param value ignored unless it is ok
  void CheckFind(std::uint64_t key, Result result, std::span<const std::byte> value);

  const CrashValues& values() const { return values_; }
  /// Of each key, after the batches that were acknowledged.
  const std::vector<std::uint64_t>& versions() const { return versions_; }

  std::uint64_t items() const { return present_; }  ///< as of the last EndItems
  /// What was wrong so far, the first ones.
  const std::vector<std::string>& defects() const { return defects_; }

 private:
  struct InFlightBatch {
    std::uint64_t number;
    CrashBatch batch;
  };

  void Defect(std::string text);
  bool Holds(std::uint64_t key, std::uint64_t version, std::span<const std::byte> value);
  /// The versions that a key may have, 0 for absent; the first is that of invariant 1.
  std::span<const std::uint64_t> Allowed(std::uint64_t key) const;
  std::string AllowedText(std::uint64_t key) const;

  CrashValues values_;
  std::vector<std::uint64_t> versions_;
  std::map<unsigned, InFlightBatch> in_flight_;
  /// Between BeginItems and EndItems, if a batch is in flight: key k may have the versions
  /// allowed_[first_allowed_[k]] and on, allowed_count_[k] of them, or that of invariant 1 for 0.
  std::vector<std::uint64_t> allowed_;
  std::vector<std::uint32_t> first_allowed_;
  std::vector<std::uint32_t> allowed_count_;
  /// Likewise: the version that was found.
  std::vector<std::uint64_t> found_;
  std::uint64_t present_ = 0;
  std::vector<std::string> defects_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_ORACLE_H_
