#include "crash_sim/crash_states.h"

#include <algorithm>
#include <random>

#include "table/hash.h"

namespace gpm::crash {
namespace {

constexpr std::uint64_t kLineBytes = 64;
/// More are not told apart, so that sums of them are still numbers.
constexpr double kManyStates = 1e300;

}  // namespace

std::uint64_t HashWord(std::uint64_t offset, std::uint64_t value) {
  return value == 0 ? 0 : Scramble(value ^ Scramble(offset + 0x9E3779B97F4A7C15ull));
}

std::uint64_t HashImage(const Image& image) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < image.size(); ++i) hash += HashWord(8 * i, image[i]);
  return hash;
}

CrashPoints::CrashPoints(const Trace& trace, Image before)
    : trace_(trace), durable_(std::move(before)), durable_hash_(HashImage(durable_)) {}

bool CrashPoints::Next() {
  const std::vector<Event>& events = trace_.events();
  if (!applied_ && next_ < events.size()) {
    Apply(events[next_++]);
    applied_ = true;
  }
  for (; next_ < events.size(); ++next_) {
    const Event& event = events[next_];
    const bool narrows = event.kind == Event::Kind::kMark || event.kind == Event::Kind::kGrow ||
                         (event.kind == Event::Kind::kFence && MakesDurable(event));
    if (narrows && fresh_) break;
    Apply(event);
  }
  if (!fresh_) return false;
  fresh_ = false;
  applied_ = false;
  CollectOpenWords();
  return true;
}

double CrashPoints::states() const {
  double states = 1;
  for (const OpenWord& word : open_words_) states *= static_cast<double>(word.choices.size());
  return std::min(states, kManyStates);
}

bool CrashPoints::MakesDurable(const Event& fence) const {
  const auto flushed = flushed_.find(fence.thread);
  if (flushed == flushed_.end()) return false;
  return std::any_of(flushed->second.begin(), flushed->second.end(), [&](const Flushed& flush) {
    return std::any_of(pending_.lower_bound(flush.first), pending_.lower_bound(flush.end),
                       [&](const auto& word) { return word.second.front().event < flush.event; });
  });
}

void CrashPoints::Apply(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kStore:
    case Event::Kind::kCas:
      // A store of what is there already makes nothing possible; a flush after it covers the store
      // that put it there.
      if (event.before == event.after) return;
      pending_[event.offset].push_back({next_, event.after});
      fresh_ = true;
      return;
    case Event::Kind::kFlush:
      return Flush(event);
    case Event::Kind::kSeen:
      flushed_[event.thread].push_back(Flushed{event.offset, event.offset + 8, event.after});
      return;
    case Event::Kind::kFence:
      return Fence(event);
    case Event::Kind::kGrow:
      durable_.resize(event.offset / 8);
      fresh_ = true;
      return;
    case Event::Kind::kMark:
      last_mark_ = event.offset;
      fresh_ = true;
      return;
  }
}

void CrashPoints::Flush(const Event& event) {
  const std::uint64_t last = (event.offset + event.after - 1) / kLineBytes;
  for (std::uint64_t line = event.offset / kLineBytes; line <= last; ++line) {
    flushed_[event.thread].push_back(Flushed{line * kLineBytes, (line + 1) * kLineBytes, next_});
  }
}

void CrashPoints::Fence(const Event& event) {
  const auto flushed = flushed_.find(event.thread);
  if (flushed == flushed_.end()) return;
  for (const Flushed& flush : flushed->second) {
    const auto end = pending_.lower_bound(flush.end);
    for (auto word = pending_.lower_bound(flush.first); word != end;) {
      std::vector<OpenWord::Store>& stores = word->second;
      const auto later = std::find_if(stores.begin(), stores.end(),
                                      [&](const auto& store) { return store.event > flush.event; });
      if (later != stores.begin()) {
        std::uint64_t& durable = durable_[word->first / 8];
        const std::uint64_t value = std::prev(later)->value;
        durable_hash_ += HashWord(word->first, value) - HashWord(word->first, durable);
        durable = value;
        stores.erase(stores.begin(), later);
      }
      word = stores.empty() ? pending_.erase(word) : std::next(word);
    }
  }
  flushed_.erase(flushed);
}

void CrashPoints::CollectOpenWords() {
  open_words_.clear();
  for (const auto& [offset, stores] : pending_) {
    OpenWord word{.offset = offset, .stores = stores, .choices = {durable_[offset / 8]}};
    for (const OpenWord::Store& store : stores) {
      if (std::find(word.choices.begin(), word.choices.end(), store.value) == word.choices.end()) {
        word.choices.push_back(store.value);
      }
    }
    if (word.choices.size() > 1) open_words_.push_back(std::move(word));
  }
}

namespace {

/// Makes states of a point from the choice of a value for each open word.
class StateMaker {
 public:
  StateMaker(const CrashPoints& point, const VisitState& visit)
      : point_(point), words_(point.open_words()), visit_(visit) {}

  /// @param value_of value_of(index, word) is what the word holds
  template <class ValueOf>
  bool Visit(const ValueOf& value_of) {
    state_.clear();
    std::uint64_t hash = point_.durable_hash();
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const OpenWord& word = words_[i];
      const std::uint64_t value = value_of(i, word);
      if (value == word.durable()) continue;
      state_.push_back(WordValue{word.offset, value});
      hash += HashWord(word.offset, value) - HashWord(word.offset, word.durable());
    }
    ++visited_;
    return visit_(state_, hash);
  }

  std::uint64_t visited() const { return visited_; }

 private:
  const CrashPoints& point_;
  const std::vector<OpenWord>& words_;
  const VisitState& visit_;
  CrashState state_;
  std::uint64_t visited_ = 0;
};

/// What the word holds when exactly the stores before an event persisted.
std::uint64_t ValueBefore(const OpenWord& word, std::size_t event) {
  std::uint64_t value = word.durable();
  for (const OpenWord::Store& store : word.stores) {
    if (store.event < event) value = store.value;
  }
  return value;
}

bool VisitAll(const std::vector<OpenWord>& words, StateMaker& maker) {
  std::vector<std::size_t> choice(words.size(), 0);
  for (;;) {
    if (!maker.Visit([&](std::size_t i, const OpenWord& word) { return word.choices[choice[i]]; }))
      return false;
    std::size_t i = 0;
    while (i < words.size() && ++choice[i] == words[i].choices.size()) choice[i++] = 0;
    if (i == words.size()) return true;
  }
}

bool VisitExtremes(const std::vector<OpenWord>& words, std::uint64_t limit, std::mt19937_64& random,
                   StateMaker& maker) {
  if (!maker.Visit([](std::size_t, const OpenWord& word) { return word.durable(); }) ||
      !maker.Visit([](std::size_t, const OpenWord& word) { return word.latest(); })) {
    return false;
  }
  // Of more than `limit` every second one, every third, ...
  const auto stride = [&](std::size_t count) { return 1 + count / limit; };
  std::vector<std::size_t> events;
  for (const OpenWord& word : words) {
    for (const OpenWord::Store& store : word.stores) events.push_back(store.event);
  }
  std::sort(events.begin(), events.end());
  const std::size_t event_stride = stride(events.size());
  for (std::size_t i = random() % event_stride; i < events.size(); i += event_stride) {
    if (!maker.Visit(
            [&](std::size_t, const OpenWord& word) { return ValueBefore(word, events[i] + 1); })) {
      return false;
    }
  }
  const std::size_t word_stride = stride(words.size());
  for (std::size_t w = random() % word_stride; w < words.size(); w += word_stride) {
    for (const std::uint64_t value : words[w].choices) {
      if (!maker.Visit([&](std::size_t i, const OpenWord& word) {
            return i == w ? value : word.durable();
          }) ||
          !maker.Visit([&](std::size_t i, const OpenWord& word) {
            return i == w ? value : word.latest();
          })) {
        return false;
      }
    }
  }
  return true;
}

/// One random state: of several kinds, so that few words, most, or whole lines persist.
bool VisitRandom(const std::vector<OpenWord>& words, std::mt19937_64& random, StateMaker& maker) {
  const std::uint64_t kind = random() % 5;
  const auto any = [&](const OpenWord& word) {
    return word.choices[random() % word.choices.size()];
  };
  if (kind == 0) return maker.Visit([&](std::size_t, const OpenWord& word) { return any(word); });
  if (kind == 1 || kind == 2) {
    return maker.Visit([&](std::size_t, const OpenWord& word) {
      if (random() % 8 == 0) return any(word);
      return kind == 1 ? word.durable() : word.latest();
    });
  }
  // Lines that are evicted whole, each at some moment; or a moment before which all stores
  // persisted, and some after it.
  const std::size_t first = words.front().stores.front().event;
  std::size_t last = first;
  for (const OpenWord& word : words) last = std::max(last, word.stores.back().event);
  const auto moment = [&] { return std::min(first, last) + random() % (last - first + 2); };
  std::uint64_t line = ~std::uint64_t{0};
  std::size_t event = moment();
  return maker.Visit([&](std::size_t, const OpenWord& word) {
    if (kind == 3 && word.offset / kLineBytes != line) {
      line = word.offset / kLineBytes;
      event = moment();
    }
    return kind == 4 && random() % 8 == 0 ? any(word) : ValueBefore(word, event);
  });
}

}  // namespace

bool VisitStates(const CrashPoints& point, std::uint64_t limit, std::uint64_t seed,
                 const VisitState& visit) {
  const std::vector<OpenWord>& words = point.open_words();
  StateMaker maker(point, visit);
  if (point.states() <= static_cast<double>(limit)) return VisitAll(words, maker);
  std::mt19937_64 random(Scramble(seed + point.event()));
  if (!VisitExtremes(words, std::max(limit, std::uint64_t{1}), random, maker)) return false;
  while (maker.visited() < limit) {
    if (!VisitRandom(words, random, maker)) return false;
  }
  return true;
}

}  // namespace gpm::crash
