#ifndef GPM_PYTHON_SRC_DISTRIBUTED_H_
#define GPM_PYTHON_SRC_DISTRIBUTED_H_

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpmstore/distributed_store.h"
#include "python/src/batch_arrays.h"
#include "python/src/wait_mutex.h"

namespace gpm::python {

/// A DistributedStore for Python: calls let go of the GIL.
///
/// Thread safety: any thread, one at a time: a call beside another, or from within one (a visit, a
/// log), is Error(kBusy), as the ranks' calls would be in no order.
class PyDistributed {
 public:
  explicit PyDistributed(DistributedStore store);
  ~PyDistributed();

  std::uint32_t rank() const { return rank_; }
  std::uint32_t ranks() const { return ranks_; }
  std::uint32_t shards() const { return shards_; }
  std::uint32_t key_size() const { return key_size_; }
  std::uint32_t value_size() const { return value_size_; }
  bool closed() const { return closed_; }
  /// Calls that the other ranks know of: who raised before one was counted has to Refuse.
  std::uint64_t calls() const { return calls_; }

  std::optional<std::uint64_t> Run(Op op, nb::handle ops, nb::handle keys, nb::handle values,
                                   nb::handle found, nb::handle results, std::uintptr_t stream,
                                   Element element, nb::handle initial);
  /// Begins a batch. @return a PyDistributedTicket
  nb::object Start(Op op, nb::handle ops, nb::handle keys, nb::handle values, nb::handle found,
                   nb::handle results, std::uintptr_t stream, Element element, nb::handle initial);
  std::optional<std::uint64_t> BulkLoad(nb::handle keys, nb::handle values, nb::handle results);
  /// Takes part in a batch which this rank can't make: the others' call throws kInvalidArgument.
  void RefuseBatch();
  /// The same of any other collective call.
  void RefuseOther();
  void Reserve(std::uint64_t items);
  void Compact();
  /// @param query as ParseQuery has it @return as PyStore::Search
  nb::tuple Search(const std::string& query, std::optional<std::uint64_t> limit, bool keys,
                   bool values);
  std::uint64_t EraseWhere(const std::string& query);
  std::uint64_t UpdateWhere(const std::string& query, const nb::object& values);
  nb::dict Snapshot(const std::string& folder);
  bool ForEach(const nb::callable& visit, std::size_t rows);
  nb::dict Stats();
  nb::dict Exchanged();
  void Close();

 private:
  friend class PyDistributedTicket;
  /// A ticket that was dropped where nobody may wait for it.
  struct Dropped {
    Arrays arrays;
    Ticket ticket;
  };
  void AwaitDropped();
  /// `call` without the GIL. @throws Error(kBusy)
  template <class Call>
  auto Alone(const Call& call);
  /// The same of one that the other ranks make too.
  template <class Call>
  auto Collective(const Call& call);
  Query QueryOf(const std::string& text);

  std::atomic<bool> in_call_ = false;
  DistributedStore store_;
  std::vector<Dropped> dropped_;  ///< guarded by the GIL
  std::atomic<bool> closed_ = false;
  std::atomic<std::uint64_t> calls_ = 0;
  std::uint32_t rank_, ranks_, shards_, key_size_, value_size_;
  ExecutorKind executor_;
};

/// A batch in flight, with its arrays; keeps the store. Dropping it waits, but from within a call
/// of the exchange, as the garbage collector may: then the store does later. Thread safety: any
/// thread.
class PyDistributedTicket {
 public:
  PyDistributedTicket(nb::object store, Arrays arrays)
      : store_(std::move(store)), arrays_(std::move(arrays)) {}
  ~PyDistributedTicket();
  bool Done();
  /// @return operations that were not OK; nothing where the results are in device memory
  std::optional<std::uint64_t> Wait();

 private:
  friend class PyDistributed;
  PyDistributed& store() const { return *nb::inst_ptr<PyDistributed>(store_); }
  /// In a fork the mutex may be a thread's that is not there.
  bool AtHome() const { return getpid() == home_; }

  const pid_t home_ = getpid();
  const nb::object store_;
  Arrays arrays_;
  WaitMutex mutex_;
  Ticket ticket_;
  nb::object raised_;  ///< by the exchange, which each wait raises
};

/// `create`, `open` and `open_or_create` of the module, and their class.
void BindDistributed(nb::module_& module);

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_DISTRIBUTED_H_
