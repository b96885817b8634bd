#include "engine/executor.h"
#include "gpmstore/error.h"

namespace gpm {

std::unique_ptr<Executor> MakeCudaExecutor(const OpenOptions&, const Mapping&) {
  throw Error(ErrorCode::kUnsupported,
              "executor cuda: this library was built without CUDA; use executor cpu");
}

}  // namespace gpm
