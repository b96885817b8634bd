#ifndef GPM_SNAPSHOT_FOLDER_H_
#define GPM_SNAPSHOT_FOLDER_H_

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpmstore/options.h"
#include "snapshot/format.h"

namespace gpm {

/// A folder with chains of snapshots of one store: files CHAIN-PLACE.snap, of which the one with
/// place 0 is whole and each other an increment on the one before, and a MANIFEST, which says what
/// has to be there (docs/SNAPSHOTS.md). A file that is complete counts before the manifest names
/// it; one that the manifest names, and is not there, is missed. Locked during the object's life.
///
/// Invariants:
///  1. The manifest is replaced as a whole: written under another name, synced, renamed. After a
///     crash it is the one before or the one after.
///  2. Chains go from their ends, after a manifest without them is durable. So what is left of one
///     is the beginning of a chain. Where there is no room for that manifest they go first: what it
///     names and misses is older than a chain that is whole, which is restored.
///
/// Thread safety: none.
class SnapshotFolder {
 public:
  struct Chain {
    std::uint64_t number = 0;
    std::uint64_t files = 0;
  };
  /// The state of a pool that was closed in order, all of which the newest snapshot has.
  struct Saved {
    SnapshotId pool{};
    std::uint64_t sequence = 0;  ///< of its superblock
    bool operator==(const Saved&) const = default;
  };

  /// Makes the folder if need be, but none above it; locks it and reads what is there.
  /// @throws Error kBusy (another store keeps its snapshots there), kIo, kNoSpace
  explicit SnapshotFolder(const std::string& path);
  ~SnapshotFolder();  ///< removes the folder, if it made it and nothing is in it
  SnapshotFolder(const SnapshotFolder&) = delete;
  SnapshotFolder& operator=(const SnapshotFolder&) = delete;

  const std::string& path() const { return path_; }  ///< absolute
  /// What was not as it should be when it was read, a sentence each.
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<Chain>& chains() const { return chains_; }  ///< the oldest first
  std::vector<std::string> Files(const Chain& chain) const;
  bool IsOf(const SnapshotId& pool) const;
  const Saved& saved() const { return saved_; }

  /// What a crash left of a file that was not complete. Errors are lost.
  void RemovePartialFiles() noexcept;
  /// From now on the pool may have its snapshots here, too. @throws Error kIo, kNoSpace
  void Admit(const SnapshotId& pool);
  /// There is a file in the way of the next chain, which gets another number.
  void SkipNumber() { ++last_number_; }
  /// The file of the next snapshot, of the newest chain or of a new one; there is memory for Add to
  /// count it.
  std::string NextFile(bool begins_chain);
  /// That file is complete. All but the newest `keep` chains go.
  /// @throws Error kIo, kNoSpace; then the file counts all the same
  void Add(bool begins_chain, std::uint64_t keep);
  /// All but the newest `keep` chains go, if the newest begins with a snapshot that is whole: those
  /// that Add, in a session before, could not remove any more. @throws Error kIo, kNoSpace
  void Trim(std::uint64_t keep);
  /// @throws Error kIo, kNoSpace
  void SetSaved(const Saved& saved);
  /// Files of a chain from this place on are not whole: they get names with .damaged, and count no
  /// more. @throws Error kIo, kNoSpace
  void SetAside(const Chain& chain, std::uint64_t place);
  /// In a child that the process forked: the lock is the parent's.
  void LetGo() noexcept;

 private:
  std::string FileOf(std::uint64_t chain, std::uint64_t place) const;
  void ReadManifest();
  void ReadNames();
  void WriteManifest(std::size_t first_chain);
  /// REQUIRES: the newest chain is whole, or all are kept
  void KeepNewest(std::uint64_t keep);

  const std::string path_;          ///< absolute
  const pid_t process_ = getpid();  ///< whose lock it is
  int fd_ = -1;
  bool made_ = false;  ///< there was no folder
  std::vector<SnapshotId> pools_;
  std::vector<Chain> chains_;
  std::uint64_t last_number_ = 0;  ///< of a chain, ever
  Saved saved_;
  std::vector<std::string> warnings_;
};

/// The folder of a new store's snapshots, or null where it takes none.
/// @throws Error kExists (there are snapshots); as SnapshotFolder
std::unique_ptr<SnapshotFolder> EmptyFolder(const SnapshotSchedule& schedule);

}  // namespace gpm

#endif  // GPM_SNAPSHOT_FOLDER_H_
