#ifndef GPM_PM_MEDIUM_H_
#define GPM_PM_MEDIUM_H_

#include <cstddef>
#include <string_view>

#include "pm/persist.h"

namespace gpm {

/// Where a pool lives. What each promises is in MediumInfo; nothing claims more.
enum class Medium {
  kDax,         ///< file on a DAX file system, mapped with MAP_SYNC (real PM, CXL, NVDIMM)
  kTmpfs,       ///< file on tmpfs: the emulation of persistent memory that a GPU can register
  kFile,        ///< file on an ordinary file system, through the page cache
  kHostPinned,  ///< anonymous memory, pinned when a GPU uses it; gone when the store closes
};

struct MediumInfo {
  Medium medium = Medium::kFile;
  bool survives_process_crash = false;
  bool survives_power_loss = false;
  bool gpu_can_register = false;  ///< whether this kind of memory can be mapped into a GPU
  bool needs_flush = false;       ///< stores are flushed through libpmem to become durable
};

std::string_view MediumName(Medium medium);  ///< "dax", "tmpfs", "file", "host-pinned"

/// True when this library was built with libpmem.
bool BuiltWithPmem();

/// How stores to [base, base + bytes), mapped from this medium, become durable: through libpmem for
/// persistent memory without eADR. libpmem's PMEM_IS_PMEM_FORCE=1 has other media treated as
/// persistent memory, which tests the flushes without changing what the medium promises.
Persist ChoosePersist(Medium medium, const void* base, std::size_t bytes);

/// What a medium promises when its stores are made durable by `persist` (DESIGN section 6).
MediumInfo DescribeMedium(Medium medium, const Persist& persist);

}  // namespace gpm

#endif  // GPM_PM_MEDIUM_H_
