#ifndef GPM_BENCH_PEER_PHASES_H_
#define GPM_BENCH_PEER_PHASES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/kv_adapter.h"
#include "pm/thread_pool.h"
#include "ycsb/buffer.h"
#include "ycsb/items.h"

namespace gpm::bench {

/// What all contestants do.
struct PeerWorkload {
  std::uint64_t records = 0;     ///< that are inserted
  std::uint64_t operations = 0;  ///< of each phase behind that
  std::uint64_t batch = 0;       ///< operations at once
  std::uint32_t key_bytes = 8;   ///< 4, or 8 and more
  std::uint32_t value_bytes = 0;
  double theta = 0.99;  ///< skew of YCSB's workloads
  std::uint64_t seed = 1;
  ycsb::Memory memory = ycsb::Memory::kHost;
};

/// Host memory through which arrays pass on their way to the GPU and back: pinned then, of which
/// the allocation takes long. Thread safety: none.
class Staging {
 public:
  explicit Staging(ycsb::Memory memory)
      : memory_(memory == ycsb::Memory::kDevice ? ycsb::Memory::kPinned : ycsb::Memory::kHost) {}
  /// Holds anything. @throws as ycsb::Buffer
  std::span<std::byte> Bytes(std::uint64_t bytes) {
    if (bytes > buffer_.bytes().size()) buffer_ = ycsb::Buffer::Untouched(memory_, bytes);
    return buffer_.bytes().first(bytes);
  }

 private:
  ycsb::Memory memory_;
  ycsb::Buffer buffer_;
};

/// Operations that all contestants carry out, batch by batch, and what they must come to: computed
/// before anything is timed, with their arrays where batches are to be.
///
/// All updates of a batch to a record write the same value, that of the batch. So it is known what
/// is there after the batch, in whatever order its operations took effect. Finds of kD choose among
/// the records that earlier batches inserted: as in YCSB, where an insert is acknowledged before
/// its record is chosen.
///
/// Phases are made in the order in which a container meets them, which is that of Kind; kC and
/// kLatest may come again as long as nothing is updated.
///
/// Thread safety: none.
class PeerPhase {
 public:
  enum class Kind : std::uint8_t {
    kInsert,       ///< each record, once: YCSB's load
    kFind,         ///< uniform
    kFindMissing,  ///< of records that are not there
    kC,            ///< Zipfian finds
    kLatest,       ///< finds of the newest of the records, as kD begins with
    kD,            ///< finds of the newest records, and a twentieth of inserts
    kB,            ///< Zipfian finds, and a twentieth of updates
    kA,            ///< Zipfian finds and updates, half and half
    kF,            ///< Zipfian finds, half of them with an update of what they find behind them
    kUpdate,       ///< uniform
    kErase,        ///< records once each, in order
  };
  /// "insert", "find", "find-missing", "c", "latest", "d", "b", "a", "f", "update", "erase"
  static const char* NameOf(Kind kind);

  /// @param split each batch of several kinds has its finds in front, for whom IsSplitFor: they
  ///        carry out a batch in two
  /// @param threads, staging fill and check arrays; outlive this
  /// @param contents the version of each record's value, before the phase and then after it; empty:
  ///        as they were inserted
  PeerPhase(const PeerWorkload& workload, Kind kind, bool split, ThreadPool& threads,
            Staging& staging, std::vector<ycsb::Version>& contents);

  /// Of the workload: a find of kF and the update of what it finds are one.
  std::uint64_t operations() const { return operations_; }
  std::uint64_t rows() const { return keys_.size(); }         ///< of batches
  std::uint64_t new_records() const { return new_records_; }  ///< that kD inserts

  /// Whether an adapter can do this at all.
  static bool IsFor(Kind kind, const Capabilities& can);
  /// Whether it does it in its split form.
  static bool IsSplitFor(Kind kind, const Capabilities& can);

  /// Carries out all batches and checks every result and value.
  /// @return seconds of each batch
  /// @throws Error(kDamaged) naming the first operation that went wrong
  std::vector<double> Run(KvAdapter& adapter, const Capabilities& can) const;
  /// Makes an adapter without items ready, without changing it: updates, or where it has none
  /// finds, the first batch, of which nothing is there. REQUIRES: kInsert. @throws Error(kDamaged)
  void Rehearse(KvAdapter& adapter, const Capabilities& can) const;
  /// Finds, once, what kUpdate has written, or does not find what kErase has erased. @throws as Run
  void CheckAfterwards(KvAdapter& adapter) const;

 private:
  /// What has become of a record before a find, within its batch.
  enum class Written : std::uint8_t { kNever, kLater, kEarlier };

  std::uint64_t KeyOf(std::uint64_t record) const;
  ycsb::Version VersionOf(std::uint64_t row) const;  ///< that the row's batch writes
  bool Finds(std::uint64_t row) const;
  void ChooseRecords();
  void ChooseLatest();
  void AddUpdates();
  void Split();
  void FollowVersions(std::vector<ycsb::Version>& contents);
  void FillArrays();
  Batch All(const Capabilities& can) const;
  std::vector<double> RunSplit(KvAdapter& adapter, const Capabilities& can) const;
  void Check(const Capabilities& can, bool afterwards) const;

  const PeerWorkload workload_;
  const Kind kind_;
  ThreadPool& threads_;
  Staging& staging_;
  std::uint64_t operations_ = 0;
  std::uint64_t new_records_ = 0;
  std::vector<std::uint64_t> records_;        ///< of rows
  std::vector<std::uint64_t> keys_;           ///< of rows
  std::vector<Op> kinds_;                     ///< of rows; empty where all are the same
  std::vector<std::uint64_t> finds_;          ///< of each batch of a split phase; else empty
  std::vector<ycsb::Version> versions_;       ///< of a row's record, before its batch
  std::vector<Written> written_;              ///< of rows
  std::vector<ycsb::Version> last_versions_;  ///< of a row's record, after all of kUpdate
  // Where batches are to be.
  ycsb::Buffer device_ops_;
  ycsb::Buffer device_keys_;
  ycsb::Buffer values_;
  mutable ycsb::Buffer found_;
  mutable ycsb::Buffer results_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_PEER_PHASES_H_
