#include "crash_sim/schedule_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "recovery/check.h"
#include "table/operation.h"

namespace gpm::crash {
namespace {

/// Numbers from here on are given to single operations of batches that have no order.
constexpr std::uint64_t kUnorderedBatches = 1000;
/// States that are tried of a crash point.
constexpr std::uint64_t kStatesOfPoint = 3;
/// Steps of a batch as a GPU carries it out, for one on the CPU.
constexpr std::uint64_t kStepsOfGrid = 3;
/// One schedule in so many has its trace compared with the file's bytes.
constexpr std::uint64_t kTraceCheckPeriod = 16;

/// What the exploration found wrong.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One of the states of a crash point: of several kinds, so that few words, most, or those up to
/// some moment persist.
/// @param hash that of the durable image; set to that of the image with the state
CrashState RandomState(const CrashPoints& point, std::mt19937_64& random, std::uint64_t* hash) {
  CrashState state;
  std::size_t first = point.event();
  for (const OpenWord& word : point.open_words()) first = std::min(first, word.stores[0].event);
  const std::size_t moment = first + random() % (point.event() - first + 1);
  const std::uint64_t kind = random() % 4;
  for (const OpenWord& word : point.open_words()) {
    std::uint64_t value = word.durable();
    if (kind == 0) {
      for (const OpenWord::Store& store : word.stores) {
        if (store.event < moment) value = store.value;
      }
    } else if (kind == 1 || random() % 8 == 0) {
      value = word.choices[random() % word.choices.size()];
    } else if (kind == 2) {
      value = word.latest();
    }
    if (value == word.durable()) continue;
    state.push_back(WordValue{word.offset, value});
    *hash += HashWord(word.offset, value) - HashWord(word.offset, word.durable());
  }
  return state;
}

/// Values by key.
using Items = std::map<std::vector<std::byte>, std::uint64_t>;

Items ItemsOf(StoreImpl& store) {
  Items items;
  store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    if (!items.emplace(std::vector<std::byte>(key.begin(), key.end()), ValueNumber(value)).second) {
      throw Violation("a key was visited twice");
    }
  });
  return items;
}

/// The same by a search, which batches run beside.
Items SearchedItemsOf(StoreImpl& store) {
  const Query all;
  const SearchResult result = store.Search({&all, 1}, {.values = true});
  Items items;
  for (std::uint64_t row = 0; row < result.counts[0]; ++row) {
    const auto key = std::span(result.keys).subspan(row * store.key_size(), store.key_size());
    const auto value =
        std::span(result.values).subspan(row * store.value_size(), store.value_size());
    if (!items.emplace(std::vector<std::byte>(key.begin(), key.end()), ValueNumber(value)).second) {
      throw Violation("a search found a key twice");
    }
  }
  return items;
}

/// The same of keys of a workload, by an index, which has no values: by their numbers.
/// @param most number that a workload's values, or the sums of some, have
Items IndexedItemsOf(StoreImpl& store, std::uint64_t most) {
  std::vector<Query> queries{{}};
  const auto ask = [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t number = first; number <= last; ++number) {
      queries.push_back({{.attribute = 0, .least = number, .most = number}});
    }
  };
  constexpr std::uint64_t kMostKeyNumber = 8;  // but for ~0, of which the value's is one less
  ask(0, most);
  ask(kBaseValues - 1, kBaseValues + kMostKeyNumber + most);
  const SearchResult result = store.Search(queries, {});
  const auto key_at = [&](std::uint64_t row) {
    const auto key = std::span(result.keys).subspan(row * store.key_size(), store.key_size());
    return std::vector<std::byte>(key.begin(), key.end());
  };
  Items items;
  for (std::uint64_t row = result.offsets[0]; row < result.offsets[1]; ++row) {
    if (!items.emplace(key_at(row), kTorn).second) {
      throw Violation("an indexed search found a key twice");
    }
  }
  for (std::size_t i = 1; i < queries.size(); ++i) {
    for (std::uint64_t row = result.offsets[i]; row < result.offsets[i + 1]; ++row) {
      const auto item = items.find(key_at(row));
      if (item == items.end() || item->second != kTorn) {
        throw Violation(
            "an indexed search found a key by a number, and not by none, or by another");
      }
      item->second = queries[i][0].least;
    }
  }
  return items;
}

/// Makes every second call a search.
/// @return the most that the numbers of the others' values add up to
std::uint64_t MakeSearches(std::uint64_t seed, Workload* workload) {
  std::uint64_t most = 0;
  for (std::vector<ClientCall>& calls : workload->clients) {
    for (ClientCall& call : calls) {
      if (call.kind == ClientCall::Kind::kLoadCache) continue;
      if ((Scramble(seed + call.id) & 1) != 0) {
        ClientCall search;
        search.kind = ClientCall::Kind::kSearch;
        search.id = call.id;
        call = std::move(search);
        continue;
      }
      for (const std::uint64_t number : call.value_numbers) most += number;
    }
  }
  return most;
}

OpenOptions OpenWith(const Workload& workload, std::uint64_t max_bytes) {
  OpenOptions options;
  options.executor = ExecutorKind::kCpu;
  options.threads = workload.threads;
  options.max_bytes = max_bytes;
  options.cache = workload.cache;
  options.growth = 2;  // keys that hash alike make it grow to the pool's limit: in few steps
  options.growth_pause = workload.growth_pause;
  options.grow_above = workload.grow_above;
  return options;
}

}  // namespace

std::string ScheduleRunner::Run(std::uint64_t seed, ScheduleReport* report) {
  std::string wrong;
  bool ran = false;
  const std::uint64_t met = machine_.met(options_.leave_out);
  try {
    workload_ = MakeWorkload(seed);
    setup_ = MakeTableSetup(workload_.table);
    base_ = &BaseOf(workload_.table);
    if (options_.indexed_searches) most_number_ = MakeSearches(seed, &workload_);
    ran = true;
    RunSchedule(seed, report);
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  machine_.LeaveOut(Step::kOther);
  ++report->schedules;
  if (options_.leave_out != Step::kOther) {
    report->times_left_out += machine_.met(options_.leave_out) - met;
  }
  report->steps += scheduler_.steps();
  report->switches += scheduler_.switches();
  hash_ = Scramble(workload_.hash ^ scheduler_.choices());
  if (wrong.empty()) return wrong;
  ++report->violations;
  std::string text = fmt::format("seed {}: {}\n{}\n", seed, Describe(workload_), wrong);
  if (ran) {
    text += "keys at first:\n";
    for (const auto& [key, value] : base_->values)
      text += fmt::format("  {:#x} = {:#x}\n", key, value);
    text += "calls:\n" + Describe(HistoryUntil(machine_.trace().events().size()));
  }
  if (options_.print_trace) {
    std::size_t number = 0;
    for (const Event& event : machine_.trace().events()) {
      text += fmt::format("{:6} {}\n", number++, Describe(event));
    }
  }
  return text;
}

const BasePool& ScheduleRunner::BaseOf(std::size_t table) {
  const auto found = bases_.find(table);
  if (found != bases_.end()) return found->second;
  return bases_.emplace(table, MakeBasePool(MakeTableSetup(table), &pool_)).first->second;
}

void ScheduleRunner::RunSchedule(std::uint64_t seed, ScheduleReport* report) {
  pool_.Set(base_->image);
  machine_.Begin(8 * base_->image.size());
  machine_.LeaveOut(options_.leave_out);
  if (options_.grid) {
    grid_.BeginGrid(Scramble(seed));
    workload_.schedule.expected_steps *= kStepsOfGrid;
  }
  std::size_t calls = 1;
  for (const auto& client : workload_.clients) calls += client.size();
  times_.assign(calls, CallTimes{});
  clock_ = 0;
  stuck_ = false;

  OpenOptions open = OpenWith(workload_, setup_.max_bytes);
  open.search_index_bytes = options_.indexed_searches ? kIndexBytes : 0;
  auto store = StoreImpl::Open(pool_.path(), open, &machine_);
  for (int i = 0; options_.indexed_searches && i < 2; ++i) IndexedItemsOf(*store, 0);
  std::vector<std::function<void()>> bodies;
  for (std::vector<ClientCall>& client : workload_.clients) {
    bodies.push_back([this, &store, &client] { RunClient(*store, client); });
  }
  scheduler_.SetOptions(workload_.schedule);
  scheduler_.Run(std::move(bodies));

  std::uint64_t no_space = 0;
  for (const auto& client : workload_.clients) {
    for (const ClientCall& call : client) {
      no_space += static_cast<std::uint64_t>(
          std::count(call.results.begin(), call.results.end(), Result::kNoSpace));
    }
  }
  report->no_space += no_space;
  if (setup_.has_room && (no_space > 0 || stuck_)) {
    throw Violation("an operation found no space, and there is some");
  }
  if (stuck_) {
    ++report->stuck;
    store->Close();
    store = StoreImpl::Open(pool_.path(), OpenWith(workload_, kAmpleBytes), &machine_);
  }
  CheckContents(*store, HistoryUntil(machine_.trace().events().size()));
  report->resizes += store->Stats().resizes;
  report->index_updates += store->Stats().search_index_updates;
  report->displaced += store->Stats().displaced_items;
  store->Close();
  store.reset();
  machine_.LeaveOut(Step::kOther);
  CheckClosed(pool_.path());
  if (seed % kTraceCheckPeriod == 0) {
    const std::string difference = machine_.trace().FirstDifference(base_->image, pool_.Read());
    if (!difference.empty()) throw Violation(difference);
  }
  if (options_.crash_states > 0) Crash(seed, report);
}

void ScheduleRunner::RunClient(StoreImpl& store, std::vector<ClientCall>& calls) {
  using Ticket = std::pair<ClientCall*, std::shared_ptr<StoreImpl::InFlight>>;
  std::vector<Ticket> open;
  try {
    for (ClientCall& call : calls) {
      scheduler_.Yield();
      if (call.kind == ClientCall::Kind::kForEach || call.kind == ClientCall::Kind::kSearch) {
        Snapshot(store, call);
        continue;
      }
      if (call.kind == ClientCall::Kind::kLoadCache) {
        store.RefreshCache();  // who starts batches takes it further
        continue;
      }
      Invoke(call);
      open.emplace_back(&call, store.Start(call.Batch(), nullptr));
      if (call.overlaps_next && &call != &calls.back()) continue;
      for (; !open.empty(); open.pop_back()) {
        store.Wait(open.back().second);
        Return(*open.back().first);
      }
    }
    for (const auto& [call, in_flight] : open) {
      store.Wait(in_flight);
      Return(*call);
    }
  } catch (const Error& error) {
    // The one failure that is no defect: a resize that there is no room to finish (Ticket::Wait).
    // What was called then may have taken effect.
    if (error.code() != ErrorCode::kNoSpace) throw;
    stuck_ = true;
  }
}

void ScheduleRunner::Invoke(const ClientCall& call) {
  times_[call.id].invoked_at = ++clock_;
  times_[call.id].invoked_event = machine_.trace().events().size();
}

void ScheduleRunner::Return(const ClientCall& call) {
  times_[call.id].returned_at = ++clock_;
  times_[call.id].returned_event = machine_.trace().events().size();
  machine_.Mark(call.id);
}

/// A call that is as a batch of finds of every key.
void ScheduleRunner::Snapshot(StoreImpl& store, ClientCall& call) {
  Invoke(call);
  const Items items = call.kind != ClientCall::Kind::kSearch ? ItemsOf(store)
                      : options_.indexed_searches            ? IndexedItemsOf(store, most_number_)
                                                             : SearchedItemsOf(store);
  Return(call);
  for (const std::uint64_t number : workload_.key_numbers) {
    std::vector<std::byte> key(setup_.config.key_size);
    setup_.PutKey(number, key);
    const auto item = items.find(key);
    call.key_numbers.push_back(number);
    call.ops.push_back(Op::kFind);
    call.results.push_back(item == items.end() ? Result::kNotFound : Result::kOk);
    call.value_numbers.push_back(item == items.end() ? 0 : item->second);
  }
}

/// What had been called before a crash just before an event of the trace.
History ScheduleRunner::HistoryUntil(std::size_t crash_event) const {
  History history;
  const std::size_t value_size = setup_.config.value_size;
  for (const std::vector<ClientCall>& client : workload_.clients) {
    for (const ClientCall& call : client) {
      const CallTimes& times = times_[call.id];
      // Finds of a key in a batch that only finds may see what others write in any order (Batch).
      const bool unordered =
          call.kind == ClientCall::Kind::kBatch &&
          std::all_of(call.ops.begin(), call.ops.end(), [](Op op) { return op == Op::kFind; });
      if (times.invoked_at == 0 || times.invoked_event > crash_event) continue;
      const bool returned = times.returned_at != kPending && times.returned_event < crash_event;
      for (std::size_t i = 0; i < call.ops.size(); ++i) {
        HistoryOp op;
        op.key = call.key_numbers[i];
        op.op = call.ops[i];
        op.written = call.value_numbers[i];
        op.result = call.results[i];
        if (HasFound(op.op, op.result)) {
          op.found = call.kind == ClientCall::Kind::kBatch
                         ? ValueNumber(std::span(call.found).subspan(i * value_size, value_size))
                         : call.value_numbers[i];
        }
        op.invoked_at = times.invoked_at;
        op.returned_at = returned ? times.returned_at : kPending;
        op.batch = unordered ? kUnorderedBatches + 8 * call.id + i : call.id;
        op.position = static_cast<std::uint32_t>(i);
        history.push_back(op);
      }
    }
  }
  return history;
}

/// Finds every key, now that no client runs, and compares with the history, with what is in the
/// pool (finds may have looked in a directory and a cache only), and with the sums.
void ScheduleRunner::CheckContents(StoreImpl& store, History history) {
  std::vector<std::uint64_t> numbers = workload_.key_numbers;
  for (const auto& [number, value] : base_->values) {
    if (std::find(numbers.begin(), numbers.end(), number) == numbers.end())
      numbers.push_back(number);
  }
  const std::size_t key_size = setup_.config.key_size;
  const std::size_t value_size = setup_.config.value_size;
  std::vector<std::byte> keys(numbers.size() * key_size);
  std::vector<std::byte> found(numbers.size() * value_size);
  std::vector<Result> results(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    setup_.PutKey(numbers[i], std::span(keys).subspan(i * key_size, key_size));
  }
  Batch batch;
  batch.op = Op::kFind;
  batch.keys = keys;
  batch.found = found;
  batch.results = results;
  store.Wait(store.Start(batch, nullptr));

  const Items in_pool = ItemsOf(store);
  items_ = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    HistoryOp op;
    op.key = numbers[i];
    op.result = results[i];
    op.found = ValueNumber(std::span(found).subspan(i * value_size, value_size));
    op.invoked_at = kPending - 2;
    op.returned_at = kPending - 1;
    op.position = static_cast<std::uint32_t>(i);
    history.push_back(op);
    items_ += results[i] == Result::kOk;
    const std::span<const std::byte> key = std::span(keys).subspan(i * key_size, key_size);
    const auto item = in_pool.find(std::vector<std::byte>(key.begin(), key.end()));
    if (results[i] == Result::kOk ? item == in_pool.end() || item->second != op.found
                                  : item != in_pool.end()) {
      throw Violation(fmt::format(
          "key {:#x}: a find says {} {:#x}, in the pool is {}", op.key, ResultName(results[i]),
          op.found, item == in_pool.end() ? "nothing" : fmt::format("{:#x}", item->second)));
    }
  }
  const std::string wrong = FindNonlinearizable(history, base_->values);
  if (!wrong.empty()) throw Violation(wrong);
  const StoreStats stats = store.Stats();
  if (stats.items != items_) {
    throw Violation(fmt::format("the store counts {} items, and holds {}", stats.items, items_));
  }
  if (!InlineValues(setup_.config.value_size) &&
      stats.items + stats.free_cells != stats.value_cells) {
    throw Violation(fmt::format("of {} value cells {} are free and {} items have one: {}",
                                stats.value_cells, stats.free_cells, stats.items,
                                stats.items + stats.free_cells < stats.value_cells
                                    ? "some leaked"
                                    : "some are used twice"));
  }
  if (const std::uint64_t misplaced = store.CountMisplacedCells(); misplaced != 0) {
    throw Violation(fmt::format("{} value cells are used twice, or leaked", misplaced));
  }
}

void ScheduleRunner::CheckClosed(const std::string& path) const {
  const CheckReport report = CheckPool(path);
  std::string wrong;
  for (const std::string& defect : report.defects) wrong += defect + "\n";
  if (!report.clean) wrong += "the pool was not closed in order\n";
  if (report.resizing) wrong += "a resize is unfinished\n";
  if (report.items != items_ || report.duplicates != 0 || report.insert_slots != 0) {
    wrong += fmt::format("{} items of {}, {} second copies, {} half-inserted slots\n", report.items,
                         items_, report.duplicates, report.insert_slots);
  }
  if (!InlineValues(setup_.config.value_size) && report.cells_in_use != items_) {
    wrong += fmt::format("{} value cells in use by {} items\n", report.cells_in_use, items_);
  }
  if (!wrong.empty()) throw Violation("the closed pool: " + wrong);
}

/// Recovers some of the states that crashes in the schedule just run can leave.
void ScheduleRunner::Crash(std::uint64_t seed, ScheduleReport* report) {
  std::size_t first_event = machine_.trace().events().size();
  for (const CallTimes& times : times_) {
    if (times.invoked_at != 0) first_event = std::min(first_event, times.invoked_event);
  }
  std::mt19937_64 random(Scramble(seed + 1));
  const auto fences = static_cast<std::uint64_t>(
      std::count_if(machine_.trace().events().begin(), machine_.trace().events().end(),
                    [](const Event& event) { return event.kind == Event::Kind::kFence; }));
  CrashPoints points(machine_.trace(), base_->image);
  std::unordered_set<std::uint64_t> seen;
  while (points.Next()) {
    if (points.event() < first_event) continue;
    // There are about half as many points as fences, and some states are equal.
    if (random() % (fences + 1) * kStatesOfPoint > 2 * options_.crash_states) continue;
    for (std::uint64_t i = 0; i < kStatesOfPoint; ++i) {
      std::uint64_t hash = points.durable_hash();
      const CrashState state = RandomState(points, random, &hash);
      if (!seen.insert(hash).second) continue;
      ++report->crash_states;
      report->team_states += IsOfTeam(points) ? 1 : 0;
      Recover(points, state);
    }
  }
}

/// Whether the crash comes just before a fence of operations that commit together.
bool ScheduleRunner::IsOfTeam(const CrashPoints& point) const {
  const std::vector<Event>& events = machine_.trace().events();
  if (point.event() == events.size()) return false;
  const Step step = events[point.event()].step;
  return step == Step::kTeamPreparedFence || step == Step::kTeamDoneFence;
}

void ScheduleRunner::Recover(const CrashPoints& point, const CrashState& state) {
  try {
    crashed_.Set(point.durable(), state);
    for (const std::string& defect : CheckPool(crashed_.path()).defects) throw Violation(defect);
    OpenOptions open = OpenWith(workload_, kAmpleBytes);
    open.threads = 1;
    const auto store = StoreImpl::Open(crashed_.path(), open);
    CheckContents(*store, HistoryUntil(point.event()));
    store->Close();
    CheckClosed(crashed_.path());
  } catch (const std::exception& error) {
    std::string text = fmt::format(
        "after a crash just before event {} of the trace ({}), and recovery: {}", point.event(),
        point.event() < machine_.trace().events().size()
            ? Describe(machine_.trace().events()[point.event()])
            : "its end",
        error.what());
    text += "\nthe crash left these words changed since what was durable:\n";
    for (const WordValue& word : state) {
      text += fmt::format("  at {}: {:#x} -> {:#x}\n", word.offset,
                          point.durable()[word.offset / 8], word.value);
    }
    throw Violation(text);
  }
}

}  // namespace gpm::crash
