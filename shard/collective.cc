#include "shard/collective.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "engine/item_uses.h"
#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "shard/shard_set.h"

namespace gpm {

namespace {

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

/// Calls `work`, and waits for all that it asked a splitter for, also when it throws: kernels may
/// write to what others lend no longer.
template <class Work>
void AndFinish(Splitter& splitter, const Work& work) {
  try {
    work();
  } catch (...) {
    try {
      splitter.Finish();
    } catch (const std::exception&) {  // the first error is the cause
    }
    throw;
  }
  splitter.Finish();
}

}  // namespace

bool Collective::TakesGpuMemory() const {
  return device_ >= 0 && exchange_.TakesGpuMemory(device_);
}

Route Collective::MakeRoute(Splitter& splitter, std::span<const std::byte> keys, bool only_finds) {
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

void Collective::Send(Splitter& splitter, const Route& route, bool lends, const Batch& mine,
                      Batch* theirs) {
  struct Array {
    std::span<const std::byte> rows;  ///< empty: zeros are sent
    std::size_t row_bytes;
    std::span<std::byte> received;
    WantedRows wanted;
  };
  std::vector<Array> arrays;
  const auto add = [&](std::span<const std::byte> rows, std::size_t row_bytes,
                       const WantedRows& wanted = {}) {
    const std::span<std::byte> room = splitter.Take(route.all_received() * row_bytes);
    arrays.push_back({rows, row_bytes, room, wanted});
    return room;
  };
  const auto gather = [&](const Array& array, Splitter::Parts to) {
    if (!array.rows.empty()) {
      return splitter.Gather(array.rows, array.row_bytes, to, array.wanted);
    }
    for (const std::span<std::byte> part : to) splitter.Clear(part);
  };
  theirs->keys = add(mine.keys, key_size_);
  if (!theirs->ops.empty()) {
    const std::span<std::byte> kinds = splitter.Take(mine.results.size());
    splitter.MapKinds(mine.ops, mine.op, KindsSent(mine, theirs->initial), kinds);
    const std::span<std::byte> ops = add(kinds, sizeof(Op));
    theirs->ops = {reinterpret_cast<const Op*>(ops.data()), ops.size()};
  }
  if (!theirs->values.empty()) {
    theirs->values = add(mine.values, value_size_, WantedRows::Written(mine));
  }

  Parcel parcel;
  if (lends) {
    for (const Array& array : arrays) {
      parcel.AddRoom(array.received, route.received, array.row_bytes);
    }
    return exchange_.Lend(parcel.receive, splitter.stream(), [&](Exchange::Receive lent) {
      AndFinish(splitter, [&] {
        for (std::size_t k = 0; k < arrays.size(); ++k) {
          gather(arrays[k], lent.subspan(k * exchange_.ranks(), exchange_.ranks()));
        }
      });
    });
  }
  for (const Array& array : arrays) {
    const std::span<std::byte> sent = splitter.Take(route.all_sent() * array.row_bytes);
    gather(array, Splitter::Parts(&sent, 1));
    parcel.Add(sent, route.sent, array.received, route.received, array.row_bytes);
  }
  Deliver(splitter, parcel);
}

void Collective::Return(Splitter& splitter, const Route& route, bool lends, const Batch& theirs,
                        const std::vector<Terms>& terms, const Batch& mine) {
  const std::uint32_t ranks = exchange_.ranks();
  const bool wants_found = terms[exchange_.rank()].wants_found != 0;
  const bool some_want_found = AnyWantsFound(terms);
  const auto scatter = [&](Splitter::Parts results, Splitter::Parts found) {
    AndFinish(splitter, [&] {
      splitter.Scatter(results, sizeof(Result), std::as_writable_bytes(mine.results));
      if (wants_found) {
        splitter.Scatter(found, value_size_, mine.found, WantedRows::Found(mine));
      }
    });
  };
  Parcel parcel;
  if (lends) {
    parcel.AddRoom(std::as_writable_bytes(theirs.results), route.received, sizeof(Result));
    if (some_want_found) parcel.AddRoom(theirs.found, route.received, value_size_);
    return exchange_.Lend(parcel.receive, splitter.stream(), [&](Exchange::Receive lent) {
      scatter(lent.first(ranks), lent.subspan(ranks));
    });
  }
  const std::span<std::byte> results = splitter.Take(route.all_sent());
  const std::span<std::byte> found =
      splitter.Take(wants_found ? route.all_sent() * value_size_ : 0);
  parcel.Add(std::as_bytes(theirs.results), route.received, results, route.sent, sizeof(Result));
  if (some_want_found) {
    parcel.Add(theirs.found, route.received, found,
               wants_found ? route.sent : std::vector<std::uint64_t>(ranks), value_size_);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (terms[rank].wants_found == 0) parcel.send[ranks + rank] = {};
    }
  }
  Deliver(splitter, parcel);
  scatter(Splitter::Parts(&results, 1), Splitter::Parts(&found, 1));
}

std::uint64_t Collective::Apply(const Batch& mine, const Local& local, const Steps& steps,
                                CollectiveCall call) {
  stats_.asked += mine.results.size();
  lap_begun_ = Clock::now();
  if (exchange_.ranks() == 1) {
    ValidateBatch(mine, key_size_, value_size_);  // also one of no operations
    stats_.sent += mine.results.size();
    stats_.carried_out += mine.results.size();
    steps.agreed();
    try {
      local(mine);
    } catch (...) {
      steps.all_ended();
      throw;
    }
    steps.all_ended();
    Lap(&stats_.local_seconds);
    return CountNotOkOf(mine.results);
  }
  std::vector<Terms> terms;
  std::vector<std::byte> initial_row;
  Batch theirs;
  try {
    terms =
        GatherTerms(exchange_, call, mine, key_size_, value_size_,
                    {.device = device_, .takes_gpu = TakesGpuMemory(), .lends_gpu = lends_gpu_});
    theirs = Agree(exchange_, mine, terms, value_size_, &initial_row);
    steps.agreed();
  } catch (const Error&) {  // which all ranks throw
    throw;
  } catch (const std::exception& error) {
    exchange_.Leave(error.what());
    throw;
  }
  CarryOut(mine, terms, theirs, local, steps);
  return CountNotOkOf(mine.results);
}

void Collective::CarryOut(const Batch& mine, const std::vector<Terms>& terms, Batch theirs,
                          const Local& local, const Steps& steps) {
  const bool on_gpu = IsOnGpu(terms);
  const bool lends = std::all_of(terms.begin(), terms.end(), [&](const Terms& part) {
    return (on_gpu ? part.lends_gpu : part.lends_host) != 0;
  });
  std::unique_ptr<Splitter> taken;  // without it, what was enqueued has ended
  bool together = false;
  try {
    taken = splitters_.Take(on_gpu ? device_ : -1);
    Splitter& splitter = *taken;
    splitter.Begin();
    const Route route = MakeRoute(splitter, mine.keys, OnlyFinds(theirs));
    Lap(&stats_.split_seconds);
    Send(splitter, route, lends, mine, &theirs);
    const std::span<std::byte> results = splitter.Take(route.all_received());
    theirs.results = {reinterpret_cast<Result*>(results.data()), results.size()};
    theirs.found = splitter.Take(AnyWantsFound(terms) ? results.size() * value_size_ : 0);
    Lap(&stats_.send_seconds);
    together = true;  // what this throws it throws on all ranks
    Together(
        exchange_, [&] { local(theirs); }, steps.all_ended);
    together = false;
    Lap(&stats_.local_seconds);
    Return(splitter, route, lends, theirs, terms, mine);
    splitters_.GiveBack(std::move(taken));
    Lap(&stats_.return_seconds);
  } catch (const std::exception& error) {
    if (!together) exchange_.Leave(error.what());
    if (!on_gpu) lost_ = std::move(taken);
    throw;
  }
}

}  // namespace gpm
