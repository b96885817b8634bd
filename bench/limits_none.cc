#include "bench/limits_cells.h"
#include "gpmstore/error.h"

namespace gpm::bench {

std::unique_ptr<Accessor> MakeCudaAccessor(CellRange&, ThreadPool&) {
  throw Error(ErrorCode::kUnsupported,
              "executor cuda: this program was built without CUDA; use executor cpu");
}

}  // namespace gpm::bench
