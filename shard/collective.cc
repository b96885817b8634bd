#include "shard/collective.h"

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>

#include "engine/item_uses.h"
#include "gpmstore/error.h"
#include "shard/shard_set.h"
#include "table/operation.h"

namespace gpm {

/// How many rows go where.
struct Collective::Route {
  std::vector<std::uint64_t> sent;      ///< for each rank
  std::vector<std::uint64_t> received;  ///< from each rank

  std::uint64_t all_sent() const { return Sum(sent); }
  std::uint64_t all_received() const { return Sum(received); }

 private:
  static std::uint64_t Sum(const std::vector<std::uint64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::uint64_t{0});
  }
};

/// A part's operations of which all are carried out at once; or some of a part that only finds.
struct Collective::Chunk {
  Splitter& splitter;
  Batch mine;
  Batch theirs;
  Route route;
  Wait wait;  ///< until `theirs` is carried out; null: it is
};

/// Arrays that are sent together.
struct Collective::Parcel {
  std::vector<std::span<const std::byte>> send;  ///< of each array in turn, for each rank
  std::vector<std::span<std::byte>> receive;

  /// An array of rows of which those for, and from, each rank lie behind each other.
  void Add(std::span<const std::byte> from, const std::vector<std::uint64_t>& sent,
           std::span<std::byte> to, const std::vector<std::uint64_t>& received,
           std::size_t row_bytes) {
    Divide(from, sent, row_bytes, &send);
    Divide(to, received, row_bytes, &receive);
  }

  /// Room alone, which the others fill, or look at.
  void AddRoom(std::span<std::byte> room, const std::vector<std::uint64_t>& rows,
               std::size_t row_bytes) {
    Divide(room, rows, row_bytes, &receive);
  }

 private:
  template <class Byte>
  static void Divide(std::span<Byte> rows, const std::vector<std::uint64_t>& counts,
                     std::size_t row_bytes, std::vector<std::span<Byte>>* parts) {
    for (const std::uint64_t count : counts) {
      parts->push_back(rows.first(count * row_bytes));
      rows = rows.subspan(count * row_bytes);
    }
  }
};

namespace {

constexpr std::uint8_t kNoOp = 0xFF;  ///< a kind that is none of Op's: its result is kInvalid

constexpr std::size_t kSample = 1024;

/// Whether many a key comes several times, as some keys of a batch tell.
/// @param keys at most kSample
bool KeysRepeat(std::span<const std::byte> keys, std::uint32_t key_size) {
  constexpr std::size_t kPlaces = 4 * kSample;
  std::array<std::uint64_t, kPlaces> seen{};  // ids, by their low bits; 0 is none
  const std::size_t n = keys.size() / key_size;
  std::size_t repeated = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t id = IdOfKey(keys.data() + i * key_size, key_size);
    std::size_t place = id >> 16 & (kPlaces - 1);
    while (seen[place] != 0 && seen[place] != id) place = (place + 1) % kPlaces;
    repeated += seen[place] == id;
    seen[place] = id;
  }
  return repeated > n / 8;
}

/// Whether an operation takes its row of Batch::values.
bool TakesValue(Op op, const InitialValue& initial) {
  return Writes(op) && (op != Op::kFindOrInsert || initial.from == InitialValue::From::kValues);
}

/// What the operations of a part are sent as: one that lacks what it needs in this part finds none
/// of that in the others' either.
Splitter::KindMap KindsSent(const Batch& mine, const InitialValue& initial) {
  Splitter::KindMap as;
  for (std::uint8_t kind = 0; kind < kOpKinds; ++kind) {
    const Op op = static_cast<Op>(kind);
    const bool lacks = (op == Op::kAccumulate && mine.element == Element::kNone) ||
                       (mine.values.empty() && TakesValue(op, initial));
    as[kind] = lacks ? kNoOp : kind;
  }
  return as;
}

}  // namespace

Splitter& Collective::SplitterFor(bool on_gpu, std::uint64_t which) {
  std::unique_ptr<Splitter>& splitter = splitters_[2 * which + (on_gpu ? 1 : 0)];
  if (splitter == nullptr) {
    splitter = on_gpu ? MakeGpuSplitter(means_.device, 0) : MakeHostSplitter(threads_);
  }
  return *splitter;
}

Collective::Route Collective::MakeRoute(Splitter& splitter, std::span<const std::byte> keys,
                                        bool only_finds) {
  const bool send_once =
      only_finds && KeysRepeat(splitter.Sample(keys, key_size_, kSample), key_size_);
  splitter.Divide(keys, key_size_, partition_, send_once);
  const std::uint32_t ranks = exchange_.ranks();
  const std::vector<std::uint64_t>& starts = splitter.Starts();
  Route route;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    route.sent.push_back(starts[FirstShard(rank + 1, ranks, partition_.shards)] -
                         starts[FirstShard(rank, ranks, partition_.shards)]);
  }
  route.received.resize(ranks);
  const std::vector<std::uint64_t> ones(ranks, 1);
  Parcel counts;
  counts.Add(std::as_bytes(std::span(route.sent)), ones,
             std::as_writable_bytes(std::span(route.received)), ones, sizeof(std::uint64_t));
  exchange_.AllToAll(counts.send, counts.receive);
  stats_.sent += route.all_sent();
  stats_.carried_out += route.all_received();
  return route;
}

void Collective::Deliver(const Splitter& splitter, const Parcel& parcel) {
  if (splitter.device() >= 0) {
    return exchange_.AllToAllOnGpu(parcel.send, parcel.receive, splitter.stream());
  }
  const std::size_t ranks = exchange_.ranks();
  for (std::size_t at = 0; at < parcel.send.size(); at += ranks) {
    exchange_.AllToAll(std::span(parcel.send).subspan(at, ranks),
                       std::span(parcel.receive).subspan(at, ranks));
  }
}

void Collective::Send(Chunk& chunk, const BatchPlan& plan) {
  Splitter& splitter = chunk.splitter;
  const Route& route = chunk.route;
  const Batch& mine = chunk.mine;
  Batch* const theirs = &chunk.theirs;
  struct Array {
    std::span<const std::byte> rows;  ///< empty: zeros are sent
    std::size_t row_bytes;
    std::span<std::byte> received;
  };
  std::vector<Array> arrays;
  const auto add = [&](std::span<const std::byte> rows, std::size_t row_bytes) {
    const std::span<std::byte> room = splitter.Take(route.all_received() * row_bytes);
    arrays.push_back({rows, row_bytes, room});
    return room;
  };
  const auto gather = [&](const Array& array, Splitter::Parts to) {
    if (!array.rows.empty()) return splitter.Gather(array.rows, array.row_bytes, to);
    for (const std::span<std::byte> part : to) splitter.Clear(part);
  };
  theirs->keys = add(mine.keys, key_size_);
  if (!theirs->ops.empty()) {
    const std::span<std::byte> kinds = splitter.Take(mine.results.size());
    splitter.MapKinds(mine.ops, mine.op, KindsSent(mine, theirs->initial), kinds);
    const std::span<std::byte> ops = add(kinds, sizeof(Op));
    theirs->ops = {reinterpret_cast<const Op*>(ops.data()), ops.size()};
  }
  if (!theirs->values.empty()) theirs->values = add(mine.values, value_size_);

  Parcel parcel;
  if (plan.lends) {
    for (const Array& array : arrays) {
      parcel.AddRoom(array.received, route.received, array.row_bytes);
    }
    return exchange_.Lend(parcel.receive, splitter.stream(), [&](Exchange::Receive lent) {
      for (std::size_t k = 0; k < arrays.size(); ++k) {
        gather(arrays[k], lent.subspan(k * exchange_.ranks(), exchange_.ranks()));
      }
      splitter.Finish();
    });
  }
  for (const Array& array : arrays) {
    const std::span<std::byte> sent = splitter.Take(route.all_sent() * array.row_bytes);
    gather(array, Splitter::Parts(&sent, 1));
    parcel.Add(sent, route.sent, array.received, route.received, array.row_bytes);
  }
  Deliver(splitter, parcel);
}

void Collective::Return(Chunk& chunk, const BatchPlan& plan) {
  Splitter& splitter = chunk.splitter;
  const Route& route = chunk.route;
  const Batch& mine = chunk.mine;
  const Batch& theirs = chunk.theirs;
  const std::uint32_t ranks = exchange_.ranks();
  const bool wants_found = plan.wants_found[exchange_.rank()];
  const auto scatter = [&](Splitter::Parts results, Splitter::Parts found) {
    splitter.Scatter(results, sizeof(Result), std::as_writable_bytes(mine.results));
    if (wants_found) splitter.Scatter(found, value_size_, mine.found);
    splitter.Finish();
  };
  Parcel parcel;
  if (plan.lends) {
    parcel.AddRoom(std::as_writable_bytes(theirs.results), route.received, sizeof(Result));
    if (plan.some_want_found) parcel.AddRoom(theirs.found, route.received, value_size_);
    return exchange_.Lend(parcel.receive, splitter.stream(), [&](Exchange::Receive lent) {
      scatter(lent.first(ranks), lent.subspan(ranks));
    });
  }
  const std::span<std::byte> results = splitter.Take(route.all_sent());
  const std::span<std::byte> found =
      splitter.Take(wants_found ? route.all_sent() * value_size_ : 0);
  parcel.Add(std::as_bytes(theirs.results), route.received, results, route.sent, sizeof(Result));
  if (plan.some_want_found) {
    parcel.Add(theirs.found, route.received, found,
               wants_found ? route.sent : std::vector<std::uint64_t>(ranks), value_size_);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (!plan.wants_found[rank]) parcel.send[ranks + rank] = {};
    }
  }
  Deliver(splitter, parcel);
  scatter(Splitter::Parts(&results, 1), Splitter::Parts(&found, 1));
}

std::uint64_t Collective::Apply(const Batch& mine, const Local& local) {
  stats_.asked += mine.results.size();
  lap_begun_ = std::chrono::steady_clock::now();
  if (exchange_.ranks() == 1) {
    stats_.sent += mine.results.size();
    stats_.carried_out += mine.results.size();
    if (const Wait wait = local(mine, nullptr)) wait();
    Lap(&stats_.local_seconds);
    return CountNotOkOf(mine.results);
  }
  BatchPlan plan;
  try {
    plan = AgreeOn(exchange_, mine, key_size_, value_size_, means_);
  } catch (const Error&) {  // which all ranks throw
    throw;
  } catch (const std::exception& error) {
    exchange_.Leave(error.what());
    throw;
  }
  std::exception_ptr failure;  // of `local`, which may fail on one rank alone
  try {
    CarryOut(mine, plan, local, &failure);
  } catch (const std::exception& error) {
    exchange_.Leave(error.what());
    for (std::unique_ptr<Splitter>& splitter : splitters_) splitter.reset();
    throw;
  }
  try {
    Together(exchange_, [&] {
      if (failure) std::rethrow_exception(failure);
    });
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (!failure) exchange_.Leave(error.what());
    throw;
  }
  Lap(&stats_.local_seconds);
  return CountNotOkOf(mine.results);
}

void Collective::CarryOut(const Batch& mine, const BatchPlan& plan, const Local& local,
                          std::exception_ptr* failure) {
  const std::uint64_t n = mine.results.size();
  // While the owners carry out a chunk, the one before is brought back, and the next one there.
  std::optional<Chunk> before;
  for (std::uint64_t k = 0; k < plan.chunks; ++k) {
    const std::uint64_t first = n * k / plan.chunks;
    const std::uint64_t rows = n * (k + 1) / plan.chunks - first;
    const auto cut = [&](auto array, std::size_t row_bytes) {
      return array.empty() ? array : array.subspan(first * row_bytes, rows * row_bytes);
    };
    Batch part = mine;
    part.keys = cut(mine.keys, key_size_);
    part.ops = cut(mine.ops, sizeof(Op));
    part.values = cut(mine.values, value_size_);
    part.found = cut(mine.found, value_size_);
    part.results = cut(mine.results, sizeof(Result));
    Chunk chunk = Begin(SplitterFor(plan.on_gpu, k % 2), part, plan);
    try {
      if (!chunk.theirs.results.empty()) {
        chunk.wait = local(chunk.theirs, chunk.splitter.stream());
      }
    } catch (...) {
      *failure = std::current_exception();
    }
    if (before) End(*before, plan, failure);
    before.emplace(std::move(chunk));
  }
  End(*before, plan, failure);
}

Collective::Chunk Collective::Begin(Splitter& splitter, const Batch& part, const BatchPlan& plan) {
  Chunk chunk{.splitter = splitter, .mine = part, .theirs = plan.common, .route = {}, .wait = {}};
  splitter.Begin();
  chunk.route = MakeRoute(splitter, part.keys, plan.only_finds);
  Lap(&stats_.split_seconds);
  Send(chunk, plan);
  const std::span<std::byte> results = splitter.Take(chunk.route.all_received());
  chunk.theirs.results = {reinterpret_cast<Result*>(results.data()), results.size()};
  chunk.theirs.found = splitter.Take(plan.some_want_found ? results.size() * value_size_ : 0);
  Lap(&stats_.send_seconds);
  return chunk;
}

void Collective::End(Chunk& chunk, const BatchPlan& plan, std::exception_ptr* failure) {
  try {
    if (const Wait wait = std::move(chunk.wait)) wait();
  } catch (...) {
    *failure = std::current_exception();
  }
  Lap(&stats_.local_seconds);
  Return(chunk, plan);
  Lap(&stats_.return_seconds);
}

}  // namespace gpm
