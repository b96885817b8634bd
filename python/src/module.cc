// The module gpmstore._core: the library's calls on arrays and bytes. What Python's users see, with
// the arrays of each library and their streams, is the package around it.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <system_error>

#include "gpmstore/sharded_store.h"
#include "gpmstore/version.h"
#include "python/src/convert.h"
#include "python/src/distributed.h"
#include "python/src/gil.h"
#include "python/src/reader.h"
#include "python/src/store.h"

namespace gpm::python {
namespace {

using nb::literals::operator""_a;

enum class Existing { kNo, kYes, kEither };

/// Whether a path names, or is to name, a folder of shards. @throws Error(kInvalidArgument)
bool IsOfShards(const std::string& path, const Options& options) {
  std::error_code ignored;
  if (options.shards.shards > 0 || std::filesystem::is_directory(path, ignored)) return true;
  if (options.shards.devices.empty()) return false;
  throw Error(ErrorCode::kInvalidArgument,
              "devices: they are those of shards; give shards too, or device");
}

/// @param existing whether the pool exists
PyStore::AnyStore OpenAny(const std::string& path, const Options& options, Existing existing) {
  const auto& [create, open, shards] = options;
  const bool of_shards = IsOfShards(path, options);
  switch (existing) {
    case Existing::kNo:
      if (shards.shards == 0) return Store::Create(path, create, open);
      return ShardedStore::Create(path, create, shards, open);
    case Existing::kYes:
      if (!of_shards) return Store::Open(path, open);
      return ShardedStore::Open(path, open, shards);
    case Existing::kEither:
      break;
  }
  if (!of_shards) return Store::OpenOrCreate(path, create, open);
  return ShardedStore::OpenOrCreate(path, create, shards, open);
}

PyStore* OpenStore(const std::string& path, const nb::dict& given, Existing existing) {
  const Options options = OptionsOf(given, existing != Existing::kYes);
  const ReleasedGil released;
  return new PyStore(OpenAny(path, options, existing));
}

/// A snapshot of one pool makes one pool. @throws Error(kInvalidArgument)
void RequireNoShards(const ShardOptions& shards) {
  if (shards.shards == 0 && shards.devices.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(shards.shards > 0 ? "shards" : "devices") +
                  ": the snapshot is of a store of one pool, and restores as that; leave it out");
}

PyStore* RestoreStore(const nb::list& files, const std::string& path, const nb::dict& given) {
  std::vector<std::string> names;
  for (const nb::handle file : files) names.push_back(nb::cast<std::string>(file));
  const Options options = OptionsOf(given, false);
  RequireNoShards(options.shards);
  const ReleasedGil released;
  return new PyStore(Store::Restore(names, path, options.open));
}

/// @param folder of snapshots that a store keeps, or that holds one of a store over several shards
PyStore* RestoreFolder(const std::string& folder, const std::string& path, const nb::dict& given) {
  const Options options = OptionsOf(given, false);
  const ReleasedGil released;
  std::error_code ignored;
  if (std::filesystem::exists(folder + "/manifest.json", ignored)) {
    return new PyStore(ShardedStore::Restore(folder, path, options.open, options.shards));
  }
  if (std::filesystem::exists(folder, ignored)) RequireNoShards(options.shards);
  return new PyStore(Store::RestoreNewest(folder, path, options.open));
}

void Reshard(const std::string& path, const nb::dict& given) {
  const Options options = OptionsOf(given, false);
  const ReleasedGil released;
  ShardedStore::Reshard(path, options.shards, options.open);
}

void BindCodes(nb::module_& m) {
  nb::enum_<Op>(m, "Op", nb::is_arithmetic(), "Kind of one operation.")
      .value("FIND", Op::kFind, "copy out the value of a key")
      .value("INSERT", Op::kInsert, "add an item; the key must not exist")
      .value("UPDATE", Op::kUpdate, "replace the value of an item that exists")
      .value("UPSERT", Op::kUpsert, "insert or update")
      .value("ERASE", Op::kErase, "remove an item")
      .value("FIND_OR_INSERT", Op::kFindOrInsert,
             "copy out the value of a key, which gets an initial one if it is missing")
      .value("ACCUMULATE", Op::kAccumulate, "add a row to the value of an item that exists");
  nb::enum_<Element>(m, "Element", "What values consist of.")
      .value("NONE", Element::kNone)
      .value("FLOAT32", Element::kFloat32)
      .value("FLOAT16", Element::kFloat16)
      .value("BFLOAT16", Element::kBFloat16)
      .value("UINT64", Element::kUInt64);
  nb::enum_<InitialValue::From>(m, "From", "Where initial values come from.")
      .value("VALUES", InitialValue::From::kValues)
      .value("CONSTANT", InitialValue::From::kConstant)
      .value("UNIFORM", InitialValue::From::kUniform)
      .value("NORMAL", InitialValue::From::kNormal);
  nb::enum_<Result>(m, "Result", nb::is_arithmetic(), "Outcome of one operation.")
      .value("OK", Result::kOk, "done")
      .value("NOT_FOUND", Result::kNotFound, "find, update, erase: no such key")
      .value("EXISTS", Result::kExists,
             "insert, find-or-insert: the key exists, its value is unchanged")
      .value("NO_SPACE", Result::kNoSpace, "no room, and the pool can't grow")
      .value("INVALID", Result::kInvalid, "no such kind, or a write without values");
}

void BindStore(nb::module_& m) {
  nb::class_<PyTicket>(m, "Ticket").def("wait", &PyTicket::Wait).def("done", &PyTicket::Done);
  nb::class_<PyExport>(m, "Export")
      .def("next", &PyExport::Next, "keys"_a, "values"_a.none())
      .def("close", &PyExport::Close);
  nb::class_<PyStore>(m, "Store")
      .def_prop_ro("key_size", &PyStore::key_size)
      .def_prop_ro("value_size", &PyStore::value_size)
      .def_prop_ro("shards", &PyStore::shards)
      .def_prop_ro("closed", &PyStore::closed)
      .def("start", &PyStore::Start, "op"_a, "ops"_a.none(), "keys"_a, "values"_a.none(),
           "found"_a.none(), "results"_a, "stream"_a, "element"_a, "initial"_a.none(),
           nb::sig("def start(self, op: Op, ops: object, keys: object, values: object, found: "
                   "object, results: object, stream: int, element: Element, initial: tuple | None"
                   ") -> Ticket"))
      .def("run", &PyStore::Run, "op"_a, "ops"_a.none(), "keys"_a, "values"_a.none(),
           "found"_a.none(), "results"_a, "stream"_a, "element"_a, "initial"_a.none(),
           nb::sig("def run(self, op: Op, ops: object, keys: object, values: object, found: "
                   "object, results: object, stream: int, element: Element, initial: tuple | None"
                   ") -> int | None"))
      .def("run_lent", &PyStore::RunLent, "op"_a, "ops"_a.none(), "keys"_a, "values"_a.none(),
           "found"_a.none(), "results"_a, "stream"_a.none(), "element"_a, "initial"_a.none(),
           nb::sig("def run_lent(self, op: Op, ops: object, keys: object, values: object, found: "
                   "object, results: object, stream: int | None, element: Element, initial: tuple "
                   "| None) -> object"))
      .def("bulk_load", &PyStore::BulkLoad, "keys"_a, "values"_a, "results"_a)
      .def("apply_and_evict", &PyStore::ApplyAndEvict, "op"_a, "keys"_a, "values"_a, "results"_a,
           "evicted_keys"_a, "evicted_values"_a.none(),
           nb::sig("def apply_and_evict(self, op: Op, keys: object, values: object, results: "
                   "object, evicted_keys: object, evicted_values: object) -> tuple[int, int | "
                   "None]"))
      .def("time_finds", &PyStore::TimeFinds, "keys"_a, "found"_a, "results"_a, "stream"_a,
           "times"_a)
      .def("get", &PyStore::Get, "key"_a)
      .def("put", &PyStore::Put, "key"_a, "value"_a)
      .def("delete", &PyStore::Delete, "key"_a)
      .def("reserve", &PyStore::Reserve, "items"_a)
      .def("compact", &PyStore::Compact)
      .def("snapshot", &PyStore::Snapshot, "path"_a, "base"_a, "track_changes"_a)
      .def("refresh_cache", &PyStore::RefreshCache, nb::sig("def refresh_cache(self) -> Ticket"))
      .def("export", &PyStore::Export, "score_offset"_a, "score_bytes"_a, "least"_a, "most"_a,
           "changed_since"_a, "where"_a,
           nb::sig("def export(self, score_offset: int, score_bytes: int, least: int, most: int, "
                   "changed_since: str, where: str) -> Export"))
      .def("search_many", &PyStore::SearchMany, "attributes"_a, "bounds"_a, "counts"_a,
           "offsets"_a.none(), "keys"_a.none(), "limit"_a.none(), "stream"_a,
           nb::sig("def search_many(self, attributes: list[str], bounds: object, counts: object, "
                   "offsets: object, keys: object, limit: int | None, stream: int) -> int"))
      .def("search", &PyStore::Search, "query"_a, "limit"_a.none(), "keys"_a, "values"_a,
           nb::sig("def search(self, query: str, limit: int | None, keys: bool, values: bool) -> "
                   "tuple[int, object, object]"))
      .def("erase_where", &PyStore::EraseWhere, "query"_a)
      .def("update_where", &PyStore::UpdateWhere, "query"_a, "values"_a,
           nb::sig("def update_where(self, query: str, values: object) -> int"))
      .def("for_each", &PyStore::ForEach, "visit"_a, "rows"_a)
      .def("stats", &PyStore::Stats)
      .def("shard_stats", &PyStore::ShardStats, nb::sig("def shard_stats(self) -> list[dict]"))
      .def("close", &PyStore::Close);
  nb::class_<PyReader>(m, "Reader")
      .def(nb::init<const std::string&>(), "path"_a)
      .def_prop_ro("key_size", &PyReader::key_size)
      .def_prop_ro("value_size", &PyReader::value_size)
      .def_prop_ro("closed", &PyReader::closed)
      .def("get", &PyReader::Get, "key"_a)
      .def("find", &PyReader::Find, "keys"_a, "found"_a.none(), "results"_a)
      .def("for_each", &PyReader::ForEach, "visit"_a, "rows"_a)
      .def("stats", &PyReader::Stats)
      .def("close", &PyReader::Close);
}

}  // namespace

NB_MODULE(_core, m) {
  // What a program leaves open when it ends was closed before (atexit).
  nb::set_leak_warnings(false);
  m.attr("VERSION") = nb::str(Version().data(), Version().size());
  RegisterErrors(m);
  BindCodes(m);
  BindStore(m);
  BindDistributed(m);
  const auto bind = [&](const char* name, Existing existing) {
    m.def(
        name,
        [existing](const std::string& path, const nb::dict& options) {
          return OpenStore(path, options, existing);
        },
        "path"_a, "options"_a, nb::rv_policy::take_ownership);
  };
  m.def("restore", &RestoreStore, "files"_a, "path"_a, "options"_a, nb::rv_policy::take_ownership);
  m.def("restore_folder", &RestoreFolder, "folder"_a, "path"_a, "options"_a,
        nb::rv_policy::take_ownership);
  m.def("reshard", &Reshard, "path"_a, "options"_a);
  bind("create", Existing::kNo);
  bind("open", Existing::kYes);
  bind("open_or_create", Existing::kEither);
}

}  // namespace gpm::python
