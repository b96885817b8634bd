#include "python/src/distributed.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "python/src/calls.h"
#include "python/src/convert.h"
#include "python/src/exchange.h"
#include "python/src/queries.h"
#ifdef GPM_PYTHON_NCCL
#include "gpmstore/nccl_exchange.h"
#endif

namespace gpm::python {
namespace {

using nb::literals::operator""_a;

#ifdef GPM_PYTHON_NCCL
constexpr bool kHasNccl = true;
#else
constexpr bool kHasNccl = false;
#endif

using MakeStore = std::function<DistributedStore(const std::string& folder,
                                                 std::unique_ptr<Exchange>, const Options&)>;

/// What was raised, of a text that says where, too.
std::string LastLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

/// With NCCL, an exchange that takes arrays in the memory of this rank's GPU.
/// @param seconds until a rank that does not come is given up
std::unique_ptr<Exchange> OverNccl(std::unique_ptr<Exchange> exchange, int device, double seconds) {
#ifdef GPM_PYTHON_NCCL
  return MakeNcclExchange(std::move(exchange), device,
                          std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3)));
#else
  static_cast<void>(exchange);
  static_cast<void>(device);
  static_cast<void>(seconds);
  throw Error(ErrorCode::kUnsupported,
              "nccl: this package was built without NCCL; build it with -DGPM_NCCL=ON where NCCL "
              "and a CUDA compiler are");
#endif
}

/// @param nccl_seconds 0: without NCCL
PyDistributed* Make(const MakeStore& make, bool creates, const std::string& folder,
                    nb::object object, const nb::dict& given, double nccl_seconds) {
  // First, as this rank leaves the others with it when anything is wrong.
  std::unique_ptr<Exchange> exchange = std::make_unique<PyExchange>(std::move(object));
  const Options options = OptionsOf(given, creates);
  const ReleasedGil released;
  if (nccl_seconds > 0) {
    exchange = OverNccl(std::move(exchange), options.open.device, nccl_seconds);
  }
  return new PyDistributed(make(folder, std::move(exchange), options));
}

}  // namespace

PyDistributed::PyDistributed(DistributedStore store)
    : store_(std::move(store)),
      rank_(store_.rank()),
      ranks_(store_.ranks()),
      shards_(store_.shards()),
      key_size_(store_.key_size()),
      value_size_(store_.value_size()),
      executor_(store_.Stats().executor) {}

PyDistributed::~PyDistributed() {
  if (PyExchange::InCall()) {  // collected there: closing it waits for this thread
    struct Rest {
      DistributedStore store;
      std::vector<Dropped> dropped;
    };
    auto* const rest = new Rest{std::move(store_), std::move(dropped_)};
    try {
      std::thread([rest] {
        rest->store = DistributedStore();
        const HeldGil gil;
        delete rest;
      }).detach();
    } catch (const std::exception&) {  // no thread: the pools are recovered when they are opened
    }
    return;
  }
  const ReleasedGil released;
  const DistributedStore closed = std::move(store_);
}

void PyDistributed::AwaitDropped() {
  if (dropped_.empty() || PyExchange::InCall()) return;
  std::vector<Dropped> dropped = std::move(dropped_);
  dropped_.clear();
  WithoutGil([&] {
    for (Dropped& one : dropped) one.ticket = Ticket();
  });
}

template <class Call>
auto PyDistributed::Collective(const Call& call) {
  return Alone([&] {
    ++calls_;
    return call();
  });
}

template <class Call>
auto PyDistributed::Alone(const Call& call) {
  AwaitDropped();
  return WithoutGil([&] {
    if (PyExchange::InCall() || in_call_.exchange(true)) {
      throw Error(ErrorCode::kBusy,
                  "a distributed store is in a call: it takes one at a time on each rank");
    }
    const struct AtEnd {
      std::atomic<bool>& in_call;
      ~AtEnd() { in_call = false; }
    } at_end{in_call_};
    return call();
  });
}

std::optional<std::uint64_t> PyDistributed::Run(Op op, nb::handle ops, nb::handle keys,
                                                nb::handle values, nb::handle found,
                                                nb::handle results, std::uintptr_t stream,
                                                Element element, nb::handle initial) {
  const Arrays arrays({op, ops, keys, values, found, results, element, initial}, key_size_,
                      value_size_, executor_);
  RequireDefaultStream(stream, executor_, "a distributed store");
  return Collective([&] {
    store_.Apply(arrays.batch());
    return arrays.CountNotOk();
  });
}

nb::object PyDistributed::Start(Op op, nb::handle ops, nb::handle keys, nb::handle values,
                                nb::handle found, nb::handle results, std::uintptr_t stream,
                                Element element, nb::handle initial) {
  Arrays arrays({op, ops, keys, values, found, results, element, initial}, key_size_, value_size_,
                executor_);
  RequireDefaultStream(stream, executor_, "a distributed store");
  nb::object made = nb::cast(new PyDistributedTicket(nb::find(this), std::move(arrays)),
                             nb::rv_policy::take_ownership);
  auto& ticket = *nb::inst_ptr<PyDistributedTicket>(made);
  Collective([&] { ticket.ticket_ = store_.ApplyAsync(ticket.arrays_.batch()); });
  return made;
}

PyDistributedTicket::~PyDistributedTicket() {
  if (PyExchange::InCall()) {
    store().dropped_.push_back({std::move(arrays_), std::move(ticket_)});
    return;
  }
  const ReleasedGil released;
  ticket_ = Ticket();
}

bool PyDistributedTicket::Done() {
  return WithoutGil([&] {
    std::unique_lock one_thread(mutex_, std::defer_lock);
    if (AtHome() && !one_thread.try_lock()) return false;  // somebody waits for it
    return ticket_.Done();
  });
}

std::optional<std::uint64_t> PyDistributedTicket::Wait() {
  if (!raised_.is_valid()) {
    try {
      return WithoutGil([&] {
        std::unique_lock one_thread(mutex_, std::defer_lock);
        if (AtHome()) one_thread.lock();
        ticket_.Wait();
        return arrays_.CountNotOk();
      });
    } catch (const nb::python_error& error) {
      raised_ = nb::borrow(error.value());
    }
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised_.ptr())), raised_.ptr());
  throw nb::python_error();
}

std::optional<std::uint64_t> PyDistributed::BulkLoad(nb::handle keys, nb::handle values,
                                                     nb::handle results) {
  const Arrays arrays(Writes(Op::kInsert, keys, values, results), key_size_, value_size_,
                      executor_);
  return Collective([&] {
    const Batch& batch = arrays.batch();
    store_.BulkLoad(batch.keys, batch.values, batch.results);
    return arrays.CountNotOk();
  });
}

void PyDistributed::RefuseBatch() {
  constexpr std::byte kNoKey{};  // a key without a result, which no batch has
  try {
    Alone([&] { store_.Apply({.op = Op::kFind, .keys = std::span(&kNoKey, 1)}); });
  } catch (const Error&) {  // as it has to be, or the others are gone
  }
}

void PyDistributed::RefuseOther() {
  constexpr std::uint32_t kNoAttribute = ~std::uint32_t{0};
  try {
    Alone([&] { store_.EraseWhere({{.attribute = kNoAttribute}}); });
  } catch (const Error&) {
  }
}

void PyDistributed::Reserve(std::uint64_t items) {
  Collective([&] { store_.Reserve(items); });
}

void PyDistributed::Compact() {
  Collective([&] { store_.Compact(); });
}

Query PyDistributed::QueryOf(const std::string& text) {
  return Alone([&] { return ParseQuery(text, store_.attributes()); });
}

nb::tuple PyDistributed::Search(const std::string& query, std::optional<std::uint64_t> limit,
                                bool keys, bool values) {
  const SearchOptions options = SearchOptionsOf(limit, keys, values);
  const Query one = QueryOf(query);
  return MatchesOf(Collective([&] {
                     return store_.Search({&one, 1}, options);
                   }),
                   options, key_size_);
}

std::uint64_t PyDistributed::EraseWhere(const std::string& query) {
  const Query one = QueryOf(query);
  return Collective([&] { return store_.EraseWhere(one); });
}

std::uint64_t PyDistributed::UpdateWhere(const std::string& query, const nb::object& values) {
  const Store::RowsEditor edit = EditorOf(values, key_size_, value_size_);
  const Query one = QueryOf(query);
  std::exception_ptr raised;
  const auto tell = [&](std::span<const std::byte> keys, std::span<std::byte> rows) {
    try {
      edit(keys, rows);
    } catch (const nb::python_error& error) {
      raised = std::current_exception();
      throw Error(ErrorCode::kIo, LastLine(error.what()));  // for the other ranks
    }
  };
  try {
    return Collective([&] { return store_.UpdateRowsWhere(one, tell); });
  } catch (const Error&) {
    if (raised) std::rethrow_exception(raised);
    throw;
  }
}

nb::dict PyDistributed::Snapshot(const std::string& folder) {
  return DictOf(Collective([&] { return store_.Snapshot(folder); }));
}

bool PyDistributed::ForEach(const nb::callable& visit, std::size_t rows) {
  return Alone([&] {
    return Pages(visit, rows,
                 key_size_)([&](const VisitItem& item) { return store_.ForEach(item); });
  });
}

nb::dict PyDistributed::Stats() {
  return DictOf(Alone([&] { return store_.Stats(); }));
}

nb::dict PyDistributed::Exchanged() {
  const ExchangeStats stats = Alone([&] { return store_.Exchanged(); });
  nb::dict dict;
  dict["split_seconds"] = stats.split_seconds;
  dict["send_seconds"] = stats.send_seconds;
  dict["local_seconds"] = stats.local_seconds;
  dict["return_seconds"] = stats.return_seconds;
  dict["asked"] = stats.asked;
  dict["sent"] = stats.sent;
  dict["carried_out"] = stats.carried_out;
  return dict;
}

void PyDistributed::Close() {
  Alone([&] {
    closed_ = true;
    store_.Close();
  });
}

void BindDistributed(nb::module_& m) {
  nb::class_<PyDistributedTicket>(m, "DistributedTicket")
      .def("wait", &PyDistributedTicket::Wait)
      .def("done", &PyDistributedTicket::Done);
  nb::class_<PyDistributed>(m, "DistributedStore")
      .def_prop_ro("rank", &PyDistributed::rank)
      .def_prop_ro("ranks", &PyDistributed::ranks)
      .def_prop_ro("shards", &PyDistributed::shards)
      .def_prop_ro("key_size", &PyDistributed::key_size)
      .def_prop_ro("value_size", &PyDistributed::value_size)
      .def_prop_ro("closed", &PyDistributed::closed)
      .def_prop_ro("calls", &PyDistributed::calls)
      .def("run", &PyDistributed::Run, "op"_a, "ops"_a.none(), "keys"_a, "values"_a.none(),
           "found"_a.none(), "results"_a, "stream"_a, "element"_a, "initial"_a.none(),
           nb::sig("def run(self, op: Op, ops: object, keys: object, values: object, found: "
                   "object, results: object, stream: int, element: Element, initial: tuple | None"
                   ") -> int | None"))
      .def("start", &PyDistributed::Start, "op"_a, "ops"_a.none(), "keys"_a, "values"_a.none(),
           "found"_a.none(), "results"_a, "stream"_a, "element"_a, "initial"_a.none(),
           nb::sig("def start(self, op: Op, ops: object, keys: object, values: object, found: "
                   "object, results: object, stream: int, element: Element, initial: tuple | None"
                   ") -> DistributedTicket"))
      .def("bulk_load", &PyDistributed::BulkLoad, "keys"_a, "values"_a, "results"_a)
      .def("refuse_batch", &PyDistributed::RefuseBatch)
      .def("refuse_other", &PyDistributed::RefuseOther)
      .def("reserve", &PyDistributed::Reserve, "items"_a)
      .def("compact", &PyDistributed::Compact)
      .def("search", &PyDistributed::Search, "query"_a, "limit"_a.none(), "keys"_a, "values"_a,
           nb::sig("def search(self, query: str, limit: int | None, keys: bool, values: bool) -> "
                   "tuple"))
      .def("erase_where", &PyDistributed::EraseWhere, "query"_a)
      .def("update_where", &PyDistributed::UpdateWhere, "query"_a, "values"_a,
           nb::sig("def update_where(self, query: str, values: object) -> int"))
      .def("snapshot", &PyDistributed::Snapshot, "folder"_a)
      .def("for_each", &PyDistributed::ForEach, "visit"_a, "rows"_a)
      .def("stats", &PyDistributed::Stats)
      .def("exchanged", &PyDistributed::Exchanged)
      .def("close", &PyDistributed::Close);
  const auto bind = [&](const char* name, bool creates, const MakeStore& make) {
    m.def(
        name,
        [=](const std::string& folder, const nb::object& exchange, const nb::dict& options,
            double nccl_seconds) {
          return Make(make, creates, folder, exchange, options, nccl_seconds);
        },
        "folder"_a, "exchange"_a, "options"_a, "nccl_seconds"_a, nb::rv_policy::take_ownership);
  };
  bind("create_distributed", true,
       [](const std::string& folder, std::unique_ptr<Exchange> exchange, const Options& options) {
         return DistributedStore::Create(folder, std::move(exchange), options.create,
                                         options.shards, options.open);
       });
  bind("open_distributed", false,
       [](const std::string& folder, std::unique_ptr<Exchange> exchange, const Options& options) {
         return DistributedStore::Open(folder, std::move(exchange), options.open, options.shards);
       });
  bind("open_or_create_distributed", true,
       [](const std::string& folder, std::unique_ptr<Exchange> exchange, const Options& options) {
         return DistributedStore::OpenOrCreate(folder, std::move(exchange), options.create,
                                               options.shards, options.open);
       });
  m.def(
      "restore_distributed",
      [](const std::string& snapshot, const std::string& folder, const nb::object& exchange,
         const nb::dict& given, double nccl_seconds) {
        return Make(
            [&](const std::string& path, std::unique_ptr<Exchange> ranks, const Options& options) {
              return DistributedStore::Restore(snapshot, path, std::move(ranks), options.open,
                                               options.shards);
            },
            false, folder, exchange, given, nccl_seconds);
      },
      "snapshot"_a, "folder"_a, "exchange"_a, "options"_a, "nccl_seconds"_a,
      nb::rv_policy::take_ownership);
  m.attr("NCCL") = nb::bool_(kHasNccl);
}

}  // namespace gpm::python
