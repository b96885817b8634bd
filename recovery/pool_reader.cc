#include "gpmstore/pool_reader.h"

#include <fmt/format.h>

#include "pm/attributes.h"
#include "pm/pool.h"
#include "recovery/check.h"
#include "table/geometry.h"

namespace gpm {

class PoolReader::Impl {
 public:
  explicit Impl(const std::string& path)
      : pool_(Pool::Open(path,
                         Pool::Options{.max_bytes = 0, .read_only = true, .tracer = nullptr})) {}
  const Pool& pool() const { return *pool_; }
  const Superblock& superblock() const { return pool_->superblock(); }

 private:
  std::unique_ptr<Pool> pool_;
};

PoolReader::PoolReader(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
PoolReader::PoolReader(PoolReader&&) noexcept = default;
PoolReader& PoolReader::operator=(PoolReader&&) noexcept = default;
PoolReader::~PoolReader() = default;

std::uint32_t PoolReader::key_size() const { return impl_->superblock().key_size; }
std::uint32_t PoolReader::value_size() const { return impl_->superblock().value_size; }

StoreStats PoolReader::Stats() const {
  const CheckReport report = CheckPool(impl_->pool());
  const Superblock& superblock = impl_->superblock();
  StoreStats stats;
  stats.items = report.items;
  stats.capacity_slots = SlotsOf(superblock);
  stats.load_factor = static_cast<double>(stats.items) / static_cast<double>(stats.capacity_slots);
  stats.level_buckets = SizesOf(superblock);
  stats.value_cells = report.value_cells;
  stats.free_cells = report.value_cells - report.cells_in_use;
  stats.pm_bytes = impl_->pool().mapping().mapped_bytes();
  stats.key_size = superblock.key_size;
  stats.value_size = superblock.value_size;
  stats.geometry = superblock.geometry;
  stats.attributes = ReadAttributes(superblock.attributes);
  stats.medium = impl_->pool().mapping().medium();
  stats.recovery.was_clean = report.clean;
  return stats;
}

bool PoolReader::Get(std::span<const std::byte> key, std::span<std::byte> value) const {
  const auto expect = [](const char* name, std::span<const std::byte> array,
                         std::uint32_t expected) {
    if (array.size() != expected) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("the {} has {} bytes, the pool's have {}", name, array.size(), expected));
    }
    if (array.data() == nullptr) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("the {} is a null pointer", name));
    }
  };
  expect("key", key, key_size());
  expect("value", value, value_size());
  return FindInPool(impl_->pool(), key, value);
}

bool PoolReader::VisitItems(
    const std::function<bool(std::span<const std::byte> key, std::span<const std::byte> value)>&
        visit) const {
  return VisitPoolUntil(impl_->pool(), visit);
}

}  // namespace gpm
