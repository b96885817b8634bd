#include "shard/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "shard/shard_set.h"
#include "shard/splitter.h"
#include "table/operation.h"

namespace gpm {
namespace {

/// What a rank says of its part before anything is sent.
struct Terms {
  std::uint64_t n;
  std::uint64_t seed;
  float first, second;
  std::uint32_t drawn_bytes;
  std::uint8_t valid, mixed, op, has_values, wants_found, element, from, has_initial;
  std::uint8_t on_gpu, takes_gpu;  ///< an array is in GPU memory; such can be exchanged
  std::uint8_t lends_host, lends_gpu;
  std::uint64_t chunk_rows;  ///< finds are cut into chunks of at least so many rows; 0: not
};

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

std::vector<Terms> GatherTerms(Exchange& exchange, const Batch& mine, std::uint32_t key_size,
                               std::uint32_t value_size, const RankMeans& means) {
  Terms terms{};
  std::exception_ptr wrong;
  try {
    ValidateBatch(mine, key_size, value_size);
    if (!means.takes_gpu) {
      RequireHostMemory(mine, means.device < 0 ? "the shards are on executor cpu"
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
  terms.takes_gpu = means.takes_gpu ? 1 : 0;
  terms.chunk_rows = means.chunk_rows;
  terms.lends_host = means.lends_host ? 1 : 0;
  terms.lends_gpu = means.lends_gpu ? 1 : 0;
  const std::vector<Terms> all = GatherObjects(exchange, terms);
  if (wrong) std::rethrow_exception(wrong);
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].valid == 0) Refuse(fmt::format("the part of rank {} is not valid", rank));
  }
  return all;
}

/// What is the same for all parts.
Batch CommonOf(Exchange& exchange, const Batch& mine, const std::vector<Terms>& terms,
               std::uint32_t value_size, std::vector<std::byte>* initial_row) {
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
    std::vector<std::byte> row(value_size);
    if (mine.initial.row.size() == value_size) {
      std::copy(mine.initial.row.begin(), mine.initial.row.end(), row.begin());
    }
    std::vector<std::byte> rows(terms.size() * value_size);
    exchange.AllGather(row, rows);
    const std::byte* first = nullptr;
    for (std::size_t rank = 0; rank < terms.size(); ++rank) {
      if (terms[rank].n == 0 || terms[rank].has_initial == 0) continue;
      const std::byte* const other = rows.data() + rank * value_size;
      if (first == nullptr) first = other;
      if (std::memcmp(first, other, value_size) != 0) {
        Refuse("its parts have different initial values");
      }
    }
    initial_row->assign(first, first + value_size);
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

/// Whether it is divided on GPUs. @throws Error(kUnsupported)
bool IsOnGpu(const std::vector<Terms>& terms) {
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

BatchPlan AgreeOn(Exchange& exchange, const Batch& mine, std::uint32_t key_size,
                  std::uint32_t value_size, const RankMeans& means) {
  const std::vector<Terms> terms = GatherTerms(exchange, mine, key_size, value_size, means);
  BatchPlan plan;
  plan.common = CommonOf(exchange, mine, terms, value_size, &plan.initial_row);
  plan.on_gpu = IsOnGpu(terms);
  plan.lends = true;
  plan.only_finds = plan.common.ops.empty() && plan.common.op == Op::kFind;
  std::uint64_t most_rows = 0;
  std::uint64_t chunk_rows = terms.front().chunk_rows;
  for (const Terms& part : terms) {
    plan.lends &= (plan.on_gpu ? part.lends_gpu : part.lends_host) != 0;
    plan.wants_found.push_back(part.wants_found != 0);
    plan.some_want_found |= part.wants_found != 0;
    most_rows = std::max(most_rows, part.n);
    chunk_rows = std::min(chunk_rows, part.chunk_rows);
  }
  constexpr std::uint64_t kMostChunks = 4;
  if (plan.only_finds && chunk_rows > 0) {
    plan.chunks = std::clamp<std::uint64_t>(most_rows / chunk_rows, 1, kMostChunks);
  }
  return plan;
}

}  // namespace gpm
