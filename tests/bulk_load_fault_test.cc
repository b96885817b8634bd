// What a CUDA call that fails leaves of a bulk load whose values are copied beside the kernels:
// none of its items, or all of them.

#include <gtest/gtest.h>

#include <numeric>

#include "tests/cuda_test_util.cuh"
#include "tests/fault_injection.h"

namespace gpm::test {
namespace {

class BulkLoadFaultTest : public CudaTest {};

TEST_F(BulkLoadFaultTest, EveryCudaCall) {
  constexpr std::size_t kItems = (std::size_t{1} << 17) + 100;
  std::vector<std::uint64_t> keys(kItems), values(2 * kItems), found(2 * kItems);
  std::iota(keys.begin(), keys.end(), 1);
  std::iota(values.begin(), values.end(), 7);
  CreateOptions create;
  create.value_size = 16;
  for (const auto where : {Placed::kDevice, Placed::kPageable}) {
    Placed on_keys(where, keys), on_values(where, values);
    std::vector<Result> results(kItems);
    std::uint64_t failures = 0;
    bool hit = true;
    for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
      const std::string path = NewPath();
      std::optional<Store> store = Store::Create(path, create, TestOpenOptions());
      const Fault fault(FaultKind::kCudaCall, k);
      bool loaded = false;
      try {
        const Fault::Armed armed;
        store->BulkLoad(on_keys.bytes(), on_values.bytes(), results);
        loaded = true;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kGpu) << error.what();
        ++failures;
      }
      hit = fault.hit();
      SCOPED_TRACE(hit ? fault.call() : "no fault");
      EXPECT_TRUE(hit || loaded);
      store.reset();
      EXPECT_TRUE(CheckPool(path).defects.empty());
      store = Store::Open(path, TestOpenOptions());
      const std::uint64_t items = store->Stats().items;
      EXPECT_TRUE(items == kItems || (!loaded && items == 0)) << items;
      store->BulkLoad(on_keys.bytes(), on_values.bytes(), results);
      EXPECT_EQ(results, std::vector<Result>(kItems, items == 0 ? Result::kOk : Result::kExists));
      EXPECT_EQ(store->Find(std::as_bytes(std::span(keys)),
                            std::as_writable_bytes(std::span(found)), results),
                0u);
      EXPECT_TRUE(found == values);
      EXPECT_EQ(store->Stats().items + store->Stats().free_cells, store->Stats().value_cells);
      store.reset();
      std::filesystem::remove(path);
    }
    EXPECT_GT(failures, 5u);
  }
}

}  // namespace
}  // namespace gpm::test
