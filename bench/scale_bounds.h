#ifndef GPM_BENCH_SCALE_BOUNDS_H_
#define GPM_BENCH_SCALE_BOUNDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "bench/scale_rank.h"
#include "bench/start_line.h"
#include "gpmstore/exchange.h"
#include "pm/thread_pool.h"
#include "shard/partition.h"
#include "shard/splitter.h"
#include "ycsb/buffer.h"

namespace gpm::bench {

/// What bounds a store over several ranks, measured on all ranks at once, with arrays as large as
/// those of a batch, in the memory where those are. Medians, in bytes a second; 0: not there.
struct ScaleBounds {
  double copy = 0;        ///< of copies within a rank's memory: bytes read, and written
  double to_others = 0;   ///< of plain copies, the same part to each other rank: bytes sent
  double from_host = 0;   ///< of copies from pinned host memory to a GPU's
  double to_host = 0;     ///< and back
  double multisplit = 0;  ///< of rows that are ordered by rank: bytes read, and written
  double exchange = 0;    ///< of an exchange of what `to_others` copies: bytes sent
};

/// One rank's side of that. Made and used by a thread of its own.
class ScaleBoundsOfRank {
 public:
  /// Where ranks find each other's memory: one for each of them.
  using Inboxes = std::vector<std::span<std::byte>>;

  /// @param exchange of this rank @param start, inboxes of all ranks; they outlive this
  ScaleBoundsOfRank(const ScaleArguments& arguments, std::uint32_t rank, std::uint32_t ranks,
                    std::unique_ptr<Exchange> exchange, StartLine* start, Inboxes* inboxes);

  /// All ranks call it. @throws Error(kDamaged) when something is not where it should be
  ScaleBounds Measure();

 private:
  bool on_gpu() const { return device_ >= 0; }
  /// Bytes a second of `work`, which moves so many on this rank.
  double Rate(std::uint64_t bytes, const std::function<void()>& work);
  void Copy(std::span<std::byte> to, std::span<const std::byte> from);
  std::span<std::byte> PartOf(std::span<std::byte> all, std::uint32_t rank) const {
    return all.subspan(rank * part_bytes_, part_bytes_);
  }
  double MeasureMultisplit();
  double MeasureExchange();
  void FillOutbox();
  void RequireReceived(const char* what);

  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  const int device_;  ///< of the arrays; -1: the host
  const std::uint64_t rows_;
  const std::uint32_t value_size_;
  const std::uint64_t part_bytes_;  ///< for each rank
  const Partition partition_;
  StartLine& start_;
  Inboxes& inboxes_;
  std::unique_ptr<Exchange> exchange_;
  ThreadPool threads_;
  std::unique_ptr<Splitter> splitter_;
  ycsb::Buffer outbox_, inbox_, keys_, values_;
};

nlohmann::json ToJson(const ScaleBounds& bounds, std::uint32_t ranks);

}  // namespace gpm::bench

#endif  // GPM_BENCH_SCALE_BOUNDS_H_
