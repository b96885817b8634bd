#ifndef GPM_TESTS_HOST_WARP_H_
#define GPM_TESTS_HOST_WARP_H_

#include <pthread.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

/// Tiles of lanes on the host, as bench/peers/tiles.h has them.
namespace gpm::bench::peers {

/// A barrier whose threads sleep at once: std::barrier's look again and again at first, which takes
/// ten times as long where other threads want the core.
class SleepingBarrier {
 public:
  explicit SleepingBarrier(unsigned threads) { pthread_barrier_init(&barrier_, nullptr, threads); }
  ~SleepingBarrier() { pthread_barrier_destroy(&barrier_); }
  SleepingBarrier(const SleepingBarrier&) = delete;
  SleepingBarrier& operator=(const SleepingBarrier&) = delete;
  void Wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_;
};

/// What the lanes of a tile share.
template <unsigned kLanes>
struct HostTileState {
  SleepingBarrier barrier{kLanes};
  std::array<std::array<std::uint64_t, kLanes>, 2> words{};
};

/// A lane of a tile: a thread of its own, so that lanes are at different places between what they
/// do together, as those of a GPU may be.
template <unsigned kLanes>
class HostTile {
 public:
  HostTile(HostTileState<kLanes>& state, unsigned lane) : state_(&state), lane_(lane) {}

  unsigned thread_rank() const { return lane_; }
  static constexpr unsigned size() { return kLanes; }
  void sync() const { Exchange(0); }
  unsigned ballot(bool vote) const {
    unsigned votes = 0;
    const auto& words = Exchange(vote);
    for (unsigned lane = 0; lane < kLanes; ++lane) votes |= unsigned{words[lane] != 0} << lane;
    return votes;
  }
  bool any(bool vote) const { return ballot(vote) != 0; }
  template <class Word>
  Word shfl(Word word, unsigned lane) const {
    static_assert(std::is_unsigned_v<Word>);
    return static_cast<Word>(Exchange(word)[lane]);
  }

 private:
  /// The words of all lanes. (Those of the next call are elsewhere, and nobody comes to the one
  /// behind it before all have read these.)
  const std::array<std::uint64_t, kLanes>& Exchange(std::uint64_t word) const {
    auto& words = state_->words[turn_];
    turn_ = 1 - turn_;
    words[lane_] = word;
    if constexpr (kLanes > 1) state_->barrier.Wait();
    return words;
  }

  HostTileState<kLanes>* state_;
  unsigned lane_;
  mutable unsigned turn_ = 0;
};

/// Calls f(tile, number) by all lanes of several tiles at once.
template <unsigned kLanes, class F>
void RunTiles(unsigned tiles, const F& f) {
  std::vector<std::unique_ptr<HostTileState<kLanes>>> states;
  for (unsigned t = 0; t < tiles; ++t) {
    states.push_back(std::make_unique<HostTileState<kLanes>>());
  }
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < tiles; ++t) {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      threads.emplace_back([&, t, lane] { f(HostTile<kLanes>(*states[t], lane), t); });
    }
  }
}

}  // namespace gpm::bench::peers

#endif  // GPM_TESTS_HOST_WARP_H_
