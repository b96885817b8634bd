#include "engine/cuda/load_kernels.h"

#include <vector>

#include "engine/cuda/driver.h"

namespace gpm {
bool LoadKernelsBeside(const void* kernel) {
  const auto module_of = DriverFunction<decltype(cuFuncGetModule)>("cuFuncGetModule");
  const auto count_of =
      DriverFunction<decltype(cuModuleGetFunctionCount)>("cuModuleGetFunctionCount");
  const auto functions_of =
      DriverFunction<decltype(cuModuleEnumerateFunctions)>("cuModuleEnumerateFunctions");
  const auto load = DriverFunction<decltype(cuFuncLoad)>("cuFuncLoad");
  if (module_of == nullptr || count_of == nullptr || functions_of == nullptr || load == nullptr) {
    return false;
  }
  cudaFunction_t function = nullptr;
  if (cudaGetFuncBySymbol(&function, kernel) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  CUmodule module = nullptr;
  unsigned count = 0;
  if (module_of(&module, function) != CUDA_SUCCESS || count_of(&count, module) != CUDA_SUCCESS) {
    return false;
  }
  std::vector<CUfunction> functions(count);
  if (functions_of(functions.data(), count, module) != CUDA_SUCCESS) return false;
  bool all = true;
  for (const CUfunction each : functions) all = load(each) == CUDA_SUCCESS && all;
  return all;
}

}  // namespace gpm
