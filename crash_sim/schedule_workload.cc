#include "crash_sim/schedule_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <random>

#include "engine/store_impl.h"
#include "pm/space.h"
#include "table/geometry.h"
#include "table/operation.h"

namespace gpm::crash {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ull;

/// The keys of workloads. 1 is the state word of the two reserved keys.
constexpr std::array<std::uint64_t, 8> kKeyNumbers = {0, ~std::uint64_t{0}, 1, 2, 3, 4, 5, 6};
/// Keys that fill tables, and that no workload touches, have numbers from here on.
constexpr std::uint64_t kFirstFiller = 1000;
/// As a state word, that of an 8-byte key of workloads; as a reference, that of no cell.
constexpr std::uint64_t kSpoiltWord = 3;
constexpr std::array<Geometry, 5> kGeometries = {
    Geometry{1, 1, 2}, Geometry{1, 2, 2}, Geometry{2, 2, 2}, Geometry{4, 1, 2}, Geometry{2, 2, 8}};
/// Those of the last hash alike.
constexpr std::array<std::uint32_t, 3> kKeySizes = {8, 29, 32};
/// In the slot, in cells, and in cells that are so large that few fit: they are used again soon.
constexpr std::array<std::uint32_t, 3> kValueSizes = {8, 16, 256};
constexpr std::uint64_t kRoomyBytes = 64 << 10;
/// Roomy tables of two and three buckets with some 8-byte keys, and values of 16 and of 256 bytes.
constexpr std::array<std::size_t, 4> kDuelTables = {662, 665, 692, 695};
/// Below the share of slots in use from which on a batch resizes before it starts.
constexpr double kNearlyFull = 0.9;

/// Takes the next digit of a number with digits of different bases.
std::size_t Digit(std::size_t* number, std::size_t base) {
  const std::size_t digit = *number % base;
  *number /= base;
  return digit;
}

/// Puts rows of bytes one after another. @param put put(i, row)
template <class Put>
std::vector<std::byte> Rows(std::size_t count, std::size_t row_bytes, const Put& put) {
  std::vector<std::byte> bytes(count * row_bytes);
  for (std::size_t i = 0; i < count; ++i)
    put(i, std::span(bytes).subspan(i * row_bytes, row_bytes));
  return bytes;
}

/// The words of a value are multiples of its number, so that those of a sum are, too.
std::uint64_t Factor(std::size_t i) { return i == 0 ? 1 : (i * kGolden) | 1; }

/// Puts something like items where nothing is: nobody promises that free space holds zeros.
void SpoilFreeSpace(const Superblock& superblock, Image* image) {
  std::uint64_t free_from = 0;
  for (const Extent& used : UsedExtents(superblock)) {
    for (; free_from < used.offset; free_from += 8) (*image)[free_from / 8] = kSpoiltWord;
    free_from = used.end();
  }
  for (; free_from / 8 < image->size(); free_from += 8) (*image)[free_from / 8] = kSpoiltWord;
}

/// A hash of what the clients call.
std::uint64_t HashCalls(const std::vector<std::vector<ClientCall>>& clients) {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::uint64_t word) { hash = Scramble(hash + word + kGolden); };
  for (const std::vector<ClientCall>& calls : clients) {
    add(calls.size());
    for (const ClientCall& call : calls) {
      add(8 * call.ops.size() + 4 * call.mixed + 2 * call.without_values + call.overlaps_next);
      for (std::size_t i = 0; i < call.ops.size(); ++i) {
        add(8 * call.key_numbers[i] + static_cast<std::uint64_t>(call.ops[i]));
      }
    }
  }
  return hash;
}

}  // namespace

void PutValue(std::uint64_t number, std::span<std::byte> value) {
  for (std::size_t i = 0; i < value.size(); i += 8) {
    const std::uint64_t word = number * Factor(i);
    std::memcpy(value.data() + i, &word, 8);
  }
}

std::uint64_t ValueNumber(std::span<const std::byte> value) {
  std::uint64_t number = 0;
  std::memcpy(&number, value.data(), 8);
  for (std::size_t i = 8; i < value.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, value.data() + i, 8);
    if (word != number * Factor(i)) return kTorn;
  }
  return number;
}

void TableSetup::PutKey(std::uint64_t number, std::span<std::byte> key) const {
  if (equal_hashes) {
    // What HashKey adds up over the words before the last, which cancels it: to nothing, so that
    // the fingerprint is that of an empty slot and must be changed, or to one.
    std::uint64_t summed = config.hash_seed[1];
    const std::array<std::uint64_t, 3> words = {number, Scramble(number), 0};
    for (const std::uint64_t word : words) {
      summed = (summed ^ word) * 0xD6E8FEB86659FD93ull;
      summed ^= summed >> 32;
    }
    summed ^= config.hash_seed[0] & 1;
    std::memcpy(key.data(), words.data(), 24);
    std::memcpy(key.data() + 24, &summed, 8);
    return;
  }
  std::memset(key.data(), number == ~std::uint64_t{0} ? 0xFF : 0, key.size());
  std::memcpy(key.data() + key.size() - 8, &number, 8);
}

TableSetup MakeTableSetup(std::size_t index) {
  TableSetup setup;
  PoolConfig& config = setup.config;
  config.hash_seed[0] = Scramble(index + kGolden);
  config.hash_seed[1] = Scramble(index + 2 * kGolden) | 1;
  config.geometry = kGeometries[Digit(&index, kGeometries.size())];
  std::uint64_t newest = 1u << (config.geometry.levels - 1 + Digit(&index, 2));
  // So that keys have different candidates in a level of their own, and items can be displaced.
  if (config.geometry == Geometry{1, 2, 2} && newest > 1) newest = 4;
  config.levels =
      Growth{config.geometry, 2}.Levels(std::max<std::uint64_t>(newest, config.geometry.locations));
  const std::size_t key_kind = Digit(&index, kKeySizes.size());
  config.key_size = kKeySizes[key_kind];
  setup.equal_hashes = key_kind == 2;
  config.attributes = {{"number", 0, 8}};
  // HashKey multiplies the last of four words by zero then, so that one of its two sums is lost.
  if (setup.equal_hashes) config.hash_seed[1] = 4 * kGolden;
  config.value_size = kValueSizes[Digit(&index, kValueSizes.size())];
  setup.contents = static_cast<TableSetup::Contents>(Digit(&index, 3));
  // The first levels and one page of value cells, with room for no or one further level, or many,
  // of which one may be there already.
  const std::uint64_t pages =
      config.geometry.levels + (InlineValues(config.value_size) ? 0 : 1) + index;
  const bool roomy = index >= 2;
  setup.growing = index == 3;
  setup.max_bytes = roomy
                        ? (setup.growing ? 4 : 1) * kRoomyBytes
                        : FirstExtentOffset(config.key_size, config.geometry) + pages * kPageBytes;
  // Few keys that hash apart always find slots then, but in geometries that fill up badly.
  setup.has_room = roomy && !setup.equal_hashes && config.geometry.locations > 1 &&
                   config.geometry.candidates() >= 8;
  return setup;
}

std::string Describe(const TableSetup& setup) {
  const PoolConfig& config = setup.config;
  constexpr const char* kContents[] = {"empty", "with some keys", "nearly full"};
  return fmt::format(
      "{}L-{}H-{}S, first levels of {} buckets{}, keys of {} bytes{}, values of {}, {}, at most {} "
      "bytes",
      config.geometry.levels, config.geometry.locations, config.geometry.slots,
      fmt::join(config.levels, " + "), setup.growing ? " and a new one" : "", config.key_size,
      setup.equal_hashes ? " that hash alike" : "", config.value_size,
      kContents[static_cast<int>(setup.contents)], setup.max_bytes);
}

BasePool MakeBasePool(const TableSetup& setup, ScratchPool* pool) {
  const PoolConfig& config = setup.config;
  BasePool base;
  pool->Remove();
  const std::uint64_t max_bytes = setup.growing ? setup.max_bytes / 4 : setup.max_bytes;
  Pool::Create(pool->path(), config, Pool::Options{.max_bytes = max_bytes});
  OpenOptions open;
  open.executor = ExecutorKind::kCpu;
  open.threads = 1;
  open.max_bytes = max_bytes;
  const auto store = StoreImpl::Open(pool->path(), open);
  const auto insert = [&](std::uint64_t number) {
    const StoreStats stats = store->Stats();
    if (static_cast<double>(stats.items + 1) >
        kNearlyFull * static_cast<double>(stats.capacity_slots)) {
      return false;
    }
    std::vector<std::byte> key(config.key_size);
    std::vector<std::byte> value(config.value_size);
    Result result = Result::kInvalid;
    const std::uint64_t written = kBaseValues + number % kBaseValues;
    setup.PutKey(number, key);
    PutValue(written, value);
    Batch batch;
    batch.op = Op::kInsert;
    batch.keys = key;
    batch.values = value;
    batch.results = std::span(&result, 1);
    store->Wait(store->Start(batch, nullptr));
    if (result == Result::kOk) base.values[number] = written;
    return result == Result::kOk;
  };
  if (setup.contents != TableSetup::Contents::kNothing) {
    for (std::size_t i = 0; i < kKeyNumbers.size(); i += 3) insert(kKeyNumbers[i]);
  }
  if (setup.contents == TableSetup::Contents::kNearlyFull) {
    for (std::uint64_t number = kFirstFiller; insert(number);) ++number;
  }
  store->Close();
  if (setup.growing) {
    const auto closed = Pool::Open(pool->path(), Pool::Options{.max_bytes = setup.max_bytes});
    closed->AddLevel(Growth{config.geometry, 2}.Next(closed->superblock().levels[0].buckets));
  }
  base.image = pool->Read();
  SpoilFreeSpace(Pool::Open(pool->path(), Pool::Options{.read_only = true})->superblock(),
                 &base.image);
  pool->Remove();
  return base;
}

gpm::Batch ClientCall::Batch() {
  gpm::Batch batch;
  if (mixed) {
    batch.ops = ops;
  } else {
    batch.op = ops.front();
  }
  batch.keys = keys;
  if (mixed ? !without_values : Writes(ops.front())) batch.values = values;
  if (mixed || GivesValue(ops.front())) batch.found = found;
  batch.results = results;
  batch.element = Element::kUInt64;
  return batch;
}

Workload MakeWorkload(std::uint64_t seed) {
  std::mt19937_64 random(Scramble(seed + kGolden));
  const auto below = [&](std::uint64_t n) { return random() % n; };
  Workload workload;
  workload.table = below(kTableSetups);
  workload.threads = below(4) == 0 ? 2 : 1;
  workload.cache.directory = below(4) != 0;
  workload.cache.policy = static_cast<CachePolicy>(1 + below(4));
  const bool has_cache = *workload.cache.directory && below(4) != 0;
  workload.cache.fraction = has_cache ? 0.5 * static_cast<double>(1 + below(2)) : 0;
  workload.cache.refresh_interval = 1 + below(6);
  // Blocks change hands all the time, and there is little else to be interrupted.
  const bool is_duel = has_cache && below(3) == 0;
  if (is_duel) {
    workload.table = kDuelTables[below(kDuelTables.size())];
    workload.threads = 1;
    workload.cache.policy = below(2) == 0 ? CachePolicy::kLru : CachePolicy::kRandom;
    workload.cache.fraction = 0.5;
    workload.cache.refresh_interval = 1 + below(2);
  }
  const TableSetup setup = MakeTableSetup(workload.table);
  // Half of the tables grow by levels that are composed, the others drain the oldest.
  if (Scramble(seed) % 2 == 0) workload.growth_pause = OpenOptions{}.growth_pause;
  // In half of them items are moved for inserts that find no slot, as long as that helps.
  workload.grow_above = Scramble(seed) / 2 % 2 == 0 ? 1 : 0;

  std::vector<std::uint64_t> numbers(kKeyNumbers.begin(), kKeyNumbers.end());
  std::shuffle(numbers.begin(), numbers.end(), random);
  numbers.resize(1 + below(5));

  // A workload has kinds that it prefers, so that keys come and go, or slots fill, or values
  // change.
  std::vector<Op> kinds = {Op::kFind,  Op::kInsert,       Op::kUpdate,    Op::kUpsert,
                           Op::kErase, Op::kFindOrInsert, Op::kAccumulate};
  for (int i = 0; i < 4; ++i) kinds.push_back(kinds[below(kOpKinds)]);
  if (is_duel) {
    numbers = {kKeyNumbers[3], kKeyNumbers[6]};  // which are there
    kinds = {Op::kFind, Op::kUpdate};
  }
  workload.key_numbers = numbers;

  std::uint64_t next_id = 1;
  std::uint64_t next_value = 1;
  std::uint64_t operations = 0;
  const bool is_long = !is_duel && below(8) == 0;
  workload.clients.resize(is_long ? 2 : 2 + below(3));
  for (std::vector<ClientCall>& calls : workload.clients) {
    calls.resize(1 + below(is_long ? 6 : 3));
    for (ClientCall& call : calls) {
      call.id = next_id++;
      if (!is_duel && below(24) == 0) {
        call.kind = call.id % 2 == 0 ? ClientCall::Kind::kForEach : ClientCall::Kind::kSearch;
        continue;
      }
      if (has_cache && !is_duel && below(12) == 0) {
        call.kind = ClientCall::Kind::kLoadCache;
        continue;
      }
      call.overlaps_next = below(8) == 0;
      call.mixed = below(4) != 0;
      call.without_values = below(32) == 0;
      const std::size_t n = 1 + below(is_duel ? 2 : 4);
      operations += n;
      const Op kind = kinds[below(kinds.size())];
      for (std::size_t i = 0; i < n; ++i) {
        call.key_numbers.push_back(numbers[below(numbers.size())]);
        call.value_numbers.push_back(next_value++);
        call.ops.push_back(call.mixed ? kinds[below(kinds.size())] : kind);
      }
      call.keys = Rows(n, setup.config.key_size, [&](std::size_t i, std::span<std::byte> row) {
        setup.PutKey(call.key_numbers[i], row);
      });
      call.values = Rows(n, setup.config.value_size, [&](std::size_t i, std::span<std::byte> row) {
        PutValue(call.value_numbers[i], row);
      });
      call.found.resize(call.values.size());
      call.results.resize(n, Result::kInvalid);
    }
  }
  workload.hash = Scramble(HashCalls(workload.clients) + 2 * workload.table + workload.threads);

  Scheduler::Options& schedule = workload.schedule;
  schedule.seed = random();
  schedule.strategy = below(2) == 0 ? Scheduler::Strategy::kRandom : Scheduler::Strategy::kPct;
  schedule.depth = static_cast<std::uint32_t>(2 + below(5));
  // Two looks at all candidates, and some ten accesses of the protocol.
  const std::uint64_t value_words = setup.config.value_size / 8;
  schedule.expected_steps =
      operations * (2 * setup.config.geometry.candidates() + 10 + value_words);
  // A loading: of each block some words, and the values that it fills in.
  if (is_duel) schedule.expected_steps += operations * (10 + 2 * value_words);
  // (Keys that hash alike may make the table grow to the pool's limit, of a sudden.)
  schedule.max_steps = 4'000'000;
  return workload;
}

std::string Describe(const Workload& workload) {
  std::size_t calls = 0;
  for (const auto& client : workload.clients) calls += client.size();
  const Scheduler::Options& schedule = workload.schedule;
  const bool random = schedule.strategy == Scheduler::Strategy::kRandom;
  const std::string_view directory = !*workload.cache.directory ? "no directory" : "a directory";
  const std::string cache =
      *workload.cache.fraction == 0
          ? "no cache"
          : fmt::format("{} of the buckets cached ({}, loaded every {} operations)",
                        *workload.cache.fraction, CachePolicyName(workload.cache.policy),
                        *workload.cache.refresh_interval);
  return fmt::format(
      "table {} ({}), {}, {}, {}{}{} clients, {} calls, {} executor threads, schedule {}",
      workload.table, Describe(MakeTableSetup(workload.table)), directory, cache,
      workload.growth_pause > 0 ? "levels that are composed, " : "",
      workload.grow_above > 0 ? "items that are displaced, " : "", workload.clients.size(), calls,
      workload.threads, random ? "random" : fmt::format("PCT of depth {}", schedule.depth));
}

}  // namespace gpm::crash
