#include "shard/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "engine/item_uses.h"
#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "shard/shard_set.h"
#include "table/operation.h"

namespace gpm {

/// What a rank says of its part before anything is sent.
struct Collective::Terms {
  std::uint64_t n;
  std::uint64_t seed;
  float first, second;
  std::uint32_t drawn_bytes;
  std::uint8_t valid, mixed, op, has_values, wants_found, element, from, has_initial;
  std::uint8_t on_gpu, takes_gpu;  ///< an array is in GPU memory; such can be exchanged
  std::uint8_t lends_host, lends_gpu;
};

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

[[noreturn]] void Refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "batch: " + why);
}

template <class T>
std::span<const std::byte> BytesOf(const T& object) {
  return std::as_bytes(std::span(&object, 1));
}
template <class T>
std::vector<T> GatherObjects(Exchange& exchange, const T& mine) {
  std::vector<T> all(exchange.ranks());
  exchange.AllGather(BytesOf(mine), std::as_writable_bytes(std::span(all)));
  return all;
}

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

void Together(Exchange& exchange, const std::function<void()>& local) {
  struct Status {
    int failed;
    ErrorCode code;
    char why[240];
  };
  Status status{};
  std::exception_ptr failure;
  const auto failed = [&](ErrorCode code, const char* why) {
    failure = std::current_exception();
    status.failed = 1;
    status.code = code;
    std::strncpy(status.why, why, sizeof status.why - 1);
  };
  try {
    local();
  } catch (const Error& error) {
    failed(error.code(), error.what());
  } catch (const std::exception& error) {
    failed(ErrorCode::kIo, error.what());
  }
  const std::vector<Status> all = GatherObjects(exchange, status);
  if (failure) std::rethrow_exception(failure);
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].failed != 0) {
      throw Error(all[rank].code, fmt::format("rank {}: {}", rank, all[rank].why));
    }
  }
}

std::vector<Collective::Terms> Collective::GatherTerms(const Batch& mine) {
  Terms terms{};
  std::exception_ptr wrong;
  try {
    ValidateBatch(mine, key_size_, value_size_);
    if (!TakesGpuMemory()) {
      RequireHostMemory(mine, device_ < 0 ? "the shards are on executor cpu"
                                          : "the exchange takes host memory alone");
    }
    terms.valid = 1;
  } catch (const Error&) {
    wrong = std::current_exception();
  }
  terms.n = mine.results.size();
  terms.mixed = mine.ops.empty() ? 0 : 1;
  terms.op = static_cast<std::uint8_t>(mine.op);
  terms.has_values = !mine.values.empty() && (terms.mixed != 0 || Writes(mine.op)) ? 1 : 0;
  terms.wants_found = !mine.found.empty() && (terms.mixed != 0 || GivesValue(mine.op)) ? 1 : 0;
  terms.element = static_cast<std::uint8_t>(mine.element);
  terms.has_initial = terms.mixed != 0 || mine.op == Op::kFindOrInsert ? 1 : 0;
  terms.from = static_cast<std::uint8_t>(mine.initial.from);
  terms.seed = mine.initial.seed;
  terms.first = mine.initial.first;
  terms.second = mine.initial.second;
  terms.drawn_bytes = mine.initial.drawn_bytes;
  terms.on_gpu = DeviceOf(mine) >= 0 ? 1 : 0;
  terms.takes_gpu = TakesGpuMemory() ? 1 : 0;
  terms.lends_host = exchange_.Lends(-1) ? 1 : 0;
  terms.lends_gpu = lends_gpu_ ? 1 : 0;
  const std::vector<Terms> all = GatherObjects(exchange_, terms);
  if (wrong) std::rethrow_exception(wrong);
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].valid == 0) Refuse(fmt::format("the part of rank {} is not valid", rank));
  }
  return all;
}

Batch Collective::Agree(const Batch& mine, const std::vector<Terms>& terms,
                        std::vector<std::byte>* initial_row) {
  Batch common;
  std::uint64_t n = 0;
  const Terms* kind = nullptr;     // those of the first part that is not empty
  const Terms* initial = nullptr;  // those of the first that has initial values
  bool mixed = false;
  bool has_values = false;
  for (const Terms& part : terms) {
    if (part.n == 0) continue;
    n += part.n;
    if (kind == nullptr) kind = &part;
    mixed |= part.mixed != 0 || part.op != kind->op;
    has_values |= part.has_values != 0;
    const auto element = static_cast<Element>(part.element);
    if (common.element == Element::kNone) common.element = element;
    if (element != Element::kNone && element != common.element) {
      Refuse(fmt::format("its parts have values of {} and of {}", ElementName(common.element),
                         ElementName(element)));
    }
    if (part.has_initial == 0) continue;
    if (initial == nullptr) initial = &part;
    if (part.from != initial->from || part.seed != initial->seed || part.first != initial->first ||
        part.second != initial->second || part.drawn_bytes != initial->drawn_bytes) {
      Refuse("its parts have different initial values");
    }
  }
  if (n > (std::uint64_t{1} << 31) - 1) {
    Refuse(fmt::format("{} operations in all: at most 2^31 - 1 fit in one batch", n));
  }
  if (kind != nullptr) common.op = static_cast<Op>(kind->op);
  if (initial != nullptr) {
    common.initial = {.from = static_cast<InitialValue::From>(initial->from),
                      .seed = initial->seed,
                      .first = initial->first,
                      .second = initial->second,
                      .drawn_bytes = initial->drawn_bytes};
  }
  const bool constant = common.initial.from == InitialValue::From::kConstant;
  if (constant) {
    std::vector<std::byte> row(value_size_);
    if (mine.initial.row.size() == value_size_) {
      std::copy(mine.initial.row.begin(), mine.initial.row.end(), row.begin());
    }
    std::vector<std::byte> rows(terms.size() * value_size_);
    exchange_.AllGather(row, rows);
    const std::byte* first = nullptr;
    for (std::size_t rank = 0; rank < terms.size(); ++rank) {
      if (terms[rank].n == 0 || terms[rank].has_initial == 0) continue;
      const std::byte* const other = rows.data() + rank * value_size_;
      if (first == nullptr) first = other;
      if (std::memcmp(first, other, value_size_) != 0) {
        Refuse("its parts have different initial values");
      }
    }
    initial_row->assign(first, first + value_size_);
    common.initial.row = *initial_row;
  }
  // What is missing below is made: the arrays say which there are.
  static constexpr Op kSomeOp{};
  static constexpr std::byte kSomeByte{};
  if (mixed) common.ops = std::span(&kSomeOp, 1);
  if (has_values || (mixed && common.initial.from != InitialValue::From::kValues)) {
    common.values = std::span(&kSomeByte, 1);
  }
  return common;
}

bool Collective::TakesGpuMemory() const {
  return device_ >= 0 && exchange_.TakesGpuMemory(device_);
}

bool Collective::IsOnGpu(const std::vector<Terms>& terms) {
  const auto rank_that = [&](std::uint8_t Terms::*which, std::uint8_t value) {
    const auto part = std::find_if(terms.begin(), terms.end(),
                                   [&](const Terms& each) { return each.*which == value; });
    return static_cast<std::size_t>(part - terms.begin());
  };
  const std::size_t with_gpu = rank_that(&Terms::on_gpu, 1);
  const std::size_t without = rank_that(&Terms::takes_gpu, 0);
  if (with_gpu == terms.size()) return false;
  if (without == terms.size()) return true;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("batch: an array of rank {} is in GPU memory, which rank {} can't take",
                          with_gpu, without));
}

Splitter& Collective::SplitterFor(bool on_gpu) {
  std::unique_ptr<Splitter>& splitter = on_gpu ? gpu_ : host_;
  if (splitter == nullptr) {
    splitter = on_gpu ? MakeGpuSplitter(device_, 0) : MakeHostSplitter(threads_);
  }
  return *splitter;
}

bool Collective::AnyWantsFound(const std::vector<Terms>& terms) {
  return std::any_of(terms.begin(), terms.end(),
                     [](const Terms& part) { return part.wants_found != 0; });
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

void Collective::Send(Splitter& splitter, const Route& route, bool lends, const Batch& mine,
                      Batch* theirs) {
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
  if (lends) {
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

void Collective::Return(Splitter& splitter, const Route& route, bool lends, const Batch& theirs,
                        const std::vector<Terms>& terms, const Batch& mine) {
  const std::uint32_t ranks = exchange_.ranks();
  const bool wants_found = terms[exchange_.rank()].wants_found != 0;
  const bool some_want_found = AnyWantsFound(terms);
  const auto scatter = [&](Splitter::Parts results, Splitter::Parts found) {
    splitter.Scatter(results, sizeof(Result), std::as_writable_bytes(mine.results));
    if (wants_found) splitter.Scatter(found, value_size_, mine.found);
    splitter.Finish();
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

std::uint64_t Collective::Apply(const Batch& mine, const Local& local) {
  stats_.asked += mine.results.size();
  lap_begun_ = std::chrono::steady_clock::now();
  if (exchange_.ranks() == 1) {
    stats_.sent += mine.results.size();
    stats_.carried_out += mine.results.size();
    local(mine);
    Lap(&stats_.local_seconds);
    return CountNotOkOf(mine.results);
  }
  std::vector<Terms> terms;
  std::vector<std::byte> initial_row;
  Batch theirs;
  try {
    terms = GatherTerms(mine);
    theirs = Agree(mine, terms, &initial_row);
  } catch (const Error&) {  // which all ranks throw
    throw;
  } catch (const std::exception& error) {
    exchange_.Leave(error.what());
    throw;
  }
  CarryOut(mine, terms, theirs, local);
  return CountNotOkOf(mine.results);
}

void Collective::CarryOut(const Batch& mine, const std::vector<Terms>& terms, Batch theirs,
                          const Local& local) {
  const bool on_gpu = IsOnGpu(terms);
  const bool lends = std::all_of(terms.begin(), terms.end(), [&](const Terms& part) {
    return (on_gpu ? part.lends_gpu : part.lends_host) != 0;
  });
  bool together = false;
  try {
    Splitter& splitter = SplitterFor(on_gpu);
    splitter.Begin();
    const bool only_finds = theirs.ops.empty() && theirs.op == Op::kFind;
    const Route route = MakeRoute(splitter, mine.keys, only_finds);
    Lap(&stats_.split_seconds);
    Send(splitter, route, lends, mine, &theirs);
    const std::span<std::byte> results = splitter.Take(route.all_received());
    theirs.results = {reinterpret_cast<Result*>(results.data()), results.size()};
    theirs.found = splitter.Take(AnyWantsFound(terms) ? results.size() * value_size_ : 0);
    Lap(&stats_.send_seconds);
    together = true;  // what this throws it throws on all ranks
    Together(exchange_, [&] {
      if (!results.empty()) local(theirs);
    });
    together = false;
    Lap(&stats_.local_seconds);
    Return(splitter, route, lends, theirs, terms, mine);
    Lap(&stats_.return_seconds);
  } catch (const std::exception& error) {
    if (!together) exchange_.Leave(error.what());
    host_.reset();  // which waits for what was enqueued
    gpu_.reset();
    throw;
  }
}

}  // namespace gpm
