#ifndef GPM_CRASH_SIM_CRASH_BATCH_H_
#define GPM_CRASH_SIM_CRASH_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "crash_sim/promise.h"
#include "gpmstore/batch.h"
#include "pm/format.h"
#include "pm/space.h"

namespace gpm::crash {

/// Keys and values by number, and what a store under test is made of.
struct Shape {
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 8;
  Geometry geometry;
  LevelSizes levels;  ///< the first ones
  double growth = 2;
  double growth_pause = 0;  ///< OpenOptions'
  double grow_above = 0;    ///< the same
  std::uint64_t hash_seed = 0;
  std::uint64_t max_bytes = 0;        ///< of the pool
  std::uint64_t max_bytes_later = 0;  ///< in later sessions of the same pool, and after a crash
  unsigned threads = 1;
  bool directory = false;  ///< of the store, in volatile memory
  std::uint32_t keys = 8;  ///< that batches use

  /// Number 0 is the key of zeros, number 1 that of ones: for 8 bytes, the reserved ones.
  std::string Key(std::uint64_t number) const;
  /// Different tags give values that differ in every word.
  std::string Value(std::uint64_t tag) const;
  std::string Describe() const;
};

/// A batch with its arrays.
class BatchData {
 public:
  explicit BatchData(const Shape& shape) : shape_(shape) {}

  void Add(Op op, std::uint64_t key_number, std::uint64_t value_tag);
  /// Random operations: of one kind or mixed, on some of the shape's keys, several on one key.
  /// @param tag of the next value, counted up
  void Fill(std::mt19937_64& random, std::size_t operations, std::uint64_t* tag);
  std::size_t size() const { return ops_.size(); }
  /// The batch; its outputs are reset. Valid until the next change.
  Batch View();

  /// Applies the batch to `contents`, one operation after another, and compares the results.
  /// @param killed operations that have no result were not carried out, or in part; here they are
  /// @param in_flight if not null, gets what each key was before and after each operation on it
  /// @return operations that found no space
  /// @throws Violation when a result is not that of applying them one by one
  std::size_t Apply(Contents& contents, std::map<std::string, Promise::Alternatives>* in_flight,
                    bool killed = false);

 private:
  bool IsAnsweredLater(std::size_t i) const;

  static constexpr Result kNoResult = static_cast<Result>(0xEE);

  const Shape& shape_;
  std::vector<Op> ops_;
  std::string keys_;
  std::string values_;
  std::string found_;
  std::vector<Result> results_;
};

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_CRASH_BATCH_H_
