#ifndef GPM_CLI_WORK_POOL_H_
#define GPM_CLI_WORK_POOL_H_

#include <optional>
#include <string>

#include "cli/any_store.h"
#include "gpmstore/store.h"
#include "support/signals.h"

namespace gpm::cli {

/// The pool that ycsb, replay or stress works on: one that is there already, a new one at a path,
/// or a temporary one. Destroying it removes what this run created, unless it is kept; an existing
/// pool, or another file that has taken the name meanwhile, is never removed. With shards it is a
/// folder of pools, for which all of this holds. Thread safety: none.
///
/// Invariants:
///  1. A temporary pool that is not kept has no name from when its store is open, so that it leaves
///     nothing behind even when the process is killed.
///  2. fd_ is open from when the pool was created, so that no other file gets its inode number.
class WorkPool {
 public:
  /// @param path of the pool; empty: a temporary one, on tmpfs where a GPU may have to register it
  /// @param keep a pool that this run creates
  WorkPool(std::string path, bool keep, ExecutorKind executor);
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  bool existed() const { return existed_; }
  /// Where the pool is; for messages: "(temporary)" when it has no name.
  std::string name() const;
  /// Whether the pool goes when this object does.
  bool removed_at_end() const { return created_ && !keep_; }
  /// By which Store::Open and CheckPool reach it, also when it has no name.
  const std::string& path() const { return path_; }

  /// Opens an existing pool. REQUIRES: existed(). @throws as Store::Open
  Store Open(const OpenOptions& options) const;
  /// Creates the pool. REQUIRES: !existed(). @throws as Store::Create; kIo
  Store Create(const CreateOptions& create, const OpenOptions& options);

  /// The same of a pool, or of a folder of shards. @param shards 0: of as many as there are, and of
  /// a new one, a pool
  /// @throws as Open and Create, and their like of ShardedStore
  AnyStore OpenAny(const OpenOptions& options, const ShardOptions& shards) const;
  AnyStore CreateAny(const CreateOptions& create, const OpenOptions& options,
                     const ShardOptions& shards);

 private:
  /// Chooses the path, has `make` create the store there, and keeps what is to be removed.
  template <class Make>
  auto CreateBy(bool is_folder, const Make& make);
  void RemoveDirectory() noexcept;  ///< with what is in it
  /// Whether the file with the pool's name is the one that was created.
  bool IsOurs() const noexcept;

  std::string path_;
  std::string directory_;  ///< temporary, ours; empty when there is none
  ExecutorKind executor_;
  bool keep_;
  bool existed_ = false;
  /// What a signal removes: the pool that is not kept, and its temporary directory.
  std::optional<RemovedOnSignal> name_;
  std::optional<RemovedOnSignal> directory_name_;
  bool created_ = false;
  int fd_ = -1;  ///< of the file that was created
};

}  // namespace gpm::cli

#endif  // GPM_CLI_WORK_POOL_H_
