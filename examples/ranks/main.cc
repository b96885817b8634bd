// Processes of a job count together how often each number comes in what they have each.
// Usage: mpirun -n RANKS ranks [FOLDER]

#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "gpmstore/distributed_store.h"
#include "gpmstore/mpi_exchange.h"

namespace {

constexpr std::uint64_t kNumbers = 1000;
constexpr std::uint64_t kOfEachRank = 100'000;

/// @return whether all is well
bool Count(const std::string& folder) {
  gpm::DistributedStore counts =
      gpm::DistributedStore::OpenOrCreate(folder, gpm::MakeMpiExchange(MPI_COMM_WORLD),
                                          {.key_size = 8, .value_size = 8}, {.shards = 8});
  std::vector<std::uint64_t> numbers(kOfEachRank);
  for (std::uint64_t i = 0; i < kOfEachRank; ++i) {
    numbers[i] = (i * i + counts.rank()) % kNumbers;
  }
  std::vector<gpm::Result> results(kOfEachRank);

  std::uint64_t mine = 0;  // occurrences that this rank's items have counted
  const auto count_all = [&] {
    mine = 0;
    counts.ForEach([&](std::span<const std::byte>, std::span<const std::byte> value) {
      mine += *reinterpret_cast<const std::uint64_t*>(value.data());
    });
    std::uint64_t all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return all;
  };
  const std::uint64_t before = count_all();  // by runs before, also of other numbers of ranks

  // All ranks' parts are one batch: first each number gets an item, if it has none, then each
  // occurrence adds 1.
  const std::vector<std::byte> zero(8);
  const std::vector<std::uint64_t> ones(kOfEachRank, 1);
  gpm::Batch batch{.op = gpm::Op::kFindOrInsert,
                   .keys = std::as_bytes(std::span(numbers)),
                   .results = results,
                   .initial = gpm::InitialValue::Constant(zero)};
  counts.Apply(batch);
  batch.op = gpm::Op::kAccumulate;
  batch.values = std::as_bytes(std::span(ones));
  batch.element = gpm::Element::kUInt64;
  if (counts.Apply(batch) != 0) return false;

  const std::uint64_t all = count_all();
  std::printf("rank %u of %u: %llu items of its own, counted %llu times; in all %llu\n",
              counts.rank(), counts.ranks(), static_cast<unsigned long long>(counts.Stats().items),
              static_cast<unsigned long long>(mine), static_cast<unsigned long long>(all));
  const bool is_right = all == before + counts.ranks() * kOfEachRank;
  counts.Close();
  return is_right;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    const bool is_right = Count(argc > 1 ? argv[1] : "counts");
    MPI_Finalize();
    return is_right ? 0 : 1;
  } catch (const gpm::Error& error) {
    std::fprintf(stderr, "ranks: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
}
