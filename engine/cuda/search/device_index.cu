#include <new>
#include <utility>

#include "engine/cuda/kernels/grid_stride.cuh"
#include "engine/cuda/load_kernels.h"
#include "engine/cuda/search/asking.h"
#include "engine/cuda/search/device_index.h"
#include "engine/held_items.h"

namespace gpm {
namespace {

constexpr std::uint64_t kFewRows = 4096;
/// To make it takes so many bytes of an item, and of each attribute, beside those that stay.
constexpr std::uint64_t kBytesToMake = 48;
constexpr std::uint64_t kAttributeBytesToMake = 8;
/// To sort by a pair takes so many bytes of an item.
constexpr std::uint64_t kBytesToSort = 36;
constexpr std::uint64_t kShareWorn = 2;
/// Of the GPU's memory, that batches and growth may want meanwhile.
constexpr std::uint64_t kShareLeft = 32;

std::uint64_t WordsOfBits(std::uint64_t bits) { return (bits + 31) / 32; }

/// Marks the base's rows with these keys dead, and says of the delta's whether they stay.
/// @param keys as tables have them @param stay a byte for each row of the delta, 1 at first
/// @param dead the base's bits @param died how many more of them are set
__global__ void ForgetKeys(const __grid_constant__ SearchTiers tiers, const std::uint64_t* keys,
                           std::uint64_t count, std::uint32_t* dead, std::uint8_t* stay,
                           std::uint64_t* died) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    std::uint64_t key[kMaxKeyWords];
    for (std::uint32_t w = 0; w < tiers.key_words; ++w) {
      key[w] = OrderedWord(keys[i * tiers.key_words + w]);
    }
    const std::uint32_t row = tiers.base.RowOf(key, tiers.key_words);
    if (row < tiers.base.rows) {
      const std::uint32_t bit = 1u << (row % 32);
      if ((atomicOr(&dead[row / 32], bit) & bit) == 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(died), 1ull);
      }
    }
    const std::uint32_t late = tiers.delta.RowOf(key, tiers.key_words);
    if (late < tiers.delta.rows) stay[late] = 0;
  }
}

__global__ void FindPlaces(const __grid_constant__ SearchTiers tiers, std::uint32_t* places) {
  for (std::uint64_t d = FirstOfGrid(); d < tiers.delta.rows; d += GridStep()) {
    places[d] = tiers.base.RowsBefore(tiers.delta.keys + d * tiers.key_words, tiers.key_words);
  }
}

}  // namespace

/// What was read of changed items.
struct DeviceIndex::ReadChanges : Changes {
  const CudaTableCopy* copy = nullptr;
  std::uint64_t version = 0;
};

std::uint64_t DeviceIndex::BytesFor(std::uint64_t items, const IndexShape& shape) {
  std::uint64_t bytes = items * shape.key_words * sizeof(std::uint64_t) + 4 * WordsOfBits(items);
  for (std::uint32_t a = 0; a < shape.attributes.size(); ++a) {
    const std::uint64_t number = shape.attributes[a].bytes > 4 ? 8 : 4;
    if ((shape.mask >> a & 1) != 0) bytes += items * (number + sizeof(std::uint32_t));
  }
  return bytes;
}

bool DeviceIndex::HasRoom(std::uint64_t items, const IndexShape& shape) {
  const std::uint64_t made = BytesFor(items, shape);
  const std::uint64_t to_make = items * (kBytesToMake + 8 * shape.key_words +
                                         kAttributeBytesToMake * shape.attributes.size());
  std::size_t free = 0;
  std::size_t total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return made + to_make + total / kShareLeft <= free;
}

DeviceIndex::DeviceIndex(CudaExecutor& executor, DeviceMemory* memory, const CudaTableCopy& copy,
                         const IndexShape& shape, std::uint64_t version)
    : SearchIndex(version, shape.mask),
      executor_(executor),
      memory_(memory),
      builder_(memory, shape, executor),
      found_(memory, builder_.last_use()),
      base_(memory, builder_.last_use()),
      delta_(memory, builder_.last_use()),
      next_delta_(memory, builder_.last_use()),
      merged_(memory, builder_.last_use()),
      dead_bits_(memory, builder_.last_use()),
      places_(memory, builder_.last_use()),
      kept_(memory, builder_.last_use()),
      stay_(memory, builder_.last_use()),
      died_(memory, builder_.last_use()) {
  TierBuilder::LoadKernels();
  Asking::LoadKernels();
  LoadKernelsBeside(reinterpret_cast<const void*>(FindPlaces));
  // What so many items need to be sorted is not kept.
  TierBuilder builder(memory, shape, executor);
  const AwaitAtEnd ended(builder.stream());
  StagedItems items(memory, builder.last_use());
  builder.Stage(copy, mask_, &items);
  builder.Build(items, mask_, pairs(), false, &base_);
  const std::uint64_t words = WordsOfBits(base_.rows);
  dead_bits_.Reserve(words);
  died_.Reserve(1);
  if (words > 0) {
    CheckCuda(cudaMemsetAsync(dead_bits_.data(), 0, 4 * words, builder.stream()),
              "cudaMemsetAsync");
  }
  builder.Await();
  SetViews();
}

DeviceIndex::~DeviceIndex() = default;

void DeviceIndex::SetViews() {
  tiers_.key_words = builder_.shape().key_words;
  tiers_.base = base_.View();
  tiers_.base.dead = dead_bits_.data();
  tiers_.delta = delta_.View();
  tiers_.places = places_.data();
  tiers_.partners = pairs();
}

std::uint64_t DeviceIndex::bytes() const {
  return base_.bytes() + delta_.bytes() + next_delta_.bytes() + merged_.bytes() + found_bytes_ +
         stay_.size() + 4 * kept_.size() + 4 * (dead_bits_.size() + places_.size());
}

bool DeviceIndex::IsWorn() const {
  const std::uint64_t items = base_.rows - dead_ + delta_.rows;
  return dead_ + delta_.rows > items / kShareWorn + kFewRows;
}

std::unique_ptr<SearchIndex::Changes> DeviceIndex::Read(HeldItems& items, ThreadPool*) {
  const CurrentDevice current = executor_.Activate();
  auto changes = std::make_unique<ReadChanges>();
  changes->copy = static_cast<const CudaTableCopy*>(&items.copy());
  changes->version = items.version();
  const AwaitAtEnd ended(builder_.stream());
  builder_.Stage(*changes->copy, mask_, &found_);
  found_bytes_ = found_.bytes();
  builder_.Await();
  return changes;
}

void DeviceIndex::Follow(const Changes& read, ThreadPool*) {
  const CurrentDevice current = executor_.Activate();
  const auto& changes = static_cast<const ReadChanges&>(read);
  const cudaStream_t stream = builder_.stream();
  const AwaitAtEnd ended(stream);
  const std::uint32_t words = tiers_.key_words;

  // What was logged is forgotten.
  stay_.Reserve(delta_.rows);
  if (delta_.rows > 0) {
    CheckCuda(cudaMemsetAsync(stay_.data(), 1, delta_.rows, stream), "cudaMemsetAsync");
  }
  CheckCuda(cudaMemsetAsync(died_.data(), 0, 8, stream), "cudaMemsetAsync");
  LaunchFor("ForgetKeys", changes.copy->logged, stream, ForgetKeys, tiers_,
            changes.copy->log_keys.data(), changes.copy->logged, dead_bits_.data(), stay_.data(),
            died_.data());
  std::uint64_t died = 0;
  CheckCuda(cudaMemcpyAsync(&died, died_.data(), sizeof died, cudaMemcpyDeviceToHost, stream),
            "cudaMemcpyAsync to the host");
  builder_.Await();
  dead_ += died;
  const std::uint32_t kept = builder_.Select(stay_.data(), delta_.rows, &kept_);

  // What stays, and what was found.
  IndexShape shape = builder_.shape();
  shape.mask = mask_;
  merged_.Reserve(std::uint64_t{kept} + found_.count, shape);
  const auto append = [&](auto* to, const auto* from, std::uint64_t count) {
    if (count == 0) return;
    CheckCuda(cudaMemcpyAsync(to, from, count * sizeof *to, cudaMemcpyDeviceToDevice, stream),
              "cudaMemcpyAsync");
  };
  builder_.Restage(delta_, mask_, kept_, kept, &merged_);
  append(merged_.keys.data() + std::uint64_t{kept} * words, found_.keys.data(),
         std::uint64_t{found_.count} * words);
  for (std::uint32_t a = 0; a < shape.attributes.size(); ++a) {
    if ((mask_ >> a & 1) == 0) continue;
    append(merged_.numbers[a].data() + kept, found_.numbers[a].data(), found_.count);
  }

  builder_.Build(merged_, mask_, pairs(), true, &next_delta_);
  std::swap(delta_, next_delta_);
  places_.Reserve(delta_.rows);
  SetViews();
  LaunchFor("FindPlaces", delta_.rows, stream, FindPlaces, tiers_, places_.data());
  builder_.Await();
  version_ = changes.version;
}

void DeviceIndex::DropOrder(std::uint32_t attribute) {
  const CurrentDevice current = executor_.Activate();
  for (TierArrays* tier : {&base_, &delta_, &next_delta_}) tier->Drop(attribute);
  for (StagedItems* items : {&merged_, &found_}) {
    items->numbers[attribute].Clear();
  }
  SetViews();
}

void DeviceIndex::SortByPair(std::uint32_t attribute, std::uint32_t partner, ThreadPool*) {
  const CurrentDevice current = executor_.Activate();
  std::size_t free = 0;
  std::size_t total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (tiers_.rows() * kBytesToSort + total / kShareLeft > free) throw std::bad_alloc();
  // What so many rows need is not kept; and `builder_` may be reading what Follow wants.
  TierBuilder of_base(memory_, builder_.shape(), executor_);
  TierBuilder of_delta(memory_, builder_.shape(), executor_);
  const std::pair<TierBuilder*, TierArrays*> both[] = {{&of_base, &base_}, {&of_delta, &delta_}};
  for (const auto& [builder, tier] : both) {
    if (tier->rows > 0) builder->SortByNumber(*tier, attribute, partner);
  }
  for (const auto& [builder, tier] : both) builder->Await();
  // Until both orders are there, rows that have one number are in no order to rely on.
  SetLost(attribute);
  tiers_.partners.Set(attribute, AttributePairs::kLost);
  for (const auto& [builder, tier] : both) {
    if (tier->rows > 0) builder->PutOrder(attribute, tier);
  }
  for (const auto& [builder, tier] : both) builder->Await();
  tiers_.partners.Set(attribute, partner);
}

}  // namespace gpm
