#ifndef GPM_TESTS_CUDA_TEST_UTIL_CUH_
#define GPM_TESTS_CUDA_TEST_UTIL_CUH_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "engine/cuda/memory.h"
#include "tests/test_util.h"

/// What the tests of the cuda executor alone share: arrays in GPU memory, and values of 128 bytes.
namespace gpm::test {

/// Until what cudaMemset and cudaMemcpy have begun has ended, for which other streams do not wait:
/// a copy from pageable memory returns when it is staged.
inline void AwaitDefaultStream() { CheckCuda(cudaStreamSynchronize(nullptr), "default stream"); }

/// A copy of a host vector in GPU memory; poisoned when made without contents.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : OnDevice(host.size()) {
    CheckCuda(cudaMemcpy(array_.data(), host.data(), Bytes(), cudaMemcpyHostToDevice), "copy");
    AwaitDefaultStream();
  }
  explicit OnDevice(std::size_t size) : size_(size) {
    array_.Reserve(size);
    CheckCuda(cudaMemset(array_.data(), 0xA5, Bytes()), "cudaMemset");
    AwaitDefaultStream();
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

/// An array of a batch in host memory, at an odd address if that is pageable, or in GPU memory;
/// poisoned, or a copy.
class Placed {
 public:
  enum Where { kPageable, kPinned, kDevice, kWays };
  Placed(Where where, std::size_t bytes) : where_(where), bytes_(bytes) {
    if (where == kPageable) {
      pageable_.resize(bytes + 1);
    } else if (where == kPinned) {
      CheckCuda(cudaMallocHost(reinterpret_cast<void**>(&pinned_), bytes), "cudaMallocHost");
    } else {
      device_.Reserve(bytes);
    }
    Fill(std::vector<std::byte>(bytes, std::byte{0xA5}).data());
  }
  template <class T>
  Placed(Where where, const std::vector<T>& contents) : Placed(where, contents.size() * sizeof(T)) {
    Fill(contents.data());
  }
  ~Placed() { cudaFreeHost(pinned_); }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

  std::byte* data() {
    return where_ == kPageable ? pageable_.data() + 1
           : where_ == kPinned ? pinned_
                               : device_.data();
  }
  std::span<std::byte> bytes() { return {data(), bytes_}; }
  template <class T>
  std::vector<T> Contents() {
    std::vector<T> contents(bytes_ / sizeof(T));
    CheckCuda(cudaMemcpy(contents.data(), data(), bytes_, cudaMemcpyDefault), "cudaMemcpy");
    return contents;
  }

 private:
  void Fill(const void* contents) {
    CheckCuda(cudaMemcpy(data(), contents, bytes_, cudaMemcpyDefault), "cudaMemcpy");
    AwaitDefaultStream();
    // Of few bytes that are pageable, the GPU's copy may be made later still, and other streams,
    // and those of other devices, do not wait for it.
    CheckCuda(cudaStreamSynchronize(nullptr), "cudaMemcpy");
  }

  Where where_;
  std::size_t bytes_;
  std::vector<std::byte> pageable_;
  std::byte* pinned_ = nullptr;
  DeviceArray<std::byte> device_;
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

/// A row of any size that tells of its key and of a version, in each byte.
inline void FillRow(std::byte* row, std::uint32_t size, std::uint64_t key, std::uint64_t version) {
  const std::uint64_t word = key * 0x9E3779B97F4A7C15 + version;
  for (std::uint32_t k = 0; k < size; ++k) row[k] = static_cast<std::byte>(word >> 8 * (k % 8));
}
/// Whether a row of whole words is of this key, and all of one version between these.
inline ::testing::AssertionResult IsRowOf(std::span<const std::byte> row, std::uint64_t key,
                                          std::uint64_t least, std::uint64_t most) {
  std::vector<std::uint64_t> words(row.size() / 8);
  std::memcpy(words.data(), row.data(), 8 * words.size());
  const std::uint64_t version = words.front() - key * 0x9E3779B97F4A7C15;
  const bool whole = std::ranges::all_of(words, [&](auto word) { return word == words.front(); });
  if (whole && version >= least && version <= most) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "key " << key << ": version " << version << ", whole "
                                       << whole << ", not from " << least << " to " << most;
}

/// What a store should hold of the keys from 0 on: the version by which FillRow makes its value; 0
/// of a key that is not there.
class Versions {
 public:
  Versions(std::size_t keys, std::uint32_t value_size) : value_size_(value_size), of_(keys) {}
  std::size_t keys() const { return of_.size(); }
  std::uint64_t of(std::uint64_t key) const { return of_[key]; }
  std::uint64_t newest() const { return newest_; }

  /// A batch that is to be applied next.
  struct Planned {
    std::vector<std::byte> rows;   ///< for those that write, each of a version of its own
    std::vector<std::byte> found;  ///< rows of finds that find; empty when all else than finds
    std::vector<Result> results;
  };
  /// @param ops kinds, of finds, inserts, updates, upserts and erases
  Planned Plan(const std::vector<Op>& ops, const std::vector<std::uint64_t>& keys) {
    const std::size_t bytes = keys.size() * value_size_;
    const bool finds = std::ranges::find(ops, Op::kFind) != ops.end();
    Planned planned{std::vector<std::byte>(bytes), std::vector<std::byte>(finds ? bytes : 0),
                    std::vector<Result>(keys.size())};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::uint64_t& version = of_[keys[i]];
      const bool present = version != 0;
      const std::size_t row = i * value_size_;
      FillRow(planned.rows.data() + row, value_size_, keys[i], ++newest_);
      if (ops[i] == Op::kFind && present) {
        FillRow(planned.found.data() + row, value_size_, keys[i], version);
      }
      const bool inserts = ops[i] == Op::kUpsert || ops[i] == Op::kInsert;
      planned.results[i] = ops[i] == Op::kInsert && present ? Result::kExists
                           : present || inserts             ? Result::kOk
                                                            : Result::kNotFound;
      if (planned.results[i] != Result::kOk || ops[i] == Op::kFind) continue;
      version = ops[i] == Op::kErase ? 0 : newest_;
    }
    return planned;
  }

 private:
  std::uint32_t value_size_;
  std::uint64_t newest_ = 0;
  std::vector<std::uint64_t> of_;
};

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
