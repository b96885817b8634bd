#ifndef GPM_CLI_CRASH_ANSWERS_H_
#define GPM_CLI_CRASH_ANSWERS_H_

#include <cstddef>
#include <span>
#include <string>

#include "cli/crash/workload.h"

namespace gpm::cli {

/// The name that the answers have while they are made.
std::string CrashAnswersFile(const std::string& pool);

/// Memory in which a kernel on a DeviceScope says, operation by operation, what it has answered: a
/// call that has returned is durable, long before the batch is acknowledged. It is shared by the
/// child, which maps it for its GPU, and the parent, which reads it when the child is dead.
/// Thread safety: none.
class CrashAnswers {
 public:
  /// Makes the memory. It has no name, so that it goes with the last process that has it.
  /// @param path a file that is not there, on the medium of the pool: a GPU can map that
  /// @throws Error(kIo)
  explicit CrashAnswers(const std::string& path);
  /// That of the parent, which it passed on as kInherited. @throws Error(kIo)
  CrashAnswers() : CrashAnswers(kInherited) {}
  ~CrashAnswers();
  CrashAnswers(const CrashAnswers&) = delete;
  CrashAnswers& operator=(const CrashAnswers&) = delete;

  /// The file descriptor by which the child gets it.
  static constexpr int kInherited = 3;
  int file() const { return file_; }

  /// One for each operation of a batch; kCrashPoison where there is none yet.
  std::span<Result> results() const { return results_; }

 private:
  explicit CrashAnswers(int file);

  int file_;
  std::span<Result> results_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_ANSWERS_H_
