#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_select.cuh>
#include <limits>

#include "engine/cuda/kernels/read_numbers.cuh"
#include "engine/cuda/load_kernels.h"
#include "engine/cuda/search/tier_builder.h"
#include "engine/cuda/search/tier_kernels.cuh"

namespace gpm {
namespace {

bool IsIndexed(SearchIndex::Mask mask, std::uint32_t attribute) {
  return (mask >> attribute & 1) != 0;
}

}  // namespace

TierArrays::TierArrays(DeviceMemory* memory, LastUse last_use) : keys(memory, last_use) {
  for (std::uint32_t a = 0; a < kMaxAttributes; ++a) {
    wide[a] = DeviceArray<std::uint64_t>(memory, last_use);
    narrow[a] = DeviceArray<std::uint32_t>(memory, last_use);
    order[a] = DeviceArray<std::uint32_t>(memory, last_use);
  }
}

SearchTier TierArrays::View() const {
  SearchTier tier;
  tier.rows = rows;
  tier.keys = keys.data();
  for (std::uint32_t a = 0; a < kMaxAttributes; ++a) {
    tier.columns[a] = {wide[a].data(), narrow[a].data(), order[a].data()};
  }
  return tier;
}

std::uint64_t TierArrays::bytes() const {
  std::uint64_t bytes = keys.size() * sizeof(std::uint64_t);
  for (std::uint32_t a = 0; a < kMaxAttributes; ++a) {
    bytes += wide[a].size() * sizeof(std::uint64_t) +
             (narrow[a].size() + order[a].size()) * sizeof(std::uint32_t);
  }
  return bytes;
}

void TierArrays::Drop(std::uint32_t attribute) {
  wide[attribute].Clear();
  narrow[attribute].Clear();
  order[attribute].Clear();
}

StagedItems::StagedItems(DeviceMemory* memory, LastUse last_use) : keys(memory, last_use) {
  for (auto& array : numbers) array = DeviceArray<std::uint64_t>(memory, last_use);
}

void StagedItems::Reserve(std::uint64_t items, const IndexShape& shape) {
  count = static_cast<std::uint32_t>(items);
  keys.Reserve(items * shape.key_words);
  for (std::uint32_t a = 0; a < shape.attributes.size(); ++a) {
    if (IsIndexed(shape.mask, a)) numbers[a].Reserve(items);
  }
}

std::uint64_t StagedItems::bytes() const {
  std::uint64_t words = keys.size();
  for (const auto& array : numbers) words += array.size();
  return words * sizeof(std::uint64_t);
}

TierBuilder::TierBuilder(DeviceMemory* memory, const IndexShape& shape,
                         const CudaExecutor& executor)
    : shape_(shape),
      executor_(executor),
      rows_(memory, &stream_),
      other_rows_(memory, &stream_),
      numbers_(memory, &stream_),
      sorted_(memory, &stream_),
      flags_(memory, &stream_),
      selected_(memory, &stream_),
      most_(memory, &stream_),
      library_(memory, &stream_) {
  selected_.Reserve(1);
  most_.Reserve(1);
}

void TierBuilder::LoadKernels() { LoadKernelsBeside(reinterpret_cast<const void*>(TakeWord)); }

void TierBuilder::Sort(const std::uint64_t* numbers, std::uint32_t count, std::uint32_t bits) {
  sorted_.Reserve(count);
  other_rows_.Reserve(count);
  CallCubWith(&library_, "DeviceRadixSort", [&](void* storage, std::size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(
        storage, bytes, numbers, sorted_.data(), static_cast<const std::uint32_t*>(rows_.data()),
        other_rows_.data(), static_cast<int>(count), 0, static_cast<int>(bits), stream_);
  });
  std::swap(rows_, other_rows_);
}

const std::uint64_t* TierBuilder::NumbersOf(const TierArrays& tier, std::uint32_t attribute,
                                            const std::uint32_t* rows) {
  const std::uint64_t* const wide = tier.wide[attribute].data();
  if (wide != nullptr && rows == nullptr) return wide;
  const std::uint64_t count = tier.rows;
  numbers_.Reserve(count);
  if (wide != nullptr) {
    LaunchFor("GatherNumbers", count, stream_, GatherNumbers<std::uint64_t, std::uint64_t>, wide,
              rows, count, numbers_.data());
  } else {
    LaunchFor("GatherNumbers", count, stream_, GatherNumbers<std::uint32_t, std::uint64_t>,
              tier.narrow[attribute].data(), rows, count, numbers_.data());
  }
  return numbers_.data();
}

void TierBuilder::SortByNumber(const TierArrays& tier, std::uint32_t attribute,
                               std::uint32_t partner) {
  rows_.Reserve(tier.rows);
  LaunchFor("CountUp", tier.rows, stream_, CountUp<std::uint32_t>, rows_.data(), tier.rows);
  const std::uint32_t* rows = nullptr;  // the first sort finds them one behind the other
  for (const std::uint32_t by : {partner, attribute}) {
    if (by >= kMaxAttributes) continue;
    const bool wide = tier.wide[by].data() != nullptr;
    Sort(NumbersOf(tier, by, rows), tier.rows, wide ? 64 : 32);
    rows = rows_.data();
  }
}

void TierBuilder::PutOrder(std::uint32_t attribute, TierArrays* tier) {
  tier->order[attribute].Reserve(tier->rows);
  CheckCuda(cudaMemcpyAsync(tier->order[attribute].data(), rows_.data(),
                            std::uint64_t{tier->rows} * 4, cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpyAsync");
}

void TierBuilder::SortByKey(const StagedItems& items) {
  rows_.Reserve(items.count);
  numbers_.Reserve(items.count);
  LaunchFor("CountUp", items.count, stream_, CountUp<std::uint32_t>, rows_.data(), items.count);
  for (std::uint32_t word = shape_.key_words; word-- > 0;) {
    LaunchFor("TakeWord", items.count, stream_, TakeWord, items.keys.data(), shape_.key_words, word,
              rows_.data(), items.count, numbers_.data());
    Sort(numbers_.data(), items.count, 64);
  }
}

void TierBuilder::Stage(const CudaTableCopy& copy, SearchIndex::Mask mask, StagedItems* items) {
  IndexShape shape = shape_;
  shape.mask = mask;
  items->Reserve(copy.items, shape);
  const std::uint32_t count = items->count;
  if (count == 0) return;
  const std::uint64_t words = std::uint64_t{count} * shape_.key_words;
  LaunchFor("OrderWords", words, stream_, OrderWords, copy.device_keys.data(), words,
            items->keys.data());
  NumbersOfValues to;
  for (std::uint32_t a = 0; a < shape_.attributes.size(); ++a) {
    if (!IsIndexed(mask, a)) continue;
    const Attribute& attribute = shape_.attributes[a];
    to.Add(attribute.offset, attribute.bytes, items->numbers[a].data());
  }
  if (to.empty()) return;
  const std::uint64_t* references = copy.device_references.data();
  const std::uint32_t* order = nullptr;
  if (executor_.cells_base() != nullptr) {
    rows_.Reserve(count);
    LaunchFor("CountUp", count, stream_, CountUp<std::uint32_t>, rows_.data(), count);
    // (Where others have let the pool grow meanwhile, the order is another, and all that it is for
    // is speed.)
    Sort(references, count, static_cast<std::uint32_t>(std::bit_width(executor_.pool_bytes())));
    references = sorted_.data();
    order = rows_.data();
  }
  LaunchReadNumbers(executor_.cells_base(), references, order, count, to, stream_);
}

std::uint32_t TierBuilder::SelectRows(const std::uint32_t* from, const std::uint8_t* flags,
                                      std::uint32_t count, DeviceArray<std::uint32_t>* to) {
  to->Reserve(count);
  CallCubWith(&library_, "DeviceSelect", [&](void* storage, std::size_t& bytes) {
    return cub::DeviceSelect::Flagged(storage, bytes, from, flags, to->data(), selected_.data(),
                                      static_cast<int>(count), stream_);
  });
  std::uint32_t selected = 0;
  CheckCuda(cudaMemcpyAsync(&selected, selected_.data(), sizeof selected, cudaMemcpyDeviceToHost,
                            stream_),
            "cudaMemcpyAsync to the host");
  Await();
  return selected;
}

void TierBuilder::Restage(const TierArrays& tier, SearchIndex::Mask mask,
                          const DeviceArray<std::uint32_t>& rows, std::uint32_t count,
                          StagedItems* items) {
  const std::uint64_t n = count;
  LaunchFor("GatherKeys", n * shape_.key_words, stream_, GatherKeys, tier.keys.data(),
            shape_.key_words, rows.data(), n, items->keys.data());
  for (std::uint32_t a = 0; a < shape_.attributes.size(); ++a) {
    if (!IsIndexed(mask, a)) continue;
    if (tier.wide[a].data() != nullptr) {
      LaunchFor("GatherNumbers", n, stream_, GatherNumbers<std::uint64_t, std::uint64_t>,
                tier.wide[a].data(), rows.data(), n, items->numbers[a].data());
    } else {
      LaunchFor("GatherNumbers", n, stream_, GatherNumbers<std::uint32_t, std::uint64_t>,
                tier.narrow[a].data(), rows.data(), n, items->numbers[a].data());
    }
  }
}

std::uint32_t TierBuilder::Select(const std::uint8_t* flags, std::uint32_t count,
                                  DeviceArray<std::uint32_t>* rows) {
  if (count == 0) return 0;
  rows_.Reserve(count);
  LaunchFor("CountUp", count, stream_, CountUp<std::uint32_t>, rows_.data(), count);
  return SelectRows(rows_.data(), flags, count, rows);
}

bool TierBuilder::IsWide(const StagedItems& items, std::uint32_t attribute) {
  if (shape_.attributes[attribute].bytes <= sizeof(std::uint32_t)) return false;
  CallCubWith(&library_, "DeviceReduce", [&](void* storage, std::size_t& bytes) {
    return cub::DeviceReduce::Max(storage, bytes, items.numbers[attribute].data(), most_.data(),
                                  static_cast<int>(items.count), stream_);
  });
  std::uint64_t most = 0;
  CheckCuda(cudaMemcpyAsync(&most, most_.data(), sizeof most, cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync to the host");
  Await();
  return most > std::numeric_limits<std::uint32_t>::max();
}

void TierBuilder::Build(const StagedItems& items, SearchIndex::Mask mask,
                        const AttributePairs& pairs, bool unique, TierArrays* tier) {
  tier->rows = items.count;
  if (items.count == 0) return;
  SortByKey(items);
  if (unique) {
    flags_.Reserve(items.count);
    LaunchFor("FlagFirstOfKey", items.count, stream_, FlagFirstOfKey, items.keys.data(),
              shape_.key_words, rows_.data(), items.count, flags_.data());
    tier->rows = SelectRows(rows_.data(), flags_.data(), items.count, &other_rows_);
    std::swap(rows_, other_rows_);
  }
  const std::uint32_t rows = tier->rows;
  tier->keys.Reserve(std::uint64_t{rows} * shape_.key_words);
  LaunchFor("GatherKeys", std::uint64_t{rows} * shape_.key_words, stream_, GatherKeys,
            items.keys.data(), shape_.key_words, rows_.data(), std::uint64_t{rows},
            tier->keys.data());
  for (std::uint32_t a = 0; a < shape_.attributes.size(); ++a) {
    if (!IsIndexed(mask, a)) continue;
    if (IsWide(items, a)) {
      tier->narrow[a].Clear();
      tier->wide[a].Reserve(rows);
      LaunchFor("GatherNumbers", rows, stream_, GatherNumbers<std::uint64_t, std::uint64_t>,
                items.numbers[a].data(), rows_.data(), std::uint64_t{rows}, tier->wide[a].data());
    } else {
      tier->wide[a].Clear();
      tier->narrow[a].Reserve(rows);
      LaunchFor("GatherNumbers", rows, stream_, GatherNumbers<std::uint64_t, std::uint32_t>,
                items.numbers[a].data(), rows_.data(), std::uint64_t{rows}, tier->narrow[a].data());
    }
  }
  for (std::uint32_t a = 0; a < shape_.attributes.size(); ++a) {
    if (!IsIndexed(mask, a)) continue;
    SortByNumber(*tier, a, pairs.PartnerOf(a));
    PutOrder(a, tier);
  }
}

}  // namespace gpm
