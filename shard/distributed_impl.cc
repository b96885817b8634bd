#include "shard/distributed_impl.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "pm/gpu_host.h"
#include "shard/options.h"
#include "shard/together.h"

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

}  // namespace

void RequireShardsFor(const Exchange& exchange, const std::string& path, std::uint32_t shards) {
  if (shards >= exchange.ranks()) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: a store of {} shards can't be opened by {} ranks: each needs one",
                          path, shards, exchange.ranks()));
}

DistributedStore::Impl::Impl(const std::string& path, std::unique_ptr<Exchange> exchange,
                             const OpenOptions& open, const ShardOptions& options,
                             std::shared_ptr<Log> log)
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
      lanes_.push_back(
          {std::move(twin), std::make_unique<Collective>(of_lane, set_->partition(),
                                                         set_->key_size(), set_->value_size(),
                                                         splitters_, set_->device(set_->first()))});
    } while (lanes_.size() < kLanes && (twin = exchange_->Twin()) != nullptr);
    const auto lanes = GatherObjects(*exchange_, lanes_.size());
    while (lanes_.size() > *std::min_element(lanes.begin(), lanes.end())) lanes_.pop_back();
  });
  in_flight_ = std::make_unique<BatchQueue>(process_, log_,
                                            exchange_->AnyThread() ? unsigned(lanes_.size()) : 0);
}

DistributedStore::Impl::~Impl() {
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

ExchangeStats DistributedStore::Impl::exchanged() const {
  ExchangeStats sum;
  for (const Lane& lane : lanes_) sum += lane.collective->stats();
  return sum;
}

std::uint64_t DistributedStore::Impl::Run(const Batch& mine, CollectiveCall call) {
  const std::uint64_t number = in_flight_->Count();
  Turns::Turn turn(*turns_, number);
  return Run(number, turn, mine, call);
}

Ticket DistributedStore::Impl::Begin(const Batch& mine) {
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

std::uint64_t DistributedStore::Impl::Run(std::uint64_t number, Turns::Turn& turn,
                                          const Batch& mine, CollectiveCall call) {
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

void DistributedStore::Impl::RunInFlight(std::uint64_t number, const Batch& mine,
                                         std::thread::id caller) {
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

}  // namespace gpm
