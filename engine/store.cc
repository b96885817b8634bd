#include "gpmstore/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/as_created.h"
#include "engine/count_not_ok.h"
#include "engine/export.h"
#include "engine/store_impl.h"
#include "engine/ticket.h"
#include "gpmstore/error.h"

namespace gpm {
namespace {

/// A batch, or a loading of the cache, of one store.
class StoreTicket final : public Ticket::State {
 public:
  explicit StoreTicket(std::shared_ptr<StoreImpl> store) : store_(std::move(store)) {}
  void Start(const Batch& batch, Stream stream, Answers answers = Answers::kOnStream,
             Evicted* evicted = nullptr) {
    in_flight_ = store_->Start(batch, stream, answers, evicted);
  }
  /// REQUIRES: Start was called.
  bool ResultsOnHost() const { return in_flight_->results_on_host; }
  void RefreshCache() { cache_load_ = store_->RefreshCache(); }
  bool Done() override {
    store_->process().Check();
    if (in_flight_ != nullptr) return store_->Done(*in_flight_);
    return error_ != nullptr || store_->CacheRefreshDone(cache_load_);
  }
  void Wait() override {
    store_->process().Check();
    if (in_flight_ != nullptr) return store_->Wait(in_flight_);
    if (error_) std::rethrow_exception(error_);
    try {
      store_->AwaitCacheRefresh(cache_load_);
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

 private:
  std::shared_ptr<StoreImpl> store_;
  std::shared_ptr<StoreImpl::InFlight> in_flight_;  ///< null: of a loading of the cache
  std::uint64_t cache_load_ = 0;
  std::exception_ptr error_;  ///< of the loading
};

/// Owns a store. Allocated before the store is made: a pool that was created can't be lost then.
struct Owner {
  StoreImpl* store = nullptr;
  Owner() = default;
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    if (store != nullptr) StoreImpl::Destroy(store);
  }
};

template <class Make>
std::shared_ptr<StoreImpl> MakeShared(const Make& make) {
  const auto owner = std::make_shared<Owner>();
  owner->store = make().release();
  return std::shared_ptr<StoreImpl>(owner, owner->store);
}

/// Inserts that a store without items composes. @return nothing: they have to be inserted otherwise
std::optional<std::uint64_t> ComposeInto(StoreImpl& store, const Batch& inserts) {
  if (!store.MayCompose(inserts.results.size())) return {};
  ValidateBatch(inserts, store.key_size(), store.value_size());
  bool results_on_host = false;
  if (!store.Compose(inserts, &results_on_host)) return {};
  return results_on_host ? CountNotOk(inserts.results) : kNotCounted;
}

bool IsGone(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  return path == Mapping::kPinnedPath || status.type() == std::filesystem::file_type::not_found;
}

}  // namespace

Store::Store() noexcept = default;
Store::Store(std::shared_ptr<StoreImpl> impl) : impl_(std::move(impl)) {}
Store::Store(Store&&) noexcept = default;

Store& Store::operator=(Store&& other) noexcept {
  if (this != &other) {
    const Store closed(std::move(*this));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

Store::~Store() {
  try {
    Close();
  } catch (...) {
    // A destructor can't report it; Close can. The pool is recovered when it is opened next.
  }
}

Store Store::Create(const std::string& path, const CreateOptions& create, const OpenOptions& open) {
  ValidateSchedule(open.snapshot);
  std::unique_ptr<SnapshotFolder> folder = EmptyFolder(open.snapshot);
  Store store(MakeShared([&] { return StoreImpl::Create(path, create, open); }));
  if (folder == nullptr) return store;
  store.impl_->KeepSnapshotsOfNew(std::move(folder), open.snapshot);
  return store;
}

Store Store::Open(const std::string& path, const OpenOptions& open) {
  ValidateSchedule(open.snapshot);
  std::unique_ptr<SnapshotFolder> folder;
  if (!open.snapshot.path.empty()) {
    folder = std::make_unique<SnapshotFolder>(open.snapshot.path);
    if (open.snapshot.restore && IsGone(path)) return RestoreFrom(std::move(folder), path, open);
  }
  Store store(MakeShared([&] { return StoreImpl::Open(path, open); }));
  if (folder != nullptr) store.impl_->KeepSnapshots(std::move(folder), open.snapshot);
  return store;
}

Store Store::OpenOrCreate(const std::string& path, const CreateOptions& create,
                          const OpenOptions& open) {
  ValidateSchedule(open.snapshot);
  if (open.snapshot.restore && IsGone(path)) {
    auto folder = std::make_unique<SnapshotFolder>(open.snapshot.path);
    if (!folder->chains().empty()) return RestoreFrom(std::move(folder), path, open, &create);
  }
  if (path == Mapping::kPinnedPath) return Create(path, create, open);
  if (open.snapshot.restore) {  // there is a pool, or there are no snapshots
    OpenOptions as_it_is = open;
    as_it_is.snapshot.restore = false;
    return OpenOrCreate(path, create, as_it_is);
  }
  // Another process may be creating the pool: until it has locked the file, that can be opened, and
  // is empty. If the creation fails, the file goes again.
  constexpr int kAttempts = 1000;
  constexpr auto kPause = std::chrono::milliseconds(2);
  const auto is_empty = [&] {
    std::error_code error;
    return std::filesystem::file_size(path, error) == 0 || error;
  };
  for (int attempt = 1;; ++attempt) {
    try {
      Store store = Open(path, open);
      RequireAsCreated(path, "pool", store, create);
      return store;
    } catch (const Error& error) {
      const bool retry = error.code() == ErrorCode::kDamaged && is_empty();
      if (error.code() != ErrorCode::kNotFound && (!retry || attempt == kAttempts)) throw;
      if (retry) {
        std::this_thread::sleep_for(kPause);
        continue;
      }
    }
    try {
      return Create(path, create, open);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kExists || attempt == kAttempts) throw;
    }
  }
}

const std::shared_ptr<StoreImpl>& Store::Opened() const {
  // (While it is being closed it is still here; its log may be told then.)
  if (impl_ == nullptr || impl_->closed()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the store is empty: it was closed, moved from, or never opened");
  }
  impl_->process().Check();
  return impl_;
}

std::uint32_t Store::key_size() const { return Opened()->key_size(); }
std::uint32_t Store::value_size() const { return Opened()->value_size(); }
const std::vector<Attribute>& Store::attributes() const { return Opened()->attributes(); }

std::uint64_t Store::Apply(const Batch& batch) { return ApplyAndEvict(batch, nullptr); }

std::uint64_t Store::ApplyAndEvict(const Batch& batch, Evicted* evicted) {
  if (evicted != nullptr) evicted->count = 0;  // whatever the call is refused for
  StoreTicket state(Opened());
  state.Start(batch, nullptr, Answers::kWhenAwaited, evicted);
  state.Wait();
  return state.ResultsOnHost() ? CountNotOk(batch.results) : kNotCounted;
}

std::uint64_t Store::InsertAndEvict(std::span<const std::byte> keys,
                                    std::span<const std::byte> values, std::span<Result> results,
                                    Evicted* evicted) {
  return ApplyAndEvict({.op = Op::kInsert, .keys = keys, .values = values, .results = results},
                       evicted);
}

Ticket Store::ApplyAsync(const Batch& batch, Stream stream) {
  auto state = std::make_unique<StoreTicket>(Opened());
  state->Start(batch, stream);
  return Ticket(std::move(state));
}

std::uint64_t Store::Insert(std::span<const std::byte> keys, std::span<const std::byte> values,
                            std::span<Result> results) {
  const Batch batch{.op = Op::kInsert, .keys = keys, .values = values, .results = results};
  const std::shared_ptr<StoreImpl> impl = Opened();
  if (const auto not_ok = ComposeInto(*impl, batch)) return *not_ok;
  return Apply(batch);
}

bool Store::Get(std::span<const std::byte> key, std::span<std::byte> value) {
  if (value.size() != value_size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("Get: room for {} bytes of a value, it must be {}", value.size(),
                            value_size()));
  }
  Result result = Result::kInvalid;
  return Find(key, value, {&result, 1}) == 0;
}

Result Store::Put(std::span<const std::byte> key, std::span<const std::byte> value) {
  Result result = Result::kInvalid;
  Upsert(key, value, {&result, 1});
  return result;
}

bool Store::Delete(std::span<const std::byte> key) {
  Result result = Result::kInvalid;
  return Erase(key, {&result, 1}) == 0;
}

// These keep the store alive until its log was told, which may close it.
void Store::Reserve(std::uint64_t items) {
  const std::shared_ptr<StoreImpl> impl = Opened();
  impl->Reserve(items, true);
}

void Store::Compact() {
  const std::shared_ptr<StoreImpl> impl = Opened();
  impl->Compact();
}

std::uint64_t Store::BulkLoad(std::span<const std::byte> keys, std::span<const std::byte> values,
                              std::span<Result> results) {
  // Enough to write ahead of the link's latency; more would only take more memory.
  constexpr std::size_t kBatch = std::size_t{1} << 22;
  const Batch all{.op = Op::kInsert, .keys = keys, .values = values, .results = results};
  ValidateBatch(all, key_size(), value_size());
  const std::shared_ptr<StoreImpl> impl = Opened();
  if (const auto not_ok = ComposeInto(*impl, all)) return *not_ok;
  const std::uint64_t most = impl->most_items();
  for (std::size_t n = results.size(); n > 0; n /= 2) {
    try {
      Opened()->Reserve(std::min(Opened()->Stats().items + n, most));  // its log may close it
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNoSpace) throw;
    }
  }
  std::uint64_t not_ok = 0;
  const std::size_t at_once = std::min<std::uint64_t>(kBatch, most);
  for (std::size_t first = 0; first < results.size(); first += at_once) {
    const std::size_t n = std::min(at_once, results.size() - first);
    const std::uint64_t part =
        Insert(keys.subspan(first * key_size(), n * key_size()),
               values.subspan(first * value_size(), n * value_size()), results.subspan(first, n));
    not_ok = part == kNotCounted ? part : not_ok + part;
  }
  return not_ok;
}

SnapshotResult Store::Snapshot(const std::string& path, const SnapshotOptions& options) {
  const std::shared_ptr<StoreImpl> impl = Opened();
  return impl->Snapshot(path, options);
}

Exporter Store::Export(const ExportOptions& options) {
  std::vector<ExportStatePtr> states;
  states.push_back(ExportStatePtr(new ExportState(Opened(), options)));
  return Exporter(std::move(states));
}

SearchResult Store::Search(std::span<const Query> queries, const SearchOptions& options) {
  const std::shared_ptr<StoreImpl> impl = Opened();
  return impl->Search(queries, options);
}

void Store::Search(std::span<const Query> queries, std::uint64_t limit, Matches* matches) {
  const std::shared_ptr<StoreImpl> impl = Opened();
  impl->Search(queries, limit, matches);
}

void Store::Search(const QueryArray& queries, std::uint64_t limit, Matches* matches,
                   Stream stream) {
  const std::shared_ptr<StoreImpl> impl = Opened();
  impl->Search(queries, limit, matches, stream);
}

std::uint64_t Store::EraseWhere(const Query& query) {
  const std::shared_ptr<StoreImpl> impl = Opened();
  return impl->EraseWhere(query);
}

std::uint64_t Store::UpdateRowsWhere(const Query& query, const RowsEditor& change) {
  const std::shared_ptr<StoreImpl> impl = Opened();
  return impl->UpdateRowsWhere(query, change);
}

std::uint64_t Store::UpdateWhere(const Query& query, const ValueEditor& change) {
  const std::size_t key_bytes = key_size();
  const std::size_t value_bytes = value_size();
  return UpdateRowsWhere(query, [&](std::span<const std::byte> keys, std::span<std::byte> values) {
    for (; !keys.empty(); keys = keys.subspan(key_bytes), values = values.subspan(value_bytes)) {
      change(keys.first(key_bytes), values.first(value_bytes));
    }
  });
}

Ticket Store::RefreshCache() {
  auto state = std::make_unique<StoreTicket>(Opened());
  state->RefreshCache();
  return Ticket(std::move(state));
}

void Store::ForEach(const Visitor& visit) {
  const std::shared_ptr<StoreImpl> impl = Opened();
  impl->ForEach(visit);
}

bool Store::ForEachUntil(const StoppableVisitor& visit) {
  const std::shared_ptr<StoreImpl> impl = Opened();
  return impl->ForEachUntil(visit);
}

StoreStats Store::Stats() const { return Opened()->Stats(); }

void Store::Close() {
  const std::shared_ptr<StoreImpl> impl = impl_;
  if (impl == nullptr || impl->closed()) return;  // or its log closes it while that is being done
  try {
    if (impl->process().IsThis()) impl->Close();
  } catch (...) {
    if (impl->closed()) impl_.reset();
    throw;
  }
  impl_.reset();
}

}  // namespace gpm
