#include <algorithm>
#include <bit>
#include <cub/device/device_merge_sort.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <mutex>
#include <utility>

#include "engine/cuda/kernels/item_ranks.cuh"
#include "engine/cuda/kernels/read_numbers.cuh"
#include "engine/cuda/load_kernels.h"
#include "engine/cuda/table_copy.h"
#include "pm/driver_turns.h"

namespace gpm {
namespace {

/// Ranks in GPU memory: 24 bytes for each place, of which items take an eighth to 0.8. What is
/// needed to choose some is kept from one eviction to the next: 16 bytes for each item, with kScore
/// 24, beside what a batch's keys take. Every eviction looks at all items.
class CudaItemRanks : public ItemRanks {
 public:
  CudaItemRanks(const RankedItems& of, CudaExecutor& executor, DeviceMemory* memory)
      : of_(of),
        executor_(executor),
        memory_(memory),
        look_(memory, &stream_),
        there_(memory, &stream_),
        missing_(memory, &stream_),
        known_(memory, &stream_),
        ids_(memory, &stream_),
        ranks_(memory, &stream_),
        rows_(memory, &stream_),
        chosen_(memory, &stream_),
        chosen_keys_(memory, &stream_),
        last_(memory, &stream_),
        counters_(memory, &stream_),
        library_(memory, &stream_) {
    LoadKernelsBeside(reinterpret_cast<const void*>(NoteUses));
    last_.Reserve(1);
    counters_.Reserve(kCounters);
    Clear(counters_.data(), kCounters);
    known_ = MakePlaces(kFewestPlaces);
  }

  std::unique_ptr<NotedUses> Note(const Batch& batch) override;
  void Take(std::uint64_t batch, const NotedUses& noted) override;
  std::unique_ptr<KeysOfBatch> LookAt(const Batch& batch, const Find& find) override;
  void ReadScores(TableCopy* items) override;
  std::vector<std::byte> Choose(TableCopy* items, std::uint64_t wanted,
                                const KeysOfBatch* kept) override;

 private:
  /// Copies of arrays that kernels do not reach.
  struct Inputs {
    Inputs(DeviceMemory* memory, LastUse last_use)
        : keys(memory, last_use), ops(memory, last_use), results(memory, last_use) {}
    DeviceArray<std::byte> keys, ops, results;
  };
  struct Buffers {
    explicit Buffers(DeviceMemory* memory) : inputs(memory, &stream), uses(memory, &taken) {}
    ~Buffers() { const AwaitAtEnd ended(stream); }
    CudaStream stream;
    CudaEvent taken;  ///< recorded behind what takes the uses
    Inputs inputs;
    DeviceArray<std::uint64_t> uses;
  };
  struct Uses;
  struct Keys : KeysOfBatch {
    IdPlaces places;  ///< of those that are there; until the next LookAt
  };
  struct Known {
    Known(DeviceMemory* memory, LastUse last_use)
        : ids(memory, last_use),
          batches(memory, last_use),
          added(memory, last_use),
          uses(memory, last_use),
          anew(memory, last_use) {}
    DeviceArray<std::uint64_t> ids, batches;
    DeviceArray<std::uint64_t> added;  ///< one: of these ids, whatever fails while others are made
    DeviceArray<std::uint32_t> uses, anew;
  };
  enum Counter { kUnplaced, kKnown, kChosen, kThere, kMissing, kCounters };

  static constexpr std::uint64_t kFewestPlaces = std::uint64_t{1} << 12;
  /// Of ids that there are, as many places are made, and as many are too many.
  static constexpr std::uint64_t kPlacesOfId = 2;
  static constexpr std::uint64_t kMostPlacesOfId = 8;
  /// More may be chosen than are wanted, if some have the same rank and id.
  static constexpr std::uint64_t kRoomForEqual = 64;

  template <class T>
  const T* Reach(std::span<const T> array, DeviceArray<std::byte>* copy, cudaStream_t stream);
  OperationArrays Reach(const Batch& batch, Inputs* inputs, cudaStream_t stream);
  template <class T>
  void Clear(T* array, std::uint64_t count) {
    CheckCuda(cudaMemsetAsync(array, 0, count * sizeof(T), stream_), "cudaMemsetAsync");
  }
  /// Waits for all before. @return so many counters
  template <std::size_t kCount>
  std::array<std::uint64_t, kCount> Read(const std::uint64_t* first);
  std::uint64_t ReadAdded(const Known& known) { return Read<1>(known.added.data())[0]; }
  KnownUses View(const Known& known) const {
    return {{known.ids.data(), known.ids.size()},
            known.batches.data(),
            known.uses.data(),
            known.anew.data(),
            known.added.data()};
  }
  Known MakePlaces(std::uint64_t places);
  bool Fits(std::uint64_t ids) const { return 5 * (most_added_ + ids) <= 4 * known_.ids.size(); }
  /// What fails leaves kernels that read the uses.
  void TakeUses(std::uint64_t batch, const Uses& taken);
  /// Makes room for the ids of uses.
  void MakeRoom(const std::uint64_t* uses, std::uint64_t count);
  /// So many places; ids of which nothing is known are forgotten.
  void MovePlaces(std::uint64_t places);
  /// After items were chosen: what takes memory in vain is forgotten.
  /// @param known ids of which something is known
  void Forget(const ItemKeys& items, std::uint64_t known);
  template <class... Arguments>
  void Count(Counter counter, std::uint64_t things, const char* name, auto* kernel,
             const Arguments&... arguments) {
    Clear(counters_.data() + counter, 1);
    LaunchFor(name, things, stream_, kernel, View(known_), arguments...,
              counters_.data() + counter);
  }
  void CountKnownIds() { Count(kKnown, known_.ids.size(), "CountKnown", CountKnown); }
  void FindLast(std::uint64_t items, std::uint64_t wanted);
  void FindDigits(std::uint64_t items, bool of_id, std::uint32_t bits);
  void ReturnNote(std::unique_ptr<Buffers> note) noexcept;

  const RankedItems of_;
  CudaExecutor& executor_;
  DeviceMemory* const memory_;
  CudaStream stream_;  ///< of all but Note
  Inputs look_;
  DeviceArray<std::uint64_t> there_, missing_;  ///< places of ids, of LookAt
  Known known_;
  std::uint64_t most_added_ = 0;            ///< ids in known_, at most
  bool ends_anew_ = true;                   ///< known_.anew is 0 again behind what was launched
  std::uint64_t newest_ = 0;                ///< batch that was taken
  DeviceArray<std::uint64_t> ids_, ranks_;  ///< of all items
  DeviceArray<std::uint32_t> rows_;         ///< of items in the order of addresses
  DeviceArray<ChosenItem> chosen_;
  DeviceArray<std::byte> chosen_keys_;
  DeviceArray<LastChosen> last_;
  DeviceArray<std::uint64_t> counters_;
  DeviceArray<std::byte> library_;
  std::mutex mutex_;  ///< guards what follows
  std::vector<std::unique_ptr<Buffers>> notes_;
};

/// Ids with their kinds, in batch order; when they are taken, places instead of ids.
struct CudaItemRanks::Uses : NotedUses {
  Uses(CudaItemRanks& of, std::unique_ptr<Buffers> made) : ranks(of), note(std::move(made)) {}
  ~Uses() override { ranks.ReturnNote(std::move(note)); }
  CudaItemRanks& ranks;
  std::unique_ptr<Buffers> note;
  std::uint64_t count = 0;
  bool begin_anew = false;  ///< some of them may
};

void CudaItemRanks::ReturnNote(std::unique_ptr<Buffers> note) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    notes_.push_back(std::move(note));
  } catch (const std::bad_alloc&) {  // the next batch makes one
  }
}

template <class T>
const T* CudaItemRanks::Reach(std::span<const T> array, DeviceArray<std::byte>* copy,
                              cudaStream_t stream) {
  if (array.empty()) return nullptr;
  cudaPointerAttributes attributes{};
  CheckCuda(cudaPointerGetAttributes(&attributes, array.data()), "cudaPointerGetAttributes");
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged:
      return array.data();
    case cudaMemoryTypeHost:
      if (attributes.devicePointer == nullptr) break;
      return static_cast<const T*>(attributes.devicePointer);
    default:
      break;
  }
  copy->Reserve(array.size_bytes());
  const auto* const bytes = reinterpret_cast<const std::byte*>(array.data());
  if (array.size_bytes() > HostCopier::kLeftToDriver) {
    executor_.Copier().ToDevice(copy->data(), bytes, array.size_bytes(), stream);
  } else {
    CheckCuda(
        cudaMemcpyAsync(copy->data(), bytes, array.size_bytes(), cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync to the device");
  }
  return reinterpret_cast<const T*>(copy->data());
}

OperationArrays CudaItemRanks::Reach(const Batch& batch, Inputs* inputs, cudaStream_t stream) {
  OperationArrays arrays;
  arrays.keys = Reach(std::span<const std::byte>(batch.keys), &inputs->keys, stream);
  arrays.ops = Reach(std::span<const Op>(batch.ops), &inputs->ops, stream);
  arrays.op = batch.op;
  arrays.count = batch.results.size();
  arrays.key_size = of_.key_size;
  return arrays;
}

template <std::size_t kCount>
std::array<std::uint64_t, kCount> CudaItemRanks::Read(const std::uint64_t* first) {
  std::array<std::uint64_t, kCount> counts{};
  CheckCuda(cudaMemcpyAsync(counts.data(), first, sizeof counts, cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync to the host");
  CheckCuda(cudaStreamSynchronize(stream_), "a kernel of item ranks");
  return counts;
}

CudaItemRanks::Known CudaItemRanks::MakePlaces(std::uint64_t places) {
  Known known(memory_, &stream_);
  known.ids.Reserve(places);
  known.batches.Reserve(places);
  known.uses.Reserve(places);
  known.anew.Reserve(places);
  known.added.Reserve(1);
  Clear(known.ids.data(), places);
  Clear(known.batches.data(), places);
  Clear(known.uses.data(), places);
  Clear(known.anew.data(), places);
  Clear(known.added.data(), 1);
  return known;
}

void CudaItemRanks::MovePlaces(std::uint64_t places) {
  Known next = MakePlaces(places);
  LaunchFor("MoveKnown", known_.ids.size(), stream_, MoveKnown, View(known_), View(next));
  most_added_ = ReadAdded(next);  // and the former are not in use any more
  known_ = std::move(next);
}

void CudaItemRanks::MakeRoom(const std::uint64_t* uses, std::uint64_t count) {
  std::uint64_t more = count;  // at most
  if (!Fits(more)) {
    Count(kUnplaced, count, "CountUnplaced", CountUnplaced, uses, count);
    more = Read<1>(counters_.data() + kUnplaced)[0];
    most_added_ = ReadAdded(known_);
  }
  if (!Fits(more)) {
    CountKnownIds();
    MovePlaces(
        std::max(kFewestPlaces, kPlacesOfId * (Read<1>(counters_.data() + kKnown)[0] + more)));
  }
  most_added_ += more;
}

void CudaItemRanks::Forget(const ItemKeys& items, std::uint64_t known) {
  try {
    if (known > kMostRanksOfItem * items.count + kFewRanks) {
      Known next = MakePlaces(std::max(kFewestPlaces, kPlacesOfId * items.count));
      LaunchFor("MoveKnownOf", items.count, stream_, MoveKnownOf, items, View(known_), View(next));
      most_added_ = ReadAdded(next);
      known_ = std::move(next);
    } else if (known_.ids.size() > kMostPlacesOfId * std::max(known, kFewestPlaces)) {
      MovePlaces(kPlacesOfId * std::max(known, kFewestPlaces));
    }
  } catch (const Error&) {  // for want of memory: at the next eviction
  }
}

std::unique_ptr<NotedUses> CudaItemRanks::Note(const Batch& batch) {
  const CurrentDevice current = executor_.Activate();
  std::unique_ptr<Buffers> note;
  {
    const std::lock_guard lock(mutex_);
    if (!notes_.empty()) {
      note = std::move(notes_.back());
      notes_.pop_back();
    }
  }
  if (note == nullptr) note = std::make_unique<Buffers>(memory_);
  auto uses = std::make_unique<Uses>(*this, std::move(note));
  const cudaStream_t stream = uses->note->stream;
  CheckCuda(cudaStreamWaitEvent(stream, uses->note->taken, 0), "cudaStreamWaitEvent");
  uses->count = batch.results.size();
  uses->begin_anew = !batch.ops.empty() || Inserts(batch.op) || batch.op == Op::kErase;
  uses->note->uses.Reserve(uses->count);
  OperationArrays arrays = Reach(batch, &uses->note->inputs, stream);
  arrays.results =
      Reach(std::span<const Result>(batch.results), &uses->note->inputs.results, stream);
  {
    const DriverTurns::Launching turn;
    LaunchFor("NoteUses", uses->count, stream, NoteUses, arrays, uses->note->uses.data());
  }
  // The batch's arrays are its caller's then.
  CheckCuda(cudaStreamSynchronize(stream), "NoteUses");
  return uses;
}

void CudaItemRanks::Take(std::uint64_t batch, const NotedUses& noted) {
  const CurrentDevice current = executor_.Activate();
  const auto& taken = static_cast<const Uses&>(noted);
  try {
    TakeUses(batch, taken);
    CheckCuda(cudaEventRecord(taken.note->taken, stream_), "cudaEventRecord");
  } catch (...) {
    cudaStreamSynchronize(stream_);  // another batch may have its uses there soon
    throw;
  }
}

void CudaItemRanks::TakeUses(std::uint64_t batch, const Uses& taken) {
  std::uint64_t* const uses = taken.note->uses.data();
  MakeRoom(uses, taken.count);
  newest_ = batch;
  if (!ends_anew_) Clear(known_.anew.data(), known_.anew.size());
  ends_anew_ = !taken.begin_anew;
  const KnownUses known = View(known_);
  const DriverTurns::Launching turn;
  LaunchFor("PlaceUses", taken.count, stream_, PlaceUses, known, uses, taken.count);
  if (taken.begin_anew) {
    LaunchFor("BeginAnew", taken.count, stream_, BeginAnew, known, uses, taken.count);
  }
  LaunchFor("CountUses", taken.count, stream_, CountUses, known, uses, taken.count, batch,
            of_.capacity.policy);
  if (taken.begin_anew) {
    LaunchFor("EndAnew", taken.count, stream_, EndAnew, known, uses, taken.count);
  }
  ends_anew_ = true;
}

std::unique_ptr<KeysOfBatch> CudaItemRanks::LookAt(const Batch& batch, const Find& find) {
  const CurrentDevice current = executor_.Activate();
  const std::uint64_t n = batch.results.size();
  look_.results.Reserve(n);
  auto* const results = reinterpret_cast<Result*>(look_.results.data());
  find({results, n});
  OperationArrays arrays = Reach(batch, &look_, stream_);
  arrays.results = results;
  const std::uint64_t places = 2 * n;
  there_.Reserve(places);
  missing_.Reserve(places);
  Clear(there_.data(), places);
  Clear(missing_.data(), places);
  Clear(counters_.data() + kThere, 2);
  auto keys = std::make_unique<Keys>();
  keys->places = {there_.data(), places};
  {
    const DriverTurns::Launching turn;
    LaunchFor("TellKeys", n, stream_, TellKeys, arrays, keys->places,
              IdPlaces{missing_.data(), places}, counters_.data() + kThere);
  }
  try {
    const auto [there, missing] = Read<2>(counters_.data() + kThere);
    keys->there = there;
    keys->missing = missing;
  } catch (...) {
    cudaStreamSynchronize(stream_);  // the arrays are the caller's again
    throw;
  }
  return keys;
}

void CudaItemRanks::ReadScores(TableCopy* items) {
  const CurrentDevice current = executor_.Activate();
  const auto& copy = static_cast<const CudaTableCopy&>(*items);
  const AwaitAtEnd ended(stream_);
  const std::uint64_t count = copy.items;
  ranks_.Reserve(count);
  NumbersOfValues to;
  to.Add(of_.capacity.score_offset, of_.capacity.score_bytes, ranks_.data());
  const std::uint64_t* references = copy.device_references.data();
  const std::uint32_t* order = nullptr;
  if (of_.cells != nullptr && count > 0 && count <= ~std::uint32_t{0}) {  // by their addresses
    rows_.Reserve(2 * count);
    ids_.Reserve(count);
    LaunchFor("CountUp", count, stream_, CountUp<std::uint32_t>, rows_.data(),
              static_cast<std::uint32_t>(count));
    CallCubWith(&library_, "DeviceRadixSort", [&](void* storage, std::size_t& bytes) {
      return cub::DeviceRadixSort::SortPairs(storage, bytes, references, ids_.data(),
                                             static_cast<const std::uint32_t*>(rows_.data()),
                                             rows_.data() + count, static_cast<std::int64_t>(count),
                                             0, std::bit_width(executor_.mapped_bytes()), stream_);
    });
    references = ids_.data();
    order = rows_.data() + count;
  }
  LaunchReadNumbers(of_.cells, references, order, count, to, stream_);
  CheckCuda(cudaStreamSynchronize(stream_), "ReadNumbers");
}

void CudaItemRanks::FindDigits(std::uint64_t items, bool of_id, std::uint32_t bits) {
  for (Digit digit{of_id, bits, bits}; digit.end > 0; digit.end = digit.shift) {
    digit.shift = digit.end - std::min(digit.end, LastChosen::kDigitBits);
    LaunchFor("CountDigits", items, stream_, CountDigits, ranks_.data(), ids_.data(), items, digit,
              last_.data());
    Launch("PickDigit", PickDigit, 1, kStrideThreads, stream_, digit, last_.data());
  }
}

void CudaItemRanks::FindLast(std::uint64_t items, std::uint64_t wanted) {
  Clear(last_.data(), 1);
  CheckCuda(cudaMemcpyAsync(&last_.data()->lacking, &wanted, sizeof wanted, cudaMemcpyHostToDevice,
                            stream_),
            "cudaMemcpyAsync to the device");
  std::uint32_t bits = 64;
  switch (of_.capacity.policy) {
    case EvictionPolicy::kLru:
    case EvictionPolicy::kOldest:
      bits = static_cast<std::uint32_t>(std::bit_width(newest_));
      break;
    case EvictionPolicy::kLfu:
      break;
    case EvictionPolicy::kScore:
      bits = 8 * of_.capacity.score_bytes;
      break;
  }
  FindDigits(items, false, bits);
  FindDigits(items, true, 64);
}

std::vector<std::byte> CudaItemRanks::Choose(TableCopy* items, std::uint64_t wanted,
                                             const KeysOfBatch* kept) {
  const CurrentDevice current = executor_.Activate();
  const auto& copy = static_cast<const CudaTableCopy&>(*items);
  const AwaitAtEnd ended(stream_);
  const std::uint64_t count = copy.items;
  wanted = std::min(wanted, count);
  const ItemKeys keys{copy.device_keys.data(), count, copy.shape.key_words, of_.key_size};
  ids_.Reserve(count);
  ranks_.Reserve(count);
  const std::uint64_t room = wanted + kRoomForEqual;
  chosen_.Reserve(room);
  chosen_keys_.Reserve(wanted * of_.key_size);
  Clear(counters_.data() + kChosen, 1);
  {
    const DriverTurns::Launching turn;
    LaunchFor("RankItems", count, stream_, RankItems, keys, View(known_),
              kept == nullptr ? IdPlaces{} : static_cast<const Keys*>(kept)->places,
              of_.capacity.policy, ids_.data(), ranks_.data());
    FindLast(count, wanted);
    LaunchFor("CollectChosen", count, stream_, CollectChosen, ranks_.data(), ids_.data(), count,
              last_.data(), chosen_.data(), room, counters_.data() + kChosen);
    CountKnownIds();
  }
  const auto [known, collected] = Read<2>(counters_.data() + kKnown);
  const std::uint64_t n = std::min(collected, room);
  const std::uint64_t taken = std::min(n, wanted);
  if (n > 0) {
    CallCubWith(&library_, "DeviceMergeSort", [&](void* storage, std::size_t& bytes) {
      return cub::DeviceMergeSort::SortKeys(storage, bytes, chosen_.data(), n, GoesBefore{keys},
                                            stream_);
    });
  }
  LaunchFor("CopyChosenKeys", taken * of_.key_size, stream_, CopyChosenKeys, keys, chosen_.data(),
            taken, chosen_keys_.data());
  std::vector<std::byte> chosen(taken * of_.key_size);
  if (taken > 0) {
    executor_.Copier().ToHost(chosen.data(), chosen_keys_.data(), chosen.size(), stream_);
  }
  if (of_.capacity.policy == EvictionPolicy::kLfu) {
    LaunchFor("HalveUses", known_.ids.size(), stream_, HalveUses, View(known_));
  }
  Forget(keys, known);
  return chosen;
}

}  // namespace

std::unique_ptr<ItemRanks> CudaExecutor::MakeItemRanks(const RankedItems& items) {
  const CurrentDevice current = Activate();
  return std::make_unique<CudaItemRanks>(items, *this, &memory_);
}

}  // namespace gpm
