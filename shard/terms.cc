#include "shard/terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <string>

#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "shard/shard_set.h"
#include "table/operation.h"

namespace gpm {
namespace {

constexpr std::uint8_t kNoOp = 0xFF;  ///< a kind that is none of Op's: its result is kInvalid

[[noreturn]] void Refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "batch: " + why);
}

/// Whether an operation takes its row of Batch::values.
bool TakesValue(Op op, const InitialValue& initial) {
  return Writes(op) && (op != Op::kFindOrInsert || initial.from == InitialValue::From::kValues);
}

}  // namespace

std::vector<Terms> GatherTerms(Exchange& exchange, CollectiveCall call, const Batch& mine,
                               std::uint32_t key_size, std::uint32_t value_size,
                               const Reach& reach) {
  Terms terms{};
  terms.call = call;
  std::exception_ptr wrong;
  try {
    ValidateBatch(mine, key_size, value_size);
    if (!reach.takes_gpu) {
      RequireHostMemory(mine, reach.device < 0 ? "the shards are on executor cpu"
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
  terms.takes_gpu = reach.takes_gpu ? 1 : 0;
  terms.lends_host = exchange.Lends(-1) ? 1 : 0;
  terms.lends_gpu = reach.lends_gpu ? 1 : 0;
  const std::vector<Terms> all = GatherObjects(exchange, terms);
  if (wrong) std::rethrow_exception(wrong);
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].valid == 0) Refuse(fmt::format("the part of rank {} is not valid", rank));
  }
  return all;
}

Batch Agree(Exchange& exchange, const Batch& mine, const std::vector<Terms>& terms,
            std::uint32_t value_size, std::vector<std::byte>* initial_row) {
  Batch common;
  std::uint64_t n = 0;
  const Terms* kind = nullptr;     // those of the first part that is not empty
  const Terms* initial = nullptr;  // those of the first that has initial values
  bool mixed = false;
  bool has_values = false;
  for (std::size_t rank = 1; rank < terms.size(); ++rank) {
    if (terms[rank].call == terms[0].call) continue;
    Refuse(fmt::format("rank {} makes another call than rank 0", rank));
  }
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
    OrLeave(exchange, [&] { exchange.AllGather(row, rows); });
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

bool AnyWantsFound(const std::vector<Terms>& terms) {
  return std::any_of(terms.begin(), terms.end(),
                     [](const Terms& part) { return part.wants_found != 0; });
}

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

}  // namespace gpm
