// Creates a pool or opens it, puts some items there, closes it, opens it again and finds them.
// Usage: embed [POOL]

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

#include "gpmstore/typed_store.h"
#include "gpmstore/version.h"

using Orders = gpm::TypedStore<std::uint64_t, double>;

int main(int argc, char** argv) try {
  std::printf("GPMStore %s\n", GPMSTORE_VERSION);
  if (gpm::Version() != GPMSTORE_VERSION) return 1;  // headers of another installation
  const std::string pool = argc > 1 ? argv[1] : "embed.pool";
  const std::array<std::uint64_t, 3> keys{1, 2, 42};
  const std::array<double, 3> values{10.5, 20, 420};

  Orders orders = Orders::OpenOrCreate(pool);
  if (orders.Upsert(keys, values) != 0) return 1;  // operations that were not ok
  std::printf("order 42: %g\n", orders.Get(42).value());
  orders.Close();

  orders = Orders::Open(pool);
  std::array<double, 3> found{};
  if (orders.Find(keys, found) != 0) return 1;
  std::printf("order 42: %g, after opening again\n", found[2]);
  return found == values ? 0 : 1;
} catch (const gpm::Error& error) {
  std::fprintf(stderr, "embed: %s\n", error.what());
  return 2;
}
