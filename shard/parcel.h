#ifndef GPM_SHARD_PARCEL_H_
#define GPM_SHARD_PARCEL_H_

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace gpm {

/// How many rows go where.
struct Route {
  std::vector<std::uint64_t> sent;      ///< for each rank
  std::vector<std::uint64_t> received;  ///< from each rank

  std::uint64_t all_sent() const { return Sum(sent); }
  std::uint64_t all_received() const { return Sum(received); }

 private:
  static std::uint64_t Sum(const std::vector<std::uint64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::uint64_t{0});
  }
};

/// Arrays that are sent together.
struct Parcel {
  std::vector<std::span<const std::byte>> send;  ///< of each array in turn, for each rank
  std::vector<std::span<std::byte>> receive;

  /// An array of rows of which those for, and from, each rank lie behind each other.
  void Add(std::span<const std::byte> from, const std::vector<std::uint64_t>& sent,
           std::span<std::byte> to, const std::vector<std::uint64_t>& received,
           std::size_t row_bytes) {
    Divide(from, sent, row_bytes, &send);
    Divide(to, received, row_bytes, &receive);
  }

  /// Room alone, which the others fill, or look at.
  void AddRoom(std::span<std::byte> room, const std::vector<std::uint64_t>& rows,
               std::size_t row_bytes) {
    Divide(room, rows, row_bytes, &receive);
  }

 private:
  template <class Byte>
  static void Divide(std::span<Byte> rows, const std::vector<std::uint64_t>& counts,
                     std::size_t row_bytes, std::vector<std::span<Byte>>* parts) {
    for (const std::uint64_t count : counts) {
      parts->push_back(rows.first(count * row_bytes));
      rows = rows.subspan(count * row_bytes);
    }
  }
};

}  // namespace gpm

#endif  // GPM_SHARD_PARCEL_H_
