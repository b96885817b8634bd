#ifndef GPM_PM_PAUSE_CPU_H_
#define GPM_PM_PAUSE_CPU_H_

namespace gpm {

/// Tells the processor that a thread spins.
inline void PauseCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace gpm

#endif  // GPM_PM_PAUSE_CPU_H_
