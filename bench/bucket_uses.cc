#include "bench/bucket_uses.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "gpmstore/error.h"
#include "pm/pool.h"
#include "table/media/direct.h"
#include "table/value_cache.h"
#include "ycsb/items.h"

namespace gpm::bench {
namespace {

constexpr std::uint32_t kNoBucket = CacheView::kNoBucket;

/// Index of the bucket that holds a key, or kNoBucket.
std::uint32_t FindBucket(const TableView& table, const DirectMedia& media, const KeyBuffer& key) {
  const Candidates candidates = LocateKey(table, key.words);
  for (std::uint32_t c = 0; c < table.candidate_buckets(); ++c) {
    std::byte* const bucket = CandidateBucket(table, candidates, c);
    for (std::uint32_t s = 0; bucket != nullptr && s < table.slots; ++s) {
      const Slot slot{bucket, s};
      if (media.Load(table.State(slot)) != candidates.word) continue;
      KeyBuffer held;
      LoadSlotKey(table, media, slot, candidates.word, held.words);
      if (!std::equal(held.words, held.words + table.key_words, key.words)) continue;
      if (candidates.reserved >= 0) return static_cast<std::uint32_t>(candidates.reserved);
      const std::uint32_t level = c >> table.location_bits;
      const auto offset = static_cast<std::uint64_t>(bucket - table.Bucket(level, 0));
      return table.BucketIndex(level, offset / table.bucket_bytes);
    }
  }
  return kNoBucket;
}

}  // namespace

BucketMap::BucketMap(const std::string& pool, std::uint64_t records, ycsb::KeyOrder order,
                     ThreadPool& threads)
    : bucket_of_(records) {
  const auto opened = Pool::Open(pool, Pool::Options{.max_bytes = 0, .read_only = true});
  const TableView table = MakeTableView(opened->base(), opened->superblock());
  const DirectMedia media(opened->mapping().persist());
  buckets_ = TableView::kReservedBuckets;
  for (std::uint32_t i = 0; i < table.levels; ++i) buckets_ += table.Buckets(i);
  constexpr std::uint64_t kBlock = 1 << 14;
  threads.Run((records + kBlock - 1) / kBlock, [&](std::size_t block) {
    const std::uint64_t end = std::min(records, (block + 1) * kBlock);
    for (std::uint64_t record = block * kBlock; record < end; ++record) {
      KeyBuffer key{};
      ycsb::WriteKey(ycsb::KeyWord(record, order),
                     std::as_writable_bytes(std::span(key.words)).first(table.key_size));
      bucket_of_[record] = FindBucket(table, media, key);
    }
  });
  if (const auto none = std::ranges::find(bucket_of_, kNoBucket); none != bucket_of_.end()) {
    throw Error(ErrorCode::kDamaged, fmt::format("{}: record {} is in none of its buckets", pool,
                                                 none - bucket_of_.begin()));
  }
}

BucketUses::BucketUses(const BucketMap& map, std::span<const std::uint32_t> records)
    : uses_(map.buckets()), operations_(records.size()) {
  for (const std::uint32_t record : records) ++uses_[map.BucketOf(record)];
  std::ranges::sort(uses_, std::greater());
}

double BucketUses::BestShare(std::uint64_t buckets) const {
  const auto end =
      uses_.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(buckets, uses_.size()));
  return static_cast<double>(std::accumulate(uses_.begin(), end, std::uint64_t{0})) /
         static_cast<double>(operations_);
}

}  // namespace gpm::bench
