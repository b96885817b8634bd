#ifndef GPM_PM_MEMORY_NODES_H_
#define GPM_PM_MEMORY_NODES_H_

#include <cstddef>
#include <optional>
#include <vector>

namespace gpm {

/// The nodes of the machine's memory (NUMA), and which of them is next to a GPU.
///
/// Thread safety: any thread, but for Replace.
class MemoryNodes {
 public:
  virtual ~MemoryNodes() = default;

  /// Numbers of the nodes that have memory, in order; {0} where the system does not tell.
  virtual std::vector<int> WithMemory() const;
  /// The node next to a device; -1 where there is no such device, or nobody knows.
  virtual int NodeOfGpu(int device) const;
  /// Has pages of a mapping, which are not there yet, taken of a node, as long as it has some. They
  /// may be of a file in memory, and stay its, whoever touches them first (mbind, MPOL_PREFERRED).
  /// @param address of a page @return whether the system does so
  virtual bool Prefer(void* address, std::size_t bytes, int node) const;

  /// The node of memory that a device's pools are to be in; none where there is one node alone.
  std::optional<int> NodeNear(int device) const;
  /// Whether a node has memory.
  bool HasMemory(int node) const;

  /// This machine's.
  static const MemoryNodes& Here();
  /// For tests: what Here returns from now on; null: this machine's again.
  static void Replace(const MemoryNodes* nodes);
};

}  // namespace gpm

#endif  // GPM_PM_MEMORY_NODES_H_
