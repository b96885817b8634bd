#include "python/src/store.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "python/src/calls.h"
#include "python/src/convert.h"
#include "python/src/lent_tensors.h"
#include "python/src/queries.h"

namespace gpm::python {
namespace {

using Use = Gate::Use;
using Kind = Gate::Kind;

/// The number of the attribute with a name. @throws Error(kInvalidArgument)
std::uint32_t PlaceOf(const std::string& name, const std::vector<Attribute>& attributes) {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const Attribute& a) { return a.name == name; });
  if (found != attributes.end()) return static_cast<std::uint32_t>(found - attributes.begin());
  throw Error(ErrorCode::kInvalidArgument, "attributes: the pool has no attribute '" + name + "'");
}

}  // namespace

PyStore::PyStore(AnyStore store)
    : store_(std::move(store)),
      key_size_(OnStore([](auto& opened) { return opened.key_size(); })),
      value_size_(OnStore([](auto& opened) { return opened.value_size(); })),
      shards_(std::holds_alternative<Store>(store_) ? 0 : std::get<ShardedStore>(store_).shards()),
      executor_(OnStore([](auto& opened) { return opened.Stats().executor; })) {}

PyStore::~PyStore() {
  const ReleasedGil released;
  const bool open = OnStore([](auto& store) { return static_cast<bool>(store); });
  if (open && Gate::OnLogThread()) {  // collected there: closing it may have to wait for that
    auto* const store = new AnyStore(std::move(store_));
    try {
      std::thread([store] { delete store; }).detach();
    } catch (const std::exception&) {  // no thread: the pool is recovered when it is opened next
    }
    return;
  }
  const AnyStore closed = std::move(store_);
}

Store& PyStore::OnePool(const char* call) {
  if (Store* const store = std::get_if<Store>(&store_)) return *store;
  throw Error(ErrorCode::kUnsupported,
              std::string(call) + ": a store over several shards has none; one of one pool does");
}

Ticket PyStore::Begin(const Batch& batch, std::uintptr_t stream) {
  if (shards_ == 0) {
    return std::get<Store>(store_).ApplyAsync(batch, reinterpret_cast<Stream>(stream));
  }
  RequireDefaultStream(stream, executor_, "a store over several shards");
  return std::get<ShardedStore>(store_).ApplyAsync(batch);
}

std::optional<std::uint64_t> PyStore::BeginAndWait(const Arrays& arrays, std::uintptr_t stream) {
  return WithoutGil([&] {
    const Use use(gate_, "the store");
    Begin(arrays.batch(), stream).Wait();
    return arrays.CountNotOk();
  });
}

nb::object PyStore::Start(Op op, nb::handle ops, nb::handle keys, nb::handle values,
                          nb::handle found, nb::handle results, std::uintptr_t stream,
                          Element element, nb::handle initial) {
  Arrays arrays({op, ops, keys, values, found, results, element, initial}, key_size_, value_size_,
                executor_);
  nb::object made = nb::cast(new PyTicket(nb::find(this)), nb::rv_policy::take_ownership);
  auto& ticket = *nb::inst_ptr<PyTicket>(made);
  ticket.arrays_ = std::move(arrays);
  WithoutGil([&] {
    const Use use(gate_, "the store");
    ticket.ticket_ = Begin(ticket.arrays_.batch(), stream);
  });
  return made;
}

std::optional<std::uint64_t> PyStore::Run(Op op, nb::handle ops, nb::handle keys, nb::handle values,
                                          nb::handle found, nb::handle results,
                                          std::uintptr_t stream, Element element,
                                          nb::handle initial) {
  const Arrays arrays({op, ops, keys, values, found, results, element, initial}, key_size_,
                      value_size_, executor_);
  return BeginAndWait(arrays, stream);
}

nb::object PyStore::RunLent(Op op, nb::handle ops, nb::handle keys, nb::handle values,
                            nb::handle found, nb::handle results,
                            std::optional<std::uintptr_t> stream, Element element,
                            nb::handle initial) {
  Call call{op, ops, keys, values, found, results, element, initial};
  LentTensors tensors;
  if (!tensors.Lend(&call, stream)) return nb::borrow(Py_NotImplemented);
  const Arrays arrays(call, key_size_, value_size_, executor_);
  return nb::cast(BeginAndWait(arrays, tensors.stream()));
}

std::optional<std::uint64_t> PyStore::BulkLoad(nb::handle keys, nb::handle values,
                                               nb::handle results) {
  const Arrays arrays(Writes(Op::kInsert, keys, values, results), key_size_, value_size_,
                      executor_);
  return WithoutGil([&] {
    const Use use(gate_, "the store");
    const Batch& batch = arrays.batch();
    OnStore([&](auto& store) { store.BulkLoad(batch.keys, batch.values, batch.results); });
    return arrays.CountNotOk();
  });
}

nb::tuple PyStore::ApplyAndEvict(Op op, nb::handle keys, nb::handle values, nb::handle results,
                                 nb::handle evicted_keys, nb::handle evicted_values) {
  const Arrays arrays(Writes(op, keys, values, results), key_size_, value_size_, executor_);
  const Array to_keys(evicted_keys, {.name = "evicted keys", .written = true});
  const Array to_values = evicted_values.is_none()
                              ? Array()
                              : Array(evicted_values, {.name = "evicted values", .written = true});
  Evicted evicted{.keys = to_keys.As<std::byte>(), .values = to_values.As<std::byte>()};
  const std::optional<std::uint64_t> not_ok = WithoutGil([&] {
    const Use use(gate_, "the store");
    OnePool("a batch that evicts").ApplyAndEvict(arrays.batch(), &evicted);
    return arrays.CountNotOk();
  });
  return nb::make_tuple(evicted.count, not_ok ? nb::cast(*not_ok) : nb::none());
}

std::vector<double> PyStore::TimeFinds(nb::handle keys, nb::handle found, nb::handle results,
                                       std::uintptr_t stream, std::uint32_t times) {
  const Arrays arrays({.op = Op::kFind,
                       .ops = nb::none(),
                       .keys = keys,
                       .values = nb::none(),
                       .found = found,
                       .results = results},
                      key_size_, value_size_, executor_);
  return WithoutGil([&] {
    const Use use(gate_, "the store");
    std::vector<double> seconds;
    for (std::uint32_t i = 0; i < times; ++i) {
      const auto start = std::chrono::steady_clock::now();
      Begin(arrays.batch(), stream).Wait();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      seconds.push_back(took.count());
    }
    return seconds;
  });
}

std::optional<nb::bytes> PyStore::Get(const nb::bytes& key) {
  CheckBytes("key", key.size(), key_size_);
  std::vector<std::byte> value(value_size_);
  const bool found = WithoutGil([&] {
    const Use use(gate_, "the store");
    return OnStore([&](auto& store) { return store.Get(BytesOf(key), value); });
  });
  if (!found) return {};
  return PythonBytes(value);
}

Result PyStore::Put(const nb::bytes& key, const nb::bytes& value) {
  CheckBytes("key", key.size(), key_size_);
  CheckBytes("value", value.size(), value_size_);
  return WithoutGil([&] {
    const Use use(gate_, "the store");
    return OnStore([&](auto& store) { return store.Put(BytesOf(key), BytesOf(value)); });
  });
}

bool PyStore::Delete(const nb::bytes& key) {
  CheckBytes("key", key.size(), key_size_);
  return WithoutGil([&] {
    const Use use(gate_, "the store");
    return OnStore([&](auto& store) { return store.Delete(BytesOf(key)); });
  });
}

void PyStore::Reserve(std::uint64_t items) {
  WithoutGil([&] {
    const Use use(gate_, "the store");
    OnStore([&](auto& store) { store.Reserve(items); });
  });
}

void PyStore::Compact() {
  WithoutGil([&] {
    const Use use(gate_, "the store");
    OnStore([](auto& store) { store.Compact(); });
  });
}

nb::dict PyStore::Snapshot(const std::string& path, const std::string& base, bool track_changes) {
  return DictOf(WithoutGil([&] {
    const Use use(gate_, "the store");
    if (shards_ == 0) {
      return OnePool("snapshot").Snapshot(path, {.base = base, .track_changes = track_changes});
    }
    if (!base.empty()) {
      throw Error(ErrorCode::kUnsupported,
                  "snapshot: of a store over several shards there are whole ones alone; give no "
                  "base");
    }
    return std::get<ShardedStore>(store_).Snapshot(path);
  }));
}

nb::object PyStore::RefreshCache() {
  nb::object made = nb::cast(new PyTicket(nb::find(this)), nb::rv_policy::take_ownership);
  WithoutGil([&] {
    const Use use(gate_, "the store");
    nb::inst_ptr<PyTicket>(made)->ticket_ = OnePool("refresh_cache").RefreshCache();
  });
  return made;
}

Query PyStore::QueryOf(const std::string& text) {
  return OnStore([&](auto& store) { return ParseQuery(text, store.attributes()); });
}

nb::tuple PyStore::Search(const std::string& query, std::optional<std::uint64_t> limit, bool keys,
                          bool values) {
  const SearchOptions options = SearchOptionsOf(limit, keys, values);
  const SearchResult result = WithoutGil([&] {
    const Use use(gate_, "the store");
    const Query one = QueryOf(query);
    return OnStore([&](auto& store) { return store.Search({&one, 1}, options); });
  });
  return MatchesOf(result, options, key_size_);
}

std::uint64_t PyStore::SearchMany(const std::vector<std::string>& attributes, nb::handle bounds,
                                  nb::handle counts, nb::handle offsets, nb::handle keys,
                                  std::optional<std::uint64_t> limit, std::uintptr_t stream) {
  const auto array = [](nb::handle given, const char* name, bool written) {
    return given.is_none()
               ? Array()
               : Array(given, {.name = name, .elements = Elements::kIntegers, .written = written});
  };
  const Array its_bounds = array(bounds, "bounds", false);
  its_bounds.CheckRows(its_bounds.rows(), 16 * attributes.size(),
                       "two int64 or uint64 for each attribute");
  const Array its_counts = array(counts, "counts", true);
  const Array its_offsets = array(offsets, "offsets", true);
  const Array its_keys = array(keys, "keys", true);
  return WithoutGil([&] {
    const Use use(gate_, "the store");
    Store& store = OnePool("search_many");
    std::vector<std::uint32_t> places;
    for (const std::string& name : attributes) places.push_back(PlaceOf(name, store.attributes()));
    Matches matches{.counts = its_counts.As<std::uint64_t>(),
                    .offsets = its_offsets.As<std::uint64_t>(),
                    .keys = its_keys.As<std::byte>()};
    store.Search(QueryArray{.attributes = places, .bounds = its_bounds.As<const std::uint64_t>()},
                 limit.value_or(SearchOptions{}.limit), &matches, reinterpret_cast<Stream>(stream));
    return matches.rows;
  });
}

std::uint64_t PyStore::EraseWhere(const std::string& query) {
  return WithoutGil([&] {
    const Use use(gate_, "the store");
    return OnStore([&](auto& store) { return store.EraseWhere(QueryOf(query)); });
  });
}

template <class Call>
auto PyStore::Visit(const char* what, const Call& call) {
  struct AtEnd {
    PyStore& store;
    ~AtEnd() {
      if (!store.gate_.InVisit()) store.AwaitDropped();  // else the visit outside does
    }
  } const at_end{*this};
  return WithoutGil([&] {
    const Use use(gate_, what, Kind::kVisit);
    return call();
  });
}

std::uint64_t PyStore::UpdateWhere(const std::string& query, const nb::object& values) {
  const Store::RowsEditor edit = EditorOf(values, key_size_, value_size_);
  const auto update = [&] {
    return OnStore([&](auto& store) { return store.UpdateRowsWhere(QueryOf(query), edit); });
  };
  if (!nb::isinstance<nb::bytes>(values)) return Visit("update_where", update);
  return WithoutGil([&] {
    const Use use(gate_, "the store");
    return update();
  });
}

bool PyStore::ForEach(const nb::callable& visit, std::size_t rows) {
  return Visit("for_each", [&] {
    return Pages(visit, rows, key_size_)([&](const VisitItem& item) {
      return OnStore([&](auto& store) { return store.ForEach(item); });
    });
  });
}

void PyStore::AwaitDropped() {
  if (dropped_.empty() && dropped_exports_.empty()) return;
  std::vector<Dropped> dropped = std::move(dropped_);
  dropped_.clear();
  std::vector<std::shared_ptr<OpenExport>> exports = std::move(dropped_exports_);
  dropped_exports_.clear();
  try {
    WithoutGil([&] {
      for (const auto& one : exports) one->End();
      const Use use(gate_, "a ticket", Kind::kWait);
      for (Dropped& one : dropped) one.ticket = Ticket();
    });
  } catch (const Error&) {  // as in ~PyTicket: they go with the store
    for (Dropped& one : dropped) dropped_.push_back(std::move(one));
    for (auto& one : exports) dropped_exports_.push_back(std::move(one));
  }
}

nb::dict PyStore::Stats() {
  return DictOf(WithoutGil([&] {
    const Use use(gate_, "the store");
    return OnStore([](auto& store) { return store.Stats(); });
  }));
}

nb::list PyStore::ShardStats() {
  nb::list list;
  if (shards_ == 0) list.append(Stats());
  for (std::uint32_t shard = 0; shard < shards_; ++shard) {
    list.append(DictOf(WithoutGil([&] {
      const Use use(gate_, "the store");
      return std::get<ShardedStore>(store_).ShardStats(shard);
    })));
  }
  return list;
}

void PyStore::Close() {
  WithoutGil([&] {
    const auto close = [&] {
      CutExports();
      OnStore([](auto& store) { store.Close(); });
    };
    gate_.Close(close, [&] { CutExports(); });
  });
}

PyTicket::~PyTicket() {
  // A batch that found no room would wait for the visit that this thread is in.
  if (!store().gate_.InVisit()) {
    try {
      const ReleasedGil released;
      const Use use(store().gate_, "a ticket", Kind::kWait);
      ticket_ = Ticket();
      return;
    } catch (const Error&) {  // a log, which can't wait for who closes the store
    }
  }
  store().dropped_.push_back({std::move(arrays_), std::move(ticket_)});
}

bool PyTicket::Done() {
  return WithoutGil([&] {
    std::unique_lock one_thread(mutex_, std::defer_lock);
    // Who waits has it: then it is not done. (In a fork nobody is asked, as in Gate.)
    if (store().gate_.InHomeProcess() && !one_thread.try_lock()) return false;
    const Use use(store().gate_, "a ticket", Kind::kLook);
    return use.may_look() && ticket_.Done();
  });
}

std::optional<std::uint64_t> PyTicket::Wait() {
  return WithoutGil([&] {
    std::unique_lock one_thread(mutex_, std::defer_lock);
    if (store().gate_.InHomeProcess()) one_thread.lock();  // as Gate, else
    const Use use(store().gate_, "a ticket", Kind::kWait);
    ticket_.Wait();
    return arrays_.CountNotOk();
  });
}

}  // namespace gpm::python
