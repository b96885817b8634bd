#include "engine/cuda/backed_memory.h"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "engine/cuda/driver.h"
#include "engine/cuda/launch.h"
#include "engine/cuda/memory.h"
#include "gpmstore/error.h"

namespace gpm {
namespace {

void CheckDriver(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  throw Error(ErrorCode::kGpu, fmt::format("{}: CUDA driver error {}", call, int{status}));
}

template <class Function>
Function* RequireDriverFunction(const char* name) {
  Function* const function = DriverFunction<Function>(name);
  if (function == nullptr) {
    throw Error(ErrorCode::kGpu, fmt::format("the CUDA driver has no {}", name));
  }
  return function;
}

CUmemAllocationProp OfDevice(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

CUdeviceptr Address(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

}  // namespace

void BackedMemory::Swap(BackedMemory* other) noexcept {
  std::swap(data_, other->data_);
  std::swap(addresses_, other->addresses_);
  std::swap(give_back_, other->give_back_);
  backed_ = other->backed_.exchange(backed_);
  std::swap(piece_, other->piece_);
  std::swap(pieces_, other->pieces_);
  std::swap(memory_, other->memory_);
}

void BackedMemory::Reserve(std::uint64_t bytes, bool whole) {
  if (data_ != nullptr) return;
  if (whole) {
    void* memory = nullptr;
    CheckCuda(memory_->Allocate(&memory, bytes), "cudaMalloc");
    data_ = static_cast<std::byte*>(memory);
    backed_ = bytes;
    return;
  }
  const auto granularity = RequireDriverFunction<decltype(cuMemGetAllocationGranularity)>(
      "cuMemGetAllocationGranularity");
  const auto reserve = RequireDriverFunction<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
  const GiveBack give_back = {
      RequireDriverFunction<decltype(cuMemUnmap)>("cuMemUnmap"),
      RequireDriverFunction<decltype(cuMemRelease)>("cuMemRelease"),
      RequireDriverFunction<decltype(cuMemAddressFree)>("cuMemAddressFree")};
  std::size_t piece = 0;
  const CUmemAllocationProp properties = OfDevice(memory_->device());
  CheckDriver(granularity(&piece, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
              "cuMemGetAllocationGranularity");
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  CheckCuda(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
  const std::uint64_t addresses = RoundUp(std::uint64_t{all_bytes}, piece);
  CUdeviceptr address = 0;
  CheckDriver(reserve(&address, addresses, 0, 0, 0), "cuMemAddressReserve");
  data_ = reinterpret_cast<std::byte*>(address);
  addresses_ = addresses;
  give_back_ = give_back;
  piece_ = piece;
}

void BackedMemory::Back(std::uint64_t bytes) {
  if (bytes <= backed_) return;
  if (bytes > addresses_) {
    throw Error(ErrorCode::kGpu, fmt::format("{} bytes are more than the GPU has", bytes));
  }
  const std::uint64_t more = RoundUp(bytes, piece_) - backed_;
  const auto create = RequireDriverFunction<decltype(cuMemCreate)>("cuMemCreate");
  const auto map = RequireDriverFunction<decltype(cuMemMap)>("cuMemMap");
  const auto set_access = RequireDriverFunction<decltype(cuMemSetAccess)>("cuMemSetAccess");
  pieces_.reserve(pieces_.size() + 1);
  const CUmemAllocationProp properties = OfDevice(memory_->device());
  const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUdeviceptr place = Address(data_ + backed_);
  CUmemGenericAllocationHandle piece = 0;
  CheckDriver(create(&piece, more, &properties, 0), "cuMemCreate");
  const CUresult mapped = map(place, more, 0, piece, 0);
  give_back_.release(piece);  // it lives as long as it is mapped
  CheckDriver(mapped, "cuMemMap");
  if (const CUresult status = set_access(place, more, &access, 1); status != CUDA_SUCCESS) {
    give_back_.unmap(place, more);
    CheckDriver(status, "cuMemSetAccess");
  }
  pieces_.push_back(more);
  backed_ += more;
  memory_->Count(static_cast<std::int64_t>(more));
}

void BackedMemory::Free() noexcept {
  if (data_ == nullptr) return;
  if (addresses_ == 0) {
    memory_->Free(data_, backed_, false);
  } else if (const CurrentDevice current(memory_->device(), std::nothrow);
             cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported) {
    cudaGetLastError();  // it is lost, as in DeviceMemory::Free
  } else {
    std::byte* place = data_;
    for (const std::uint64_t bytes : pieces_) {
      give_back_.unmap(Address(place), bytes);
      place += bytes;
    }
    give_back_.free_addresses(Address(data_), addresses_);
    memory_->Count(-static_cast<std::int64_t>(backed_));
  }
  data_ = nullptr;
  addresses_ = piece_ = 0;
  backed_ = 0;
  pieces_.clear();
}

}  // namespace gpm
