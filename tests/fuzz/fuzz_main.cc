#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/pool_fuzz.h"

/// libFuzzer's way in; scripts/fuzz.sh builds and runs it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  try {
    gpm::fuzz::RunInput({data, bytes});
  } catch (const std::exception& violation) {
    std::fprintf(stderr, "%s\n", violation.what());
    std::abort();
  }
  return 0;
}
