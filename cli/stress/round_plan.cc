#include "cli/stress/round_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "cli/stress/random.h"
#include "table/geometry.h"

namespace gpm::stress {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

constexpr std::uint32_t kKeySizes[] = {8, 16, 32, 64, 128};
/// And up to the next one any, most of which end inside a word.
constexpr std::uint32_t kLeastKeySizes[] = {1, 9, 17, 33, 65};
constexpr std::uint32_t kMostKeySizes[] = {7, 15, 31, 63, 255};
constexpr std::uint32_t kValueKinds = 6;
/// Accelerators of a store: none, a directory alone, or a cache by one of the policies too.
constexpr CachePolicy kPolicies[] = {CachePolicy::kTinyLfu, CachePolicy::kLfu, CachePolicy::kLru,
                                     CachePolicy::kRandom};
constexpr std::uint32_t kNone = 0;
constexpr std::uint32_t kDirectory = 1;
constexpr std::uint32_t kAcceleratorKinds = 2 + std::size(kPolicies);

/// Around the sizes where an executor does something else.
constexpr std::uint32_t kSizes[] = {1,     2,     32,     100,    700,    2047,   2048,   2049,
                                    3000,  4095,  4096,   4097,   5000,   16383,  16384,  16385,
                                    20000, 60000, 131071, 131072, 131073, 262144, 1 << 20};
/// Those with which reads of a GPU's workspaces once got lost.
constexpr std::uint32_t kFewSizes[] = {1, 32, 700, 3000, 4096, 5000, 20000, 60000};

/// (Of its own, so that the rest of a plan does not depend on it.)
std::uint32_t KeySize(std::uint32_t kind, std::uint64_t seed) {
  Random random(seed ^ 0x5AFE);
  if (random.OneIn(2)) return kKeySizes[kind];
  const std::uint32_t least = kLeastKeySizes[kind];
  return static_cast<std::uint32_t>(least + random.Below(kMostKeySizes[kind] - least + 1));
}

std::uint32_t ValueSize(std::uint32_t kind, Random& random) {
  switch (kind) {
    case 0:
      return random.Choose({1u, 3u, 4u, 8u, 8u, 8u});
    case 1:
      return 9;
    case 2:
      return 64;
    case 3:
      return 128;
    case 4:
      return random.Choose({12u, 100u, 257u, 1000u});
    default:
      return random.OneIn(8) ? 65536 : 4096;
  }
}

CacheOptions Cache(std::uint32_t accelerators, Random& random) {
  CacheOptions cache;
  cache.directory = accelerators != kNone;
  cache.policy = accelerators > kDirectory ? kPolicies[accelerators - 2] : CachePolicy::kOff;
  cache.fraction = cache.policy == CachePolicy::kOff ? 0 : random.Choose({0.05, 0.3, 1.0});
  cache.refresh_interval =
      random.Choose<std::optional<std::uint64_t>>({std::nullopt, 0, 3000, 20'000, 200'000});
  if (cache.policy != CachePolicy::kOff && random.OneIn(8)) {
    cache.bytes = kMiB * random.Choose<std::uint64_t>({1, 8, 64});
  }
  return cache;
}

void PlanBatches(RoundPlan& plan, const StressOptions& options, Random& random) {
  const std::uint64_t row = std::max(plan.shape.key_size, plan.shape.value_size);
  const std::uint64_t bytes = (options.gpu() ? 128 : 16) * kMiB;
  plan.max_batch =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(options.max_batch, bytes / row));
  switch (random.Below(4)) {
    case 0:
      plan.batch_sizes.assign(std::begin(kFewSizes), std::end(kFewSizes));
      plan.even_sizes = true;
      break;
    case 1:  // two alone
      for (int i = 0; i < 2; ++i) plan.batch_sizes.push_back(kSizes[random.Below(18)]);
      plan.even_sizes = true;
      break;
    default:
      plan.batch_sizes.assign(std::begin(kSizes), std::end(kSizes));
  }
  // So that there are many batches: large ones only where they are seldom.
  const auto largest = static_cast<std::uint32_t>(
      plan.even_sizes ? std::max<std::uint64_t>(plan.max_batch / 8, 1) : plan.max_batch);
  for (std::uint32_t& size : plan.batch_sizes) size = std::min(size, largest);
}

}  // namespace

RoundPlan PlanRound(std::uint64_t seed, const StressOptions& options) {
  RoundPlan plan;
  plan.seed = seed;
  Random random(seed);
  // Coprime to the number of combinations: all come up, each beside a quite different one.
  constexpr std::uint64_t kCombinations = std::size(kKeySizes) * kValueKinds * kAcceleratorKinds;
  auto combination = static_cast<std::uint32_t>(seed % kCombinations * 77 % kCombinations);
  static_assert(kCombinations % 7 != 0 && kCombinations % 11 != 0);
  plan.shape.key_size =
      KeySize(static_cast<std::uint32_t>(combination % std::size(kKeySizes)), seed);
  combination /= std::size(kKeySizes);
  plan.shape.value_size = ValueSize(combination % kValueKinds, random);
  combination /= kValueKinds;
  plan.shape.id_last = random.OneIn(2);

  // Items of some dozens of MiB in all, mostly far less.
  plan.lanes_per_thread = static_cast<unsigned>(1 + random.Below(options.gpu() ? 3 : 2));
  plan.shared_streams = random.OneIn(3);
  const std::uint64_t lanes = std::uint64_t{options.threads} * plan.lanes_per_thread;
  const std::uint64_t most = (options.gpu() ? 256 : 48) * kMiB /
                             (std::uint64_t{plan.shape.key_size} + plan.shape.value_size);
  plan.shared_keys = static_cast<std::uint32_t>(
      std::min(random.Choose<std::uint64_t>({16, 1000, 20'000, 20'000}), most / 4));
  plan.private_keys = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(random.Choose<std::uint64_t>({16, 300, 3000, 40'000}), 8,
                                std::max<std::uint64_t>(most / 2 / lanes, 8)));
  if (plan.shape.key_size < 8) {
    // All owners' numbers, but for one: that is the key of all ones.
    const std::uint64_t all = (std::uint64_t{1} << 8 * plan.shape.key_size) - 1;
    plan.shape.numbers = std::min(plan.shape.numbers, all / (kFirstLane + lanes));
    const auto most_of_one = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(plan.shape.numbers, std::numeric_limits<std::uint32_t>::max()));
    plan.shared_keys = std::min(plan.shared_keys, most_of_one);
    plan.private_keys = std::min(plan.private_keys, most_of_one);
  }
  PlanBatches(plan, options, random);

  plan.create.key_size = plan.shape.key_size;
  plan.create.value_size = plan.shape.value_size;
  plan.create.geometry = random.OneIn(2)
                             ? Geometry{}
                             : ParseGeometry(random.Choose({"1L-2H-16S", "2L-1H-16S", "2L-2H-4S",
                                                            "4L-2H-4S", "2L-4H-4S", "1L-2H-8S"}));
  const std::uint64_t items = plan.shared_keys + lanes * plan.private_keys;
  plan.create.initial_capacity = random.Choose<std::uint64_t>({0, 0, items / 4, 2 * items});
  plan.create.hash_seed = random();

  plan.open.executor = options.executor;
  plan.open.threads = static_cast<unsigned>(1 + random.Below(4));
  plan.open.cache = Cache(combination % kAcceleratorKinds, random);
  plan.open.access.by_address = !random.OneIn(3);
  plan.open.access.by_host = !random.OneIn(3);
  plan.open.access.combine = !random.OneIn(3);
  plan.open.access.dealt_up_to = random.Choose<std::uint64_t>({0, 0, 1});
  plan.tight = random.OneIn(5);
  const std::uint64_t bytes = items * (plan.shape.key_size + plan.shape.value_size + 16);
  plan.open.max_bytes = plan.tight ? 8 * kMiB + random.Below(bytes + 16 * kMiB)
                                   : (options.gpu() ? 32 : 8) * 1024 * kMiB;
  if (plan.tight) plan.create.initial_capacity = 0;

  plan.reopen = plan.open;
  if (random.OneIn(3)) plan.reopen.executor = ExecutorKind::kCpu;
  plan.reopen.cache = Cache(static_cast<std::uint32_t>(random.Below(kAcceleratorKinds)), random);
  plan.loads_first = random.OneIn(2);
  plan.open.growth = plan.reopen.growth = random.Choose({1.25, 2.0, 1.5, 1.2, 3.0});
  plan.open.compact_below = random.Choose({0.0, 0.0, 0.3});
  const double pause = plan.open.growth_pause;
  plan.open.growth_pause = plan.reopen.growth_pause = random.Choose({pause, 0.0, 0.1});
  return plan;
}

std::string Describe(const RoundPlan& plan) {
  const auto cache = [](const CacheOptions& options) {
    const auto interval = options.refresh_interval;
    return fmt::format("{}, cache {} of {}, {} bytes, refreshed {}",
                       options.directory.value_or(false) ? "directory" : "no directory",
                       CachePolicyName(options.policy), options.fraction.value_or(0), options.bytes,
                       interval ? fmt::format("every {}", *interval) : "when it pays");
  };
  return fmt::format(
      "  keys of {} bytes, different in the {} bytes; values of {} bytes; {}, initial capacity {}\n"
      "  executor {}, at most {} bytes{}, growth {}, composed in {} s, compact below {}; {}\n"
      "  by_address {}, by_host {}, combine {}, dealt_up_to {}, {} cpu threads\n"
      "  {} lanes a thread{}, {} keys each and {} shared{}; batches of {} {}\n"
      "  then opened with executor {}, {}\n",
      plan.shape.key_size, plan.shape.id_last ? "last" : "first", plan.shape.value_size,
      GeometryName(plan.create.geometry), plan.create.initial_capacity,
      ExecutorName(plan.open.executor), plan.open.max_bytes, plan.tight ? " (tight)" : "",
      plan.open.growth, plan.open.growth_pause, plan.open.compact_below, cache(plan.open.cache),
      plan.open.access.by_address, plan.open.access.by_host, plan.open.access.combine,
      plan.open.access.dealt_up_to, plan.open.threads, plan.lanes_per_thread,
      plan.shared_streams ? " on one stream" : "", plan.private_keys, plan.shared_keys,
      plan.loads_first ? ", those of the first loaded at once" : "",
      fmt::join(plan.batch_sizes, ", "), plan.even_sizes ? "" : "(large ones seldom)",
      ExecutorName(plan.reopen.executor), cache(plan.reopen.cache));
}

}  // namespace gpm::stress
