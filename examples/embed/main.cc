// Creates a pool, inserts, finds, closes it, opens it again and finds what it inserted.
// Usage: embed [POOL]  (a file that does not exist yet)

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

#include "gpmstore/store.h"

int main(int argc, char** argv) try {
  const std::string pool = argc > 1 ? argv[1] : "embed.pool";
  const std::array<std::uint64_t, 3> keys{1, 2, 42}, values{10, 20, 420};
  std::array<std::uint64_t, 3> found{};
  std::array<gpm::Result, 3> results{};
  const auto key_bytes = std::as_bytes(std::span(keys));
  const auto found_bytes = std::as_writable_bytes(std::span(found));

  gpm::Store store = gpm::Store::Create(pool, {.key_size = 8, .value_size = 8});
  store.Insert(key_bytes, std::as_bytes(std::span(values)), results);
  store.Find(key_bytes, found_bytes, results);
  std::printf("key 42 -> %d\n", static_cast<int>(found[2]));
  store.Close();

  found.fill(0);
  store = gpm::Store::Open(pool);
  store.Find(key_bytes, found_bytes, results);
  std::printf("key 42 -> %d after opening again\n", static_cast<int>(found[2]));
  return std::ranges::equal(found, values) ? 0 : 1;
} catch (const gpm::Error& error) {
  std::fprintf(stderr, "embed: %s\n", error.what());
  return 2;
}
