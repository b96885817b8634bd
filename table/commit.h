#ifndef GPM_TABLE_COMMIT_H_
#define GPM_TABLE_COMMIT_H_

#include "pm/annotate.h"
#include "pm/steps.h"

namespace gpm {

/// The order of persistence, written once: for an operation alone, for the operations of a block
/// that commit together, and for recovery and draining.
///
///   prepare              value cell and key: what nobody can reach yet
///   FenceBeforePublish   it persists before what makes it reachable
///   publish              a state, a reference, or the pair of both
///   FenceBeforeAck       that persists before anybody is told
///   acknowledge          the directory, the key's lock, retired cells and slots, results
///
/// Who takes the steps is a *team*, a policy:
///
///   Or(bit)         whether any member's bit is set. All members call it; afterwards each sees
///   what
///                   the others did before
///   IsLast()        whether the calling thread is the one that says that all have begun
///   Begin(o, work)  Operations::Begin; false when it has to be tried again in the next round
///   Lock(o, candidates, wants), Unlock(o, candidates, has)
///                   the key's lock of a member that `wants` it; all members call both. Lock
///                   returns false where it has to be tried again in the next round
///   FencePrepared, FencePublished (media, step, needed)
///                   what any member wrote persists, and is seen, before what any member writes
///                   next. A team of one fences if `needed`, under the name `step`

/// One operation alone.
template <class Group>
class TeamOfOne {
 public:
  GPM_HD explicit TeamOfOne(const Group& group) : group_(group) {}

  GPM_HD bool Or(bool bit) const { return bit; }
  GPM_HD bool IsLast() const { return true; }
  template <class Operations, class Work>
  GPM_HD bool Begin(const Operations& operations, Work* work) const {
    operations.Begin(work);
    return true;
  }
  template <class Operations, class Candidates>
  GPM_HD bool Lock(const Operations& operations, const Candidates& candidates, bool wants) const {
    if (wants) operations.Lock(candidates);
    return wants;
  }
  template <class Operations, class Candidates>
  GPM_HD void Unlock(const Operations& operations, const Candidates& candidates, bool has) const {
    if (has) operations.Unlock(candidates);
  }
  /// Each thread of the group orders what it wrote itself.
  template <class Media>
  GPM_HD void FencePrepared(const Media& media, Step step, bool needed) const {
    if (needed) media.Fence(step);
    group_.Sync();
  }
  /// (One thread of the group publishes, and acknowledges.)
  template <class Media>
  GPM_HD void FencePublished(const Media& media, Step step, bool needed) const {
    if (needed) media.Fence(step);
  }

 private:
  const Group group_;
};

/// Operations of tiles of one block, or of its threads (which is a tile each). Nobody waits for a
/// key's lock, since another tile of the team might hold it: it is tried again in the next round.
/// One thread fences for all, since fences are cumulative: a fence orders what its thread has seen,
/// and the barrier before it shows it all.
/// @tparam Threads the threads of the tiles: Rank(), Size(), Sync(step), and Or(bit), which syncs
template <class Threads>
class TeamOfTiles {
 public:
  GPM_HD explicit TeamOfTiles(const Threads& threads = {}) : threads_(threads) {}

  GPM_HD bool Or(bool bit) const { return threads_.Or(bit); }
  GPM_HD bool IsLast() const { return threads_.Rank() == threads_.Size() - 1; }
  template <class Operations, class Work>
  GPM_HD bool Begin(const Operations& operations, Work* work) const {
    return operations.TryBegin(work);
  }
  template <class Operations, class Candidates>
  GPM_HD bool Lock(const Operations& operations, const Candidates& candidates, bool wants) const {
    return wants && operations.TryLock(candidates);
  }
  template <class Operations, class Candidates>
  GPM_HD void Unlock(const Operations& operations, const Candidates& candidates, bool has) const {
    if (has) operations.Unlock(candidates);
  }
  /// REQUIRES: Or was called after what the members wrote.
  template <class Media>
  GPM_HD void FencePrepared(const Media& media, Step, bool) const {
    if (threads_.Rank() == 0) media.Fence(Step::kTeamPreparedFence);
    threads_.Sync(Step::kTeamPreparedBarrier);
  }
  template <class Media>
  GPM_HD void FencePublished(const Media& media, Step, bool) const {
    threads_.Sync(Step::kTeamPublishedBarrier);
    if (threads_.Rank() == 0) media.Fence(Step::kTeamDoneFence);
    threads_.Sync(Step::kTeamDoneBarrier);
  }

 private:
  const Threads threads_;
};

/// What was prepared persists before what makes it reachable.
/// @param step its name
/// @param needed whether anything was
template <class Team, class Media>
GPM_HD inline void FenceBeforePublish(const Team& team, const Media& media, Step step,
                                      bool needed = true) {
  team.FencePrepared(media, step, needed);
}

/// What was published persists before anybody is told.
/// @param needed whether anything was
template <class Team, class Media>
GPM_HD inline void FenceBeforeAck(const Team& team, const Media& media, Step step,
                                  bool needed = true) {
  team.FencePublished(media, step, needed);
}

/// Who waits for the operations of a team's first round to begin: here nobody. Another type in its
/// place may be enabled. There is a first round then even if no member has an operation, and one
/// thread calls Begun when its operations have begun.
struct NobodyWaits {
  GPM_HD bool enabled() const { return false; }
  GPM_HD void Begun() const {}
};

/// Applies the operations of a team's members (Operations::Apply). All members call it.
/// @param active whether this member has an operation
/// @param waiting who waits for the first round, such as NobodyWaits
/// @param read_old read_old(is_first) reads what a member wants of the item as it was. It is called
///        each time that the member's operation has begun; is_first: in the first round
template <class Team, class Operations, class Work, class Waiting, class ReadOld>
GPM_HD inline void GroupCommit(const Team& team, const Operations& operations, Work* work,
                               bool active, const Waiting& waiting, const ReadOld& read_old) {
  using Change = typename Operations::Change;
  const auto& media = operations.media();
  const bool begins = waiting.enabled();
  for (bool is_first = true; team.Or(active) || (is_first && begins); is_first = false) {
    const bool has_begun = active && team.Begin(operations, work);
    bool changes = has_begun && work->change != Change::kNothing;
    if (has_begun) {
      active = changes;
      read_old(is_first);
    }
    const bool any = team.Or(changes);
    if (is_first && begins && team.IsLast()) waiting.Begun();
    if (!any) continue;
    if (changes) operations.TellCache(*work);  // while what was prepared is on its way
    FenceBeforePublish(team, media, Operations::PreparedFence(work->change),
                       work->change != Change::kErase);
    if (changes) changes = operations.Commit(work);
    FenceBeforeAck(team, media, Operations::DoneFence(work->change), changes);
    if (!changes) continue;  // without a directory: another change came first, look again
    operations.Finish(work);
    active = false;
  }
}

}  // namespace gpm

#endif  // GPM_TABLE_COMMIT_H_
