#ifndef GPM_BENCH_SUBJECT_H_
#define GPM_BENCH_SUBJECT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/options.h"
#include "gpmstore/store.h"

namespace gpm::bench {

/// The arrays that a subject works on, as in Batch: n = results.size() operations of one kind.
struct Arrays {
  Op op = Op::kFind;
  std::span<const std::byte> keys;    ///< n 8-byte keys
  std::span<const std::byte> values;  ///< n values; empty unless the kind needs them
  std::span<std::byte> found;         ///< n rows; empty unless the kind is find
  std::span<Result> results;
};

/// Something that is measured: a key-value container, empty when it is made, which does the same
/// work on the same arrays as every other subject. Thread safety: none.
class Subject {
 public:
  virtual ~Subject() = default;

  /// Does all operations and writes every result (and the found values).
  /// @return seconds, one entry for each call that the subject is made of; their sum is the time of
  ///         the whole. The making of threads is not in it.
  virtual std::vector<double> Run(const Arrays& arrays) = 0;
};

/// A pool file that does not exist, on tmpfs where there is one.
std::string TemporaryPoolPath();

/// Our store, in a new pool whose file has no name any more, so that it goes with the process.
class StoreSubject : public Subject {
 public:
  /// @param path of the pool file, which must not exist; empty: a temporary place in memory
  /// @param batch operations of one Store::Apply
  StoreSubject(const std::string& path, const CreateOptions& create, const OpenOptions& open,
               std::uint64_t batch);

  std::vector<double> Run(const Arrays& arrays) override;
  StoreStats Stats() const { return store_.Stats(); }

 private:
  Store store_;
  std::uint64_t batch_;
};

/// Bytes of a value that the libcuckoo peer is compiled for.
inline constexpr std::uint32_t kPeerValueBytes = 128;

/// libcuckoo::cuckoohash_map from 8-byte keys to 128-byte values with its default hash: `threads`
/// threads, each over its own part of the arrays. Space for `capacity` items, which the map rounds
/// up to a power of two, is taken beforehand, so that it never grows.
std::unique_ptr<Subject> MakeLibcuckooSubject(std::uint64_t capacity, unsigned threads);

}  // namespace gpm::bench

#endif  // GPM_BENCH_SUBJECT_H_
