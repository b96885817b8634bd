// How a store gives back what its items do not need (StoreImpl::Compact).

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <thread>

#include "engine/store_impl.h"
#include "pm/clock.h"
#include "table/geometry.h"

namespace gpm {

/// One compaction, in turns alone: between them batches run, and find the store as they left it.
/// What is next follows from the store as it then is.
class Compaction {
 public:
  explicit Compaction(StoreImpl& store) : store_(store) { ++store_.compactions_; }
  ~Compaction() { --store_.compactions_; }
  Compaction(const Compaction&) = delete;
  Compaction& operator=(const Compaction&) = delete;

  /// @return whether there is more to do
  bool Turn() GPM_REQUIRES(store_state);
  /// Between turns, by who is not alone: lets those that waited for the last turn run for as long
  /// as it took. So batches run for half of the time at least.
  void LetOthersRun() const;
  /// Somebody waits until the turn is over.
  void SetAwaited(bool awaited) { awaited_ = awaited; }

 private:
  enum class Step : std::uint8_t {
    kLevels,  ///< items move to smaller levels: first, as what follows reads all slots
    kCells,   ///< values move to the pool's beginning
    kPlaces,  ///< levels move to where they lie lower
    kEnd,     ///< the pool's end is given back
  };
  /// How often each is tried at most. The levels again, where there was no room before values had
  /// moved. Levels move until they lie right behind the cells, or these behind them: the first move
  /// puts them side by side, somewhere. What is then free in front of them may be less than they
  /// are: the second puts them to the pool's end, and the third to where they were, and lower.
  static constexpr std::array<int, 3> kMostTries = {2, 5, 3};

  int& TriesOf(Step step) { return tries_[static_cast<std::size_t>(step)]; }
  Step Next() GPM_REQUIRES(store_state);
  void CarryOut(Step step) GPM_REQUIRES(store_state);
  void GiveBackEnd() GPM_REQUIRES(store_state);
  std::uint64_t Items() const GPM_REQUIRES(store_state) {
    return std::max(store_.space_.items(), store_.reserved_);
  }

  StoreImpl& store_;
  const Clock::time_point start_ = Clock::now();
  std::array<int, 3> tries_ = kMostTries;
  std::uint64_t bytes_ = 0;  ///< of the pool before; 0: no turn yet
  Clock::duration last_turn_{};
  bool awaited_ = false;
};

Compaction::Step Compaction::Next() {
  const Space& space = store_.space_;
  const Superblock& superblock = store_.pool_->superblock();
  const LevelSizes sizes = store_.SizesWanted();
  if (TriesOf(Step::kLevels) > 0 && SlotsOf(superblock.geometry, sizes) < space.Capacity()) {
    if (store_.resizer_.CanMoveTo(sizes)) return Step::kLevels;
  }
  if (TriesOf(Step::kCells) > 0 && space.CanCompactCells(Items())) return Step::kCells;
  if (TriesOf(Step::kPlaces) > 0 && space.CanEndLower(SizesOf(superblock), Items())) {
    return Step::kPlaces;
  }
  return Step::kEnd;
}

void Compaction::CarryOut(Step step) {
  --TriesOf(step);
  store_.health_.AllOrUnusable("the store was compacted", [&]() GPM_REQUIRES(store_state) {
    Resizer& resizer = store_.resizer_;
    resizer.DropAccelerators();
    if (step == Step::kLevels) {
      resizer.Resize(store_.SizesWanted());
    } else if (step == Step::kCells) {
      store_.space_.CompactCells(Items());
    } else if (!resizer.MoveLevels()) {
      TriesOf(step) = 0;
    }
    resizer.MakeAccelerators();
  });
}

bool Compaction::Turn() {
  const ProfilerRange range("compact");
  const Clock::time_point start = Clock::now();
  store_.health_.Check();
  Mapping& mapping = store_.pool_->mapping();
  if (store_.admission_.left_behind()) {
    throw Error(ErrorCode::kUnsupported,
                mapping.path() +
                    ": a batch failed, and opening the pool again finds what it left behind: "
                    "compact it then");
  }
  store_.AwaitHeldCells();
  store_.space_.Reclaim();
  store_.resizer_.EndDraining();
  if (bytes_ == 0) bytes_ = mapping.made_bytes();
  const Step step = Next();
  if (step == Step::kEnd) {
    GiveBackEnd();
  } else {
    CarryOut(step);
  }
  last_turn_ = Clock::now() - start;
  return step != Step::kEnd;
}

void Compaction::GiveBackEnd() {
  try {
    // (A refresh on a GPU reads the pool, of which the GPU lets go for a moment.)
    store_.cache_.WithoutRefresh([&]() GPM_NOT_CHECKED { store_.pool_->GiveBackEnd(); });
  } catch (const Error& error) {
    // (A file that can't be cut is as it was.)
    if (error.code() != ErrorCode::kIo) store_.health_.SetUnusable("the pool's end was given back");
    throw;
  }
  Pool& pool = *store_.pool_;
  store_.cache_.KeepTable(MakeTableView(pool.base(), pool.superblock()));
  store_.space_.GiveBackMemory();
  const std::uint64_t left = pool.mapping().mapped_bytes();
  store_.given_back_ += bytes_ - std::min(bytes_, left);
  store_.space_.SetAtLimit(false);
  store_.log_.Add(LogLevel::kInfo, [&] {
    return fmt::format("{}: compacted from {} to {} bytes in {:.3f} s", pool.mapping().path(),
                       bytes_, left, SecondsSince(start_));
  });
}

void Compaction::LetOthersRun() const {
  if (awaited_) std::this_thread::sleep_for(last_turn_);
}

void StoreImpl::EndRestoring() {
  const Admission::Alone alone(admission_);
  reserved_ = 0;
  admission_.ForgetOperations();
}

LevelSizes StoreImpl::SizesWanted() const {
  const auto items = static_cast<double>(std::max(space_.items(), reserved_));
  const Growth& growth = resizer_.growth();
  return growth.Reach(growth.Smallest(), items / Space::kComfortableLoad);
}

void StoreImpl::Compact() {
  const Log::TellsAtEnd tells(log_);
  Compaction compaction(*this);
  bool more = true;
  while (more) {
    snapshots_.AwaitCopied();
    {
      const Admission::Alone alone(admission_, Admission::Telling::kLater);
      if (closed()) return;
      if (ExportHoldsCells()) continue;
      compaction_cut_off_ = false;
      more = compaction.Turn();
      compaction.SetAwaited(more && alone.IsAwaited());
    }
    compaction.LetOthersRun();
  }
}

bool StoreImpl::IsToCompact() const {
  if (compactions_ > 0) return false;  // somebody does so, in turns
  if (compaction_cut_off_) return true;
  if (space_.items() >= most_to_compact_) return false;
  const std::uint64_t slots = space_.Capacity();
  return static_cast<double>(space_.items()) < compact_below_ * static_cast<double>(slots) &&
         4 * SlotsOf(resizer_.growth().geometry, SizesWanted()) <= 3 * slots;
}

void StoreImpl::CompactIfSparse() noexcept {
  const Log::TellsAtEnd tells(log_);
  try {
    // (Who has a scope open may wait for the caller.)
    const auto may = [&](bool scope_is_open) GPM_REQUIRES(store_state) {
      return !closed() && !scope_is_open && health_.usable() && !admission_.left_behind() &&
             !space_.epochs().holds_cells();
    };
    std::optional<Compaction> compaction;  // from the first turn on
    std::uint64_t slots = 0;               // before it
    const auto goes_on = [&](bool scope_is_open) GPM_REQUIRES(store_state) {
      const bool goes = may(scope_is_open);
      if (!compaction) return goes && IsToCompact();
      compaction_cut_off_ = !goes;
      return goes;
    };
    bool more = true;
    while (more) {
      {
        const Admission::Entered entered(admission_);
        if (!goes_on(entered.HasOpenScope())) return;
      }
      {
        const Admission::Alone alone(admission_, Admission::Telling::kLater,
                                     Admission::Scopes::kYield);
        if (!alone.holds()) continue;  // a scope was opened meanwhile
        if (!goes_on(false)) return;
        if (!compaction) {
          compaction.emplace(*this);
          slots = space_.Capacity();
          most_to_compact_ = space_.items() / 4 * 3;
          compaction_cut_off_ = false;
        }
        more = compaction->Turn();
        compaction->SetAwaited(more && alone.IsAwaited());
        if (space_.Capacity() < slots) most_to_compact_ = ~std::uint64_t{0};
      }
      compaction->LetOthersRun();
    }
  } catch (const std::exception& error) {  // the batch that it came behind has ended well
    log_.Add(LogLevel::kWarning, [&] { return fmt::format("not compacted: {}", error.what()); });
  }
}

}  // namespace gpm
