#ifndef GPM_PM_DAX_DEVICE_H_
#define GPM_PM_DAX_DEVICE_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace gpm {

/// What is known of a DAX device (`/dev/dax0.0`): memory as a character device, which has no file
/// system, no length that could be changed, and nothing to synchronize but cache lines.
struct DaxDevice {
  std::uint64_t bytes = 0;           ///< a multiple of `alignment`
  std::uint64_t alignment = 0;       ///< of what is mapped: address, offset and length
  bool survives_power_loss = false;  ///< the memory's region has a persistence domain
};

/// The DAX device that a path names. @return nothing: it names something else, or is not there
std::optional<DaxDevice> FindDaxDevice(const std::string& path);

/// What the kernel says of a device in its directory of sysfs. @return nothing: it is no DAX device
std::optional<DaxDevice> ReadDaxDevice(const std::filesystem::path& directory);

/// For tests, in which files take the place of devices: answers FindDaxDevice from now on; null:
/// the kernel does. REQUIRES: nobody calls that meanwhile.
using DaxDevices = std::function<std::optional<DaxDevice>(const std::string& path)>;
void ReplaceDaxDevices(DaxDevices devices);

}  // namespace gpm

#endif  // GPM_PM_DAX_DEVICE_H_
