#ifndef GPM_BENCH_KV_ADAPTER_H_
#define GPM_BENCH_KV_ADAPTER_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/options.h"
#include "gpmstore/search.h"
#include "gpmstore/store.h"
#include "pm/pm_counts.h"
#include "ycsb/buffer.h"

namespace gpm::bench {

/// Which keys inserts may have.
enum class Inserts {
  kNew,         ///< keys that are not there, each once in a batch: nobody looks
  kNewInBatch,  ///< each once in a batch: that it is there from an earlier one is seen
  kAny,         ///< of several inserts of a key in a batch one alone is ok, and its value is there
};

/// What an adapter gives back of the items of which an attribute is a number.
enum class Searches {
  kNone,
  kKeys,    ///< how many there are, and their keys
  kValues,  ///< and their values, in host memory
};

/// What an adapter can do, and what it can't. By default what the store promises of a batch that
/// is carried out by threads at once.
struct Capabilities {
  /// Where all arrays of its batches are.
  ycsb::Memory memory = ycsb::Memory::kHost;
  std::vector<Op> kinds{};                         ///< of operations, that it has
  std::uint32_t key_bytes = 8;                     ///< 0: any number
  std::vector<std::uint32_t> longer_keys{};        ///< bytes of longer keys that it has, too
  std::uint32_t value_unit = 1;                    ///< bytes: values have a multiple of these,
  std::uint32_t max_value_bytes = kMaxValueBytes;  ///< and at most so many
  bool mixed = true;          ///< a batch may have several kinds, but for erases, which stand alone
  bool mixed_erases = false;  ///< a batch may have erases, too, of keys that it has once
  bool sequential = false;    ///< operations on a key take effect in batch order, else in any
  Inserts inserts = Inserts::kAny;
  /// A value that two operations of a batch write, or one writes and one reads, is of one of them.
  /// Else its words are, each on its own.
  bool whole_values = true;
  bool caches = false;       ///< may have caches, which LoadCaches loads
  bool builds_once = false;  ///< one batch inserts all items, into a container without any
  bool grows = false;        ///< holds more items than it was made for
  bool durable = false;      ///< what a batch did outlives the process, if its file does
  /// Searches are calls of their own: none runs beside a batch.
  Searches searches = Searches::kNone;

  bool Has(Op op) const { return std::ranges::find(kinds, op) != kinds.end(); }
  bool HasKeysOf(std::uint32_t bytes) const {
    return key_bytes == 0 || bytes == key_bytes ||
           std::ranges::find(longer_keys, bytes) != longer_keys.end();
  }
};

/// Something that is measured: a key-value container, empty when it is made, which does the same
/// work on the same arrays as every other adapter. Thread safety: none.
class KvAdapter {
 public:
  virtual ~KvAdapter() = default;

  /// Does all operations and writes every result, and the values that finds found; all is done when
  /// it returns. A table that is full says kNoSpace. REQUIRES: a batch within the capabilities, of
  /// which arrays in GPU memory are 16-byte aligned, but for kinds and results.
  virtual void Apply(const Batch& batch) = 0;

  /// Finds the items of each query, those of one in any order: counts, offsets and keys, and values
  /// if there is room for any. REQUIRES: a query wants one attribute to be a number (`least` and
  /// `most` are the same), and has [0, 2^64) for others; arrays are where those of batches are, or
  /// in host memory if values are wanted, and have room for all; what the capabilities allow.
  /// @throws Error(kInvalidArgument), Error(kNoSpace) for keys without room
  virtual void Search(const QueryArray& queries, Matches* matches);

  /// Loads what caches there are with what was used most so far. Not measured.
  virtual void LoadCaches() {}

  /// What it took, until now, to carry batches and answers between GPU and host. 0: nobody did.
  virtual double CarriedSeconds() const { return 0; }

  /// What kernels access of it that is persistent, for those who count that; else nothing.
  virtual CountedMemory Persistent() { return {}; }

  /// Slots that the table has now; 0: it has nothing of the kind, or does not say.
  virtual std::uint64_t SlotCount() const { return 0; }
};

/// Applies all operations, `batch` of them at once. @return seconds of each batch
std::vector<double> SecondsOfBatches(KvAdapter& adapter, const Batch& all, std::uint64_t batch);

/// Operations [first, first + rows) of a batch. @param key_bytes, value_bytes of its rows
Batch PartOf(const Batch& all, std::uint64_t first, std::uint64_t rows, std::uint64_t key_bytes,
             std::uint64_t value_bytes);

/// A pool file that does not exist, on tmpfs where there is one.
std::string TemporaryPoolPath();

/// Our store, in a new pool whose file has no name any more, so that it goes with the process.
class StoreAdapter : public KvAdapter {
 public:
  /// @param path of the pool file, which must not exist; empty: a temporary place in memory
  StoreAdapter(const std::string& path, const CreateOptions& create, const OpenOptions& open);

  /// @param memory where the arrays of batches are to be
  static Capabilities CapabilitiesOf(ycsb::Memory memory);
  void Apply(const Batch& batch) override { store_.Apply(batch); }
  void Search(const QueryArray& queries, Matches* matches) override;
  void LoadCaches() override { store_.RefreshCache().Wait(); }
  CountedMemory Persistent() override;
  std::uint64_t SlotCount() const override { return Stats().capacity_slots; }
  StoreStats Stats() const { return store_.Stats(); }

 protected:
  Store store_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_KV_ADAPTER_H_
