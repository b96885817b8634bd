// A recommendation model's embedding lookup, by the model's own kernel: each row of a batch names
// some items, and the kernel sums their embeddings, read from the store through its device-side
// view. An item that the store does not know yet is given an embedding on the way.

#include <cooperative_groups.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "gpmstore/device_view.cuh"

constexpr int kDimensions = 32;  // floats: values of 128 bytes
constexpr int kItemsPerRow = 4;
constexpr int kRows = 1000;
constexpr std::uint64_t kKnownItems = 1500;  // of 2000

void Check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(2);
}

__host__ __device__ float Embedding(std::uint64_t item, int dimension) {
  return static_cast<float>(item % 100) + static_cast<float>(dimension);
}

/// One tile of DeviceView::kLanes threads a row.
__global__ void SumEmbeddings(gpm::DeviceView store, const std::uint64_t* items, float* scratch,
                              float* sums) {
  const auto tile = cooperative_groups::tiled_partition<gpm::DeviceView::kLanes>(
      cooperative_groups::this_thread_block());
  const unsigned row = (blockIdx.x * blockDim.x + threadIdx.x) / gpm::DeviceView::kLanes;
  if (row >= kRows) return;
  float* embedding = scratch + row * kDimensions;
  for (int k = 0; k < kItemsPerRow; ++k) {
    const std::uint64_t* item = items + row * kItemsPerRow + k;
    auto* value = reinterpret_cast<std::byte*>(embedding);
    if (store.Find(tile, item, value) == gpm::Result::kNotFound) {
      for (int d = tile.thread_rank(); d < kDimensions; d += tile.size()) {
        embedding[d] = Embedding(*item, d);
      }
      tile.sync();
      store.Insert(tile, item, value);
    }
    tile.sync();
    for (int d = tile.thread_rank(); d < kDimensions; d += tile.size()) {
      sums[row * kDimensions + d] += embedding[d];
    }
    tile.sync();
  }
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device");
    return 0;
  }
  gpm::Store store = gpm::Store::Create(
      "pinned:",
      {.key_size = 8, .value_size = kDimensions * sizeof(float), .initial_capacity = 10000},
      {.executor = gpm::ExecutorKind::kCuda});
  std::vector<std::uint64_t> known;
  std::vector<float> embeddings;
  for (std::uint64_t item = 0; item < kKnownItems; ++item) {
    known.push_back(item);
    for (int d = 0; d < kDimensions; ++d) embeddings.push_back(Embedding(item, d));
  }
  std::vector<gpm::Result> results(known.size());
  store.Insert(std::as_bytes(std::span(known)), std::as_bytes(std::span(embeddings)), results);

  std::vector<std::uint64_t> items;
  for (std::uint64_t i = 0; i < kRows * kItemsPerRow; ++i) items.push_back(i * 7919 % 2000);
  std::uint64_t* device_items = nullptr;
  float* scratch = nullptr;
  float* sums = nullptr;
  Check(cudaMalloc(&device_items, items.size() * sizeof(items[0])));
  Check(cudaMalloc(&scratch, kRows * kDimensions * sizeof(float)));
  Check(cudaMalloc(&sums, kRows * kDimensions * sizeof(float)));
  Check(cudaMemcpy(device_items, items.data(), items.size() * sizeof(items[0]),
                   cudaMemcpyHostToDevice));
  Check(cudaMemset(sums, 0, kRows * kDimensions * sizeof(float)));
  {
    gpm::DeviceScope scope(store, nullptr, items.size(), 0);
    SumEmbeddings<<<(kRows * gpm::DeviceView::kLanes + 255) / 256, 256>>>(
        scope.view(), device_items, scratch, sums);
    Check(cudaGetLastError());
    scope.Close();
  }
  std::vector<float> sum(kRows * kDimensions);
  Check(cudaMemcpy(sum.data(), sums, sum.size() * sizeof(float), cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (int row = 0; row < kRows; ++row) {
    for (int d = 0; d < kDimensions; ++d) {
      float expected = 0;
      for (int k = 0; k < kItemsPerRow; ++k) {
        expected += Embedding(items[row * kItemsPerRow + k], d);
      }
      wrong += sum[row * kDimensions + d] != expected;
    }
  }
  std::printf("%d rows summed, %d wrong values; the store now holds %llu items\n", kRows, wrong,
              static_cast<unsigned long long>(store.Stats().items));
  Check(cudaFree(device_items));
  Check(cudaFree(scratch));
  Check(cudaFree(sums));
  return wrong == 0 && store.Stats().items == 2000 ? 0 : 1;
}
