#ifndef GPM_PM_RELAXED_CAPTURE_H_
#define GPM_PM_RELAXED_CAPTURE_H_

#include <cuda_runtime_api.h>

namespace gpm {

/// While it lives, what this thread asks of the CUDA runtime has nothing to do with what other
/// threads capture into graphs. Else, while one captures in the mode that is the default, calls
/// such as cudaEventQuery fail in all threads, and end that capture.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { Exchange(); }
  ~RelaxedCapture() { Exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void Exchange() noexcept {
    if (cudaThreadExchangeStreamCaptureMode(&mode_) != cudaSuccess) cudaGetLastError();
  }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  ///< then the thread's own
};

}  // namespace gpm

#endif  // GPM_PM_RELAXED_CAPTURE_H_
