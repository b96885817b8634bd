#ifndef GPM_BENCH_BUCKET_USES_H_
#define GPM_BENCH_BUCKET_USES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pm/thread_pool.h"
#include "ycsb/workload.h"

namespace gpm::bench {

/// Which bucket holds the item of each record: read from a pool that no store has open. That stays
/// so until something is inserted or erased.
class BucketMap {
 public:
  /// @param records that the pool holds: 0 ... records - 1
  /// @throws Error as Pool::Open; kDamaged when a record is in none of its buckets
  BucketMap(const std::string& pool, std::uint64_t records, ycsb::KeyOrder order,
            ThreadPool& threads);

  std::uint64_t buckets() const { return buckets_; }
  std::uint32_t BucketOf(std::uint32_t record) const { return bucket_of_[record]; }

 private:
  std::uint64_t buckets_ = 0;             ///< addressable
  std::vector<std::uint32_t> bucket_of_;  ///< by record; indices as TableView's
};

/// How often the buckets are used by some operations, in hindsight.
class BucketUses {
 public:
  /// @param records of the operations
  BucketUses(const BucketMap& map, std::span<const std::uint32_t> records);

  /// Share of the operations that go to the `buckets` most used ones: no fixed choice of as many
  /// buckets can have a higher hit rate with these operations.
  double BestShare(std::uint64_t buckets) const;

 private:
  std::vector<std::uint32_t> uses_;  ///< of buckets, most used first
  std::uint64_t operations_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_BUCKET_USES_H_
