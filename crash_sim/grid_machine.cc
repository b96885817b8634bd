#include "crash_sim/grid_machine.h"

#include <algorithm>
#include <map>

namespace gpm::crash {

bool GridMachine::Seen::Has(std::uint32_t thread) const {
  return std::find(threads_.begin(), threads_.end(), thread) != threads_.end();
}

void GridMachine::Seen::Add(std::uint32_t thread) {
  if (!Has(thread)) threads_.push_back(thread);
}

void GridMachine::BeginGrid(std::uint64_t seed) {
  random_.seed(seed);
  // From never, but for fences, to one at each access.
  constexpr std::uint64_t kRates[] = {0, 0, 1, 4, 16, 64};
  arrives_of_64_ = kRates[random_() % std::size(kRates)];
  const std::uint64_t held = random_() % 4;
  pool_arrives_ = held != 0;
  shared_arrives_ = held != 1;
  pending_.clear();
  arrived_.clear();
  history_.clear();
  readers_.clear();
}

void GridMachine::RunParts(std::size_t parts, const std::function<void(std::size_t)>& part) {
  RunKernel(parts, true, part);
}

void GridMachine::RunKernel(std::size_t threads, bool ends,
                            const std::function<void(std::size_t)>& body) {
  Machine::RunParts(threads, [&](std::size_t i) {
    body(i);
    if (!on_grid()) return Fence(Step::kOther);
    ArriveSeen();
    if (ends) MakeDurable(Step::kOther);
    readers_.erase(Thread());
  });
}

std::uint64_t GridMachine::GridLoad(const std::uint64_t* word) {
  if (!on_grid()) return Load(word);
  Advance();
  std::uint64_t value = *word;
  Overlay(reinterpret_cast<const std::byte*>(word), sizeof value, &value);
  SeeWord(WordOffset(word));
  return value;
}

void GridMachine::GridStore(std::uint64_t* word, std::uint64_t value) {
  if (!on_grid()) return Store(word, value);
  WordOffset(word);
  Advance();
  Put(reinterpret_cast<std::byte*>(word), sizeof value, &value, true);
}

bool GridMachine::GridCas(Step step, std::uint64_t* word, std::uint64_t expected,
                          std::uint64_t desired) {
  if (!on_grid()) return Cas(step, word, expected, desired);
  ArriveAt(word);
  const bool swaps = Cas(step, word, expected, desired);
  SeeWord(WordOffset(word));
  if (swaps) {
    arrived_.push_back({WordOffset(word), trace_.events().size() - 1, {}});
    arrived_.back().seen.Add(Thread());
  }
  return swaps;
}

/// A fence alone makes durable, where the GPU writes.
void GridMachine::GridFlush(Step step, const void* address, std::uint64_t bytes) {
  if (!on_grid()) Flush(step, address, bytes);
}

void GridMachine::FenceSystem(Step step) {
  if (!on_grid()) return Fence(step);
  if (Leaves(step)) return;
  ArriveSeen();
  MakeDurable(step);
}

void GridMachine::FenceDevice(Step step) {
  if (!on_grid() || Leaves(step)) return;
  ArriveSeen();
}

void GridMachine::FenceReads(Step step) {
  if (!on_grid() || !Leaves(step)) return;
  readers_[Thread()].is_early = true;
}

bool GridMachine::TryAcquire(Step step, std::uint32_t* lock) {
  if (!Shared(step)) return true;
  if (*lock != 0) {
    Pause();
    return false;
  }
  *lock = 1;
  return true;
}

void GridMachine::GridRelease(Step step, std::uint32_t* lock) {
  if (step != left_out()) {
    Begins();
    *lock = 0;
  }
}

void GridMachine::BeginCopy() {
  Reader& reader = readers_[Thread()];
  reader.begun = history_.size();
  reader.in_copy = true;
}
void GridMachine::EndCopy() { readers_[Thread()].in_copy = false; }

void GridMachine::GridPause() {
  if (on_grid() && !pending_.empty()) Arrive(random_() % pending_.size());
  Pause();
}

void GridMachine::JoinThreads(const std::vector<std::uint32_t>& threads) {
  const auto join = [&](Seen& seen) {
    if (std::any_of(threads.begin(), threads.end(),
                    [&](auto thread) { return seen.Has(thread); })) {
      for (const std::uint32_t thread : threads) seen.Add(thread);
    }
  };
  for (Pending& store : pending_) join(store.seen);
  for (Arrived& store : arrived_) join(store.seen);
}

void GridMachine::Advance() {
  Begins();
  if (random_() % 64 >= arrives_of_64_ || pending_.empty()) return;
  const std::size_t index = random_() % pending_.size();
  if (pending_[index].in_pool ? pool_arrives_ : shared_arrives_) Arrive(index);
}

void GridMachine::Put(std::byte* target, std::uint32_t bytes, const void* value, bool in_pool) {
  Pending store{};
  store.id = next_id_++;
  store.target = target;
  store.bytes = bytes;
  std::memcpy(store.value, value, bytes);
  store.in_pool = in_pool;
  store.thread = Thread();
  for (const Pending& other : pending_) {
    if (other.target == target && other.seen.Has(Thread())) store.behind = other.id;
  }
  store.seen.Add(Thread());
  pending_.push_back(std::move(store));
}

void GridMachine::Read(const void* from, std::uint32_t bytes, void* value) {
  const std::size_t begun = history_.size();
  if (on_grid()) Advance();
  std::memcpy(value, from, bytes);
  if (!on_grid()) return;
  const auto* const source = static_cast<const std::byte*>(from);
  if (KeepsHistory()) {
    Reader& reader = readers_[Thread()];
    if (reader.is_early) {
      for (std::size_t i = history_.size(); i-- > reader.begun;) {
        const Before& before = history_[i];
        for (std::uint32_t b = 0; b < before.bytes; ++b) {
          const std::ptrdiff_t at = before.target + b - source;
          if (at >= 0 && at < static_cast<std::ptrdiff_t>(bytes)) {
            static_cast<std::byte*>(value)[at] = before.value[b];
          }
        }
      }
      reader.is_early = false;
    }
    if (!reader.in_copy) reader.begun = begun;
  }
  Overlay(source, bytes, value);
}

void GridMachine::Write(void* to, std::uint32_t bytes, const void* value) {
  if (!on_grid()) {
    std::memcpy(to, value, bytes);
    return;
  }
  Advance();
  Put(static_cast<std::byte*>(to), bytes, value, false);
}

/// What the thread has seen of what is on its way.
void GridMachine::Overlay(const std::byte* from, std::uint32_t bytes, void* value) const {
  for (const Pending& store : pending_) {
    if (store.target >= from + bytes || store.target + store.bytes <= from ||
        !store.seen.Has(Thread())) {
      continue;
    }
    for (std::uint32_t b = 0; b < store.bytes; ++b) {
      const std::ptrdiff_t at = store.target + b - from;
      if (at >= 0 && at < static_cast<std::ptrdiff_t>(bytes)) {
        static_cast<std::byte*>(value)[at] = store.value[b];
      }
    }
  }
}

void GridMachine::Arrive(std::size_t index) {
  if (const std::uint64_t behind = pending_[index].behind; behind != 0) {
    const std::uint64_t id = pending_[index].id;
    const auto find = [&](std::uint64_t wanted) {
      return std::find_if(pending_.begin(), pending_.end(),
                          [&](const Pending& store) { return store.id == wanted; });
    };
    if (const auto first = find(behind); first != pending_.end()) {
      Arrive(static_cast<std::size_t>(first - pending_.begin()));
      index = static_cast<std::size_t>(find(id) - pending_.begin());
    }
  }
  const Pending store = pending_[index];
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  if (!store.in_pool) {
    Remember(store.target, store.bytes);
    std::memcpy(store.target, store.value, store.bytes);
    return;
  }
  auto* const word = reinterpret_cast<std::uint64_t*>(store.target);
  std::uint64_t value = 0;
  std::memcpy(&value, store.value, sizeof value);
  const std::uint64_t offset = WordOffset(word);
  arrived_.push_back({offset, trace_.events().size(), store.seen});
  trace_.Add(Event{.kind = Event::Kind::kStore,
                   .thread = store.thread,
                   .offset = offset,
                   .before = *word,
                   .after = value});
  *word = value;
}

/// What the thread itself has on its way there.
void GridMachine::ArriveAt(const void* target) {
  if (!on_grid()) return;
  for (std::size_t i = pending_.size(); i-- > 0;) {
    if (i < pending_.size() && pending_[i].target == target && pending_[i].seen.Has(Thread())) {
      Arrive(i);
    }
  }
}

void GridMachine::ArriveSeen() {
  const std::uint32_t thread = Thread();
  for (;;) {
    const auto store =
        std::find_if(pending_.begin(), pending_.end(),
                     [&](const Pending& candidate) { return candidate.seen.Has(thread); });
    if (store == pending_.end()) return;
    Arrive(static_cast<std::size_t>(store - pending_.begin()));
  }
}

/// What the thread has seen of what has arrived, and what was stored there before.
void GridMachine::MakeDurable(Step step) {
  std::map<std::uint64_t, std::size_t> seen;  // the last event, by offset
  for (const Arrived& store : arrived_) {
    if (store.seen.Has(Thread())) seen[store.offset] = store.event;
  }
  for (const auto& [offset, event] : seen) {
    trace_.Add(Event{
        .kind = Event::Kind::kSeen, .thread = Thread(), .offset = offset, .after = event + 1});
  }
  trace_.Add(Event{.kind = Event::Kind::kFence, .step = step, .thread = Thread()});
  std::erase_if(arrived_, [&](const Arrived& store) {
    const auto last = seen.find(store.offset);
    return last != seen.end() && store.event <= last->second;
  });
}

/// The thread has loaded a word of the pool.
void GridMachine::SeeWord(std::uint64_t offset) {
  bool any = false;
  for (Arrived& store : arrived_) {
    if (store.offset != offset) continue;
    any |= !store.seen.Has(Thread());
    store.seen.Add(Thread());
  }
  if (!any) return;
  std::size_t event = 0;
  for (const Arrived& store : arrived_) {
    if (store.offset == offset) event = std::max(event, store.event);
  }
  trace_.Add(
      Event{.kind = Event::Kind::kSeen, .thread = Thread(), .offset = offset, .after = event + 1});
  trace_.Add(Event{.kind = Event::Kind::kFence, .thread = Thread()});
  std::erase_if(arrived_, [&](const Arrived& store) { return store.offset == offset; });
}

bool GridMachine::KeepsHistory() const {
  switch (left_out()) {
    case Step::kCacheFillsReadFence:
    case Step::kCacheValueReadFence:
    case Step::kCacheTagReadFence:
      return true;
    default:
      return false;
  }
}

void GridMachine::Remember(void* target, std::uint32_t bytes) {
  if (!KeepsHistory()) return;
  Before before{static_cast<std::byte*>(target), bytes, {}};
  std::memcpy(before.value, target, bytes);
  history_.push_back(before);
}

void GridBlock::Enter(std::uint32_t rank) {
  if (threads_.size() < size_) threads_.resize(size_);
  threads_[rank] = machine_->thread();
}

std::uint32_t GridBlock::Rank() const {
  return static_cast<std::uint32_t>(
      std::find(threads_.begin(), threads_.end(), machine_->thread()) - threads_.begin());
}

bool GridBlock::Meet(bool bit) {
  machine_->SwitchPoint();
  any_ |= bit;
  if (++waiting_ == size_) {
    machine_->JoinThreads(threads_);
    result_ = any_;
    any_ = false;
    waiting_ = 0;
    ++meetings_;
    return result_;
  }
  for (const std::uint64_t met = meetings_; meetings_ == met;) machine_->Pause();
  return result_;
}

bool GridThreads::IsLastBlock(std::uint32_t* blocks_done, bool* is_last) const {
  Sync();
  if (Rank() == 0) {
    block->machine()->FenceDevice(Step::kOther);
    *is_last = ++*blocks_done == block->blocks();
  }
  Sync();
  return *is_last;
}

}  // namespace gpm::crash
