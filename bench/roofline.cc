#include "bench/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "bench/kv_adapter.h"
#include "bench/report.h"
#include "bench/roofline_cells.h"
#include "gpmstore/error.h"
#include "pm/gpu_host.h"
#include "pm/thread_pool.h"
#include "support/signals.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

struct Kind {
  const char* name;
  AccessKind kind;
  Rates LinkRates::*rates;
};
constexpr Kind kKinds[] = {{"touch", AccessKind::kTouch, &LinkRates::touch},
                           {"read", AccessKind::kRead, &LinkRates::read},
                           {"write", AccessKind::kWrite, &LinkRates::write},
                           {"read-or-write", AccessKind::kReadOrWrite, &LinkRates::read_or_write},
                           {"small-write", AccessKind::kSmallWrite, &LinkRates::small_write},
                           {"cas", AccessKind::kCas, &LinkRates::cas}};

struct Order {
  const char* name;
  AccessOrder order;
  Rate Rates::*rate;
};
constexpr Order kOrders[] = {{"random", AccessOrder::kRandom, &Rates::random},
                             {"ordered", AccessOrder::kOrdered, &Rates::ordered},
                             {"sequential", AccessOrder::kSequential, &Rates::sequential},
                             {"dealt", AccessOrder::kDealt, &Rates::dealt}};

std::uint64_t BytesOf(AccessKind kind, std::uint64_t cell_bytes) {
  switch (kind) {
    case AccessKind::kTouch:
      return kTouchBytes;
    case AccessKind::kSmallWrite:
    case AccessKind::kCas:
      return 8;
    case AccessKind::kRead:
    case AccessKind::kWrite:
    case AccessKind::kReadOrWrite:
      break;
  }
  return cell_bytes;
}

/// The best rate of one kind of access; 0 for an order that the executor does not have.
Rate MeasureRate(Accessor& accessor, CellRange& range, AccessKind kind, AccessOrder order,
                 std::uint64_t accesses, unsigned repeats) {
  Rate best;
  for (const std::uint32_t in_flight : accessor.InFlight(order, accesses)) {
    std::vector<double> seconds;
    for (unsigned repeat = 0; repeat <= repeats; ++repeat) {
      const CellChoice choice = range.Choose(order, accesses);
      const Accessor::Timed timed = accessor.Run(kind, choice, in_flight);
      range.Settle(kind, choice, timed.sum);
      if (repeat > 0) seconds.push_back(timed.seconds);  // the first warms up
    }
    const double rate = static_cast<double>(accesses) / Median(seconds);
    if (rate > best.per_second) best = {rate, in_flight};
  }
  return best;
}

void Check(const RooflineOptions& options) {
  if (options.accesses.empty() || std::ranges::count(options.accesses, 0u) > 0) {
    throw Error(ErrorCode::kInvalidArgument, "roofline: needs numbers of accesses, each 1 or more");
  }
  if (options.repeats == 0) {
    throw Error(ErrorCode::kInvalidArgument, "roofline: needs 1 repeat or more");
  }
  if (options.value_size == 0 || options.value_size > kMaxValueBytes) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("roofline: a value of {} bytes; it has 1 to {}", options.value_size,
                            kMaxValueBytes));
  }
  if (options.executor != ExecutorKind::kCuda) return;
  // Before a range is made and filled.
  if (!BuiltWithCuda()) {
    throw Error(ErrorCode::kUnsupported,
                "executor cuda: this program was built without CUDA; use executor cpu");
  }
  if (GpuCount() == 0) {
    throw Error(ErrorCode::kUnsupported,
                "executor cuda: no CUDA device or driver on this machine; use executor cpu");
  }
}

json Row(const char* kind, const char* order, std::uint64_t accesses, std::uint64_t bytes,
         const Rate& rate) {
  return {{"kind", kind},
          {"order", order},
          {"accesses", accesses},
          {"bytes", bytes},
          {"mops", rate.per_second / 1e6},
          {"gb_per_second", rate.per_second * static_cast<double>(bytes) / 1e9},
          {"in_flight", rate.in_flight}};
}

const LinkRates& LinkFor(const Roofline& roofline, std::uint64_t at_once) {
  if (at_once == 0) return roofline.link.back();
  const auto enough = std::ranges::find_if(
      roofline.link, [&](const LinkRates& link) { return link.accesses >= at_once; });
  return enough == roofline.link.end() ? roofline.link.back() : *enough;
}

/// Of cells that lie anywhere.
double BestScattered(const Rates& rates) {
  return std::max({rates.random.per_second, rates.ordered.per_second, rates.dealt.per_second});
}

double BestOrder(const Rates& rates) {
  return std::max(BestScattered(rates), rates.sequential.per_second);
}

/// Of reads and writes made together, the share of the shorter that passes beside the other.
double ShareBeside(const LinkRates& link) {
  const double together = BestScattered(link.read_or_write);
  if (together == 0) return 1;
  const double read = 1 / BestScattered(link.read);
  const double write = 1 / BestScattered(link.write);
  return std::clamp((read + write - 2 / together) / std::min(read, write), 0.0, 1.0);
}

double BestKind(const LinkRates& link, Rate Rates::*order) {
  double best = 0;
  for (const Kind& kind : kKinds) best = std::max(best, (link.*kind.rates.*order).per_second);
  return best;
}

}  // namespace

Roofline MeasureRoofline(const RooflineOptions& options) {
  Check(options);
  ThreadPool threads(ThreadsOf(options.threads));
  ShowProgress("filling the range");
  const std::string path = options.pool.empty() ? TemporaryPoolPath() : options.pool;
  RemovedOnSignal name(path);
  CellRange range(path, options.range_bytes, options.value_size, threads);
  name.Made();
  Roofline roofline;
  roofline.executor = options.executor;
  if (roofline.executor == ExecutorKind::kAuto) {
    roofline.executor = GpuCount() > 0 && range.mapping().medium().gpu_can_register
                            ? ExecutorKind::kCuda
                            : ExecutorKind::kCpu;
  }
  roofline.medium = range.mapping().medium().medium;
  roofline.range_bytes = std::uint64_t{range.permutation().cells} * range.cell_bytes();
  roofline.cell_bytes = range.cell_bytes();
  const std::unique_ptr<Accessor> accessor = roofline.executor == ExecutorKind::kCuda
                                                 ? MakeCudaAccessor(range, threads)
                                                 : MakeCpuAccessor(range, threads);
  std::vector<std::uint64_t> counts;
  for (const std::uint64_t accesses : options.accesses) {
    counts.push_back(std::min<std::uint64_t>(accesses, range.permutation().cells));
  }
  std::ranges::sort(counts);
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  for (const std::uint64_t accesses : counts) {
    LinkRates& link = roofline.link.emplace_back();
    link.accesses = accesses;
    for (const Kind& kind : kKinds) {
      for (const Order& order : kOrders) {
        ShowProgress(fmt::format("{} {}, {} accesses", kind.name, order.name, accesses));
        link.*kind.rates.*order.rate =
            MeasureRate(*accessor, range, kind.kind, order.order, accesses, options.repeats);
      }
    }
  }
  ShowProgress("GPU memory");
  roofline.memory = accessor->MeasureMemory(options.repeats);
  roofline.empty_batch_seconds = accessor->MeasureEmptyBatch();
  ShowProgress("");
  return roofline;
}

json ToJson(const Roofline& roofline) {
  json report = {{"executor", ExecutorName(roofline.executor)},
                 {"medium", MediumName(roofline.medium)},
                 {"range_bytes", roofline.range_bytes},
                 {"cell_bytes", roofline.cell_bytes},
                 {"empty_batch_us", roofline.empty_batch_seconds * 1e6},
                 {"link", json::array()},
                 {"memory", json::array()}};
  for (const LinkRates& link : roofline.link) {
    for (const Kind& kind : kKinds) {
      for (const Order& order : kOrders) {
        const Rate& rate = link.*kind.rates.*order.rate;
        if (rate.in_flight == 0) continue;
        report["link"].push_back(Row(kind.name, order.name, link.accesses,
                                     BytesOf(kind.kind, roofline.cell_bytes), rate));
      }
    }
  }
  if (roofline.memory.has_value()) {
    const MemoryRates& memory = *roofline.memory;
    report["memory_range_bytes"] = memory.range_bytes;
    const auto row = [&](const char* kind, std::uint64_t cell_bytes, std::uint64_t bytes,
                         const Rate& rate) {
      return Row(kind, "random", memory.range_bytes / cell_bytes, bytes, rate);
    };
    report["memory"] = {row("read", 32, 32, memory.read_32), row("read", 128, 128, memory.read_128),
                        row("cas", 32, 4, memory.cas_4)};
  }
  return report;
}

std::vector<BoundTerm> BoundTerms(const Roofline& roofline, const Accesses& accesses,
                                  std::uint64_t at_once, std::uint64_t batch) {
  const LinkRates& link = LinkFor(roofline, at_once);
  const auto cell_bytes = static_cast<double>(roofline.cell_bytes);
  const Accesses& a = accesses;
  std::vector<BoundTerm> terms;
  const auto add = [&](std::string_view limit, double seconds) {
    if (seconds > 0) terms.push_back({limit, 1 / seconds});
  };
  const double reading = a.read_bytes / (BestOrder(link.read) * cell_bytes);
  const double writing = a.write_bytes / (BestOrder(link.write) * cell_bytes) +
                         a.small_writes / BestScattered(roofline.link.back().small_write);
  add("read bytes", reading);
  add("writes", writing);
  if (reading > 0 && writing > 0) {
    add("both directions", reading + writing - ShareBeside(link) * std::min(reading, writing));
  }
  const double read_rate = BestScattered(link.read);
  const double touch_rate = std::max(BestScattered(link.touch), read_rate);
  const double translated =
      std::max(BestKind(link, &Rates::random), BestKind(link, &Rates::ordered));
  const double dealt = BestKind(link, &Rates::dealt);
  const auto add_scattered = [&](std::string_view limit, double reads, double touches,
                                 double others) {
    add(limit, std::max({reads / read_rate, (reads + touches) / touch_rate,
                         others / std::max(translated, dealt),
                         (reads + touches + others) / std::max(translated, 2 * dealt)}));
  };
  add_scattered("translations", a.random_reads, a.random_touches, a.random_writes + a.random_cas);
  add_scattered("ordered", a.ordered_reads, a.ordered_touches, a.ordered_writes + a.ordered_cas);
  add("cas", (a.random_cas + a.ordered_cas) / BestOrder(link.cas));
  if (a.gpu_sectors + a.gpu_lines + a.gpu_cas > 0) {
    if (!roofline.memory.has_value()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a bound with GPU-memory accesses needs a roofline of executor cuda; "
                              "this one is of executor {}",
                              ExecutorName(roofline.executor)));
    }
    const MemoryRates& memory = *roofline.memory;
    add("gpu", a.gpu_sectors / memory.read_32.per_second +
                   a.gpu_lines / memory.read_128.per_second + a.gpu_cas / memory.cas_4.per_second);
  }
  if (batch > 0) add("launch", roofline.empty_batch_seconds / static_cast<double>(batch));
  std::ranges::stable_sort(terms, {}, &BoundTerm::per_second);
  return terms;
}

double Bound(const Roofline& roofline, const Accesses& accesses, std::uint64_t at_once) {
  const std::vector<BoundTerm> terms = BoundTerms(roofline, accesses, at_once);
  return terms.empty() ? std::numeric_limits<double>::infinity() : terms.front().per_second;
}

}  // namespace gpm::bench
