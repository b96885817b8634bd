#ifndef GPM_CLI_ITEM_ROWS_H_
#define GPM_CLI_ITEM_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpm::cli {

/// Items as dump and search write them out: a line for each, the key, and behind a tab the value.
/// Keys of 8 bytes are unsigned decimal numbers, in that order; others are ordered as bytes.
/// Thread safety: none.
class ItemRows {
 public:
  ItemRows(std::uint32_t key_size, std::uint32_t value_size)
      : key_size_(key_size), row_bytes_(std::size_t{key_size} + value_size) {}

  void Add(std::span<const std::byte> key, std::span<const std::byte> value);
  std::uint64_t size() const { return rows_.size() / row_bytes_; }
  /// Writes the first ones to the standard output, `most` at most. @throws Error(kIo)
  void Print(bool values, std::uint64_t most = ~std::uint64_t{0}) const;

 private:
  const std::size_t key_size_;
  const std::size_t row_bytes_;
  std::vector<std::byte> rows_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_ITEM_ROWS_H_
