// A profiler for profiler_test: writes a line for each range of a domain that begins or ends to the
// file that GPM_NVTX_LOG names. NVTX loads it by NVTX_INJECTION64_PATH.

#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

std::FILE* log_file = nullptr;
std::atomic<unsigned long long> ranges{0};

nvtxDomainHandle_t CreateDomain(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(new std::string(name));
}

nvtxRangeId_t Start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  const nvtxRangeId_t id = ++ranges;
  std::fprintf(log_file, "start %llu %s %s %llu\n", static_cast<unsigned long long>(id),
               reinterpret_cast<const std::string*>(domain)->c_str(), event->message.ascii,
               static_cast<unsigned long long>(event->payload.ullValue));
  std::fflush(log_file);
  return id;
}

void End(nvtxDomainHandle_t, nvtxRangeId_t id) {
  std::fprintf(log_file, "end %llu\n", static_cast<unsigned long long>(id));
  std::fflush(log_file);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const char* const path = std::getenv("GPM_NVTX_LOG");
  if (path == nullptr) return 0;
  // (Each library with NVTX of its own calls this, such as CUDA's driver.)
  if (log_file == nullptr && (log_file = std::fopen(path, "w")) == nullptr) return 0;
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(CreateDomain);
  *table[NVTX_CBID_CORE2_DomainRangeStartEx] = reinterpret_cast<NvtxFunctionPointer>(Start);
  *table[NVTX_CBID_CORE2_DomainRangeEnd] = reinterpret_cast<NvtxFunctionPointer>(End);
  return 1;
}
