#include "cli/item_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string>

#include "cli/common.h"
#include "cli/shown_bytes.h"

namespace gpm::cli {

void ItemRows::Add(std::span<const std::byte> key, std::span<const std::byte> value) {
  rows_.insert(rows_.end(), key.begin(), key.end());
  rows_.insert(rows_.end(), value.begin(), value.end());
}

void ItemRows::Print(bool values, std::uint64_t most) const {
  std::vector<std::size_t> order(size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto number = [&](std::size_t row) {
    std::uint64_t key = 0;
    std::memcpy(&key, &rows_[row * row_bytes_], sizeof key);
    return key;
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return key_size_ == 8
               ? number(a) < number(b)
               : std::memcmp(&rows_[a * row_bytes_], &rows_[b * row_bytes_], key_size_) < 0;
  });
  order.resize(std::min<std::uint64_t>(order.size(), most));

  constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
  std::string text;
  for (const std::size_t row : order) {
    const auto item = std::span<const std::byte>(rows_).subspan(row * row_bytes_, row_bytes_);
    if (key_size_ == 8) {
      fmt::format_to(std::back_inserter(text), "{}", number(row));
    } else {
      // A key of zeros has no text that a command line could hold.
      const std::string key = ShownBytes(item.first(key_size_));
      text += key.empty() ? HexText(item.first(key_size_)) : key;
    }
    if (values) text += '\t' + ShownBytes(item.subspan(key_size_));
    text += '\n';
    if (text.size() >= kBufferBytes) {
      cli::Print(text);
      text.clear();
    }
  }
  cli::Print(text);
}

}  // namespace gpm::cli
