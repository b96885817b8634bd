#include "pm/memory_nodes.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

#include "pm/gpu_host.h"

namespace gpm {
namespace {

const MemoryNodes* replaced = nullptr;

constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
constexpr std::size_t kMaxNodes = 1024;

std::vector<int> ReadNodes() {
  // Such as "0-1,4".
  std::ifstream file("/sys/devices/system/node/has_memory");
  std::vector<int> nodes;
  for (int first = 0; file >> first;) {
    int last = first;
    if (file.peek() == '-') file.get() && file >> last;
    for (int node = first; node <= last; ++node) nodes.push_back(node);
    if (file.peek() == ',') file.get();
  }
  return nodes.empty() ? std::vector<int>{0} : nodes;
}

}  // namespace

std::vector<int> MemoryNodes::WithMemory() const {
  static const std::vector<int> nodes = ReadNodes();
  return nodes;
}

int MemoryNodes::NodeOfGpu(int device) const {
  const std::string bus = GpuBusId(device);
  int node = -1;  // what the system says, too, where it does not know
  if (!bus.empty()) std::ifstream("/sys/bus/pci/devices/" + bus + "/numa_node") >> node;
  return node;
}

bool MemoryNodes::Prefer(void* address, std::size_t bytes, int node) const {
  if (node < 0 || static_cast<std::size_t>(node) >= kMaxNodes) return false;
  std::array<unsigned long, kMaxNodes / kWordBits> mask{};
  const auto bit = static_cast<std::size_t>(node);
  mask[bit / kWordBits] = 1ul << (bit % kWordBits);
  // (The kernel takes one bit less than it is told.)
  return syscall(SYS_mbind, address, bytes, MPOL_PREFERRED, mask.data(), kMaxNodes + 1, 0) == 0;
}

std::optional<int> MemoryNodes::NodeNear(int device) const {
  if (WithMemory().size() < 2) return {};
  const int node = NodeOfGpu(device);
  return HasMemory(node) ? std::optional(node) : std::nullopt;
}

bool MemoryNodes::HasMemory(int node) const {
  const std::vector<int> nodes = WithMemory();
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

const MemoryNodes& MemoryNodes::Here() {
  static const MemoryNodes here;
  return replaced != nullptr ? *replaced : here;
}

void MemoryNodes::Replace(const MemoryNodes* nodes) { replaced = nodes; }

}  // namespace gpm
