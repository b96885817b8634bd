#ifndef GPM_ENGINE_EXECUTOR_H_
#define GPM_ENGINE_EXECUTOR_H_

#include <memory>

#include "engine/batch_executor.h"
#include "engine/maintenance.h"
#include "pm/mapping.h"

namespace gpm {

/// What works on a store's pool: the threads of a host, or a GPU.
class Executor : public BatchExecutor, public TableMaintenance {};

/// A tracer that has an executor of its own.
class ExecutorSource {
 public:
  virtual ~ExecutorSource() = default;
  virtual std::unique_ptr<Executor> MakeExecutor(unsigned threads, const Mapping& mapping) = 0;
};

/// @param mapping of the pool; outlives the executor. When it has a tracer, that carries out all
///        accesses and runs the threads, or makes the executor (ExecutorSource).
std::unique_ptr<Executor> MakeCpuExecutor(unsigned threads, const Mapping& mapping);

/// @throws Error(kUnsupported) when this build or machine has no CUDA, kGpu
std::unique_ptr<Executor> MakeCudaExecutor(const OpenOptions& open, const Mapping& mapping);

}  // namespace gpm

#endif  // GPM_ENGINE_EXECUTOR_H_
