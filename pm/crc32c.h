#ifndef GPM_PM_CRC32C_H_
#define GPM_PM_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace gpm {

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of `bytes` bytes. Thread safety: any thread.
/// @param crc the CRC of what comes before, to compute one piece by piece; 0 at the start
std::uint32_t Crc32c(const void* data, std::size_t bytes, std::uint32_t crc = 0);

}  // namespace gpm

#endif  // GPM_PM_CRC32C_H_
