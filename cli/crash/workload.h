#ifndef GPM_CLI_CRASH_WORKLOAD_H_
#define GPM_CLI_CRASH_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/policy.h"
#include "gpmstore/batch.h"

namespace gpm::cli {

/// The batches of `gpmstore crash-test`. Each follows from the round and its own number alone, so
/// that the process that runs it reports no more than that number, and the one that checks makes
/// the same batch again. Thread safety: const members and free functions from several threads.

/// A *writer* has one batch at a time in flight. Keys are numbered from 0; 0 and 1 are the all-zero
/// and the all-one key. Number n belongs to writer n % writers, so batches that run at once never
/// share a key and what a key may hold is known exactly.
inline constexpr std::uint64_t kCrashKeys = std::uint64_t{1} << 20;
inline constexpr unsigned kMaxCrashThreads = 32;
inline constexpr unsigned kMaxCrashTickets = 4;
inline constexpr std::uint64_t kMaxCrashRounds = std::uint64_t{1} << 16;
inline constexpr std::size_t kMaxCrashBatch = std::size_t{1} << 18;

/// The bytes of a batch's outputs before it starts: answers of nobody's.
inline constexpr int kCrashPoison = 0xA5;

/// A round: from the start of a child process to its end.
struct CrashRound {
  std::uint64_t seed = 0;
  std::uint64_t number = 0;      ///< < kMaxCrashRounds
  std::uint64_t age = 0;         ///< rounds that the pool went through before
  unsigned threads = 1;          ///< that start batches; <= kMaxCrashThreads
  unsigned tickets = 1;          ///< batches that each has in flight; <= kMaxCrashTickets
  bool scopes = false;           ///< one more thread has kernels of its own, on a DeviceScope
  std::size_t max_batch = 4096;  ///< operations of a batch, at most; <= kMaxCrashBatch
  std::uint32_t shards = 0;      ///< that the store is spread over; 0: it is one pool
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;

  unsigned writers() const { return threads * tickets + (scopes ? 1 : 0); }
  /// The writer whose operations a kernel carries out, each by itself.
  bool IsInScope(unsigned writer) const { return scopes && writer == threads * tickets; }
  /// Keys that its batches touch are below; grows with the age, up to kCrashKeys or less, or as
  /// many as there are of the key size.
  std::uint64_t keys() const;
  /// Whether a batch is an insert of as many items as may be, into a pool that holds none, before
  /// all others.
  bool IsFirstLoad(unsigned writer, std::uint64_t batch) const {
    return age == 0 && writer == 0 && batch == 0 && !IsInScope(writer);
  }
  /// Most operations erase, so that there are few items.
  bool erases() const { return age >= 3 && age % 2 == 1; }
  /// Snapshots are taken meanwhile, and restored.
  bool snapshots() const;
  /// The store shrinks meanwhile.
  bool compacts() const { return age >= 2 && age % 4 != 0; }
};

/// How a store is opened in a round, by seed: with directory and cache or without, and by what it
/// grows. The executor is left open.
OpenOptions MakeCrashOpening(const CrashRound& round);

struct CrashOperation {
  Op op = Op::kFind;
  std::uint64_t key = 0;
  std::uint64_t version = 0;  ///< of the value that it would write; never 0, used once in a test
};

struct CrashBatch {
  bool one_kind = false;  ///< given to the store as a batch of one kind
  std::vector<CrashOperation> operations;
  Element element = Element::kNone;  ///< one that values consist of, if there is any
};

/// Batch number `batch` of a writer: 1 to max_batch operations. From batch to batch more of the
/// round's keys are used, so that the pool is resized again and again. The operations of a writer
/// in a scope are on different keys, since nothing orders them.
CrashBatch MakeCrashBatch(const CrashRound& round, unsigned writer, std::uint64_t batch);

/// What wrote a version, such as "operation 3 of batch 17 of writer 0 in round 5".
std::string VersionText(std::uint64_t version);

/// Keys and values as bytes.
class CrashItems {
 public:
  CrashItems(std::uint32_t key_size, std::uint32_t value_size)
      : key_size_(key_size), value_size_(value_size) {}

  std::uint32_t key_size() const { return key_size_; }
  std::uint32_t value_size() const { return value_size_; }

  /// Some keys of more than 8 bytes differ in their last 8 only.
  /// @param key key_size() bytes
  void PutKey(std::uint64_t number, std::byte* key) const;
  /// The number of a key, or nothing when it is none of the workload's.
  std::optional<std::uint64_t> KeyNumber(std::span<const std::byte> key) const;

  /// Each 8 bytes follow from key and version, so that no mixture of two values is a value. The
  /// first 8, if there are so many, are the version. The others are two numbers of 32 bits from 1
  /// to 2 or -2 to -1: so sums of them tell what was added, and in which order.
  /// @param value value_size() bytes
  void PutValue(std::uint64_t key, std::uint64_t version, std::byte* value) const;
  /// What a value that was found at a key is, for messages.
  std::string ValueText(std::uint64_t key, std::span<const std::byte> value) const;

 private:
  std::uint32_t key_size_;
  std::uint32_t value_size_;
};

/// The values that versions stand for, sums too: an operation that accumulates adds the row of its
/// version, and what it leaves has that version from then on. Copyable.
/// Thread safety: none.
class CrashValues {
 public:
  explicit CrashValues(const CrashItems& items) : items_(items) {}

  /// What an operation answers when its key has a version (0: is absent), and the version then.
  /// @param element of its batch
  std::pair<Result, std::uint64_t> Apply(const CrashOperation& operation, Element element,
                                         std::uint64_t version);
  /// @return value_size() bytes, until the next call. REQUIRES: a key had this version
  std::span<const std::byte> ValueOf(std::uint64_t key, std::uint64_t version);
  const CrashItems& items() const { return items_; }
  /// Forgets what was accumulated that these versions are not made of.
  void KeepOnly(std::span<const std::uint64_t> versions);

 private:
  struct Sum {
    std::uint64_t before;  ///< version of what the row was added to
    Element element;
  };
  /// A key's sum that was calculated last: the next one is mostly that and one row more.
  struct Known {
    std::uint64_t version = 0;
    std::vector<std::byte> value;
  };

  CrashItems items_;
  std::unordered_map<std::uint64_t, Sum> sums_;     ///< by version
  std::unordered_map<std::uint64_t, Known> known_;  ///< by key
  std::vector<std::byte> value_;
  std::vector<std::byte> row_;
};

/// Stands for a value.
std::uint64_t CrashToken(std::span<const std::byte> value);

/// What a batch answered, in two words: enough to tell whether two answers are the same and, if
/// they differ in one operation only, in which.
class CrashDigest {
 public:
  CrashDigest() = default;
  CrashDigest(std::uint64_t sum, std::uint64_t weighted) : sum_(sum), weighted_(weighted) {}

  /// Adds the next operation's answer. @param found the value, of a find that is ok; else empty
  void Add(Result result, std::span<const std::byte> found);

  std::uint64_t sum() const { return sum_; }
  std::uint64_t weighted() const { return weighted_; }
  bool operator==(const CrashDigest& other) const {
    return sum_ == other.sum_ && weighted_ == other.weighted_;
  }
  /// The only operation in which two digests of `operations` answers differ, if it is one.
  std::optional<std::size_t> Difference(const CrashDigest& other, std::size_t operations) const;

 private:
  std::uint64_t sum_ = 0;
  std::uint64_t weighted_ = 0;  ///< each answer times its place, from 1
  std::uint64_t added_ = 0;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_WORKLOAD_H_
