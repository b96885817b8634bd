#ifndef GPM_BENCH_PEER_PHASES_H_
#define GPM_BENCH_PEER_PHASES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/kv_adapter.h"
#include "pm/thread_pool.h"
#include "ycsb/buffer.h"

namespace gpm::bench {

/// What all contestants do.
struct PeerWorkload {
  std::uint64_t records = 0;     ///< that are inserted
  std::uint64_t operations = 0;  ///< of each phase behind that
  std::uint64_t batch = 0;       ///< operations at once
  std::uint32_t key_bytes = 8;   ///< 4 or 8
  std::uint32_t value_bytes = 0;
  double theta = 0.99;  ///< skew of c and a
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
/// All writes of a batch to a record write the same value, that of the batch. So it is known what
/// is there after the batch, in whatever order its operations took effect.
///
/// Thread safety: none.
class PeerPhase {
 public:
  enum class Kind {
    kInsert,       ///< each record, once
    kFind,         ///< uniform
    kFindMissing,  ///< of records that are not there
    kC,            ///< Zipfian finds
    kA,            ///< Zipfian finds and updates, half and half
    kUpdate,       ///< uniform
  };
  static const char* NameOf(Kind kind);  ///< "insert", "find", "find-missing", "c", "a", "update"

  /// @param split each batch of kA has its finds in front, for who has one kind in a batch: those
  ///        carry out a batch in two
  /// @param threads, staging fill and check arrays; outlive this
  PeerPhase(const PeerWorkload& workload, Kind kind, bool split, ThreadPool& threads,
            Staging& staging);

  Kind kind() const { return kind_; }
  std::uint64_t operations() const { return keys_.size(); }

  /// Whether an adapter can do this at all.
  static bool IsFor(Kind kind, const Capabilities& can);
  /// Whether it does kA in its split form.
  static bool IsSplitFor(const Capabilities& can) { return !can.mixed; }

  /// Carries out all batches and checks every result and value.
  /// @return seconds of each batch
  /// @throws Error(kDamaged) naming the first operation that went wrong
  std::vector<double> Run(KvAdapter& adapter, const Capabilities& can) const;
  /// Makes an adapter without items ready, without changing it: updates, or where it has none
  /// finds, the first batch, of which nothing is there. REQUIRES: kInsert. @throws Error(kDamaged)
  void Rehearse(KvAdapter& adapter, const Capabilities& can) const;
  /// Finds, once, what kUpdate has written. @throws as Run
  void CheckUpdated(KvAdapter& adapter) const;

 private:
  /// What has become of a record before a find, within its batch.
  enum class Written : std::uint8_t { kNever, kLater, kEarlier };

  std::uint64_t KeyOf(std::uint64_t record) const;
  std::uint32_t VersionOf(std::uint64_t row) const;  ///< that the row's batch writes
  void ChooseRecords(bool split);
  void FollowVersions();
  void FillArrays();
  Batch All(const Capabilities& can) const;
  std::vector<double> RunSplit(KvAdapter& adapter, const Capabilities& can) const;
  void Check(const Capabilities& can, bool updated) const;

  const PeerWorkload workload_;
  const Kind kind_;
  ThreadPool& threads_;
  Staging& staging_;
  std::vector<std::uint64_t> records_;        ///< of rows
  std::vector<std::uint64_t> keys_;           ///< of rows
  std::vector<Op> kinds_;                     ///< of rows of kA: kFind and kUpdate; else empty
  std::vector<std::uint64_t> finds_;          ///< of each batch of a split kA, in front; else empty
  std::vector<std::uint32_t> versions_;       ///< of a row's record, before its batch
  std::vector<Written> written_;              ///< of rows
  std::vector<std::uint32_t> last_versions_;  ///< of a row's record, after all
  // Where batches are to be.
  ycsb::Buffer device_ops_;
  ycsb::Buffer device_keys_;
  ycsb::Buffer values_;
  mutable ycsb::Buffer found_;
  mutable ycsb::Buffer results_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_PEER_PHASES_H_
