#ifndef GPM_YCSB_HISTOGRAM_H_
#define GPM_YCSB_HISTOGRAM_H_

#include <array>
#include <bit>
#include <cstdint>

namespace gpm::ycsb {

/// Counts of durations in nanoseconds, in buckets at most 1/128 wide of their value, so that it
/// takes 64 KiB whatever is counted. Thread safety: none.
class Histogram {
 public:
  void Add(std::uint64_t nanoseconds, std::uint64_t times = 1) {
    counts_[BucketOf(nanoseconds)] += times;
    total_ += times;
    if (times > 0 && nanoseconds > max_) max_ = nanoseconds;
  }

  std::uint64_t count() const { return total_; }
  std::uint64_t max() const { return max_; }

  /// The least duration (up to its bucket's width) that `fraction` of the counted ones do not
  /// exceed; 0 when nothing was counted.
  std::uint64_t Percentile(double fraction) const {
    const double wanted = fraction * static_cast<double>(total_);
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen > 0 && static_cast<double>(seen) >= wanted) {
        const std::uint64_t top = UpperBound(i);
        return top < max_ ? top : max_;
      }
    }
    return max_;
  }

 private:
  // Values below 256 have a bucket each; above, each power of two has 128 buckets.
  static constexpr int kBits = 7;
  static constexpr std::size_t kBuckets = (64 - kBits) << kBits;
  static std::size_t BucketOf(std::uint64_t value) {
    const int shift = std::bit_width(value | (1u << kBits)) - kBits - 1;
    return (static_cast<std::size_t>(shift) << kBits) + (value >> shift);
  }
  static std::uint64_t UpperBound(std::size_t bucket) {
    const std::size_t octave = bucket >> kBits;
    const std::size_t shift = octave == 0 ? 0 : octave - 1;
    return ((bucket - (shift << kBits) + 1) << shift) - 1;
  }

  std::array<std::uint64_t, kBuckets + (1u << kBits)> counts_ = {};
  std::uint64_t total_ = 0;
  std::uint64_t max_ = 0;
};

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_HISTOGRAM_H_
