#ifndef GPM_TESTS_CUDA_SHARD_TEST_UTIL_CUH_
#define GPM_TESTS_CUDA_SHARD_TEST_UTIL_CUH_

#include <array>
#include <memory>
#include <random>

#include "pm/gpu_host.h"
#include "tests/cuda_test_util.cuh"

/// What the tests of stores over several shards share: batches with arrays anywhere.
namespace gpm::test {

/// Copies of a batch's arrays, each in pageable, pinned or GPU memory.
class PlacedBatch {
 public:
  /// Each array at random; or all in the memory of one device.
  template <class Random>
  static PlacedBatch Anywhere(const Batch& host, Random& random) {
    std::array<int, 5> devices{};
    std::array<Placed::Where, 5> where{};
    for (std::size_t i = 0; i < 5; ++i) {
      devices[i] = static_cast<int>(random() % static_cast<unsigned>(GpuCount()));
      where[i] = static_cast<Placed::Where>(random() % Placed::kWays);
    }
    return PlacedBatch(host, where, devices);
  }
  static PlacedBatch OnDevice(const Batch& host, int device = 0) {
    std::array<Placed::Where, 5> where{};
    where.fill(Placed::kDevice);
    std::array<int, 5> devices{};
    devices.fill(device);
    return PlacedBatch(host, where, devices);
  }

  const Batch& batch() const { return batch_; }
  /// Brings the outputs to the batch that this is a copy of.
  void CopyBack() {
    const auto copy = [](auto to, Placed* from) {
      if (from == nullptr) return;
      CheckCuda(cudaMemcpy(to.data(), from->data(), from->bytes().size(), cudaMemcpyDefault),
                "cudaMemcpy");
    };
    copy(host_.found, arrays_[3].get());
    copy(host_.results, arrays_[4].get());
  }

 private:
  PlacedBatch(const Batch& host, const std::array<Placed::Where, 5>& where,
              const std::array<int, 5>& devices)
      : host_(host), batch_(host) {
    const std::array<std::span<const std::byte>, 5> from = {
        host.keys, std::as_bytes(host.ops), host.values, host.found, std::as_bytes(host.results)};
    for (std::size_t i = 0; i < 5; ++i) {
      if (from[i].empty()) continue;
      CheckCuda(cudaSetDevice(devices[i]), "cudaSetDevice");
      arrays_[i] = std::make_unique<Placed>(where[i],
                                            std::vector<std::byte>(from[i].begin(), from[i].end()));
    }
    CheckCuda(cudaSetDevice(0), "cudaSetDevice");
    const auto bytes = [&](std::size_t i) {
      return arrays_[i] == nullptr ? std::span<std::byte>() : arrays_[i]->bytes();
    };
    const auto as = [&]<class T>(std::size_t i, T*) {
      return std::span(reinterpret_cast<T*>(bytes(i).data()), bytes(i).size());
    };
    batch_.keys = bytes(0);
    batch_.ops = as(1, static_cast<const Op*>(nullptr));
    batch_.values = bytes(2);
    batch_.found = bytes(3);
    batch_.results = as(4, static_cast<Result*>(nullptr));
  }

  Batch host_;
  Batch batch_;
  std::array<std::unique_ptr<Placed>, 5> arrays_;  ///< keys, ops, values, found, results
};

}  // namespace gpm::test

#endif  // GPM_TESTS_CUDA_SHARD_TEST_UTIL_CUH_
