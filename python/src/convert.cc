#include "python/src/convert.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpmstore/error.h"
#include "python/src/gate.h"
#include "python/src/gil.h"

namespace gpm::python {
namespace {

/// @throws nb::type_error naming the option
template <class T>
T ValueOf(nb::handle value, const std::string& name) {
  T result{};
  if (nb::try_cast(value, result)) return result;
  const std::string text = name + ": it can't be " + nb::repr(value).c_str();
  throw nb::type_error(text.c_str());
}

ExecutorKind ExecutorOf(const std::string& name) {
  for (const auto kind : {ExecutorKind::kAuto, ExecutorKind::kCpu, ExecutorKind::kCuda}) {
    if (name == ExecutorName(kind)) return kind;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "executor: '" + name + "'; it must be 'auto', 'cpu' or 'cuda'");
}

/// The last that lets go of a Python object has the GIL, wherever that is.
std::shared_ptr<nb::object> Shared(nb::handle object) {
  return {new nb::object(nb::borrow(object)), [](nb::object* held) {
            if (!nb::is_alive()) return;
            const HeldGil gil;
            delete held;
          }};
}

LogFunction LogOf(nb::handle function) {
  if (function.is_none()) return {};
  if (!PyCallable_Check(function.ptr())) throw nb::type_error("log: it is no function");
  return [held = Shared(function)](LogLevel level, std::string_view message) {
    if (!nb::is_alive()) return;
    const HeldGil gil;
    const Gate::InLog in_log;
    try {
      (*held)(level == LogLevel::kInfo ? "info" : "warning",
              nb::str(message.data(), message.size()));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(*held);
    }
  };
}

SnapshotSchedule ScheduleOf(nb::handle given) {
  SnapshotSchedule schedule;
  if (given.is_none()) return schedule;
  if (!nb::isinstance<nb::dict>(given)) throw nb::type_error("snapshot: it is no dict");
  for (const auto [key, value] : nb::cast<nb::dict>(given)) {
    const auto name = ValueOf<std::string>(key, "snapshot: the name of an option");
    const auto set = [&]<class T>(std::string_view field, T* to) {
      if (name != field) return false;
      *to = ValueOf<T>(value, "snapshot: " + name);
      return true;
    };
    if (set("path", &schedule.path) || set("interval", &schedule.interval) ||
        set("chains", &schedule.chains) || set("at_close", &schedule.at_close) ||
        set("restore", &schedule.restore)) {
      continue;
    }
    throw nb::type_error(("snapshot: there is no '" + name + "'").c_str());
  }
  return schedule;
}

/// From a dict of names to (offset, bytes).
std::vector<Attribute> AttributesOf(nb::handle given) {
  std::vector<Attribute> attributes;
  if (given.is_none()) return attributes;
  if (!nb::isinstance<nb::dict>(given)) throw nb::type_error("attributes: it is no dict");
  for (const auto [key, value] : nb::cast<nb::dict>(given)) {
    std::pair<std::uint32_t, std::uint32_t> place;
    if (!nb::isinstance<nb::str>(key) || !nb::try_cast(value, place)) {
      throw nb::type_error("attributes: each must be a name and (offset, bytes)");
    }
    attributes.push_back({nb::cast<std::string>(key), place.first, place.second});
  }
  return attributes;
}

bool OfCreation(std::string_view name) {
  return name == "key_size" || name == "value_size" || name == "initial_capacity" ||
         name == "hash_seed" || name == "geometry" || name == "overwrite" || name == "attributes";
}

/// @return whether there is such an option
bool Set(const std::string& name, nb::handle value, Options* options) {
  CreateOptions& create = options->create;
  OpenOptions& open = options->open;
  const auto set = [&]<class T>(std::string_view option, T* to) {
    if (name != option) return false;
    *to = ValueOf<T>(value, name);
    return true;
  };
  const auto set_optional = [&]<class T>(std::string_view option, std::optional<T>* to) {
    if (name != option) return false;
    if (!value.is_none()) *to = ValueOf<T>(value, name);
    return true;
  };
  if (name == "geometry") {
    create.geometry = ParseGeometry(ValueOf<std::string>(value, name));
    return true;
  }
  if (name == "attributes") {
    create.attributes = AttributesOf(value);
    return true;
  }
  if (name == "shards") {
    if (!value.is_none()) options->shards.shards = ValueOf<std::uint32_t>(value, name);
    return true;
  }
  if (name == "devices") {
    options->shards.devices = ValueOf<std::vector<int>>(value, name);
    return true;
  }
  if (name == "executor") {
    open.executor = ExecutorOf(ValueOf<std::string>(value, name));
    return true;
  }
  if (name == "cache_policy") {
    open.cache.policy = CachePolicyOf(ValueOf<std::string>(value, name));
    return true;
  }
  if (name == "capacity_policy") {
    open.capacity.policy = EvictionPolicyOf(ValueOf<std::string>(value, name));
    return true;
  }
  if (name == "snapshot") {
    open.snapshot = ScheduleOf(value);
    return true;
  }
  if (name == "memory_node") {
    open.memory_node = value.is_none() ? kMemoryAnywhere : ValueOf<int>(value, name);
    return true;
  }
  if (name == "log") {
    open.log = LogOf(value);
    return true;
  }
  return set("key_size", &create.key_size) || set("value_size", &create.value_size) ||
         set("initial_capacity", &create.initial_capacity) || set("overwrite", &create.overwrite) ||
         set_optional("hash_seed", &create.hash_seed) || set("threads", &open.threads) ||
         set("max_bytes", &open.max_bytes) || set("device", &open.device) ||
         set("growth", &open.growth) || set("growth_pause", &open.growth_pause) ||
         set("grow_above", &open.grow_above) || set("compact_below", &open.compact_below) ||
         set("capacity", &open.capacity.items) || set("capacity_bytes", &open.capacity.bytes) ||
         set("score_offset", &open.capacity.score_offset) ||
         set("score_bytes", &open.capacity.score_bytes) ||
         set_optional("directory", &open.cache.directory) ||
         set_optional("cache_fraction", &open.cache.fraction) ||
         set("cache_bytes", &open.cache.bytes) ||
         set_optional("cache_refresh_interval", &open.cache.refresh_interval) ||
         set("search_index_bytes", &open.search_index_bytes) ||
         set("search_indexed", &open.search_indexed) ||
         set("access_by_address", &open.access.by_address) ||
         set("access_by_host", &open.access.by_host) ||
         set("access_combine", &open.access.combine) ||
         set("access_dealt_up_to", &open.access.dealt_up_to);
}

nb::str Str(std::string_view text) { return nb::str(text.data(), text.size()); }

}  // namespace

Options OptionsOf(const nb::dict& given, bool creates) {
  Options options;
  for (const auto [key, value] : given) {
    const auto name = nb::cast<std::string>(key);
    if (!creates && OfCreation(name)) {
      const std::string text = name + ": only a pool that is created takes it";
      throw nb::type_error(text.c_str());
    }
    if (!Set(name, value, &options)) {
      const std::string text = "there is no option '" + name + "'";
      throw nb::type_error(text.c_str());
    }
  }
  return options;
}

nb::dict DictOf(const StoreStats& stats) {
  nb::dict operations;
  for (std::uint8_t op = 0; op < kOpKinds; ++op) {
    operations[Str(OpName(static_cast<Op>(op)))] = stats.operations[op];
  }
  nb::dict medium;
  medium["name"] = Str(MediumName(stats.medium.medium));
  medium["survives_process_crash"] = stats.medium.survives_process_crash;
  medium["survives_power_loss"] = stats.medium.survives_power_loss;
  medium["gpu_can_register"] = stats.medium.gpu_can_register;
  medium["needs_flush"] = stats.medium.needs_flush;
  medium["memory_node"] = stats.medium.memory_node;
  nb::dict recovery;
  recovery["was_clean"] = stats.recovery.was_clean;
  recovery["resize_continued"] = stats.recovery.resize_continued;
  recovery["insert_slots_cleared"] = stats.recovery.insert_slots_cleared;
  recovery["duplicates_removed"] = stats.recovery.duplicates_removed;
  recovery["seconds"] = stats.recovery.seconds;
  nb::dict cache;
  cache["directory"] = stats.cache.directory;
  cache["directory_bytes"] = stats.cache.directory_bytes;
  cache["policy"] = Str(CachePolicyName(stats.cache.policy));
  cache["frames"] = stats.cache.frames;
  cache["bytes"] = stats.cache.bytes;
  cache["refreshes"] = stats.cache.refreshes;
  cache["refresh_seconds"] = stats.cache.refresh_seconds;
  cache["found"] = stats.cache.found;
  cache["hits"] = stats.cache.hits;
  nb::dict attributes;
  for (const Attribute& attribute : stats.attributes) {
    attributes[Str(attribute.name)] = nb::make_tuple(attribute.offset, attribute.bytes);
  }
  nb::dict dict;
  dict["items"] = stats.items;
  dict["capacity_slots"] = stats.capacity_slots;
  dict["load_factor"] = stats.load_factor;
  nb::list level_buckets;
  for (const std::uint64_t buckets : stats.level_buckets) level_buckets.append(buckets);
  dict["level_buckets"] = level_buckets;
  dict["buckets_to_drain"] = stats.buckets_to_drain;
  dict["resizes"] = stats.resizes;
  dict["composed_resizes"] = stats.composed_resizes;
  dict["resize_seconds"] = stats.resize_seconds;
  dict["growth_seconds"] = stats.growth_seconds;
  dict["composing_seconds"] = stats.composing_seconds;
  dict["directory_seconds"] = stats.directory_seconds;
  dict["displaced_items"] = stats.displaced_items;
  dict["displacing_seconds"] = stats.displacing_seconds;
  dict["pool_growths"] = stats.pool_growths;
  dict["pool_growth_waits"] = stats.pool_growth_waits;
  dict["pool_growth_wait_seconds"] = stats.pool_growth_wait_seconds;
  dict["operations"] = operations;
  dict["mixed_operations"] = stats.mixed_operations;
  dict["finds_found"] = stats.finds_found;
  dict["read_by_host"] = stats.read_by_host;
  dict["written_by_host"] = stats.written_by_host;
  dict["capacity_items"] = stats.capacity_items;
  dict["evicted"] = stats.evicted;
  dict["evictions"] = stats.evictions;
  dict["eviction_seconds"] = stats.eviction_seconds;
  dict["value_cells"] = stats.value_cells;
  dict["free_cells"] = stats.free_cells;
  dict["pm_bytes"] = stats.pm_bytes;
  dict["pm_bytes_ready"] = stats.pm_bytes_ready;
  dict["pm_bytes_free"] = stats.pm_bytes_free;
  dict["pm_bytes_given_back"] = stats.pm_bytes_given_back;
  dict["queue_bytes"] = stats.queue_bytes;
  dict["snapshots"] = stats.snapshots;
  dict["snapshot_bytes"] = stats.snapshot_bytes;
  dict["snapshot_pause_seconds"] = stats.snapshot_pause_seconds;
  dict["snapshot_failures"] = stats.snapshot_failures;
  dict["snapshot_error"] = stats.snapshot_error;
  dict["searches"] = stats.searches;
  dict["search_scans"] = stats.search_scans;
  dict["search_index_bytes"] = stats.search_index_bytes;
  dict["search_indexes_made"] = stats.search_indexes_made;
  dict["search_index_updates"] = stats.search_index_updates;
  dict["search_pairs"] = stats.search_pairs;
  dict["gpu_bytes"] = stats.gpu_bytes;
  dict["gpu_bytes_kept"] = stats.gpu_bytes_kept;
  dict["key_size"] = stats.key_size;
  dict["value_size"] = stats.value_size;
  dict["geometry"] = GeometryName(stats.geometry);
  dict["attributes"] = attributes;
  dict["executor"] = Str(ExecutorName(stats.executor));
  dict["threads"] = stats.threads;
  dict["medium"] = medium;
  dict["recovery"] = recovery;
  dict["cache"] = cache;
  return dict;
}

void RegisterErrors(nb::module_& module) {
  nb::enum_<ErrorCode>(module, "ErrorCode", "What kind of thing went wrong (Error.code).")
      .value("INVALID_ARGUMENT", ErrorCode::kInvalidArgument)
      .value("NOT_FOUND", ErrorCode::kNotFound)
      .value("EXISTS", ErrorCode::kExists)
      .value("BUSY", ErrorCode::kBusy)
      .value("NO_SPACE", ErrorCode::kNoSpace)
      .value("DAMAGED", ErrorCode::kDamaged)
      .value("UNSUPPORTED", ErrorCode::kUnsupported)
      .value("IO", ErrorCode::kIo)
      .value("GPU", ErrorCode::kGpu);
  // By the code; they stay. Raising one runs no code of Python's, in which a thread may end that is
  // still there when the interpreter ends (ReleasedGil), and which must not end in C++.
  static std::map<ErrorCode, PyObject*> classes;
  module.def("set_error_classes", [](const nb::dict& given) {
    for (const auto [code, kind] : given) {
      classes[nb::cast<ErrorCode>(code)] = nb::borrow(kind).release().ptr();
    }
  });
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetString(classes.at(error.code()), error.what());
    }
  });
}

}  // namespace gpm::python
