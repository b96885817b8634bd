#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "python/src/calls.h"
#include "python/src/convert.h"
#include "python/src/store.h"

// Exports of a store: begun, cut off when it is closed, and read page by page.

namespace gpm::python {
namespace {

using Use = Gate::Use;
using Kind = Gate::Kind;

}  // namespace

nb::object PyStore::Export(std::uint32_t score_offset, std::uint32_t score_bytes,
                           std::uint64_t least, std::uint64_t most,
                           const std::string& changed_since, const std::string& where) {
  nb::object made = nb::cast(new PyExport(nb::find(this)), nb::rv_policy::take_ownership);
  WithoutGil([&] {
    const Use use(gate_, "the store");
    const ExportOptions options{.score_bytes = score_bytes,
                                .score_offset = score_offset,
                                .least = least,
                                .most = most,
                                .where = QueryOf(where),
                                .changed_since = changed_since};
    const auto begun = std::make_shared<OpenExport>(
        gate_, OnStore([&](auto& store) { return store.Export(options); }));
    nb::inst_ptr<PyExport>(made)->export_ = begun;
    {
      const std::lock_guard lock(exports_mutex_);
      std::erase_if(exports_, [](const auto& one) { return one.expired(); });
      exports_.push_back(begun);
    }
    if (gate_.closing()) throw Error(ErrorCode::kInvalidArgument, "the store is closed");
  });
  return made;
}

void PyStore::CutExports() noexcept {
  if (!gate_.InHomeProcess()) return;
  for (;;) {
    std::shared_ptr<OpenExport> one;
    {
      const std::lock_guard lock(exports_mutex_);
      while (!exports_.empty() && one == nullptr) {
        one = exports_.back().lock();
        exports_.pop_back();
      }
    }
    if (one == nullptr) return;
    one->Cut();
  }
}

std::unique_lock<std::mutex> OpenExport::OneThread() {
  std::unique_lock one_thread(mutex_, std::defer_lock);
  if (gate_.InHomeProcess()) one_thread.lock();
  return one_thread;
}

std::uint64_t OpenExport::Next(std::span<std::byte> keys, std::span<std::byte> values) {
  const auto one_thread = OneThread();
  if (cut_) {
    throw Error(ErrorCode::kInvalidArgument, "the store was closed before the export ended");
  }
  return exporter_.Next(keys, values);
}

void OpenExport::End() {
  const auto one_thread = OneThread();
  exporter_ = Exporter();
}

void OpenExport::Cut() {
  const auto one_thread = OneThread();
  if (exporter_.items() > 0) cut_ = true;
  exporter_ = Exporter();
}

PyExport::~PyExport() {
  if (export_ == nullptr) return;
  // It would wait for the visit that this thread is in.
  if (store().gate_.InVisit()) {
    store().dropped_exports_.push_back(std::move(export_));
    return;
  }
  const ReleasedGil released;
  export_->End();
}

std::uint64_t PyExport::Next(nb::handle keys, nb::handle values) {
  const Array to_keys(keys, {.name = "keys", .written = true});
  const Array to_values =
      values.is_none() ? Array() : Array(values, {.name = "values", .written = true});
  return WithoutGil([&] {
    const Use use(store().gate_, "an export", Kind::kExport);
    return export_->Next(to_keys.As<std::byte>(), to_values.As<std::byte>());
  });
}

void PyExport::Close() {
  WithoutGil([&] {
    const Use use(store().gate_, "an export", Kind::kExport);
    export_->End();
  });
}

}  // namespace gpm::python
