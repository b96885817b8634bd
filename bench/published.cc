#include "bench/published.h"

namespace gpm::bench {
namespace {

constexpr std::uint64_t k2To10 = 1 << 10;
constexpr std::uint64_t k2To12 = 1 << 12;
constexpr std::uint64_t k2To16 = 1 << 16;
constexpr std::uint64_t k2To20 = 1 << 20;
constexpr std::string_view kHkv = "HierarchicalKV, 20% of values";
constexpr std::string_view kHkvNone = "HierarchicalKV, no values";

// HierarchicalKV has no figure for workload a: its updates were measured alone.
constexpr PublishedFigure kFigures[] = {
    {kGpHash, "c", 8, k2To10, 8.9},
    {kGpHash, "c", 8, k2To12, 24.6},
    {kGpHash, "c", 8, k2To16, 47.9},
    {kGpHash, "c", 8, k2To20, 44.7},
    {kGpHash, "b", 8, k2To12, 25.1},
    {kGpHash, "b", 8, k2To16, 41.2},
    {kGpHash, "b", 8, k2To20, 46.1},
    {kGpHash, "a", 8, k2To12, 12.3},
    {kGpHash, "a", 8, k2To20, 19.7},
    {kGpHash, "find", 8, k2To20, 22.0},
    {kGpHash, "find-missing", 8, k2To12, 39.0},
    {kGpHash, "find-missing", 8, k2To20, 161.5},
    {kGpHash, "insert", 8, k2To10, 2.7},
    {kGpHash, "insert", 8, k2To12, 7.2},
    {kGpHash, "insert", 8, k2To16, 28.6},
    {kGpHash, "insert", 8, k2To20, 31.0},
    {kGpHash, "c", 32, k2To12, 18.2},
    {kGpHash, "c", 32, k2To20, 31.0},
    {kGpHash, "a", 32, k2To20, 19.0},
    {kGpHash, "find-missing", 32, k2To20, 134.5},
    {kGpHash, "insert", 32, k2To12, 5.2},
    {kGpHash, "insert", 32, k2To20, 23.4},
    {kHkv, "c", 8, k2To12, 30.2},
    {kHkv, "c", 8, k2To16, 112},
    {kHkv, "c", 8, k2To20, 650},
    {kHkv, "find", 8, k2To12, 25.5},
    {kHkv, "find", 8, k2To16, 81.0},
    {kHkv, "find", 8, k2To20, 436},
    {kHkv, "find-missing", 8, k2To12, 36.9},
    {kHkv, "find-missing", 8, k2To16, 498},
    {kHkv, "find-missing", 8, k2To20, 2768},
    {kHkv, "insert", 8, k2To20, 404},
    {kHkvNone, "c", 8, k2To12, 28.5},
    {kHkvNone, "c", 8, k2To16, 92.7},
    {kHkvNone, "c", 8, k2To20, 554},
    {kHkvNone, "find", 8, k2To12, 23.0},
    {kHkvNone, "find", 8, k2To16, 67.9},
    {kHkvNone, "find", 8, k2To20, 375},
    {kHkvNone, "find-missing", 8, k2To12, 36.2},
    {kHkvNone, "find-missing", 8, k2To16, 500},
    {kHkvNone, "find-missing", 8, k2To20, 2795},
    {kHkvNone, "insert", 8, k2To20, 308},
};

}  // namespace

std::span<const PublishedFigure> PublishedFigures() { return kFigures; }

std::optional<double> PublishedMops(std::string_view system, std::string_view workload,
                                    std::uint32_t key_size, std::uint64_t batch) {
  for (const PublishedFigure& figure : kFigures) {
    if (figure.system == system && figure.workload == workload && figure.key_size == key_size &&
        figure.batch == batch) {
      return figure.mops;
    }
  }
  return std::nullopt;
}

}  // namespace gpm::bench
