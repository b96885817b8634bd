#include "cli/stress/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/stress/gpu.h"
#include "table/key_rows.h"

namespace gpm::stress {
namespace {

/// A version is the lane, above the number of the batch, above the operation's position.
constexpr unsigned kPositionBits = 21;
constexpr unsigned kLaneShift = 56;

/// What tells where a wrong row comes from, if the host reaches the rows: what the first one holds
/// by now, and what the batch was given there.
std::string LookAgain(const Rows& rows, const BatchPlan& batch, const Answers& answers) {
  if (rows.found == nullptr || OnGpu(batch.answers)) return {};
  const std::uint32_t value_size = rows.shape.value_size;
  for (std::uint32_t i = 0; i < rows.n; ++i) {
    if (!IsAnswer(rows, i) || answers.tokens[i] != kWrongRow) continue;
    const std::uint64_t id = IdOf(rows.plan[i]);
    const std::byte* const row = rows.found + std::size_t{i} * value_size;
    std::string text = fmt::format("    row {} is {} now, and begins with", i,
                                   JudgeRow(row, value_size, id) == kWrongRow ? "wrong" : "right");
    for (std::uint32_t word = 0; word < std::min(Words(value_size), 4u); ++word) {
      text += fmt::format(" {:x}", GetWord(row, value_size, word));
    }
    if (rows.values != nullptr && !OnGpu(batch.values)) {
      const std::byte* const given = rows.values + std::size_t{i} * value_size;
      text += JudgeRow(given, value_size, id) == kWrongRow ? "; what was given there is wrong"
                                                           : "; what was given there is right";
    }
    return text + '\n';
  }
  return {};
}

std::span<std::byte> Bytes(std::byte* array, std::uint64_t n, std::uint64_t row) {
  return array == nullptr ? std::span<std::byte>() : std::span(array, n * row);
}

}  // namespace

std::uint64_t Now() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

Lane::Lane(RoundState& round, unsigned number, unsigned thread, LaneMemory& memory, Stream stream)
    : round_(round),
      drawer_{round.plan, round.watched, number, thread},
      memory_(memory),
      stream_(stream),
      random_(round.plan.seed * 0x9E3779B97F4A7C15ull + number + 1),
      model_(round.plan.private_keys) {}

void Lane::FollowRecording() {
  const std::uint64_t recording = round_.recording;
  if (recording == following_) return;
  const bool on = recording % 2 == 1;
  if (on) log_ = {model_.states(), {}, {}};
  model_.RecordTo(on ? &log_.changes : nullptr);
  following_ = recording;
}

void Lane::Start(bool loads) {
  FollowRecording();
  const bool may_scope = round_.scopes.try_acquire();
  batch_ = DrawBatch(drawer_, random_, may_scope, loads);
  if (may_scope && batch_.call != Call::kScope) round_.scopes.release();
  const bool gpu = round_.plan.open.executor == ExecutorKind::kCuda;
  const Place plan_place = gpu ? Place::kPinned : Place::kPageable;
  auto* const operations = reinterpret_cast<std::uint64_t*>(
      memory_.plan.Get(plan_place, std::size_t{batch_.n} * sizeof(std::uint64_t)));
  DrawOperations(drawer_, random_, operations, &batch_);
  batch_.first_version = std::uint64_t{drawer_.lane} << kLaneShift | batches_++ << kPositionBits;
  Fill();
  interval_.invoked_at = Now();
  Run();
  interval_.returned_at = Now();  // unless there is a ticket
  in_flight_ = true;
}

void Lane::Fill() {
  const Shape& shape = round_.plan.shape;
  const std::uint64_t n = batch_.n;
  // Only keys of whole words have to be aligned, and those only to 8 bytes.
  const std::uint64_t shift =
      batch_.call == Call::kScope || random_.OneIn(2) ? 0 : random_.Below(16);
  const auto get = [&](Array& array, Place place, std::uint64_t row, std::uint64_t offset) {
    return array.Get(place, n * row + 16) + offset;
  };
  rows_ = Rows{};
  rows_.shape = shape;
  rows_.n = batch_.n;
  rows_.plan = batch_.operations;
  rows_.first_version = batch_.first_version;
  rows_.keys =
      get(memory_.keys, batch_.keys, shape.key_size, ArePadded(shape.key_size) ? shift : shift & 8);
  if (batch_.has_values) {
    rows_.values = get(memory_.values, batch_.values, shape.value_size, shift);
  }
  if (batch_.mixed) rows_.ops = get(memory_.ops, batch_.ops, 1, shift);
  if (batch_.has_found) {
    rows_.found = get(memory_.found, batch_.answers, shape.value_size, shift);
  }
  rows_.results = get(memory_.results, batch_.answers, 1, shift);

  // Each array by who reaches it.
  Rows on_gpu = rows_, on_host = rows_;
  const auto divide = [](Place place, std::byte*& gpu, std::byte*& host) {
    (OnGpu(place) ? host : gpu) = nullptr;
  };
  divide(batch_.keys, on_gpu.keys, on_host.keys);
  divide(batch_.values, on_gpu.values, on_host.values);
  divide(batch_.ops, on_gpu.ops, on_host.ops);
  divide(batch_.answers, on_gpu.found, on_host.found);
  divide(batch_.answers, on_gpu.results, on_host.results);
  const auto any = [](const Rows& rows) {
    return rows.keys != nullptr || rows.values != nullptr || rows.ops != nullptr ||
           rows.results != nullptr;
  };
  if (any(on_gpu)) FillRowsOnGpu(on_gpu, stream_);
  if (any(on_host)) FillRows(on_host);
}

void Lane::Run() {
  const Shape& shape = round_.plan.shape;
  const std::uint64_t n = batch_.n;
  const auto results = std::span(reinterpret_cast<Result*>(rows_.results), n);
  const Batch batch{.op = batch_.op,
                    .ops = rows_.ops == nullptr
                               ? std::span<const Op>()
                               : std::span(reinterpret_cast<const Op*>(rows_.ops), n),
                    .keys = Bytes(rows_.keys, n, shape.key_size),
                    .values = Bytes(rows_.values, n, shape.value_size),
                    .found = Bytes(rows_.found, n, shape.value_size),
                    .results = results,
                    .element = batch_.element};
  // Other calls than ApplyAsync take no stream; what is filled on this one must be there.
  switch (batch_.call) {
    case Call::kApplyAsync:
      ticket_ = round_.store.ApplyAsync(batch, stream_);
      break;
    case Call::kApply:
      if (round_.plan.open.executor == ExecutorKind::kCuda) AwaitStream(stream_);
      round_.store.Apply(batch);
      break;
    case Call::kBulkLoad:
      if (round_.plan.open.executor == ExecutorKind::kCuda) AwaitStream(stream_);
      round_.store.BulkLoad(batch.keys, batch.values, results);
      break;
    case Call::kScope:
      RunInScope(round_.store, rows_, batch_.group, batch_.writes, batch_.erases, stream_);
      round_.scopes.release();
      ++round_.totals.scopes;
      break;
  }
}

void Lane::Finish() {
  in_flight_ = false;
  if (batch_.call == Call::kApplyAsync) {
    ticket_.Wait();
    interval_.returned_at = Now();
  }
  const bool gpu = round_.plan.open.executor == ExecutorKind::kCuda;
  const Place place = gpu ? Place::kPinned : Place::kPageable;
  const Answers answers{reinterpret_cast<std::uint64_t*>(memory_.tokens.Get(
                            place, std::size_t{batch_.n} * sizeof(std::uint64_t))),
                        reinterpret_cast<std::uint8_t*>(memory_.answers.Get(place, batch_.n))};
  if (OnGpu(batch_.answers)) {
    JudgeRowsOnGpu(rows_, answers, stream_);
  } else {
    JudgeRows(rows_, answers);
  }
  const std::string wrong =
      CheckAnswers(drawer_, batch_, answers, interval_, &model_, &round_.totals);
  if (!wrong.empty()) {
    round_.findings.Fail(fmt::format("lane {} of thread {}, batch {}: {}\n  {}", drawer_.lane,
                                     drawer_.thread, batches_, Describe(batch_),
                                     wrong + LookAgain(rows_, batch_, answers)));
  }
  if (following_ % 2 == 1) log_.batches.push_back({interval_, log_.changes.size()});
  ++round_.totals.batches;
  round_.totals.operations += batch_.n;
}

}  // namespace gpm::stress
