#ifndef GPM_OPTIONS_H_
#define GPM_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "cache/policy.h"
#include "pm/format.h"

namespace gpm {

/// What runs batches.
enum class ExecutorKind {
  kAuto,  ///< cuda when there is a GPU that can register the pool's medium, else cpu; Stats says
  kCpu,   ///< host threads
  kCuda,  ///< warps of a GPU; an error when there is none or it can't register the medium
};
std::string_view ExecutorName(ExecutorKind kind);  ///< "auto", "cpu", "cuda"

/// What the cuda executor does about a batch's accesses to persistent memory: to measure what each
/// step brings, since none changes a result.
struct AccessOptions {
  /// They are dealt out to multiprocessors by address, or put in its order; else made as they come.
  bool by_address = true;
  bool combine = true;  ///< several finds of a value read it once, or, with no directory, of a key
  /// Bytes of a pool up to which they are dealt out, else put in order; 0: 28 MiB for each
  /// multiprocessor, for which a GPU keeps the address translations.
  std::uint64_t dealt_up_to = 0;
};

/// How a store is opened.
struct OpenOptions {
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;         ///< cpu executor: worker threads; 0: one for each core
  std::uint64_t max_bytes = 0;  ///< the pool may grow up to here; 0: what the medium could hold
  int device = 0;               ///< cuda executor: device ordinal
  CacheOptions cache{};         ///< directory and cache, in the executor's memory
  AccessOptions access{};
};

/// What is fixed when a pool is created.
struct CreateOptions {
  std::uint32_t key_size = 8;      ///< bytes: 8, 16, 32, 64 or 128
  std::uint32_t value_size = 128;  ///< bytes: 1 to 64 KiB
  Geometry geometry{};             ///< default 2L-2H-8S
  /// Items that fit without resizing; 0: start small. The pool grows by itself in any case.
  std::uint64_t initial_capacity = 0;
  std::optional<std::uint64_t> hash_seed{};  ///< for reproducible layouts in tests; else random
};

}  // namespace gpm

#endif  // GPM_OPTIONS_H_
