#include "crash_sim/crash_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

#include "engine/store_impl.h"
#include "pm/crc32c.h"
#include "pm/pool.h"
#include "pm/space.h"
#include "table/geometry.h"
#include "table/hash.h"
#include "table/layout.h"

namespace gpm::crash {
namespace {

/// One of `choices`.
template <class T, std::size_t n>
T Pick(std::mt19937_64& random, const T (&choices)[n]) {
  return choices[random() % n];
}
template <class T>
T Pick(std::mt19937_64& random, const std::vector<T>& choices) {
  return choices[random() % choices.size()];
}

std::string AsText(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// Levels of which the newest has 2^bits buckets, or as many as there are locations.
LevelSizes FirstLevels(const Shape& shape, std::uint64_t bits) {
  const std::uint64_t newest = std::max<std::uint64_t>(1u << bits, shape.geometry.locations);
  return Growth{shape.geometry, shape.growth}.Levels(newest);
}

Shape RandomShape(std::mt19937_64& random) {
  constexpr std::uint32_t kKeySizes[] = {8, 8, 5, 32, 29};
  constexpr std::uint32_t kValueSizes[] = {3, 8, 8, 8, 12, 24, 24, 24, 100, 400};
  constexpr Geometry kGeometries[] = {{1, 1, 2}, {1, 2, 2}, {2, 1, 2}, {2, 2, 2}, {2, 2, 2},
                                      {1, 1, 4}, {4, 1, 2}, {2, 2, 4}, {1, 2, 1}, {2, 2, 8}};
  constexpr std::uint64_t kFreePages[] = {0, 1, 2, 4, 8, 16, 32};
  constexpr std::uint64_t kMorePages[] = {0, 0, 1, 4, 16};
  constexpr unsigned kThreads[] = {1, 1, 2, 3};
  constexpr double kGrowths[] = {2, 2, 2, 1.5, 1.25, 3};
  Shape shape;
  shape.key_size = Pick(random, kKeySizes);
  shape.value_size = Pick(random, kValueSizes);
  shape.geometry = Pick(random, kGeometries);
  shape.growth = Pick(random, kGrowths);
  // In half of them items are moved for inserts that find no slot, as long as that helps: in levels
  // in which keys have different candidates.
  shape.grow_above = random() % 2 == 0 ? 1 : 0;
  const bool larger = shape.grow_above > 0 && shape.geometry.candidates() <= 8;
  shape.levels = FirstLevels(shape, shape.geometry.levels - 1u + random() % 2 + (larger ? 2 : 0));
  shape.hash_seed = random();
  shape.max_bytes = FirstExtentOffset(shape.key_size, shape.geometry);
  for (const std::uint64_t buckets : shape.levels) {
    shape.max_bytes += RoundUp(BucketBytes(shape.key_size, shape.geometry) * buckets, kPageBytes);
  }
  shape.max_bytes += kPageBytes * Pick(random, kFreePages);
  shape.max_bytes_later = shape.max_bytes + kPageBytes * Pick(random, kMorePages);
  shape.threads = Pick(random, kThreads);
  const std::uint64_t slots = SlotsOf(shape.geometry, shape.levels);
  shape.keys = static_cast<std::uint32_t>(3 + random() % (2 * slots));
  shape.directory = random() % 2 == 0;
  // Half of the tables grow by levels that are composed, the others drain the oldest.
  if (random() % 2 == 0) shape.growth_pause = OpenOptions{}.growth_pause;
  return shape;
}

}  // namespace

/// A store under test, beside what it must hold.
class CrashWorkload::Session {
 public:
  Session(CrashWorkload& workload, Machine& machine, ScratchPool& scratch)
      : workload_(workload), machine_(machine), path_(scratch.path()) {}

  void Create() {
    CreateOptions create;
    create.key_size = workload_.shape_.key_size;
    create.value_size = workload_.shape_.value_size;
    create.geometry = workload_.shape_.geometry;
    create.hash_seed = workload_.shape_.hash_seed;
    create.initial_capacity = workload_.initial_capacity_;
    store_ = StoreImpl::Create(path_, create, Options(workload_.shape_.max_bytes), &machine_);
    workload_.MarkPromise(machine_, Promise{});
  }
  /// Opens the pool; @return false when the process was killed meanwhile
  bool Open(std::uint64_t max_bytes) {
    machine_.ChangeThread();
    // An earlier session may have been given more.
    max_bytes = std::max<std::uint64_t>(max_bytes, std::filesystem::file_size(path_));
    try {
      store_ = StoreImpl::Open(path_, Options(max_bytes), &machine_);
    } catch (const Machine::Killed&) {
      machine_.Revive();
      return false;
    } catch (const Error& error) {  // a resize can't be finished with so little room
      if (error.code() != ErrorCode::kNoSpace || max_bytes == kMaxPoolBytes) throw;
      return Open(kMaxPoolBytes);
    }
    machine_.Revive();
    contents_.clear();
    store_->ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      contents_.emplace(AsText(key), AsText(value));
    });
    workload_.promises_.back().Check(contents_);
    workload_.MarkPromise(machine_, Promise{.acknowledged = contents_, .in_flight = {}});
    return true;
  }
  /// Closes the store, unless the process is killed meanwhile.
  void Close() {
    machine_.ChangeThread();
    try {
      store_->Close();
    } catch (const Machine::Killed&) {
    }
    machine_.Revive();
    store_.reset();
  }
  void Crash() { store_.reset(); }

  /// Makes room for items, by as many levels at once as they need. @return as Apply
  bool Reserve(std::uint64_t items) {
    machine_.ChangeThread();
    return Survives([&] { store_->Reserve(items); });
  }

  /// Gives back what the items do not need. @return as Apply
  bool Compact() {
    machine_.ChangeThread();
    return Survives([&] { store_->Compact(); });
  }

  /// @return false when the process was killed meanwhile, or gave up a resize: there is too little
  ///         room to finish it, and opening goes on with it
  bool Apply(BatchData& batch) {
    machine_.ChangeThread();
    const std::uint64_t mark = workload_.promises_.size();
    workload_.MarkPromise(machine_, Promise{.acknowledged = contents_, .in_flight = {}});
    const bool killed = !Survives([&] { store_->Wait(store_->Start(batch.View(), nullptr)); });
    batch.Apply(contents_, &workload_.promises_[mark].in_flight, killed);
    if (!killed) {
      workload_.MarkPromise(machine_, Promise{.acknowledged = contents_, .in_flight = {}});
    }
    return !killed;
  }

 private:
  /// Makes a call on the store. @return false when the process was killed in it, or it lacked room
  template <class Call>
  bool Survives(const Call& call) {
    bool killed = false;
    try {
      call();
    } catch (const Machine::Killed&) {
      killed = true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNoSpace) throw;
      killed = true;
    }
    if (killed) store_.reset();
    machine_.Revive();
    return !killed;
  }

  OpenOptions Options(std::uint64_t max_bytes) const {
    OpenOptions options;
    options.executor = ExecutorKind::kCpu;
    options.threads = workload_.shape_.threads;
    options.max_bytes = max_bytes;
    options.cache.directory = workload_.shape_.directory;
    options.growth = workload_.shape_.growth;
    options.growth_pause = workload_.shape_.growth_pause;
    options.grow_above = workload_.shape_.grow_above;
    return options;
  }

  CrashWorkload& workload_;
  Machine& machine_;
  const std::string path_;
  std::unique_ptr<StoreImpl> store_;
  Contents contents_;
};

CrashWorkload::Start CrashWorkload::PickStart(std::mt19937_64& random) {
  constexpr Start kEmpty = Start::kEmptyPool;
  constexpr Start kStarts[] = {Start::kCreation,
                               Start::kUnluckyKeys,
                               Start::kCrowd,
                               Start::kFullTable,
                               Start::kFullTable,
                               kEmpty,
                               kEmpty,
                               kEmpty,
                               kEmpty,
                               kEmpty,
                               kEmpty,
                               kEmpty};
  return Pick(random, kStarts);
}

CrashWorkload::CrashWorkload(std::uint64_t seed)
    : random_(Scramble(seed)), start_(PickStart(random_)), shape_(RandomShape(random_)) {
  if (start_ == Start::kCreation) {
    // The store chooses the first levels, which are not small.
    shape_.geometry = Geometry{1, 1, 2};
    shape_.max_bytes = shape_.max_bytes_later = kSmallPoolBytes;
    shape_.keys = 3 + static_cast<std::uint32_t>(random_() % 64);
    if (random_() % 2 == 0) initial_capacity_ = 20;
  } else if (start_ == Start::kUnluckyKeys) {
    shape_.geometry = Geometry{1, 2, 2};
    shape_.growth = 2;
    shape_.grow_above = 0;
    shape_.levels = FirstLevels(shape_, 2);
    shape_.threads = 1;
    shape_.max_bytes = shape_.max_bytes_later = kSmallPoolBytes;
  } else if (start_ == Start::kCrowd) {
    shape_.geometry = Geometry{1, 2, 4};
    shape_.growth = 1.5;
    shape_.grow_above = 0;
    shape_.growth_pause = OpenOptions{}.growth_pause;
    shape_.levels = FirstLevels(shape_, 2);
    shape_.max_bytes = shape_.max_bytes_later = kSmallPoolBytes;
  }
  promises_.push_back(
      Promise{.acknowledged = {}, .in_flight = {}, .being_created = start_ == Start::kCreation});
}

CrashWorkload::CrashWorkload(const CrashWorkload& crashed, std::uint64_t seed, Image left,
                             Contents contents)
    : random_(Scramble(seed)),
      start_(Start::kRecovery),
      shape_(crashed.shape_),
      before_(std::move(left)),
      tag_(crashed.tag_) {
  promises_.push_back(Promise{.acknowledged = std::move(contents), .in_flight = {}});
}

void CrashWorkload::Run(Machine& machine, ScratchPool& scratch) {
  Session session(*this, machine, scratch);
  std::uint64_t actions = random_() % 2;
  switch (start_) {
    case Start::kCreation:
      scratch.Remove();
      machine.Begin(0);
      session.Create();
      break;
    case Start::kEmptyPool:
    case Start::kFullTable:
    case Start::kUnluckyKeys:
    case Start::kCrowd:
      CreateEmptyPool(scratch);
      before_ = scratch.Read();
      machine.Begin(8 * before_.size());
      session.Open(shape_.max_bytes);
      break;
    case Start::kRecovery:
      scratch.Set(before_);
      machine.Begin(8 * before_.size());
      session.Open(shape_.max_bytes_later);
      break;
  }
  if (start_ == Start::kEmptyPool || start_ == Start::kFullTable) {
    for (std::uint64_t i = random_() % 12; i > 0; --i) Act(session, machine);
    first_mark_ = promises_.size();
    actions = 1 + random_() % 4;
  }
  if (start_ == Start::kFullTable || start_ == Start::kUnluckyKeys) {
    BatchData batch = start_ == Start::kFullTable ? FillingBatch() : UnluckyBatch();
    if (!session.Apply(batch)) session.Open(shape_.max_bytes_later);
  }
  if (start_ == Start::kCrowd && !GrowByCrowd(session, machine)) {
    session.Open(shape_.max_bytes_later);
  }
  for (std::uint64_t i = 0; i < actions; ++i) Act(session, machine);
  if (random_() % 2 == 0) session.Close();
  session.Crash();
  trace_ = machine.trace();
  if (const std::string escaped = trace_.FirstDifference(before_, scratch.Read());
      !escaped.empty()) {
    throw Violation(escaped);
  }
}

/// A batch, which a process crash may interrupt, or the end of a session and the next.
void CrashWorkload::Act(Session& session, Machine& machine) {
  // Early in recovery or a close, or later: a superblock is 512 stores.
  constexpr std::uint64_t kUntil[] = {20, 200, 1500};
  const auto kill_sometimes = [&] {
    if (random_() % 4 == 0) machine.KillAt(random_() % Pick(random_, kUntil));
  };
  const std::uint64_t kind = random_() % 20;
  bool running = true;
  if (kind < 4) {
    kill_sometimes();
    session.Close();
    running = false;
  } else if (kind < 6) {
    session.Crash();
    running = false;
  } else if (kind == 6) {
    const std::uint64_t slots = SlotsOf(shape_.geometry, shape_.levels);
    kill_sometimes();
    running = session.Reserve(random_() % (6 * slots));
  } else if (kind < 9) {
    kill_sometimes();
    running = session.Compact();
  } else {
    BatchData batch(shape_);
    batch.Fill(random_, 1 + random_() % 8, &tag_);
    if (kind < 13) machine.KillAt(random_() % (8 * batch.size()));
    running = session.Apply(batch);
  }
  while (!running) {
    kill_sometimes();
    running = session.Open(shape_.max_bytes_later);
  }
}

/// Inserts of more new keys than the first levels have slots.
BatchData CrashWorkload::FillingBatch() {
  BatchData batch(shape_);
  const std::uint64_t slots = SlotsOf(shape_.geometry, shape_.levels);
  for (std::uint64_t i = 0; i <= slots; ++i) batch.Add(Op::kInsert, shape_.keys + i, ++tag_);
  return batch;
}

/// Inserts for which the table (1L-2H-2S, 4 buckets) is resized to one in which an item finds no
/// slot, so that there has to be one more level, and the one that was to be the newest is drained
/// too. Of what a key's two buckets will be there, (x, y), both are full when the last is moved: x
/// by the first of (x, y') and the last of (x, y'), y by two of (x, y); each moves to the emptier
/// of its two, of equals to the first, and they move in the order of their buckets now. The first
/// six are inserted so that they lie where that needs, and the seventh so that it finds no slot.
BatchData CrashWorkload::UnluckyBatch() {
  const TableView table =
      MakeTableView(nullptr, *reinterpret_cast<const Superblock*>(before_.data()));
  const auto find_key = [&](std::uint64_t* number, std::uint64_t x, std::uint64_t y) {
    for (;; ++*number) {
      const std::string key = shape_.Key(*number);
      std::vector<std::uint64_t> words(table.key_words);
      std::memcpy(words.data(), key.data(), key.size());
      const KeyHash hash = LocateKey(table, words.data()).hash;
      if (BucketNumber(hash, 0, 4) == x && BucketNumber(hash, 1, 4) == y) {
        return (*number)++;
      }
    }
  };
  std::uint64_t next = shape_.keys;  // numbers that other batches do not use
  BatchData batch(shape_);
  for (const std::uint64_t y : {4, 6, 6, 6, 4, 4, 6}) {
    batch.Add(Op::kInsert, find_key(&next, 0, y), ++tag_);
  }
  return batch;
}

/// Keys that all have the same two buckets in the level by which the table (1L-2H-4S, 4 buckets)
/// grows, and are too many for them. Each of the two is a part of two of the buckets now, so that
/// they find slots in those four.
std::vector<std::uint64_t> CrashWorkload::Crowd() const {
  constexpr std::size_t kCrowd = 12;
  const auto* const superblock = reinterpret_cast<const Superblock*>(before_.data());
  const TableView table = MakeTableView(nullptr, *superblock);
  const auto part = static_cast<std::uint32_t>(
      Growth{shape_.geometry, shape_.growth}.Next(shape_.levels[0]) / table.locations);
  std::vector<std::uint64_t> numbers;
  // (Numbers that other batches do not use.)
  for (std::uint64_t number = shape_.keys; numbers.size() < kCrowd; ++number) {
    const std::string key = shape_.Key(number);
    std::vector<std::uint64_t> words(table.key_words);
    std::memcpy(words.data(), key.data(), key.size());
    const KeyHash hash = LocateKey(table, words.data()).hash;
    if (ShareOf(hash.h, part) == 1 && ShareOf(hash.h + hash.g, part) == 1) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

/// The table grows by a level that is composed, in which some items find no slot, and batches drain
/// the oldest. A batch works on its keys meanwhile.
bool CrashWorkload::GrowByCrowd(Session& session, Machine& machine) {
  const std::vector<std::uint64_t> crowd = Crowd();
  const std::uint64_t slots = SlotsOf(shape_.geometry, shape_.levels);
  BatchData filling(shape_);
  for (const std::uint64_t number : crowd) filling.Add(Op::kInsert, number, ++tag_);
  for (std::uint64_t other = crowd.back() + 1; filling.size() <= slots; ++other) {
    filling.Add(Op::kInsert, other, ++tag_);
  }
  if (!session.Apply(filling)) return false;
  BatchData batch(shape_);
  while (batch.size() < crowd.size() / 2) {
    batch.Add(static_cast<Op>(random_() % kOpKinds), Pick(random_, crowd), ++tag_);
  }
  if (random_() % 2 == 0) machine.KillAt(random_() % (16 * batch.size()));
  return session.Apply(batch);
}

void CrashWorkload::MarkPromise(Machine& machine, Promise promise) {
  machine.Mark(promises_.size());
  promises_.push_back(std::move(promise));
}

/// Pool::Create, made the same for the same seed: its UUID is random.
void CrashWorkload::CreateEmptyPool(ScratchPool& scratch) {
  PoolConfig config;
  config.key_size = shape_.key_size;
  config.value_size = shape_.value_size;
  config.geometry = shape_.geometry;
  config.levels = shape_.levels;
  config.hash_seed[0] = shape_.hash_seed;
  config.hash_seed[1] = Scramble(shape_.hash_seed) | 1;
  scratch.Remove();
  Pool::Create(scratch.path(), config, Pool::Options{.max_bytes = shape_.max_bytes});
  Image image = scratch.Read();
  auto& superblock = *reinterpret_cast<Superblock*>(image.data());
  std::memset(superblock.uuid, 1, sizeof superblock.uuid);
  superblock.crc = 0;
  superblock.crc = Crc32c(&superblock, sizeof superblock);
  if (random_() % 3 == 0) {  // free space may hold anything
    for (std::size_t i = UsedEnd(superblock) / 8; i < image.size(); ++i) {
      if (random_() % 3 == 0) image[i] = Scramble(i);
    }
  }
  scratch.Set(image);
}

}  // namespace gpm::crash
