#ifndef GPM_ENGINE_REFRESH_SCHEDULE_H_
#define GPM_ENGINE_REFRESH_SCHEDULE_H_

#include <cstdint>
#include <optional>

namespace gpm {

/// Finds of all batches that have ended, since the store was opened.
struct FindTotals {
  std::uint64_t found = 0;  ///< finds that found their key
  std::uint64_t hits = 0;   ///< of those, that read no persistent memory
};

/// What the cache needs now.
enum class CacheNeed : std::uint8_t {
  kNothing,
  kAgeing,   ///< other items have become hot: what was counted of uses so far is to count less
  kRefresh,  ///< a refresh
};

/// Decides when a refresh of the cache pays.
///
/// A refresh can save what misses cost, so misses are its evidence: one is due after so many of
/// them, the *budget*. The budget doubles after a refresh that hardly raised the hit rate, so a
/// workload that stays as it is, is left in peace. It is small again when the hit rate falls:
/// other items have become hot then. Inserts, and finds that the cache answers, are no evidence.
///
/// Refreshes take a share of the time that what the last one saved pays for, and else a small one,
/// however long one takes.
///
/// Thread safety: none.
class RefreshSchedule {
 public:
  /// Finds over which a hit rate is taken: as many as the first budget, but within these.
  static constexpr std::uint64_t kLeastWindow = std::uint64_t{1} << 14;
  static constexpr std::uint64_t kMostWindow = std::uint64_t{1} << 18;
  /// The first budget is a quarter of the table's slots, but within these.
  static constexpr std::uint64_t kLeastFirstBudget = std::uint64_t{1} << 12;
  /// (Behind a load, where the cache answers 0.87 of its finds, YCSB A misses twice as often in its
  /// first 4 M operations.)
  static constexpr std::uint64_t kMostFirstBudget = std::uint64_t{1} << 17;
  static constexpr std::uint64_t kMostBudget = std::uint64_t{1} << 28;
  /// Of the time since the last one, a refresh may take one part in so many.
  static constexpr double kShareOfTime = 32;
  /// Or, if the last one saved a share s of the misses, one part in so many, divided by s. (Where
  /// misses are what takes time, it has saved twice as much time as it took by then.)
  static constexpr double kPayback = 2;
  /// A refresh paid if it saves this share of the misses.
  static constexpr double kPaid = 0.05;
  /// Other items are hot if the hit rate has fallen by so much.
  static constexpr double kFallen = 0.05;

  /// @param interval operations between refreshes, 0: none is due; nullopt: when one pays
  explicit RefreshSchedule(std::optional<std::uint64_t> interval) : interval_(interval) {}

  /// The table has so many slots from now on; the cache may be empty.
  void Reset(std::uint64_t slots);
  /// @param operations that begin now @param now seconds, from any instant on
  CacheNeed Advance(std::uint64_t operations, const FindTotals& totals, double now);
  /// A refresh begins.
  void Begin();
  /// It has ended. @param seconds that it took
  void End(const FindTotals& totals, double now, double seconds);

 private:
  static double HitRate(const FindTotals& from, const FindTotals& to);
  CacheNeed EndWindow(const FindTotals& totals);

  const std::optional<std::uint64_t> interval_;
  std::uint64_t until_due_ = 1;  ///< operations, with an interval
  bool is_fresh_ = true;         ///< nothing was counted since Reset
  bool is_refreshing_ = false;   ///< between Begin and End, which no window covers
  std::uint64_t first_budget_ = kMostFirstBudget;
  std::uint64_t budget_ = kMostFirstBudget;
  FindTotals window_;             ///< when the window began
  FindTotals evidence_;           ///< misses since then are evidence
  double rate_ = 0;               ///< hit rate of the last window
  std::optional<double> before_;  ///< that before a refresh that is still to be judged
  double settled_ = 0;            ///< mean hit rate of late
  double ended_ = 0;              ///< the last refresh, in seconds
  double took_ = 0;               ///< seconds
  double not_before_ = 0;         ///< seconds
};

}  // namespace gpm

#endif  // GPM_ENGINE_REFRESH_SCHEDULE_H_
