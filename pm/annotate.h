#ifndef GPM_PM_ANNOTATE_H_
#define GPM_PM_ANNOTATE_H_

/// Marks code that is compiled for the host and, in CUDA translation units, for the device too.
#ifdef __CUDACC__
#define GPM_HD __host__ __device__
#else
#define GPM_HD
#endif

#endif  // GPM_PM_ANNOTATE_H_
