#ifndef GPM_POOL_READER_H_
#define GPM_POOL_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "gpmstore/error.h"
#include "gpmstore/stats.h"

namespace gpm {

/// Reads a pool that no store has open, and changes nothing: it needs no write permission on the
/// file or its folder. A pool that was not closed in order is not recovered, and reads as it will
/// be once a store has: half-inserted slots and second copies are passed over.
///
/// While a reader is open no store can open the pool; other readers can.
///
/// Thread safety: any thread, but for move and destruction.
class PoolReader {
 public:
  /// @throws Error kNotFound, kBusy (a store has it open), kDamaged, kInvalidArgument (no regular
  ///         file), kIo (no permission to read it)
  explicit PoolReader(const std::string& path);
  PoolReader(PoolReader&&) noexcept;
  PoolReader& operator=(PoolReader&&) noexcept;
  ~PoolReader();

  std::uint32_t key_size() const;    ///< bytes
  std::uint32_t value_size() const;  ///< bytes

  /// Reads every slot. What concerns an executor, a cache or what was done since a pool was opened
  /// is 0; recovery.was_clean says whether the pool was closed in order.
  StoreStats Stats() const;

  /// @param key key_size bytes
  /// @param value value_size bytes: the value of the key, when it is there
  /// @return whether it is
  /// @throws Error(kInvalidArgument) when one has another length
  [[nodiscard]] bool Get(std::span<const std::byte> key, std::span<std::byte> value) const;

  /// Calls `visit(key, value)` for every item, in no order; a visitor that returns bool is called
  /// until it returns false. @return whether it saw all items
  template <class Visit>
  bool ForEach(Visit&& visit) const {
    return VisitItems([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      using Answer =
          std::invoke_result_t<Visit&, std::span<const std::byte>, std::span<const std::byte>>;
      if constexpr (std::is_same_v<Answer, bool>) {
        return visit(key, value);
      } else {
        visit(key, value);
        return true;
      }
    });
  }

 private:
  class Impl;
  bool VisitItems(const std::function<bool(std::span<const std::byte> key,
                                           std::span<const std::byte> value)>& visit) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpm

#endif  // GPM_POOL_READER_H_
