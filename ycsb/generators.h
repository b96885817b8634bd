#ifndef GPM_YCSB_GENERATORS_H_
#define GPM_YCSB_GENERATORS_H_

#include <cstdint>

namespace gpm::ycsb {

/// YCSB's random choices (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010)
/// and its Zipfian generator (Gray et al., "Quickly Generating Billion-Record Synthetic Databases",
/// SIGMOD 1994, section 3).
///
/// A generator holds constants only and draws from the Random that it is given, so the draws for an
/// operation can depend on a seed and the operation's number alone: then any number of threads
/// generates the same workload. Thread safety: const members may be called from several threads.

/// A bijection of 64-bit words that mixes well (the finalizer of SplitMix64: Steele et al., "Fast
/// Splittable Pseudorandom Number Generators", OOPSLA 2014).
constexpr std::uint64_t Mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// A random stream named by a seed and a number: streams of different numbers are independent, so
/// work is split over threads by number.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0)
      : state_(Mix64(Mix64(seed) ^ stream)) {}

  std::uint64_t Next() { return Mix64(state_ += 0x9E3779B97F4A7C15ull); }
  /// Uniform over [0, 1), in steps of 2^-53.
  double NextDouble() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  /// Uniform over [0, n). REQUIRES: n > 0. The bias is below n / 2^64.
  std::uint64_t NextBelow(std::uint64_t n) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(Next()) * n) >> 64);
  }

 private:
  std::uint64_t state_;
};

/// YCSB's fnvhash64: FNV-1a over the 8 bytes of a number, low byte first, as a signed number's
/// absolute value. So bit 63 of a hash is never set, but for the one hash that is 2^63 itself.
constexpr std::uint64_t FnvHash64(std::uint64_t number) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (int i = 0; i < 8; ++i) {
    hash = (hash ^ (number & 0xFF)) * 1099511628211ull;
    number >>= 8;
  }
  return hash >> 63 != 0 ? 0 - hash : hash;
}

/// Sum of 1 / i^theta for i = 1 ... items, in constant time: the first terms one by one, the rest
/// by the Euler-Maclaurin formula, to about 14 digits. REQUIRES: items >= 1, theta >= 0.
double Zeta(std::uint64_t items, double theta);

/// Zipfian over [0, items): the most frequent is 0, and k is drawn with a probability close to
/// 1 / ((k + 1)^theta * Zeta(items, theta)), exactly so for 0 and 1 (Gray et al.).
class Zipfian {
 public:
  static constexpr double kDefaultTheta = 0.99;

  /// @param items at least 1
  /// @param theta skew, 0 (uniform) to kMaxTheta
  /// @throws Error(kInvalidArgument) for a theta out of range
  explicit Zipfian(std::uint64_t items, double theta = kDefaultTheta);
  /// The same with Zeta(items, theta) given.
  Zipfian(std::uint64_t items, double theta, double zeta);

  std::uint64_t items() const { return items_; }
  std::uint64_t Draw(Random& random) const;

  /// Changes the number of items, at the price of a few calls of pow. One constant stays that of
  /// the number at construction (if that was above 2): so does YCSB, and its traces show it.
  void SetItems(std::uint64_t items);

  static constexpr double kMaxTheta = 5.0;

 private:
  void Prepare(double zeta);

  std::uint64_t items_;
  std::uint64_t first_items_;
  double theta_;
  double alpha_ = 0;  ///< exponent of the inverse distribution
  double zeta_ = 0;
  double eta_ = 0;
  double second_ = 0;    ///< draws of u * zeta below this are item 1
  double log_base_ = 0;  ///< only for theta == 1, where alpha is infinite
};

/// Zipfian popularity spread over [0, items) by a hash, as YCSB defines it: a Zipfian draw over
/// 10^10 + 1 items, hashed, modulo `items`. For theta 0.99 it uses the same constant for zeta.
class ScrambledZipfian {
 public:
  static constexpr std::uint64_t kRange = 10'000'000'000ull;
  static constexpr double kRangeZeta = 26.46902820178302;  ///< YCSB's, for theta 0.99

  /// @param items at least 1 @throws as Zipfian
  explicit ScrambledZipfian(std::uint64_t items, double theta = Zipfian::kDefaultTheta);

  std::uint64_t items() const { return items_; }
  std::uint64_t Draw(Random& random) const { return FnvHash64(zipfian_.Draw(random)) % items_; }

 private:
  std::uint64_t items_;
  Zipfian zipfian_;
};

/// A Zipfian over the records themselves: what published evaluations of GPU hash tables mean by
/// "Zipf 0.99". ScrambledZipfian is far less skewed over its items than its theta says, because it
/// folds 10^10 ranks into them. Rank r is record r * kPrime modulo the number of records, so that
/// the popular ones are spread over the order in which they were loaded.
class RecordZipfian {
 public:
  /// xxHash's PRIME64_1: larger than any number of records, so that it divides none.
  static constexpr std::uint64_t kPrime = 11400714785074694791ull;

  /// @param records at least 1, below kPrime @throws as Zipfian
  explicit RecordZipfian(std::uint64_t records, double theta = Zipfian::kDefaultTheta)
      : zipfian_(records, theta) {}

  /// A bijection of [0, records), as kPrime and their number have no common divisor.
  std::uint64_t RecordOf(std::uint64_t rank) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(static_cast<Wide>(rank) * kPrime % zipfian_.items());
  }
  std::uint64_t Draw(Random& random) const { return RecordOf(zipfian_.Draw(random)); }

 private:
  Zipfian zipfian_;
};

/// YCSB's "latest": records 0 ... last exist, and `last` is the most popular. As in YCSB, record 0
/// is not drawn when there are others.
class Latest {
 public:
  /// @param last the last record at the beginning
  explicit Latest(std::uint64_t last, double theta = Zipfian::kDefaultTheta)
      : zipfian_(last > 0 ? last : 1, theta) {}

  /// Thread safety: one thread a generator; it remembers the constants of the last `last`.
  std::uint64_t Draw(Random& random, std::uint64_t last) {
    const std::uint64_t items = last > 0 ? last : 1;
    if (items != zipfian_.items()) zipfian_.SetItems(items);
    return last - zipfian_.Draw(random);
  }

 private:
  Zipfian zipfian_;
};

/// YCSB's "hotspot": a share of the draws goes to the first records, uniformly.
class Hotspot {
 public:
  /// @param items at least 1
  /// @param data_fraction share of the items that is hot, [0, 1]
  /// @param operation_fraction share of the draws that goes there, [0, 1]
  Hotspot(std::uint64_t items, double data_fraction, double operation_fraction);
  std::uint64_t Draw(Random& random) const;

 private:
  std::uint64_t items_;
  std::uint64_t hot_items_;
  double operation_fraction_;
};

/// YCSB's "exponential": a distance from the newest record, of which `percentile` per cent are
/// within `range` (but for those beyond the oldest, which are not drawn).
class Exponential {
 public:
  Exponential(double percentile, double range);
  /// @param last the largest distance
  std::uint64_t Draw(Random& random, std::uint64_t last) const;

 private:
  double gamma_;
};

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_GENERATORS_H_
