#ifndef GPM_BENCH_SCALE_RANK_H_
#define GPM_BENCH_SCALE_RANK_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/start_line.h"
#include "bench/streams.h"
#include "gpmstore/distributed_store.h"
#include "gpmstore/exchange.h"
#include "ycsb/batch_buffers.h"
#include "ycsb/generators.h"

namespace gpm::bench {

struct ScaleArguments {
  std::string folder;  ///< is there, and empty
  std::vector<std::uint32_t> ranks = {0, 1, 2, 4};
  std::vector<int> devices;
  std::uint64_t records = 1'000'000;
  std::uint64_t batch = std::uint64_t{1} << 16;
  unsigned batches = 9;
  unsigned in_flight = 1;
  std::uint32_t value_size = 128;
  bool strong = false;
  std::string memory = "auto";
  std::string exchange = "threads";
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;
  std::uint64_t seed = 1;
  std::string json;

  /// Operations of a rank's part.
  std::uint64_t BatchOf(std::uint32_t of_ranks) const {
    return strong ? std::max<std::uint64_t>(batch / of_ranks, 1) : batch;
  }
  int DeviceOf(std::uint32_t rank) const {
    return devices.empty() ? 0 : devices[rank % devices.size()];
  }
};

/// What all ranks do in batches.
struct ScaleWork {
  const char* name;
  Op op;              ///< or, of mixed batches, every second operation
  bool updates_half;  ///< the others are updates
  bool zipf;          ///< 0.99 over the records, else uniform
  bool there;         ///< the keys are

  bool writes() const { return updates_half || op != Op::kFind; }
  bool finds() const { return op == Op::kFind; }
  /// New keys, for which room is reserved.
  bool inserts() const { return op == Op::kInsert; }
  Result expected() const { return there || inserts() ? Result::kOk : Result::kNotFound; }
};

/// One rank, with the arrays of its parts; or a Store alone, of which all is local work. Made and
/// used by a thread of its own.
class ScaleRank {
 public:
  /// What batches took: medians, in seconds, as ExchangeStats has them; and sums of operations. Of
  /// several in flight, a round of some of each is measured, and divided by how many those are.
  struct Measured {
    double batch = 0;
    ExchangeStats exchanged;
  };

  /// @param exchange null: a Store
  /// @param start where all ranks wait before each batch, so that none is timed that waits for
  ///        others to make their keys; outlives this
  ScaleRank(const ScaleArguments& arguments, std::uint32_t rank, std::uint32_t ranks,
            std::unique_ptr<Exchange> exchange, StartLine* start);

  /// Inserts this rank's records, as many batches on every rank. @return seconds
  double Load();
  /// Batches of this rank's keys, of which the first does not count. Work that inserts is measured
  /// once: afterwards its keys are there. @throws Error(kDamaged) when a result is wrong
  Measured Measure(const ScaleWork& work);

  StoreStats Stats() const { return alone_ ? alone_.Stats() : store_.Stats(); }
  std::uint64_t batch() const { return batch_; }
  std::uint64_t records() const { return records_; }

 private:
  /// Writes keys, and values if they are wanted.
  static void Put(ycsb::BatchBuffers& buffers, std::uint64_t row, std::uint64_t record, bool value);
  /// Carries out `count` batches, those that are given again and again. @return seconds for each
  double Timed(std::span<const Batch> batches, std::size_t count);
  void Reserve(std::uint64_t items) { alone_ ? alone_.Reserve(items) : store_.Reserve(items); }
  Ticket Begin(const Batch& batch, std::size_t stream);
  /// How much more it is than at the last call, for each batch of a round.
  ExchangeStats NewlyExchanged(std::size_t batches);
  void Require(ycsb::BatchBuffers& buffers, std::uint64_t rows, Result expected);
  /// How many a round of work has.
  std::size_t BatchesOfRound(const ScaleWork& work) const {
    const std::size_t arrays = buffers_.size();
    return arrays == 1 || work.inserts() ? arrays : kTurns * arrays;
  }
  static constexpr std::size_t kTurns = 8;

  const ScaleArguments& arguments_;
  const std::uint64_t records_;
  const std::uint64_t batch_;
  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  StartLine& start_;
  const ycsb::RecordZipfian zipf_;
  ycsb::Random random_;
  std::vector<std::unique_ptr<ycsb::BatchBuffers>> buffers_;  ///< of each batch in flight
  std::unique_ptr<Streams> streams_;                          ///< of those of a Store alone
  DistributedStore store_;
  Store alone_;
  ExchangeStats of_alone_;
  ExchangeStats before_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_SCALE_RANK_H_
