// Calls as an embedder writes them, with its own warnings on.
// Usage: embedder POOL  (a file that does not exist yet)

#include <cstdint>
#include <span>
#include <vector>

#include "gpmstore/store.h"

int main(int, char** argv) {
  const std::vector<std::uint64_t> keys{1, 2, 3};
  const std::vector<std::uint64_t> values{10, 20, 30};
  std::vector<std::uint64_t> found(3);
  std::vector<gpm::Result> results(3);
  const auto key_bytes = std::as_bytes(std::span(keys));

  gpm::Store store = gpm::Store::Create(argv[1], {.key_size = 8, .value_size = 8});
  store.Apply({.op = gpm::Op::kInsert,
               .keys = key_bytes,
               .values = std::as_bytes(std::span(values)),
               .results = results});
  store.Apply({.op = gpm::Op::kFind,
               .keys = key_bytes,
               .found = std::as_writable_bytes(std::span(found)),
               .results = results});
  const gpm::Batch exists{.op = gpm::Op::kFind, .keys = key_bytes, .results = results};
  store.Apply(exists);
  store.Close();
  return found == values && results[2] == gpm::Result::kOk ? 0 : 1;
}
