#ifndef GPM_TESTS_CUDA_TEST_UTIL_CUH_
#define GPM_TESTS_CUDA_TEST_UTIL_CUH_

#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "engine/cuda/memory.h"
#include "tests/test_util.h"

/// What the tests of the cuda executor alone share: arrays in GPU memory, and values of 128 bytes.
namespace gpm::test {

/// A copy of a host vector in GPU memory; poisoned when made without contents.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : OnDevice(host.size()) {
    CheckCuda(cudaMemcpy(array_.data(), host.data(), Bytes(), cudaMemcpyHostToDevice), "copy");
  }
  explicit OnDevice(std::size_t size) : size_(size) {
    array_.Reserve(size);
    CheckCuda(cudaMemset(array_.data(), 0xA5, Bytes()), "cudaMemset");
  }
  T* data() const { return array_.data(); }
  std::vector<T> Host() const {
    std::vector<T> host(size_);
    CheckCuda(cudaMemcpy(host.data(), array_.data(), Bytes(), cudaMemcpyDeviceToHost), "copy");
    return host;
  }
  std::span<const std::byte> In() const {
    return {reinterpret_cast<const std::byte*>(array_.data()), Bytes()};
  }
  std::span<std::byte> Out() const {
    return {reinterpret_cast<std::byte*>(array_.data()), Bytes()};
  }

 private:
  std::size_t Bytes() const { return size_ * sizeof(T); }
  std::size_t size_;
  DeviceArray<T> array_;
};

inline constexpr std::uint32_t kValueSize = 128;
struct Value {
  std::uint64_t words[kValueSize / 8];
  friend bool operator==(const Value&, const Value&) = default;
};
inline Value ValueOf(std::uint64_t tag) {
  Value value;
  for (std::uint64_t i = 0; i < kValueSize / 8; ++i) value.words[i] = tag * 31 + i;
  return value;
}

class CudaTest : public PoolTest {
 protected:
  const std::string& PoolPath() {
    if (path_.empty()) path_ = NewPath();
    return path_;
  }
  Store Make(std::uint64_t capacity = 0) {
    CreateOptions create;
    create.value_size = kValueSize;
    create.initial_capacity = capacity;
    return Store::Create(PoolPath(), create, TestOpenOptions());
  }

 private:
  std::string path_;
};

}  // namespace gpm::test

#endif  // GPM_TESTS_CUDA_TEST_UTIL_CUH_
