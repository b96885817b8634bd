#include "shard/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "engine/item_uses.h"
#include "engine/store_impl.h"
#include "engine/word_map.h"
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
};

/// Which rows go where.
struct Collective::Route {
  std::vector<std::uint32_t> order;     ///< of the operations that are sent, by owner
  std::vector<std::uint64_t> sent;      ///< rows for each rank
  std::vector<std::uint64_t> received;  ///< rows from each rank
  /// Operations that are not sent, and those that are and have the same answer.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> twins;

  std::uint64_t all_received() const {
    std::uint64_t all = 0;
    for (const std::uint64_t rows : received) all += rows;
    return all;
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

/// Spans of rows that lie one rank's behind the other's.
template <class Byte>
std::vector<std::span<Byte>> Parts(Byte* rows, const std::vector<std::uint64_t>& counts,
                                   std::size_t row_bytes) {
  std::vector<std::span<Byte>> parts;
  for (const std::uint64_t count : counts) {
    parts.emplace_back(rows, count * row_bytes);
    rows += count * row_bytes;
  }
  return parts;
}

/// Whether many a key of a batch comes several times, as some of its keys tell.
bool KeysRepeat(std::span<const std::byte> keys, std::uint32_t key_size) {
  constexpr std::uint64_t kSample = 1024;
  const std::uint64_t n = keys.size() / key_size;
  const std::uint64_t looked_at = std::min(n, kSample);
  WordMap seen;
  for (std::uint64_t i = 0; i < looked_at; ++i) {
    seen.At(IdOfKey(keys.data() + i * n / looked_at * key_size, key_size));
  }
  return seen.size() < looked_at - looked_at / 8;
}

/// Whether an operation takes its row of Batch::values.
bool TakesValue(std::uint8_t op, const InitialValue& initial) {
  if (op >= kOpKinds || !Writes(static_cast<Op>(op))) return false;
  return static_cast<Op>(op) != Op::kFindOrInsert || initial.from == InitialValue::From::kValues;
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
    RequireHostMemory(mine);
    terms.valid = 1;
  } catch (const Error&) {
    wrong = std::current_exception();
  }
  terms.n = mine.results.size();
  terms.mixed = mine.ops.empty() ? 0 : 1;
  terms.op = static_cast<std::uint8_t>(mine.op);
  terms.has_values = mine.values.empty() ? 0 : 1;
  terms.wants_found = mine.found.empty() ? 0 : 1;
  terms.element = static_cast<std::uint8_t>(mine.element);
  terms.has_initial = terms.mixed != 0 || mine.op == Op::kFindOrInsert ? 1 : 0;
  terms.from = static_cast<std::uint8_t>(mine.initial.from);
  terms.seed = mine.initial.seed;
  terms.first = mine.initial.first;
  terms.second = mine.initial.second;
  terms.drawn_bytes = mine.initial.drawn_bytes;
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

Collective::Route Collective::MakeRoute(const Batch& mine, bool send_once) {
  const std::uint32_t ranks = exchange_.ranks();
  const Split split = Multisplit(mine.keys, key_size_, partition_, threads_);
  Route route;
  route.sent.resize(ranks);
  WordMap firsts;  // of a key's id: the index of its first find, plus one
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t first = split.starts[FirstShard(rank, ranks, partition_.shards)];
    const std::uint64_t end = split.starts[FirstShard(rank + 1, ranks, partition_.shards)];
    if (!send_once) {
      route.sent[rank] = end - first;
      continue;
    }
    for (std::uint64_t j = first; j < end; ++j) {
      const std::uint32_t index = split.order[j];
      const std::byte* const key = mine.keys.data() + std::uint64_t{index} * key_size_;
      std::uint64_t& of_key = firsts.At(IdOfKey(key, key_size_));
      if (of_key == 0) of_key = std::uint64_t{index} + 1;
      const auto twin = static_cast<std::uint32_t>(of_key - 1);
      if (twin != index &&
          std::memcmp(mine.keys.data() + std::uint64_t{twin} * key_size_, key, key_size_) == 0) {
        route.twins.emplace_back(index, twin);
        continue;
      }
      route.order.push_back(index);
      ++route.sent[rank];
    }
  }
  if (!send_once) route.order = split.order;
  route.received.resize(ranks);
  const std::vector<std::uint64_t> ones(ranks, 1);
  exchange_.AllToAll(
      Parts(reinterpret_cast<const std::byte*>(route.sent.data()), ones, sizeof(std::uint64_t)),
      Parts(reinterpret_cast<std::byte*>(route.received.data()), ones, sizeof(std::uint64_t)));
  return route;
}

void Collective::Send(const Route& route, std::span<const std::byte> from, std::size_t row_bytes,
                      std::vector<std::byte>* to) {
  std::vector<std::byte> rows(route.order.size() * row_bytes);
  GatherRows(from, row_bytes, route.order, rows, threads_);
  to->resize(route.all_received() * row_bytes);
  exchange_.AllToAll(Parts<const std::byte>(rows.data(), route.sent, row_bytes),
                     Parts(to->data(), route.received, row_bytes));
}

void Collective::Return(const Route& route, std::span<const std::byte> from, std::size_t row_bytes,
                        std::span<std::byte> to, const std::function<bool(std::uint32_t)>& wants) {
  auto send = Parts(from.data(), route.received, row_bytes);
  for (std::uint32_t rank = 0; rank < send.size(); ++rank) {
    if (!wants(rank)) send[rank] = {};
  }
  const bool here = wants(exchange_.rank());
  std::vector<std::byte> rows(here ? route.order.size() * row_bytes : 0);
  exchange_.AllToAll(
      send,
      Parts(rows.data(), here ? route.sent : std::vector<std::uint64_t>(send.size()), row_bytes));
  if (!here) return;
  ScatterRows(rows, row_bytes, route.order, to, threads_);
  for (const auto& [twin, first] : route.twins) {
    std::memcpy(&to[twin * row_bytes], &to[first * row_bytes], row_bytes);
  }
}

std::uint64_t Collective::Apply(const Batch& mine, const Local& local) {
  const auto not_ok = [&] {
    return static_cast<std::uint64_t>(
        std::count_if(mine.results.begin(), mine.results.end(),
                      [](Result result) { return result != Result::kOk; }));
  };
  auto begun = std::chrono::steady_clock::now();
  const auto lap = [&](double* seconds) {
    const auto now = std::chrono::steady_clock::now();
    *seconds += std::chrono::duration<double>(now - begun).count();
    begun = now;
  };
  stats_.asked += mine.results.size();
  if (exchange_.ranks() == 1) {
    stats_.sent += mine.results.size();
    stats_.carried_out += mine.results.size();
    local(mine);
    lap(&stats_.local_seconds);
    return not_ok();
  }
  const std::vector<Terms> terms = GatherTerms(mine);
  std::vector<std::byte> initial_row;
  Batch theirs = Agree(mine, terms, &initial_row);
  const bool mixed = !theirs.ops.empty();
  const bool only_finds = !mixed && theirs.op == Op::kFind;
  const Route route = MakeRoute(mine, only_finds && KeysRepeat(mine.keys, key_size_));

  stats_.sent += route.order.size();
  stats_.carried_out += route.all_received();
  lap(&stats_.split_seconds);

  std::vector<std::byte> keys, values, ops;
  Send(route, mine.keys, key_size_, &keys);
  theirs.keys = keys;
  if (mixed) {
    // An operation that lacks what it needs in this part finds none of that in the others' either.
    std::vector<std::uint8_t> kinds(mine.results.size(), static_cast<std::uint8_t>(mine.op));
    if (!mine.ops.empty()) std::memcpy(kinds.data(), mine.ops.data(), kinds.size());
    for (std::uint8_t& kind : kinds) {
      const bool lacks_element =
          kind == static_cast<std::uint8_t>(Op::kAccumulate) && mine.element == Element::kNone;
      if (lacks_element || (mine.values.empty() && TakesValue(kind, theirs.initial))) kind = kNoOp;
    }
    Send(route, std::as_bytes(std::span(kinds)), 1, &ops);
    theirs.ops = std::span(reinterpret_cast<const Op*>(ops.data()), ops.size());
  }
  if (!theirs.values.empty()) {
    std::vector<std::byte> none;
    if (mine.values.empty()) none.resize(mine.results.size() * value_size_);
    Send(route, mine.values.empty() ? none : mine.values, value_size_, &values);
    theirs.values = values;
  }
  const auto wants_found = [&](std::uint32_t rank) { return terms[rank].wants_found != 0; };
  const bool finds = std::any_of(terms.begin(), terms.end(),
                                 [](const Terms& part) { return part.wants_found != 0; });
  std::vector<Result> results(route.all_received(), Result::kInvalid);
  std::vector<std::byte> found(finds ? results.size() * value_size_ : 0);
  theirs.results = results;
  theirs.found = found;
  lap(&stats_.send_seconds);
  Together(exchange_, [&] {
    if (!results.empty()) local(theirs);
  });
  lap(&stats_.local_seconds);
  Return(route, std::as_bytes(std::span(results)), sizeof(Result),
         std::as_writable_bytes(mine.results), [](std::uint32_t) { return true; });
  if (finds) Return(route, found, value_size_, mine.found, wants_found);
  lap(&stats_.return_seconds);
  return not_ok();
}

}  // namespace gpm
