#include "crash_sim/crash_worker.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "crash_sim/crash_check.h"
#include "crash_sim/promise.h"
#include "crash_sim/trace.h"
#include "table/hash.h"

namespace gpm::crash {
namespace {

/// A workload takes a second or so.
constexpr unsigned kMaxSeconds = 120;

/// How many states to visit at a point, so that all points together have about `states`.
std::uint64_t LimitOf(const CrashWorkload& workload, std::uint64_t states) {
  std::vector<double> possible;
  CrashPoints point(workload.trace(), workload.before());
  while (point.Next()) {
    if (point.last_mark() >= workload.first_mark()) possible.push_back(point.states());
  }
  constexpr std::uint64_t kLeast = 16;
  const auto visits = [&](std::uint64_t limit) {
    double sum = 0;
    for (const double n : possible) sum += std::min(n, static_cast<double>(limit));
    return sum;
  };
  std::uint64_t limit = kLeast;
  while (limit < states && visits(2 * limit) <= static_cast<double>(states)) limit *= 2;
  return limit;
}

std::string DescribeCrash(const Trace& trace, const CrashPoints& point, const CrashState& state) {
  constexpr std::size_t kEvents = 40;
  constexpr std::size_t kWords = 40;
  std::string text =
      fmt::format("\ncrash before event {} of {}", point.event(), trace.events().size());
  std::vector<std::string> lines;
  for (std::size_t i = point.event(); i > 0 && lines.size() < kEvents; --i) {
    const Event& event = trace.events()[i - 1];
    if (event.kind == Event::Kind::kStore && event.before == event.after) continue;
    lines.push_back(fmt::format("\n  {:6} {}", i - 1, Describe(event)));
  }
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) text += *line;
  text += fmt::format("\nof {} open words, these persisted:", point.open_words().size());
  for (std::size_t i = 0; i < std::min(state.size(), kWords); ++i) {
    text += fmt::format("\n  {:6} {:#x} -> {:#x}", state[i].offset,
                        point.durable()[state[i].offset / 8], state[i].value);
  }
  if (state.size() > kWords) text += fmt::format("\n  and {} more", state.size() - kWords);
  return text;
}

}  // namespace

CrashWorker::CrashWorker(const CrashOptions& options, CrashBoard& board, CrashBoard::Slot& slot,
                         ScratchPool& scratch)
    : options_(options), board_(board), slot_(slot), counts_(slot.counts), scratch_(scratch) {
  machine_.LeaveOut(options.left_out);
}

void CrashWorker::Run() {
  while (!board_.done) {
    seed_ = options_.seed + board_.workloads++;
    slot_.seed = seed_;
    alarm(kMaxSeconds);
    try {
      RunWorkload(seed_);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {  // a Violation, or what the store should not throw
      const std::string text = error.what() + ("\n" + where_);
      // Pools have a maximum here, so that their lack of room would be the store's fault.
      if (text.find(std::strerror(ENOMEM)) != std::string::npos) throw std::bad_alloc();
      std::strncpy(slot_.violation, text.c_str(), CrashBoard::kMaxText - 1);
      board_.done = true;
    }
    ++counts_.workloads;
  }
  alarm(0);
  for (std::size_t i = 0; i < counts_.steps.size(); ++i) {
    counts_.steps[i] = machine_.met(static_cast<Step>(i));
  }
}

void CrashWorker::RunWorkload(std::uint64_t seed) {
  tried_.clear();
  images_.clear();
  CrashWorkload workload(seed);
  Explore(workload, 0, [&] { return workload.shape().Describe(); });
}

bool CrashWorker::Take() {
  if (board_.done) return false;
  const std::uint64_t images = ++board_.images;
  if (images >= options_.max_states) board_.done = true;
  if (images > options_.max_states) return false;
  ++counts_.images;
  return true;
}

void CrashWorker::Explore(CrashWorkload& workload, int depth, const Origin& origin) {
  try {
    workload.Run(machine_, scratch_);
  } catch (...) {
    where_ = origin() + "\nwithout a crash";
    throw;
  }
  const std::uint64_t limit =
      LimitOf(workload, depth == 0 ? options_.states_per_workload : options_.nested_states);
  CrashPoints point(workload.trace(), workload.before());
  while (point.Next()) {
    if (point.last_mark() < workload.first_mark()) continue;
    ++counts_.points;
    counts_.states_possible += point.states();
    if (point.states() <= static_cast<double>(limit)) ++counts_.exhausted_points;
    const Promise& promise = workload.promise(point.last_mark());
    const std::uint64_t promise_hash = promise.Hash();
    // An image is the same only at the same size; growth leaves the hash as it was.
    const std::uint64_t size_hash = HashWord(~std::uint64_t{0}, point.durable().size());
    const bool go_on =
        VisitStates(point, limit, seed_, [&](const CrashState& state, std::uint64_t image_hash) {
          const std::uint64_t image = image_hash + size_hash;
          if (!tried_.insert(image ^ Scramble(promise_hash)).second) return true;
          if (images_.insert(image).second && !Take()) return false;
          Try(workload, point, state, depth,
              [&] { return origin() + DescribeCrash(workload.trace(), point, state); });
          return true;
        });
    if (!go_on) return;
  }
}

void CrashWorker::Try(const CrashWorkload& workload, const CrashPoints& point,
                      const CrashState& state, int depth, const Origin& origin) {
  ++counts_.states;
  if (depth > 0) ++counts_.nested_states;
  scratch_.Set(point.durable(), state);
  // The number of states so far: pools that are created have random bytes (their UUID).
  const std::uint64_t choice = Scramble(seed_ ^ Scramble(tried_.size()));
  Recovered recovered;
  try {
    recovered = CheckCrashedPool(scratch_.path(), workload.shape(),
                                 workload.promise(point.last_mark()), workload.last_tag(), choice);
  } catch (...) {
    where_ = origin();
    throw;
  }
  if (recovered.refused) ++counts_.refused;
  const RecoveryStats& stats = recovered.stats;
  if (stats.insert_slots_cleared + stats.duplicates_removed == 0 && !stats.resize_continued) {
    return;
  }
  ++counts_.repaired;
  if (depth >= options_.max_depth || Scramble(choice) % options_.one_in_nested != 0) return;
  ++counts_.recoveries;
  Image left = point.durable();
  for (const WordValue& word : state) left[word.offset / 8] = word.value;
  CrashWorkload recovery(workload, choice, std::move(left), std::move(recovered.contents));
  Explore(recovery, depth + 1, [&] { return origin() + "\nrecovery of that"; });
}

}  // namespace gpm::crash
