#include "pm/medium.h"

#ifdef GPM_HAVE_PMEM
#include <libpmem.h>
#endif

namespace gpm {

std::string_view MediumName(Medium medium) {
  switch (medium) {
    case Medium::kDax:
      return "dax";
    case Medium::kTmpfs:
      return "tmpfs";
    case Medium::kFile:
      return "file";
    case Medium::kHostPinned:
      return "host-pinned";
    case Medium::kDaxDevice:
      return "dax-device";
  }
  return "unknown";
}

bool BuiltWithPmem() {
#ifdef GPM_HAVE_PMEM
  return true;
#else
  return false;
#endif
}

#ifdef GPM_HAVE_PMEM
Persist ChoosePersist(Medium medium, const void* base, std::size_t bytes) {
  const bool persistent = medium == Medium::kDax || pmem_is_pmem(base, bytes) != 0;
  // With eADR, what is in the CPU caches is flushed when power fails: being visible is enough.
  if (!persistent || pmem_has_auto_flush() == 1) return Persist();
  return Persist(pmem_flush, pmem_drain);
}
#else
Persist ChoosePersist(Medium, const void*, std::size_t) { return Persist(); }
#endif

MediumInfo DescribeMedium(Medium medium, const Persist& persist) {
  MediumInfo info;
  info.medium = medium;
  info.survives_process_crash = medium != Medium::kHostPinned;
  // Without libpmem nobody flushes, and whether the machine has eADR is unknown: then even a DAX
  // file promises no more than the page cache does.
  info.survives_power_loss = medium == Medium::kDax && BuiltWithPmem();
  info.gpu_can_register = medium != Medium::kFile;
  info.needs_flush = persist.needs_flush();
  return info;
}

}  // namespace gpm
