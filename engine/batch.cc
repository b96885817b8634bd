#include "gpmstore/batch.h"

#include "gpmstore/options.h"

namespace gpm {

std::string_view OpName(Op op) {
  switch (op) {
    case Op::kFind:
      return "find";
    case Op::kInsert:
      return "insert";
    case Op::kUpdate:
      return "update";
    case Op::kUpsert:
      return "upsert";
    case Op::kErase:
      return "erase";
  }
  return "unknown";
}

std::string_view ResultName(Result result) {
  switch (result) {
    case Result::kOk:
      return "ok";
    case Result::kNotFound:
      return "not-found";
    case Result::kExists:
      return "exists";
    case Result::kNoSpace:
      return "no-space";
    case Result::kInvalid:
      return "invalid";
  }
  return "unknown";
}

std::string_view ExecutorName(ExecutorKind kind) {
  switch (kind) {
    case ExecutorKind::kAuto:
      return "auto";
    case ExecutorKind::kCpu:
      return "cpu";
    case ExecutorKind::kCuda:
      return "cuda";
  }
  return "unknown";
}

}  // namespace gpm
