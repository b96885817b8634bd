#include "engine/cuda/kernel_image.h"

#include <gtest/gtest.h>

#include "tests/test_util.h"

namespace gpm {
namespace {

TEST(KernelImageTest, ADeviceWithoutKernelsIsUnsupportedByName) {
  const KernelTarget target{.device = 1, .major = 8, .minor = 6, .compiled_for = {90, 100}};
  for (const cudaError_t error :
       {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction, cudaErrorInvalidPtx,
        cudaErrorUnsupportedPtxVersion, cudaErrorJitCompilationDisabled}) {
    std::string message;
    EXPECT_EQ(test::ErrorOf([&] { RequireKernelImage(error, target); }, &message),
              ErrorCode::kUnsupported);
    EXPECT_NE(message.find("device 1 has architecture 86"), std::string::npos) << message;
    EXPECT_NE(message.find("code for 90, 100"), std::string::npos) << message;
    EXPECT_NE(message.find("CMAKE_CUDA_ARCHITECTURES=86"), std::string::npos) << message;
  }
}

TEST(KernelImageTest, OtherErrorsAreNotAboutKernels) {
  for (const cudaError_t error : {cudaSuccess, cudaErrorMemoryAllocation, cudaErrorLaunchFailure}) {
    EXPECT_NO_THROW(RequireKernelImage(error, {}));
  }
}

}  // namespace
}  // namespace gpm
