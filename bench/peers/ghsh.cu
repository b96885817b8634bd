// GHSH (Ren, Gu, Li, Li, Yu: "GPU-Based Dynamic Hyperspace Hash with Full Concurrency", Data
// Science and Engineering 2021): a table in GPU memory that is searched by attributes. What a warp
// does is in ghsh_table.h and ghsh_queues.h, the kernels are in ghsh_kernels.cuh.
//
// There is an index of keys, and each subspace of two attributes has all items (section 5).
// Attributes have 4 bytes, as in the paper. Keys of `ghsh` have 8, so a key node 256, and values
// are in cells; `ghsh-words` has keys and values of 4 bytes in its nodes, as the paper's section
// 6.4 has, and no attributes. `ghsh-fixed` keeps its subspaces of two attributes whatever is asked;
// `ghsh` makes them anew as queries ask (section 5), so that an attribute that alone is searched by
// is its subspace's one dimension, and a search of it goes to one bucket.
//
// A batch of inserts into an empty table is a bulk build (4.2.1). Each other operation is a warp's,
// which carries out its lanes' operations one after the other (WCWS); where all are finds, nodes
// of eight of them are read at once. Searches are answered by queues (WPDS).
//
// Left out: the hyperspace of which keys are one more dimension, finds of keys by queues, and
// searches beside changes: they are calls of their own. A search's queue is not copied to each of
// its buckets (ghsh_queues.h). A free slot and an erased one are the same, and an erased one is
// used again. The hash is the one of the other peers here.
//
// The 995 M queries a second of the paper's abstract are presumably searches by *key*, of 4-byte
// fields, which read about one node each: section 6.4.2 has 838 and 732 M/s for them (harmonic
// means). A search by one of two attributes compares n / B items (B is a dimension's side),
// thousands; its table 1, which can be of these, has 211 M/s in batches of 2^15.

#include <array>
#include <bit>
#include <cmath>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <memory>
#include <utility>
#include <vector>

#include "bench/peer.h"
#include "bench/peers/device.cuh"
#include "bench/peers/ghsh_kernels.cuh"
#include "bench/peers/ghsh_pool.cuh"
#include "gpmstore/error.h"

namespace gpm::bench::peers::ghsh {
namespace {

/// Owns a table. @tparam kAdaptive whether subspaces are made anew as queries ask
template <class Key, bool kAdaptive>
class GhshAdapter : public KvAdapter {
 public:
  explicit GhshAdapter(const PeerSpec& spec)
      : max_batch_(std::max<std::uint64_t>(spec.max_batch, 1)), spec_(spec) {
    table_.value_bytes = spec.value_bytes;
    if (spec.attributes.size() > kMaxAttributes) {
      throw Error(ErrorCode::kInvalidArgument, "GHSH: too many attributes");
    }
    for (std::size_t a = 0; a < spec.attributes.size(); ++a) {
      const Attribute& attribute = spec.attributes[a];
      if (attribute.bytes != 4 || attribute.offset % 4 != 0 ||
          attribute.offset + 4 > spec.value_bytes) {
        throw Error(ErrorCode::kInvalidArgument,
                    "GHSH: attributes are aligned words of 4 bytes in the value");
      }
      table_.offsets[a] = attribute.offset;
    }
    asked_.assign(spec.attributes.size(), 0);
    asked_before_ = asked_;
    if (!kInPlace) {
      // (The host reads how many cells are free only when so many batches may have taken all.)
      constexpr std::uint64_t kBatchesUnread = 15;
      values_ = std::make_unique<Pool>(spec.value_bytes, spec.items + kBatchesUnread * max_batch_,
                                       max_batch_, stream_);
      table_.values = values_->cells();
    }
    counts_.Reserve(1);
    count_.Reserve(1);
    AddSpace({});
    MakeGroups(GroupsOf(asked_));
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemset");
  }

  void Apply(const Batch& batch) override {
    const KernelBatch kernel_batch(batch, table_.value_bytes);
    if (batch.results.size() > max_batch_) {
      throw Error(ErrorCode::kInvalidArgument, "a batch is larger than PeerSpec::max_batch");
    }
    if (batch.results.empty()) return;
    const bool one_kind = batch.ops.empty();
    if (!one_kind || batch.op == Op::kInsert || batch.op == Op::kUpdate) {
      if (!kInPlace && values_->Require(kernel_batch.n)) table_.values = values_->cells();
      for (std::uint32_t s = 0; s < table_.space_count; ++s) {
        if (pools_[s]->Require(kernel_batch.n)) table_.spaces[s].nodes = pools_[s]->cells();
      }
    }
    const unsigned per_warp = OperationsPerWarp(kernel_batch.n);
    const std::uint64_t warps = (kernel_batch.n + per_warp - 1) / per_warp;
    const unsigned blocks = BlocksFor(warps * kWarpThreads);
    if (one_kind && batch.op == Op::kInsert && empty_) {
      references_.Reserve(kernel_batch.n);
      StoreValues<<<blocks, kBlockThreads, 0, stream_>>>(table_, kernel_batch, per_warp,
                                                         references_.data());
      CheckCuda(cudaGetLastError(), "StoreValues");
      for (std::uint32_t s = 0; s < table_.space_count; ++s) {
        Build(s, reinterpret_cast<const Key*>(batch.keys.data()), references_.data(),
              kernel_batch.n);
      }
    } else if (one_kind && batch.op == Op::kFind) {
      FindKeys<<<blocks, kBlockThreads, 0, stream_>>>(table_, kernel_batch, per_warp);
      CheckCuda(cudaGetLastError(), "FindKeys");
    } else {
      ApplyOperations<<<blocks, kBlockThreads, 0, stream_>>>(table_, kernel_batch, per_warp);
      CheckCuda(cudaGetLastError(), "ApplyOperations");
    }
    if (!one_kind || batch.op == Op::kInsert) empty_ = false;
    CheckCuda(cudaStreamSynchronize(stream_), "GHSH's batch");
  }

  void Search(const QueryArray& queries, Matches* matches) override {
    const std::uint64_t n = queries.count();
    QueryShape shape{{}, static_cast<std::uint32_t>(queries.attributes.size())};
    for (std::uint32_t c = 0; c < shape.conditions; ++c) {
      shape.attributes[c] = queries.attributes[c];
      if (shape.attributes[c] < asked_.size()) continue;
      throw Error(ErrorCode::kInvalidArgument, "GHSH: a query is of an attribute that it lacks");
    }
    matches->answered = matches->rows = 0;
    if (n == 0) return;
    SearchCounts counts = SearchOnce(shape, queries, *matches);
    // Indexed as queries ask: an attribute that has no subspace gets one, and is asked once more.
    bool lacks = false;
    for (std::size_t a = 0; a < asked_.size(); ++a) {
      asked_[a] += counts.asked[a];
      asked_in_period_ += counts.asked[a];
      lacks = lacks || (counts.asked[a] > 0 && table_.space_of[a] == 0);
    }
    if (lacks) {
      std::vector<std::uint64_t> asked = asked_;
      for (std::size_t a = 0; a < asked.size(); ++a) asked[a] += asked_before_[a];
      MakeGroups(GroupsOf(asked));
      counts = SearchOnce(shape, queries, *matches);
    }
    if (counts.wrong > 0) {
      throw Error(ErrorCode::kInvalidArgument, "GHSH: a query wants one attribute to be a number");
    }
    matches->rows = matches->offsets.empty() ? 0 : counts.rows;
    if (matches->rows > matches->keys.size() / sizeof(std::uint64_t)) {
      throw Error(ErrorCode::kNoSpace, "GHSH: there is no room for the keys of what matches");
    }
    matches->answered = n;
    if (!kAdaptive || asked_in_period_ < kPeriod) return;
    if (GroupsOf(asked_) != groups_) MakeGroups(GroupsOf(asked_));
    asked_before_ = std::exchange(asked_, std::vector<std::uint64_t>(asked_.size()));
    asked_in_period_ = 0;
  }

 private:
  static constexpr bool kInPlace = Table<Key>::kInPlace;
  /// Queries after which it is looked what subspaces there should be.
  static constexpr std::uint64_t kPeriod = std::uint64_t{1} << 16;

  void AddSpace(const std::vector<std::uint32_t>& attributes) {
    const auto dimensions = static_cast<std::uint32_t>(attributes.size());
    Space<Key>& space = table_.spaces[table_.space_count];
    space = {};
    const double buckets = std::max(1.0, static_cast<double>(spec_.items) / (kSlots * spec_.fill));
    space.side = static_cast<std::uint64_t>(
        std::ceil(dimensions < 2 ? buckets : std::pow(buckets, 1.0 / dimensions)));
    space.dimensions = dimensions;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      space.attributes[d] = attributes[d];
      table_.space_of[attributes[d]] = table_.space_count;
      table_.dimension_of[attributes[d]] = d;
    }
    DeviceArray<std::uint32_t>& heads = heads_[table_.space_count];
    heads.Reserve(space.Buckets());
    space.heads = heads.data();
    CheckCuda(cudaMemsetAsync(space.heads, 0, space.Buckets() * sizeof(std::uint32_t), stream_),
              "cudaMemset");
    auto& pool = pools_[table_.space_count];
    pool.reset();
    pool =
        std::make_unique<Pool>(SuperNode<Key>::Bytes(dimensions),
                               space.Buckets() + ItemsInCells() / kSlots + spec_.items / kSlots + 1,
                               std::max(max_batch_, ItemsInCells()), stream_);
    space.nodes = pool->cells();
    ++table_.space_count;
  }

  std::uint64_t ItemsInCells() const { return kInPlace ? 0 : values_->Used(); }

  /// Makes the subspaces of attributes anew, from the index of keys.
  void MakeGroups(const std::vector<std::vector<std::uint32_t>>& groups) {
    groups_ = groups;
    const std::uint64_t nodes = pools_[0]->count();
    const std::uint64_t items = ItemsInCells();
    DeviceArray<Key> keys;
    DeviceArray<std::uint32_t> references;
    if (items > 0) {
      keys.Reserve(items);
      references.Reserve(items);
      CheckCuda(cudaMemsetAsync(count_.data(), 0, sizeof(std::uint64_t), stream_), "cudaMemset");
      CollectItems<<<BlocksFor(nodes * kSlots), kBlockThreads, 0, stream_>>>(
          table_, nodes, keys.data(), references.data(), count_.data());
      CheckCuda(cudaGetLastError(), "CollectItems");
    }
    table_.space_count = 1;
    std::fill(std::begin(table_.space_of), std::end(table_.space_of), 0u);
    for (const std::vector<std::uint32_t>& group : groups_) {
      AddSpace(group);
      if (items == 0) continue;
      pools_[table_.space_count - 1]->Require(items);  // there are: it is new
      Build(table_.space_count - 1, keys.data(), references.data(), items);
    }
    CheckCuda(cudaStreamSynchronize(stream_), "GHSH's subspaces");
  }

  /// Sorts ids_, which have so many bits, and order_ to sorted_ids_ and sorted_order_.
  void Sort(std::uint64_t n, int bits) {
    sorted_ids_.Reserve(n);
    sorted_order_.Reserve(n);
    std::size_t bytes = 0;
    for (void* workspace = nullptr;; workspace = workspace_.data()) {
      CheckCuda(
          cub::DeviceRadixSort::SortPairs(workspace, bytes, ids_.data(), sorted_ids_.data(),
                                          order_.data(), sorted_order_.data(), n, 0, bits, stream_),
          "SortPairs");
      if (workspace != nullptr) return;
      workspace_.Reserve(std::max<std::size_t>(bytes, 1));
    }
  }

  /// Bulk build of a subspace.
  void Build(std::uint32_t s, const Key* keys, const std::uint32_t* references, std::uint64_t n) {
    ids_.Reserve(n);
    order_.Reserve(n);
    HashItems<<<BlocksFor(n), kBlockThreads, 0, stream_>>>(table_, s, keys, references, n,
                                                           ids_.data(), order_.data());
    CheckCuda(cudaGetLastError(), "HashItems");
    Sort(n, std::bit_width(table_.spaces[s].Buckets()));
    starts_.Reserve(n);
    CheckCuda(cudaMemsetAsync(count_.data(), 0, sizeof(std::uint64_t), stream_), "cudaMemset");
    ListStarts<<<BlocksFor(n), kBlockThreads, 0, stream_>>>(sorted_ids_.data(), n, kSlots,
                                                            starts_.data(), count_.data());
    CheckCuda(cudaGetLastError(), "ListStarts");
    const std::uint64_t most = std::min(n, table_.spaces[s].Buckets() + 1 + n / kSlots);
    BuildNodes<<<BlocksFor(most * kWarpThreads), kBlockThreads, 0, stream_>>>(
        table_, s, {keys, references, sorted_ids_.data(), sorted_order_.data(), n}, starts_.data(),
        count_.data());
    CheckCuda(cudaGetLastError(), "BuildNodes");
  }

  /// Does all that a search does, and waits. @return what it counted
  SearchCounts SearchOnce(const QueryShape& shape, const QueryArray& queries,
                          const Matches& matches) {
    const std::uint64_t n = queries.count();
    const bool keys = !matches.offsets.empty();
    const std::uint64_t room = keys ? matches.keys.size() / sizeof(std::uint64_t) : 0;
    ids_.Reserve(n);
    order_.Reserve(n);
    numbers_.Reserve(n);
    sorted_numbers_.Reserve(n);
    starts_.Reserve(n);
    rows_.Reserve(std::max<std::uint64_t>(room, 1));
    SearchCounts* const counts = counts_.data();
    CheckCuda(cudaMemsetAsync(counts, 0, sizeof(SearchCounts), stream_), "cudaMemset");
    CheckCuda(cudaMemsetAsync(matches.counts.data(), 0, n * sizeof(std::uint64_t), stream_),
              "cudaMemset");
    ClassifyQueries<<<BlocksFor(n), kBlockThreads, 0, stream_>>>(
        table_, shape, queries.bounds.data(), n, ids_.data(), order_.data(), numbers_.data(),
        counts);
    CheckCuda(cudaGetLastError(), "ClassifyQueries");
    Sort(n, 32);
    const SortedQueries sorted{sorted_ids_.data(), sorted_order_.data(), sorted_numbers_.data(), n};
    ListQueries<<<BlocksFor(n), kBlockThreads, 0, stream_>>>(
        sorted, numbers_.data(), sorted_numbers_.data(), starts_.data(), &counts->lists);
    CheckCuda(cudaGetLastError(), "ListQueries");
    std::uint64_t buckets = 1, lists = 1;
    for (std::uint32_t s = 1; s < table_.space_count; ++s) {
      buckets = std::max(buckets, table_.spaces[s].BucketsOfSearch());
      lists += table_.spaces[s].dimensions * table_.spaces[s].side;
    }
    const std::uint64_t parts = (buckets + kBucketsAtOnce - 1) / kBucketsAtOnce;
    const Rows rows{keys ? rows_.data() : nullptr, room, &counts->rows};
    SearchLists<<<BlocksFor(std::min(n, lists) * parts * kWarpThreads), kBlockThreads, 0,
                  stream_>>>(table_, sorted, starts_.data(), &counts->lists, buckets,
                             matches.counts.data(), rows);
    CheckCuda(cudaGetLastError(), "SearchLists");
    if (keys) WriteRows(rows, n, matches);
    SearchCounts result;
    CheckCuda(cudaMemcpyAsync(&result, counts, sizeof result, cudaMemcpyDeviceToHost, stream_),
              "cudaMemcpy");
    CheckCuda(cudaStreamSynchronize(stream_), "GHSH's search");
    return result;
  }

  void WriteRows(const Rows& rows, std::uint64_t n, const Matches& matches) {
    std::size_t bytes = 0;
    for (void* workspace = nullptr;; workspace = workspace_.data()) {
      CheckCuda(cub::DeviceScan::ExclusiveSum(workspace, bytes, matches.counts.data(),
                                              matches.offsets.data(), n, stream_),
                "ExclusiveSum");
      if (workspace != nullptr) break;
      workspace_.Reserve(std::max<std::size_t>(bytes, 1));
    }
    CheckCuda(cudaMemcpyAsync(&matches.offsets[n], rows.count, sizeof(std::uint64_t),
                              cudaMemcpyDeviceToDevice, stream_),
              "cudaMemcpy");
    if (rows.room == 0) return;
    ScatterRows<<<BlocksFor(rows.room), kBlockThreads, 0, stream_>>>(
        rows, matches.offsets.data(), reinterpret_cast<std::uint64_t*>(matches.keys.data()));
    CheckCuda(cudaGetLastError(), "ScatterRows");
  }

  const std::uint64_t max_batch_;
  const PeerSpec spec_;
  bool empty_ = true;  ///< nothing was ever inserted
  CudaStream stream_;
  Table<Key> table_{};
  std::unique_ptr<Pool> values_;
  std::array<std::unique_ptr<Pool>, kMaxSpaces> pools_;
  std::array<DeviceArray<std::uint32_t>, kMaxSpaces> heads_;
  std::vector<std::uint64_t> asked_;         ///< queries of each attribute in this period
  std::vector<std::uint64_t> asked_before_;  ///< and in the one before
  std::uint64_t asked_in_period_ = 0;
  std::vector<std::vector<std::uint32_t>> groups_;
  DeviceArray<std::uint32_t> references_, ids_, order_, sorted_ids_, sorted_order_, starts_;
  DeviceArray<std::uint32_t> numbers_, sorted_numbers_;
  DeviceArray<std::uint64_t> count_;
  DeviceArray<SearchCounts> counts_;
  DeviceArray<Row> rows_;
  DeviceArray<std::byte> workspace_;
};

/// @param key_bytes of keys; those of 4 have values of 4 bytes beside them, and no attributes
Capabilities CapabilitiesWith(std::uint32_t key_bytes) {
  const bool in_place = key_bytes == 4;
  return {.memory = ycsb::Memory::kDevice,
          .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase},
          .key_bytes = key_bytes,
          .value_unit = in_place ? 4u : 8u,
          .max_value_bytes = in_place ? 4u : kMaxValueBytes,
          .mixed_erases = true,
          .inserts = Inserts::kNew,
          .grows = true,
          .searches = in_place ? Searches::kNone : Searches::kKeys};
}

const RegisteredPeer adaptive({.name = "ghsh",
                               .can = CapabilitiesWith(8),
                               .make = MakePeer<GhshAdapter<std::uint64_t, true>>});
const RegisteredPeer fixed({.name = "ghsh-fixed",
                            .can = CapabilitiesWith(8),
                            .by_default = false,
                            .make = MakePeer<GhshAdapter<std::uint64_t, false>>});
const RegisteredPeer words({.name = "ghsh-words",
                            .can = CapabilitiesWith(4),
                            .make = MakePeer<GhshAdapter<std::uint32_t, true>>});

}  // namespace
}  // namespace gpm::bench::peers::ghsh
