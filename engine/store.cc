#include "gpmstore/store.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/store_impl.h"
#include "gpmstore/error.h"

namespace gpm {

class Ticket::State {
 public:
  explicit State(std::shared_ptr<StoreImpl> store) : store_(std::move(store)) {}
  void Start(const Batch& batch, Stream stream) { in_flight_ = store_->Start(batch, stream); }
  void RefreshCache() { cache_load_ = store_->RefreshCache(); }
  void Wait() {
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

Ticket::Ticket() = default;
Ticket::Ticket(std::unique_ptr<State> state) : state_(std::move(state)) {}
Ticket::Ticket(Ticket&&) noexcept = default;

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    Ticket finished(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

Ticket::~Ticket() {
  try {
    Wait();
  } catch (...) {
    // A destructor can't report it; Wait can.
  }
}

void Ticket::Wait() {
  if (state_ != nullptr) state_->Wait();
}

namespace {

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

}  // namespace

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
  return Store(MakeShared([&] { return StoreImpl::Create(path, create, open); }));
}

Store Store::Open(const std::string& path, const OpenOptions& open) {
  return Store(MakeShared([&] { return StoreImpl::Open(path, open); }));
}

const std::shared_ptr<StoreImpl>& Store::Opened() const {
  if (impl_ == nullptr) throw Error(ErrorCode::kInvalidArgument, "the store is closed");
  impl_->process().Check();
  return impl_;
}

std::uint32_t Store::key_size() const { return Opened()->key_size(); }
std::uint32_t Store::value_size() const { return Opened()->value_size(); }

void Store::Apply(const Batch& batch) { ApplyAsync(batch).Wait(); }

Ticket Store::ApplyAsync(const Batch& batch, Stream stream) {
  auto state = std::make_unique<Ticket::State>(Opened());
  state->Start(batch, stream);
  return Ticket(std::move(state));
}

void Store::Find(std::span<const std::byte> keys, std::span<std::byte> found,
                 std::span<Result> results) {
  Apply(
      {.op = Op::kFind, .ops = {}, .keys = keys, .values = {}, .found = found, .results = results});
}

void Store::Insert(std::span<const std::byte> keys, std::span<const std::byte> values,
                   std::span<Result> results) {
  Apply({.op = Op::kInsert,
         .ops = {},
         .keys = keys,
         .values = values,
         .found = {},
         .results = results});
}

void Store::Update(std::span<const std::byte> keys, std::span<const std::byte> values,
                   std::span<Result> results) {
  Apply({.op = Op::kUpdate,
         .ops = {},
         .keys = keys,
         .values = values,
         .found = {},
         .results = results});
}

void Store::Upsert(std::span<const std::byte> keys, std::span<const std::byte> values,
                   std::span<Result> results) {
  Apply({.op = Op::kUpsert,
         .ops = {},
         .keys = keys,
         .values = values,
         .found = {},
         .results = results});
}

void Store::Erase(std::span<const std::byte> keys, std::span<Result> results) {
  Apply({.op = Op::kErase, .ops = {}, .keys = keys, .values = {}, .found = {}, .results = results});
}

void Store::Reserve(std::uint64_t items) { Opened()->Reserve(items); }

void Store::BulkLoad(std::span<const std::byte> keys, std::span<const std::byte> values,
                     std::span<Result> results) {
  // Enough to write ahead of the link's latency; more would only take more memory.
  constexpr std::size_t kBatch = std::size_t{1} << 22;
  const Batch all{.op = Op::kInsert,
                  .ops = {},
                  .keys = keys,
                  .values = values,
                  .found = {},
                  .results = results};
  ValidateBatch(all, key_size(), value_size());
  for (std::size_t n = results.size(); n > 0; n /= 2) {
    try {
      Reserve(Stats().items + n);
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNoSpace) throw;
    }
  }
  for (std::size_t first = 0; first < results.size(); first += kBatch) {
    const std::size_t n = std::min(kBatch, results.size() - first);
    Insert(keys.subspan(first * key_size(), n * key_size()),
           values.subspan(first * value_size(), n * value_size()), results.subspan(first, n));
  }
}

Ticket Store::RefreshCache() {
  auto state = std::make_unique<Ticket::State>(Opened());
  state->RefreshCache();
  return Ticket(std::move(state));
}

void Store::ForEach(const Visitor& visit) { Opened()->ForEach(visit); }
StoreStats Store::Stats() const { return Opened()->Stats(); }

void Store::Close() {
  if (impl_ == nullptr) return;
  try {
    if (impl_->process().IsThis()) impl_->Close();
  } catch (...) {
    if (impl_->closed()) impl_.reset();
    throw;
  }
  impl_.reset();
}

}  // namespace gpm
