#ifndef GPM_PM_MEDIUM_H_
#define GPM_PM_MEDIUM_H_

#include <cstddef>

#include "gpmstore/stats.h"
#include "pm/persist.h"

namespace gpm {

/// True when this library was built with libpmem.
bool BuiltWithPmem();

/// How stores to [base, base + bytes), mapped from this medium, become durable: through libpmem for
/// persistent memory without eADR. libpmem's PMEM_IS_PMEM_FORCE=1 has other media treated as
/// persistent memory, which tests the flushes without changing what the medium promises.
Persist ChoosePersist(Medium medium, const void* base, std::size_t bytes);

/// What a medium promises when its stores are made durable by `persist`.
MediumInfo DescribeMedium(Medium medium, const Persist& persist);

}  // namespace gpm

#endif  // GPM_PM_MEDIUM_H_
