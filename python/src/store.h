#ifndef GPM_PYTHON_SRC_STORE_H_
#define GPM_PYTHON_SRC_STORE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "gpmstore/sharded_store.h"
#include "gpmstore/store.h"
#include "python/src/batch_arrays.h"
#include "python/src/gate.h"
#include "python/src/wait_mutex.h"

namespace gpm::python {

class PyTicket;

/// An Exporter that any thread may use, and end while others want to.
class OpenExport {
 public:
  /// @param gate of the store, which outlives this
  OpenExport(const Gate& gate, Exporter exporter) : gate_(gate), exporter_(std::move(exporter)) {}
  /// As Exporter::Next. @throws Error(kInvalidArgument) when Cut ended it
  std::uint64_t Next(std::span<std::byte> keys, std::span<std::byte> values);
  void End();
  /// Ends it, if it has not ended, since its store is closed.
  void Cut();

 private:
  /// (In a fork nothing is locked, as in Gate.)
  std::unique_lock<std::mutex> OneThread();
  const Gate& gate_;
  std::mutex mutex_;
  Exporter exporter_;
  bool cut_ = false;
};

/// A Store or ShardedStore for Python: what waits lets go of the GIL, and any thread may close it.
/// Calls that a store over several shards does not have throw Error(kUnsupported).
class PyStore {
 public:
  using AnyStore = std::variant<Store, ShardedStore>;
  explicit PyStore(AnyStore store);
  ~PyStore();

  std::uint32_t key_size() const { return key_size_; }
  std::uint32_t value_size() const { return value_size_; }
  std::uint32_t shards() const { return shards_; }  ///< 0: it is one pool
  bool closed() const { return gate_.closed(); }
  nb::object Start(Op op, nb::handle ops, nb::handle keys, nb::handle values, nb::handle found,
                   nb::handle results, std::uintptr_t stream, Element element, nb::handle initial);
  /// Start, and PyTicket::Wait, without a ticket, which takes some microseconds.
  std::optional<std::uint64_t> Run(Op op, nb::handle ops, nb::handle keys, nb::handle values,
                                   nb::handle found, nb::handle results, std::uintptr_t stream,
                                   Element element, nb::handle initial);
  /// Run, with tensors that are lent (LentTensors).
  /// @param stream none: the current one of the first tensor on a GPU
  /// @return as Run; or NotImplemented, where not all arrays are tensors that can be lent
  nb::object RunLent(Op op, nb::handle ops, nb::handle keys, nb::handle values, nb::handle found,
                     nb::handle results, std::optional<std::uintptr_t> stream, Element element,
                     nb::handle initial);
  std::optional<std::uint64_t> BulkLoad(nb::handle keys, nb::handle values, nb::handle results);
  /// @return how many were evicted, and how many operations were not OK (nothing where the results
  ///         are in device memory)
  nb::tuple ApplyAndEvict(Op op, nb::handle keys, nb::handle values, nb::handle results,
                          nb::handle evicted_keys, nb::handle evicted_values);
  std::optional<nb::bytes> Get(const nb::bytes& key);
  Result Put(const nb::bytes& key, const nb::bytes& value);
  bool Delete(const nb::bytes& key);
  void Reserve(std::uint64_t items);
  void Compact();
  nb::object RefreshCache();
  /// @param score_bytes 0: whatever their score @param changed_since empty: whenever they changed
  /// @param where as ParseQuery has it
  nb::object Export(std::uint32_t score_offset, std::uint32_t score_bytes, std::uint64_t least,
                    std::uint64_t most, const std::string& changed_since, const std::string& where);
  /// @param query as ParseQuery has it @param limit rows at most, or None
  /// @return how many match, and arrays of keys and of values, or None if they are not wanted
  nb::tuple Search(const std::string& query, std::optional<std::uint64_t> limit, bool keys,
                   bool values);
  /// @param bounds of each query least and most of each attribute @param offsets,keys None: counts
  ///        alone are wanted @return rows that there have to be room for
  std::uint64_t SearchMany(const std::vector<std::string>& attributes, nb::handle bounds,
                           nb::handle counts, nb::handle offsets, nb::handle keys,
                           std::optional<std::uint64_t> limit, std::uintptr_t stream);
  std::uint64_t EraseWhere(const std::string& query);
  /// @param values bytes of one value for all that match; or a function of n keys and n rows of
  ///        values, which are copies, that gives back other rows, or None: it has edited those
  std::uint64_t UpdateWhere(const std::string& query, const nb::object& values);
  /// Seconds that the library's own call takes to find the keys, each time: for benchmarks of what
  /// Python adds to it.
  std::vector<double> TimeFinds(nb::handle keys, nb::handle found, nb::handle results,
                                std::uintptr_t stream, std::uint32_t times);
  /// @param base,track_changes of one pool; of several shards there are whole snapshots alone
  nb::dict Snapshot(const std::string& path, const std::string& base, bool track_changes);
  bool ForEach(const nb::callable& visit, std::size_t rows);
  nb::dict Stats();
  nb::list ShardStats();  ///< of each shard; of one pool its own
  void Close();

 private:
  friend class PyExport;
  friend class PyTicket;
  /// A ticket that was dropped where it could not be waited for, with what has to stay meanwhile.
  struct Dropped {
    Arrays arrays;
    Ticket ticket;
  };
  /// `call` of the store, whichever it is.
  template <class Call>
  auto OnStore(const Call& call) {
    return std::visit(call, store_);
  }
  /// @throws Error(kUnsupported) naming `call`, where it is over several shards
  Store& OnePool(const char* call);
  Ticket Begin(const Batch& batch, std::uintptr_t stream);
  std::optional<std::uint64_t> BeginAndWait(const Arrays& arrays, std::uintptr_t stream);
  Query QueryOf(const std::string& text);
  /// `call` without the GIL, while batches are excluded and the thread can't call the store.
  template <class Call>
  auto Visit(const char* what, const Call& call);
  /// Waits for those that this thread's visitor dropped, or another's.
  void AwaitDropped();
  /// Cuts all exports. Who closes does it twice: before it waits for calls, which may wait for an
  /// export, and behind those, since they may have begun one.
  void CutExports() noexcept;

  Gate gate_;
  AnyStore store_;
  std::vector<Dropped> dropped_;                              ///< guarded by the GIL
  std::vector<std::shared_ptr<OpenExport>> dropped_exports_;  ///< guarded by the GIL
  std::mutex exports_mutex_;                                  ///< nobody waits who has it
  std::vector<std::weak_ptr<OpenExport>> exports_;  ///< guarded by it: all that may be open
  std::uint32_t key_size_;
  std::uint32_t value_size_;
  std::uint32_t shards_;
  ExecutorKind executor_;
};

/// A Ticket, and what has to stay until it was waited for: the arrays, the store. Any thread may
/// wait, several times; not from within a log that a wait for it tells: Error(kBusy).
class PyTicket {
 public:
  explicit PyTicket(nb::object store) : store_(std::move(store)) {}
  ~PyTicket();
  std::optional<std::uint64_t> Wait();
  bool Done();

 private:
  friend class PyStore;
  PyStore& store() const { return *nb::inst_ptr<PyStore>(store_); }
  nb::object store_;
  Arrays arrays_;
  WaitMutex mutex_;
  Ticket ticket_;
};

/// An export, and the store, which stays until it has ended. Any thread may use it.
class PyExport {
 public:
  explicit PyExport(nb::object store) : store_(std::move(store)) {}
  ~PyExport();
  /// @param values None: nobody wants them @return rows that were filled; 0: it has ended
  std::uint64_t Next(nb::handle keys, nb::handle values);
  void Close();

 private:
  friend class PyStore;
  PyStore& store() const { return *nb::inst_ptr<PyStore>(store_); }
  nb::object store_;
  std::shared_ptr<OpenExport> export_;  ///< null: it could not begin
};

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_STORE_H_
