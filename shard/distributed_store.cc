#include "gpmstore/distributed_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/home_process.h"
#include "engine/log.h"
#include "pm/gpu_host.h"
#include "shard/batch_queue.h"
#include "shard/collective.h"
#include "shard/collective_search.h"
#include "shard/folder.h"
#include "shard/options.h"
#include "shard/shard_set.h"
#include "shard/shard_snapshots.h"
#include "shard/sum_stats.h"
#include "shard/together.h"
#include "shard/turns.h"
#include "snapshot/new_file.h"

namespace gpm {
namespace {

std::vector<std::byte> BytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// Rank 0's text, on all ranks.
std::string Broadcast(Exchange& exchange, const std::string& text) {
  const std::vector<std::byte> received = SendBytes(exchange, {BytesOf(text)}).front();
  return {reinterpret_cast<const char*>(received.data()), received.size()};
}

/// Ranks on the machine of this one, which is one of them. All ranks call it.
std::uint32_t RanksHere(Exchange& exchange) {
  std::array<char, 64> mine{};  // the machine's name
  gethostname(mine.data(), mine.size());
  const auto all = GatherObjects(exchange, mine);
  return static_cast<std::uint32_t>(std::count(all.begin(), all.end(), mine));
}

void RequireExchange(const Exchange* exchange) {
  if (exchange != nullptr) return;
  throw Error(ErrorCode::kInvalidArgument, "exchange: it is null; make one for each rank");
}

void RequireShardsFor(const Exchange& exchange, const std::string& path, std::uint32_t shards) {
  if (shards >= exchange.ranks()) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: a store of {} shards can't be opened by {} ranks: each needs one",
                          path, shards, exchange.ranks()));
}

}  // namespace

class DistributedStore::Impl {
 public:
  Impl(const std::string& path, std::unique_ptr<Exchange> exchange, const OpenOptions& open,
       const ShardOptions& options, std::shared_ptr<Log> log)
      : log_(std::move(log)), exchange_(std::move(exchange)), threads_(OrLeave(*exchange_, [&] {
          return std::make_unique<ThreadPool>(ThreadsToDivide(open, RanksHere(*exchange_)));
        })) {
    const std::uint32_t rank = exchange_->rank();
    const std::uint32_t ranks = exchange_->ranks();
    std::string text;
    Together(*exchange_, [&] {
      ValidateForShards(open);
      if (rank != 0) return;
      folder_.emplace(path, ShardFolder::Use::kWrite);  // for all ranks
      folder_->RequirePools();
      text = ToText(folder_->manifest());
    });
    manifest_ = ParseManifest(Broadcast(*exchange_, text), path);
    Together(*exchange_, [&] {
      RequireShards(path, manifest_, options.shards);
      RequireShardsFor(*exchange_, path, manifest_.shards());
      const std::uint32_t first = Collective::FirstShard(rank, ranks, manifest_.shards());
      const std::uint32_t end = Collective::FirstShard(rank + 1, ranks, manifest_.shards());
      const ShardRange mine{.first = first, .end = end, .all = manifest_.shards()};
      std::vector<std::string> paths;
      for (std::uint32_t i = first; i < end; ++i) {
        paths.push_back(fmt::format("{}/{}", path, manifest_.pools[i].file));
      }
      set_.emplace(manifest_.partition(), first, std::move(paths),
                   end - first > 1 ? threads_->threads() : 1,
                   [&](std::uint32_t shard, const std::string& pool) {
                     return Store::Open(pool, ShareOf(open, options, shard, mine));
                   });
    });
    if (folder_) folder_->RemoveOthers();
    OrLeave(*exchange_, [&] {
      std::unique_ptr<Exchange> twin;
      do {
        Exchange& of_lane = twin != nullptr ? *twin : *exchange_;
        lanes_.push_back({std::move(twin),
                          std::make_unique<Collective>(of_lane, set_->partition(), set_->key_size(),
                                                       set_->value_size(), splitters_,
                                                       set_->device(set_->first()))});
      } while (lanes_.size() < kLanes && (twin = exchange_->Twin()) != nullptr);
      const auto lanes = GatherObjects(*exchange_, lanes_.size());
      while (lanes_.size() > *std::min_element(lanes.begin(), lanes.end())) lanes_.pop_back();
    });
    in_flight_ = std::make_unique<BatchQueue>(process_, log_,
                                              exchange_->AnyThread() ? unsigned(lanes_.size()) : 0);
  }
  /// In a child of the process, its threads do not run, and can't be joined; what joins the ranks,
  /// and what is on a GPU, is the parent's.
  ~Impl() {
    if (process_.IsThis()) return;
    static_cast<void>(in_flight_.release());
    for (Lane& lane : lanes_) {
      static_cast<void>(lane.collective.release());
      static_cast<void>(lane.twin.release());
    }
    static_cast<void>(turns_.release());
    static_cast<void>(threads_.release());
    static_cast<void>(exchange_.release());
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// A call, from its begin, which waits for batches in flight, to its end, when the log is told.
  class Call {
   public:
    explicit Call(Impl& impl) : impl_(impl), tells_(*impl.log_) { impl.in_flight_->Await(); }
    Impl* operator->() const { return &impl_; }

   private:
    Impl& impl_;
    const Log::TellsAtEnd tells_;
  };

  const HomeProcess& process() const { return process_; }
  const std::shared_ptr<Log>& log() const { return log_; }
  BatchQueue& in_flight() { return *in_flight_; }
  Exchange& exchange() { return *exchange_; }
  ShardSet& set() { return *set_; }
  const Manifest& manifest() const { return manifest_; }
  ExchangeStats exchanged() const {
    ExchangeStats sum;
    for (const Lane& lane : lanes_) sum += lane.collective->stats();
    return sum;
  }
  /// REQUIRES: no batch is in flight.
  std::uint64_t Run(const Batch& mine, CollectiveCall call) {
    const std::uint64_t number = in_flight_->Count();
    Turns::Turn turn(*turns_, number);
    return Run(number, turn, mine, call);
  }
  Ticket Begin(const Batch& mine) {
    try {
      return in_flight_->Begin([&]() -> BatchQueue::CarryOut {
        return [this, mine, caller = std::this_thread::get_id()](std::uint64_t number) {
          RunInFlight(number, mine, caller);
        };
      });
    } catch (const std::exception& error) {  // the other ranks make it
      in_flight_->Await();
      exchange_->Leave(error.what());
      throw;
    }
  }
  template <class Work>
  void ForEachShard(const Work& work) {
    for (std::uint32_t i = 0; i < set_->count(); ++i) work(set_->first() + i);
  }

 private:
  /// Where a batch is under way, beside those of the other lanes.
  struct Lane {
    std::unique_ptr<Exchange> twin;  ///< of the first lane none, which has the exchange itself
    std::unique_ptr<Collective> collective;
  };
  /// Of ranks that can have more than one. (Over two H200s, 2^20 operations a rank, one more in
  /// flight: uniform finds had 3824 M/s by two, 4243 by three, 4828 by six, of 5346 that the link
  /// between them allows.)
  static constexpr std::size_t kLanes = 6;
  static_assert(kLanes + 1 < Turns::kMost);

  /// (A batch's turn ends when all ranks have carried it out: else a rank that is ahead would wait,
  /// and no longer than the exchange's timeout, for several batches of one that is not.)
  /// @param number of the batch, which is the same on all ranks, and with it the lane
  std::uint64_t Run(std::uint64_t number, Turns::Turn& turn, const Batch& mine,
                    CollectiveCall call) {
    const ShardSet::Call apply = call == CollectiveCall::kBulkLoad ? BulkLoadInto : ApplyTo;
    turn.BeginToAgree();
    try {
      return lanes_[number % lanes_.size()].collective->Apply(
          mine,
          [&](const Batch& batch) {
            turn.Begin(OnlyFinds(batch));
            if (!batch.results.empty()) set_->Run(batch, apply);
          },
          {.agreed = [&] { turn.Agreed(); }, .all_ended = [&] { turn.End(); }}, call);
    } catch (const Error& error) {
      const bool refused =
          error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnsupported;
      if (!refused) turn.Break(error.what());
      throw;
    } catch (const std::exception& error) {
      turn.Break(error.what());
      throw;
    }
  }
  /// @param caller a thread whose current device stays as it is
  void RunInFlight(std::uint64_t number, const Batch& mine, std::thread::id caller) {
    Turns::Turn turn(*turns_, number);
    const int device = set_->device(set_->first());
    try {
      if (device >= 0 && std::this_thread::get_id() != caller) UseGpu(device);
    } catch (const std::exception& error) {
      turn.Break(error.what());
      exchange_->Leave(error.what());
      throw;
    }
    Run(number, turn, mine, CollectiveCall::kApply);
  }

  const HomeProcess process_;
  const std::shared_ptr<Log> log_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<ThreadPool> threads_;
  std::optional<ShardFolder> folder_;  ///< of rank 0
  Manifest manifest_;
  std::optional<ShardSet> set_;
  SplitterPool splitters_{*threads_, 0};
  std::vector<Lane> lanes_;  ///< of batch i: i mod their number
  std::unique_ptr<Turns> turns_ = std::make_unique<Turns>();
  std::unique_ptr<BatchQueue> in_flight_;  ///< goes first: its batches use all of the others
};

DistributedStore::DistributedStore() noexcept = default;
DistributedStore::DistributedStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DistributedStore::DistributedStore(DistributedStore&&) noexcept = default;

DistributedStore& DistributedStore::operator=(DistributedStore&& other) noexcept {
  if (this != &other) {
    const DistributedStore closed(std::move(*this));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

DistributedStore::~DistributedStore() {
  try {
    Close();
  } catch (...) {
    // A destructor can't report it; Close can.
  }
}

template <class Make>
DistributedStore DistributedStore::MakeAndOpen(const std::string& folder,
                                               std::unique_ptr<Exchange> exchange,
                                               const OpenOptions& open, const ShardOptions& shards,
                                               const Make& make) {
  RequireExchange(exchange.get());
  Together(*exchange, [&] {
    if (exchange->rank() == 0) make(*exchange).Close();
  });
  return Open(folder, std::move(exchange), open, shards);
}

DistributedStore DistributedStore::Create(const std::string& folder,
                                          std::unique_ptr<Exchange> exchange,
                                          const CreateOptions& create, const ShardOptions& shards,
                                          const OpenOptions& open) {
  return MakeAndOpen(folder, std::move(exchange), open, shards, [&](const Exchange& ranks) {
    ValidateShardCount(shards.shards);
    RequireShardsFor(ranks, folder, shards.shards);
    return ShardedStore::Create(folder, create, shards, open);
  });
}

DistributedStore DistributedStore::OpenOrCreate(const std::string& folder,
                                                std::unique_ptr<Exchange> exchange,
                                                const CreateOptions& create,
                                                const ShardOptions& shards,
                                                const OpenOptions& open) {
  return MakeAndOpen(folder, std::move(exchange), open, shards, [&](const Exchange& ranks) {
    ValidateShardCount(shards.shards);
    RequireShardsFor(ranks, folder, shards.shards);
    return ShardedStore::OpenOrCreate(folder, create, shards, open);
  });
}

DistributedStore DistributedStore::Restore(const std::string& snapshot, const std::string& folder,
                                           std::unique_ptr<Exchange> exchange,
                                           const OpenOptions& open, const ShardOptions& shards) {
  return MakeAndOpen(folder, std::move(exchange), open, shards, [&](const Exchange& ranks) {
    const ShardFolder from(snapshot, ShardFolder::Use::kRead);
    RequireShardsFor(ranks, snapshot, from.manifest().shards());
    return ShardedStore::Restore(snapshot, folder, open, shards);
  });
}

DistributedStore DistributedStore::Open(const std::string& folder,
                                        std::unique_ptr<Exchange> exchange,
                                        const OpenOptions& given, const ShardOptions& shards) {
  RequireExchange(exchange.get());
  OpenOptions open = given;
  const std::shared_ptr<Log> log = KeepLog(&open);
  const Log::TellsAtEnd tells(*log);
  return DistributedStore(std::make_unique<Impl>(folder, std::move(exchange), open, shards, log));
}

DistributedStore::Impl& DistributedStore::Opened() const {
  if (impl_ == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "the store is empty: it was closed, moved from, or never opened");
  }
  impl_->process().Check();
  return *impl_;
}

std::uint32_t DistributedStore::rank() const { return Opened().exchange().rank(); }
std::uint32_t DistributedStore::ranks() const { return Opened().exchange().ranks(); }
std::uint32_t DistributedStore::shards() const { return Opened().set().partition().shards; }
std::uint32_t DistributedStore::key_size() const { return Opened().set().key_size(); }
std::uint32_t DistributedStore::value_size() const { return Opened().set().value_size(); }
const std::vector<Attribute>& DistributedStore::attributes() const {
  ShardSet& set = Opened().set();
  return set.store(set.first()).attributes();
}

std::uint64_t DistributedStore::Apply(const Batch& mine) {
  return Impl::Call(Opened())->Run(mine, CollectiveCall::kApply);
}

Ticket DistributedStore::ApplyAsync(const Batch& mine) {
  Impl& impl = Opened();
  const Log::TellsAtEnd tells(*impl.log());
  return impl.Begin(mine);
}

std::uint64_t DistributedStore::BulkLoad(std::span<const std::byte> keys,
                                         std::span<const std::byte> values,
                                         std::span<Result> results) {
  return Impl::Call(Opened())->Run(
      {.op = Op::kInsert, .keys = keys, .values = values, .results = results},
      CollectiveCall::kBulkLoad);
}

void DistributedStore::Reserve(std::uint64_t items) {
  const Impl::Call impl(Opened());
  BeginTogether(impl->exchange(), CollectiveCall::kReserve, [] {});
  Together(impl->exchange(), [&] {
    impl->set().ForAll([&](std::uint32_t shard) {
      impl->set().store(shard).Reserve(ShareOfItems(items, shards()));
    });
  });
}

void DistributedStore::Compact() {
  const Impl::Call impl(Opened());
  BeginTogether(impl->exchange(), CollectiveCall::kCompact, [] {});
  Together(impl->exchange(), [&] {
    impl->set().ForAll([&](std::uint32_t shard) { impl->set().store(shard).Compact(); });
  });
}

SearchResult DistributedStore::Search(std::span<const Query> mine, const SearchOptions& options) {
  const Impl::Call impl(Opened());
  return SearchTogether(impl->exchange(), impl->set(), mine, options);
}

std::uint64_t DistributedStore::EraseWhere(const Query& query) {
  const Impl::Call impl(Opened());
  return ChangeTogether(impl->exchange(), impl->set(), CollectiveCall::kErase, query, [&] {
    return impl->set().SumAtOnce([&](Store& store) { return store.EraseWhere(query); });
  });
}

std::uint64_t DistributedStore::UpdateRowsWhere(const Query& query,
                                                const Store::RowsEditor& change) {
  const Impl::Call impl(Opened());
  return ChangeTogether(impl->exchange(), impl->set(), CollectiveCall::kUpdate, query, [&] {
    return impl->set().SumInTurn(
        [&](Store& store) { return store.UpdateRowsWhere(query, change); });
  });
}

std::uint64_t DistributedStore::UpdateWhere(const Query& query, const Store::ValueEditor& change) {
  const Impl::Call impl(Opened());
  return ChangeTogether(impl->exchange(), impl->set(), CollectiveCall::kUpdate, query, [&] {
    return impl->set().SumInTurn([&](Store& store) { return store.UpdateWhere(query, change); });
  });
}

SnapshotResult DistributedStore::Snapshot(const std::string& path) {
  const Impl::Call impl(Opened());
  Exchange& exchange = impl->exchange();
  std::vector<std::byte> place;
  BeginTogether(exchange, CollectiveCall::kSnapshot,
                [&] { place = BytesOf(std::filesystem::absolute(path).string()); });
  RequireSame(exchange, "folder", place);
  std::optional<ShardFolder> folder;  // of rank 0, for all
  try {
    Together(exchange, [&] {
      if (exchange.rank() != 0) return;
      RequireNoFile(path);
      folder.emplace(path, ShardFolder::Use::kCreate);
    });
    SnapshotResult mine;
    ShardSnapshots files(impl->set(), path);
    Together(exchange, [&] { mine = files.Write(); });
    const SnapshotResult sum = SumSnapshots(GatherObjects(exchange, mine));
    // With the manifest it is whole, and whether it has that only rank 0 knows for sure.
    if (!folder) files.Keep();
    Together(exchange, [&] {
      if (!folder) return;
      folder->SetManifest(impl->manifest());
      files.Keep();
      folder.reset();
    });
    return sum;
  } catch (...) {
    if (folder) {
      RemoveShardSnapshots(path, impl->set().partition().shards);
      folder->Abandon();
    }
    throw;
  }
}

StoreStats DistributedStore::Stats() const {
  const Impl::Call impl(Opened());
  std::vector<StoreStats> stats;
  impl->ForEachShard([&](std::uint32_t i) { stats.push_back(impl->set().store(i).Stats()); });
  return SumStats(stats);
}

ExchangeStats DistributedStore::Exchanged() const { return Impl::Call(Opened())->exchanged(); }

void DistributedStore::ForEach(const Store::Visitor& visit) {
  ForEachUntil([&](auto key, auto value) {
    visit(key, value);
    return true;
  });
}

bool DistributedStore::ForEachUntil(const Store::StoppableVisitor& visit) {
  const Impl::Call impl(Opened());
  ShardSet& set = impl->set();
  for (std::uint32_t i = set.first(); i < set.first() + set.count(); ++i) {
    if (!set.InShard(i, [&](Store& store) { return store.ForEach(visit); })) return false;
  }
  return true;
}

void DistributedStore::Close() {
  if (impl_ == nullptr) return;
  const std::shared_ptr<Log> log = impl_->log();
  std::optional<Log::TellsAtEnd> tells;
  if (impl_->process().IsThis()) tells.emplace(*log);
  const std::unique_ptr<Impl> impl = std::move(impl_);
  if (!tells) return;
  impl->in_flight().Await();
  impl->set().ForAll([&](std::uint32_t i) { impl->set().store(i).Close(); });
}

}  // namespace gpm
