#include "gpmstore/error.h"

namespace gpm {

std::string_view ErrorName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kExists:
      return "exists";
    case ErrorCode::kBusy:
      return "busy";
    case ErrorCode::kNoSpace:
      return "no space";
    case ErrorCode::kDamaged:
      return "damaged";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kIo:
      return "input/output";
    case ErrorCode::kGpu:
      return "gpu";
  }
  return "unknown error";
}

}  // namespace gpm
