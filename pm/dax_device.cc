#include "pm/dax_device.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>
#include <system_error>
#include <utility>

namespace gpm {
namespace {

/// What the driver takes where it says nothing.
constexpr std::uint64_t kUsualAlignment = std::uint64_t{2} << 20;

DaxDevices& Replacement() {
  static DaxDevices devices;
  return devices;
}

template <class T>
std::optional<T> ReadAttribute(const std::filesystem::path& file) {
  std::ifstream stream(file);
  T value{};
  if (!(stream >> value)) return std::nullopt;
  return value;
}

/// Devices of persistent memory lie below their region, which says what of it is persistent.
bool HasPersistenceDomain(std::filesystem::path directory) {
  for (; directory.has_relative_path(); directory = directory.parent_path()) {
    const auto domain = ReadAttribute<std::string>(directory / "persistence_domain");
    if (domain) return *domain == "memory_controller" || *domain == "cpu_cache";
  }
  return false;
}

}  // namespace

std::optional<DaxDevice> ReadDaxDevice(const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(directory, error);
  if (error) return std::nullopt;
  const std::filesystem::path subsystem = std::filesystem::read_symlink(real / "subsystem", error);
  if (error || subsystem.filename() != "dax") return std::nullopt;
  const auto bytes = ReadAttribute<std::uint64_t>(real / "size");
  if (!bytes) return std::nullopt;
  DaxDevice device{*bytes, kUsualAlignment, HasPersistenceDomain(real)};
  // (Where it is depends on the kernel's version.)
  for (const char* place : {"align", "device/align", "../dax_region/align"}) {
    const auto alignment = ReadAttribute<std::uint64_t>(real / place);
    if (!alignment || *alignment == 0) continue;
    device.alignment = *alignment;
    break;
  }
  device.bytes -= device.bytes % device.alignment;
  return device;
}

std::optional<DaxDevice> FindDaxDevice(const std::string& path) {
  if (Replacement()) return Replacement()(path);
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || !S_ISCHR(status.st_mode)) return std::nullopt;
  return ReadDaxDevice(
      fmt::format("/sys/dev/char/{}:{}", major(status.st_rdev), minor(status.st_rdev)));
}

void ReplaceDaxDevices(DaxDevices devices) { Replacement() = std::move(devices); }

}  // namespace gpm
