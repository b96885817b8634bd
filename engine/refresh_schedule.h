#ifndef GPM_ENGINE_REFRESH_SCHEDULE_H_
#define GPM_ENGINE_REFRESH_SCHEDULE_H_

#include <cstdint>
#include <optional>

namespace gpm {

/// Finds of a store that found their key, and what became of them; sums since it was opened.
struct FindSums {
  std::uint64_t operations = 0;  ///< of all kinds, begun
  std::uint64_t found = 0;
  std::uint64_t hits = 0;  ///< that read no persistent memory
};

/// Decides when a refresh of the cache pays.
///
/// A refresh can save what misses cost, so misses are its evidence: one is due after so many of
/// them, the *budget*. The budget doubles after a refresh that hardly raised the hit rate, so a
/// workload that stays as it is, is left in peace; it is small again when the hit rate falls, since
/// then other items have become hot. Inserts, and finds that the cache answers, are no evidence.
/// Refreshes take at most a small share of the time, however long one takes.
///
/// Thread safety: none.
class RefreshSchedule {
 public:
  /// Finds over which a hit rate is taken.
  static constexpr std::uint64_t kWindow = std::uint64_t{1} << 18;
  static constexpr std::uint64_t kLeastBudget = std::uint64_t{1} << 12;
  /// The first budget at most: 1 M misses.
  static constexpr std::uint64_t kMostFirstBudget = std::uint64_t{1} << 20;
  static constexpr std::uint64_t kMostBudget = std::uint64_t{1} << 28;
  /// Of the time since the last one, a refresh may take one part in so many.
  static constexpr double kShareOfTime = 32;
  /// A refresh paid if it saves this share of the misses.
  static constexpr double kPaid = 0.05;
  /// Other items are hot if the hit rate has fallen by so much.
  static constexpr double kFallen = 0.05;

  /// @param interval operations between refreshes, 0: none is due; nullopt: when one pays
  explicit RefreshSchedule(std::optional<std::uint64_t> interval) : interval_(interval) {}

  /// The cache is empty, and can hold values of `slots` slots.
  void Reset(std::uint64_t slots, const FindSums& sums);
  /// @param now seconds, from any instant on @return whether a refresh is due
  bool IsDue(const FindSums& sums, double now);
  void Begin(const FindSums& sums, double now);
  void End(const FindSums& sums, double now);

 private:
  static double HitRate(const FindSums& from, const FindSums& to);
  void EndWindow(const FindSums& sums);

  const std::optional<std::uint64_t> interval_;
  std::uint64_t due_at_ = 0;  ///< operations, with an interval
  std::uint64_t first_budget_ = kMostFirstBudget;
  std::uint64_t budget_ = kMostFirstBudget;
  FindSums window_;               ///< sums when the window began
  FindSums evidence_;             ///< the same of the misses that count
  double rate_ = 0;               ///< hit rate of the last window
  std::optional<double> before_;  ///< the same when the last refresh began; until it is judged
  double settled_ = 0;            ///< the best since
  double began_at_ = 0;
  double not_before_ = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_REFRESH_SCHEDULE_H_
