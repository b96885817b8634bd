#ifndef GPM_ERROR_H_
#define GPM_ERROR_H_

#include <stdexcept>
#include <string>
#include <string_view>

namespace gpm {

/// What kind of thing went wrong; the message says what exactly, and what would be right.
enum class ErrorCode {
  kInvalidArgument,  ///< an argument, option or configuration that can't be used
  kNotFound,         ///< the file or device does not exist
  kExists,           ///< creating over something that exists
  kBusy,             ///< somebody else uses the pool, or folder, or the caller itself has open (a
                     ///< device scope, an export) what the call would wait for
  kNoSpace,          ///< the medium, or the pool's maximum, has no room left
  kDamaged,          ///< not a pool, truncated, corrupted, or of another version
  kUnsupported,      ///< this build, machine or medium can't do it
  kIo,               ///< the operating system reported an error
  kGpu,              ///< the CUDA runtime reported an error
};

/// Short stable name of a code, such as "no space".
std::string_view ErrorName(ErrorCode code);

/// The one exception type of the library. Outcomes of single operations are values
/// (gpm::Result), not exceptions.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace gpm

#endif  // GPM_ERROR_H_
