#ifndef GPM_SNAPSHOT_NEW_FILE_H_
#define GPM_SNAPSHOT_NEW_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pm/thread_pool.h"

namespace gpm {

/// @throws Error kNoSpace, kExists or kIo: "PATH: can't WHAT: ..." @param error an errno
[[noreturn]] void ThrowFileError(const std::string& path, const char* what, int error);

/// @throws Error(kInvalidArgument) when a path has a zero byte
void RequireNoZeroByte(const std::string& path);

/// The path of the same file after the process has changed its directory, too. Of an empty one that
/// is as empty. @throws Error kInvalidArgument (a zero byte), kIo
std::string AbsolutePath(const std::string& path);

/// A name beside `path` that nobody else uses: `path`.`what`-*.
std::string TemporaryName(const std::string& path, const std::string& what);

/// Removes files with such names whose makers died: those had them locked while they wrote them.
/// An empty one stays, as its maker may be about to lock it. Errors are lost.
void RemoveAbandoned(const std::string& path, const std::string& what) noexcept;

/// @throws Error kExists, where there is a file of this name; kNotFound, where that is empty; kIo,
///         where nobody can tell
void RequireNoFile(const std::string& path);

/// Gives a complete file its name, unless there is one of that name, and makes that durable.
/// @throws Error kExists, kIo; it has its temporary name then, or none
void GiveName(const std::string& temporary, const std::string& path);

/// Removes a file; an error is lost.
void RemoveFile(const std::string& path) noexcept;

/// Waits until the medium has what a file holds. @throws Error kIo, kNoSpace
void SyncFile(const std::string& path);

/// Of a manifest: those of 1024 shards and of 400,000 chains of snapshots are smaller than 16 MiB.
/// @return false: there is no such file
/// @throws Error kDamaged (it is larger, or no file, such as a pipe); kIo
bool ReadWholeFile(const std::string& path, std::string* contents);

/// Names of all that is in a folder, "." and ".." too. @throws Error(kIo)
std::vector<std::string> NamesIn(const std::string& folder);

/// Gives a small file other contents, as a whole, and makes them durable.
/// @param temporary beside it; what is there is lost
/// @param keeps_access its owner and permissions stay, if it is there
/// @throws Error kIo (also: its owner can't stay), kNoSpace; then it has these contents or those
///         before
void ReplaceFile(const std::string& path, const std::string& temporary, const std::string& contents,
                 bool keeps_access = false);

/// A file that is written under a temporary name, past the page cache where the file system takes
/// that. It is removed if it is not given its name.
///
/// Thread safety: Mapped and Write from any thread; else one at a time.
class NewFile {
 public:
  /// @throws Error kExists (of that name), kNotFound (the folder), kIo, kNoSpace
  explicit NewFile(const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// How large it will be, before these threads write it: on tmpfs it is mapped, and they make its
  /// pages, if they are enough. @throws std::bad_alloc
  void Expect(std::uint64_t bytes, ThreadPool& threads);
  /// Where these bytes of it can be written to memory, whole pages, aligned as such; null: they
  /// have to be by Write. What is there is anything.
  std::byte* Mapped(std::uint64_t bytes, std::uint64_t offset);
  /// @param data, offset, bytes whole pages, aligned as such @throws Error kIo, kNoSpace
  void Write(const std::byte* data, std::uint64_t bytes, std::uint64_t offset);
  /// Syncs it and gives it its name. @throws Error kExists, kIo, kNoSpace
  void Finish();

 private:
  const std::string path_;
  const std::string temporary_;
  int fd_ = -1;
  bool exists_ = false;
  std::byte* mapped_ = nullptr;  ///< all of it; null: it is not mapped
  std::uint64_t mapped_bytes_ = 0;
};

}  // namespace gpm

#endif  // GPM_SNAPSHOT_NEW_FILE_H_
