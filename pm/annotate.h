#ifndef GPM_PM_ANNOTATE_H_
#define GPM_PM_ANNOTATE_H_

/// Marks code that is compiled for the host and, in CUDA translation units, for the device too.
#ifdef __CUDACC__
#define GPM_HD __host__ __device__
#else
#define GPM_HD
#endif

/// Marks a function that is seldom called: in kernels it stays out of the way, since code that is
/// not in the instruction cache takes long to fetch.
#ifdef __CUDACC__
#define GPM_NOINLINE __noinline__
#else
#define GPM_NOINLINE
#endif

#endif  // GPM_PM_ANNOTATE_H_
