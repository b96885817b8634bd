// GHSH (Ren, Gu, Li, Li, Yu: "GPU-Based Dynamic Hyperspace Hash with Full Concurrency", Data
// Science and Engineering 2021): a table in GPU memory that is searched by attributes. What a warp
// does is in ghsh_table.h and ghsh_queues.h.
//
// Keys have 8 bytes, so a key node 256; attributes have 4, as in the paper. There is an index of
// keys, and each subspace of two attributes has all items (section 5). A batch of inserts into an
// empty table is a bulk build (4.2.1); each other operation is a warp's, which carries out several
// one after the other (WCWS). Searches are answered by queues (WPDS).
//
// Left out: the hyperspace of which keys are one more dimension, finds of keys by queues, and
// searches beside changes: they are calls of their own. A search's queue is not copied to each of
// its buckets (ghsh_queues.h). A free slot and an erased one are the same, and an erased one is
// used again. The hash is the one of the other peers here.

#include <array>
#include <cmath>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <memory>
#include <vector>

#include "bench/peer.h"
#include "bench/peers/device.cuh"
#include "bench/peers/ghsh_pool.cuh"
#include "bench/peers/ghsh_queues.h"
#include "gpmstore/error.h"

namespace gpm::bench::peers::ghsh {
namespace {

/// A warp of a kernel, as ghsh_table.h wants it.
class DeviceWarp {
 public:
  __device__ DeviceWarp() : tile_(cg::tiled_partition<kWarpThreads>(cg::this_thread_block())) {}
  template <class Word>
  __device__ Word Load(const Word* row) const {
    return LoadWord(&row[tile_.thread_rank()]);
  }
  template <class Word>
  __device__ std::uint32_t Match(Word word, Word wanted) const {
    return tile_.ballot(word == wanted) & ((1u << kSlots) - 1);
  }
  template <class Word>
  __device__ Word At(Word word, std::uint32_t lane) const {
    return tile_.shfl(word, lane);
  }
  template <class F>
  __device__ auto Leader(const F& f) const {
    decltype(f()) result{};
    tile_.sync();
    if (tile_.thread_rank() == 0) result = f();
    tile_.sync();
    return tile_.shfl(result, 0);
  }
  template <class F>
  __device__ void Each(std::uint32_t n, const F& f) const {
    for (std::uint32_t i = tile_.thread_rank(); i < n; i += kWarpThreads) f(i);
    Fence();
    tile_.sync();
  }
  template <class Word, class F>
  __device__ void EachOf(std::uint32_t lanes, Word word, const F& f) const {
    const std::uint32_t mine = 1u << tile_.thread_rank();
    if ((lanes & mine) != 0) f(word, PopCount(lanes & (mine - 1)));
    tile_.sync();
  }

 private:
  cg::thread_block_tile<kWarpThreads> tile_;
};

__device__ std::uint64_t ThisThread() {
  return blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
}

/// Kernel: a warp carries out `per_warp` operations, one after the other.
__global__ void __launch_bounds__(kBlockThreads)
    ApplyOperations(Table table, KernelBatch batch, unsigned per_warp) {
  const DeviceWarp warp;
  const std::uint64_t first = ThisThread() / kWarpThreads * per_warp;
  for (std::uint64_t i = first; i < first + per_warp && i < batch.n; ++i) {
    const std::uint64_t key = batch.KeyOf<std::uint64_t>(i);
    Result result = Result::kOk;
    if (Table::IsReserved(key)) {
      result = Result::kInvalid;
    } else {
      switch (batch.KindOf(i)) {
        case Op::kFind: {
          std::byte* const found = batch.found == nullptr ? nullptr : batch.FoundOf(i);
          if (!table.Find(warp, key, found)) result = Result::kNotFound;
          break;
        }
        case Op::kInsert:
          table.Insert(warp, key, batch.ValueOf(i));
          break;
        case Op::kUpdate:
          if (!table.Update(warp, key, batch.ValueOf(i))) result = Result::kNotFound;
          break;
        case Op::kErase:
          if (!table.Erase(warp, key)) result = Result::kNotFound;
          break;
        default:
          result = Result::kInvalid;
      }
    }
    if (threadIdx.x % kWarpThreads == 0) batch.results[i] = result;
  }
}

/// Kernel: a warp writes a value of a bulk build, to a cell of its own.
__global__ void __launch_bounds__(kBlockThreads)
    StoreValues(Table table, KernelBatch batch, std::uint32_t* references) {
  const DeviceWarp warp;
  const std::uint64_t i = ThisThread() / kWarpThreads;
  if (i >= batch.n) return;
  const bool reserved = Table::IsReserved(batch.KeyOf<std::uint64_t>(i));
  const std::uint32_t cell = reserved ? 0 : table.NewValue(warp, batch.ValueOf(i));
  if (threadIdx.x % kWarpThreads != 0) return;
  references[i] = cell;
  batch.results[i] = reserved ? Result::kInvalid : Result::kOk;
}

/// Kernel: the bucket of each item, and the item's number.
__global__ void __launch_bounds__(kBlockThreads)
    HashItems(Table table, std::uint32_t space, const std::uint64_t* keys,
              const std::uint32_t* references, std::uint64_t n, std::uint32_t* buckets,
              std::uint32_t* order) {
  const std::uint64_t i = ThisThread();
  if (i >= n) return;
  buckets[i] = BucketOfItem(table, table.spaces[space], keys[i], references[i]);
  order[i] = static_cast<std::uint32_t>(i);
}

/// Kernel: lists the places at which something begins (IsStart).
__global__ void __launch_bounds__(kBlockThreads)
    ListStarts(const std::uint32_t* ids, std::uint64_t n, std::uint64_t length,
               std::uint32_t* starts, std::uint64_t* count) {
  const std::uint64_t i = ThisThread();
  if (i < n && IsStart(ids, i, length)) {
    starts[AtomicAdd(count, 1)] = static_cast<std::uint32_t>(i);
  }
}

/// Kernel: a warp makes a super node of what begins at a start.
__global__ void __launch_bounds__(kBlockThreads)
    BuildNodes(Table table, std::uint32_t space, SortedItems items, const std::uint32_t* starts,
               const std::uint64_t* count) {
  const std::uint64_t i = ThisThread() / kWarpThreads;
  if (i < *count) BuildNode(DeviceWarp{}, table, table.spaces[space], items, starts[i]);
}

/// Kernel: lists the items of the index of keys, from all its super nodes.
__global__ void __launch_bounds__(kBlockThreads)
    CollectItems(Table table, std::uint64_t nodes, std::uint64_t* keys, std::uint32_t* references,
                 std::uint64_t* count) {
  const std::uint64_t i = ThisThread();
  if (i >= nodes * kSlots) return;
  const SuperNode node = table.spaces[0].NodeAt(static_cast<std::uint32_t>(i / kSlots + 1));
  const std::uint64_t key = node.keys()[i % kSlots];
  if (Table::IsReserved(key)) return;
  const std::uint64_t place = AtomicAdd(count, 1);
  keys[place] = key;
  references[place] = node.references()[i % kSlots];
}

/// What a search counts.
struct SearchCounts {
  std::uint64_t rows;                   ///< matches
  std::uint64_t lists;                  ///< that have queries
  std::uint64_t asked[kMaxAttributes];  ///< queries of each attribute
  std::uint64_t wrong;                  ///< queries of another shape
};

struct QueryShape {
  std::uint32_t attributes[kMaxAttributes];
  std::uint32_t conditions;
};

/// Kernel: the list that each query goes to (CBB, PBQ).
__global__ void __launch_bounds__(kBlockThreads)
    ClassifyQueries(Table table, QueryShape shape, const std::uint64_t* bounds, std::uint64_t n,
                    std::uint32_t* lists, std::uint32_t* order, std::uint32_t* numbers,
                    SearchCounts* counts) {
  const std::uint64_t i = ThisThread();
  if (i >= n) return;
  std::uint32_t wanted = shape.conditions, single = 0, all = 0;
  for (std::uint32_t c = 0; c < shape.conditions; ++c) {
    const std::uint64_t* const range = bounds + 2 * (i * shape.conditions + c);
    if (range[0] == range[1]) {
      wanted = c;
      ++single;
    } else if (range[0] == 0 && range[1] == ~std::uint64_t{0}) {
      ++all;
    }
  }
  order[i] = static_cast<std::uint32_t>(i);
  lists[i] = kNoList;
  if (single != 1 || single + all != shape.conditions) {
    AtomicAdd(&counts->wrong, 1);
    return;
  }
  const std::uint32_t attribute = shape.attributes[wanted];
  const std::uint64_t number = bounds[2 * (i * shape.conditions + wanted)];
  AtomicAdd(&counts->asked[attribute], 1);
  if (number > 0xFFFFFFFF || table.space_of[attribute] == 0) return;
  numbers[i] = static_cast<std::uint32_t>(number);
  lists[i] = ListOf(table, attribute, numbers[i]);
}

/// A match: the nth of its query.
struct Row {
  std::uint64_t key;
  std::uint32_t query;
  std::uint32_t nth;
};

/// Kernel: a warp answers a list's queries from one bucket. @param rows null: they are counted only
__global__ void __launch_bounds__(kBlockThreads)
    SearchBuckets(Table table, SortedQueries queries, const std::uint32_t* starts,
                  std::uint64_t buckets, std::uint64_t* matches, Row* rows, std::uint64_t room,
                  SearchCounts* counts) {
  const DeviceWarp warp;
  const std::uint64_t w = ThisThread() / kWarpThreads;
  if (w / buckets >= counts->lists) return;
  SearchBucket(
      warp, table, queries, starts[w / buckets], w % buckets,
      [&](std::uint32_t query, std::uint64_t keys, std::uint32_t lanes) {
        const std::uint64_t found = PopCount(lanes);
        const std::uint64_t nth = warp.Leader([&] { return AtomicAdd(&matches[query], found); });
        const std::uint64_t place = warp.Leader([&] { return AtomicAdd(&counts->rows, found); });
        if (rows == nullptr) return;
        warp.EachOf(lanes, keys, [&](std::uint64_t key, std::uint32_t i) {
          if (place + i >= room) return;
          rows[place + i] = {key, query, static_cast<std::uint32_t>(nth + i)};
        });
      });
}

/// Kernel: brings the rows to where their queries' rows are.
__global__ void __launch_bounds__(kBlockThreads)
    ScatterRows(const Row* rows, std::uint64_t n, const std::uint64_t* offsets,
                std::uint64_t* keys) {
  const std::uint64_t i = ThisThread();
  if (i < n) keys[offsets[rows[i].query] + rows[i].nth] = rows[i].key;
}

/// Owns a table.
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
    values_ = std::make_unique<Pool>(spec.value_bytes, spec.items, max_batch_, stream_);
    table_.values = values_->cells();
    counts_.Reserve(1);
    count_.Reserve(1);
    AddSpace({});
    MakeGroups();
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
      if (values_->Require(kernel_batch.n)) table_.values = values_->cells();
      for (std::uint32_t s = 0; s < table_.space_count; ++s) {
        if (pools_[s]->Require(kernel_batch.n)) table_.spaces[s].nodes = pools_[s]->cells();
      }
    }
    if (one_kind && batch.op == Op::kInsert && empty_) {
      references_.Reserve(kernel_batch.n);
      StoreValues<<<BlocksFor(kernel_batch.n * kWarpThreads), kBlockThreads, 0, stream_>>>(
          table_, kernel_batch, references_.data());
      CheckCuda(cudaGetLastError(), "StoreValues");
      for (std::uint32_t s = 0; s < table_.space_count; ++s) {
        Build(s, reinterpret_cast<const std::uint64_t*>(batch.keys.data()), references_.data(),
              kernel_batch.n);
      }
    } else {
      const unsigned per_warp = OperationsPerWarp(kernel_batch.n);
      const std::uint64_t warps = (kernel_batch.n + per_warp - 1) / per_warp;
      ApplyOperations<<<BlocksFor(warps * kWarpThreads), kBlockThreads, 0, stream_>>>(
          table_, kernel_batch, per_warp);
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
      MakeGroups();
      counts = SearchOnce(shape, queries, *matches);
    }
    if (counts.wrong > 0) {
      throw Error(ErrorCode::kInvalidArgument, "GHSH: a query wants one attribute to be a number");
    }
    matches->rows = matches->offsets.empty() ? 0 : counts.rows;
    if (!matches->offsets.empty()) {
      if (counts.rows > matches->keys.size() / sizeof(std::uint64_t)) {
        throw Error(ErrorCode::kNoSpace, "GHSH: there is no room for the keys of what matches");
      }
      WriteRows(counts.rows, n, *matches);
    }
    matches->answered = n;
    if (asked_in_period_ < kPeriod) return;
    if (GroupsOf(asked_) != groups_) MakeGroups();
    asked_.assign(asked_.size(), 0);
    asked_in_period_ = 0;
  }

 private:
  /// Queries after which it is looked what subspaces there should be.
  static constexpr std::uint64_t kPeriod = std::uint64_t{1} << 16;

  void AddSpace(const std::vector<std::uint32_t>& attributes) {
    const auto dimensions = static_cast<std::uint32_t>(attributes.size());
    Space& space = table_.spaces[table_.space_count];
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
    pool = std::make_unique<Pool>(
        SuperNode::Bytes(dimensions),
        space.Buckets() + values_->Used() / kSlots + spec_.items / kSlots + 1,
        std::max(max_batch_, values_->Used()), stream_);
    space.nodes = pool->cells();
    ++table_.space_count;
  }

  /// Makes the subspaces of attributes anew, as queries asked, from the index of keys.
  void MakeGroups() {
    groups_ = GroupsOf(asked_);
    const std::uint64_t nodes = pools_[0]->count();
    const std::uint64_t items = values_->Used();
    DeviceArray<std::uint64_t> keys;
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

  /// Sorts ids_ and order_ to sorted_ids_ and sorted_order_.
  void Sort(std::uint64_t n) {
    sorted_ids_.Reserve(n);
    sorted_order_.Reserve(n);
    std::size_t bytes = 0;
    for (void* workspace = nullptr;; workspace = workspace_.data()) {
      CheckCuda(
          cub::DeviceRadixSort::SortPairs(workspace, bytes, ids_.data(), sorted_ids_.data(),
                                          order_.data(), sorted_order_.data(), n, 0, 32, stream_),
          "SortPairs");
      if (workspace != nullptr) return;
      workspace_.Reserve(std::max<std::size_t>(bytes, 1));
    }
  }

  /// Bulk build of a subspace.
  void Build(std::uint32_t s, const std::uint64_t* keys, const std::uint32_t* references,
             std::uint64_t n) {
    ids_.Reserve(n);
    order_.Reserve(n);
    HashItems<<<BlocksFor(n), kBlockThreads, 0, stream_>>>(table_, s, keys, references, n,
                                                           ids_.data(), order_.data());
    CheckCuda(cudaGetLastError(), "HashItems");
    Sort(n);
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

  /// Counts, and rows in rows_ in any order. @return what it counted
  SearchCounts SearchOnce(const QueryShape& shape, const QueryArray& queries,
                          const Matches& matches) {
    const std::uint64_t n = queries.count();
    const bool keys = !matches.offsets.empty();
    const std::uint64_t room = keys ? matches.keys.size() / sizeof(std::uint64_t) : 0;
    ids_.Reserve(n);
    order_.Reserve(n);
    numbers_.Reserve(n);
    starts_.Reserve(n);
    rows_.Reserve(std::max<std::uint64_t>(room, 1));
    CheckCuda(cudaMemsetAsync(counts_.data(), 0, sizeof(SearchCounts), stream_), "cudaMemset");
    CheckCuda(cudaMemsetAsync(matches.counts.data(), 0, n * sizeof(std::uint64_t), stream_),
              "cudaMemset");
    ClassifyQueries<<<BlocksFor(n), kBlockThreads, 0, stream_>>>(
        table_, shape, queries.bounds.data(), n, ids_.data(), order_.data(), numbers_.data(),
        counts_.data());
    CheckCuda(cudaGetLastError(), "ClassifyQueries");
    Sort(n);
    ListStarts<<<BlocksFor(n), kBlockThreads, 0, stream_>>>(sorted_ids_.data(), n, 0,
                                                            starts_.data(), &counts_.data()->lists);
    CheckCuda(cudaGetLastError(), "ListStarts");
    std::uint64_t buckets = 1, lists = 1;
    for (std::uint32_t s = 1; s < table_.space_count; ++s) {
      buckets = std::max(buckets, table_.spaces[s].BucketsOfSearch());
      lists += table_.spaces[s].dimensions * table_.spaces[s].side;
    }
    SearchBuckets<<<BlocksFor(std::min(n, lists) * buckets * kWarpThreads), kBlockThreads, 0,
                    stream_>>>(
        table_, {sorted_ids_.data(), sorted_order_.data(), numbers_.data(), n}, starts_.data(),
        buckets, matches.counts.data(), keys ? rows_.data() : nullptr, room, counts_.data());
    CheckCuda(cudaGetLastError(), "SearchBuckets");
    SearchCounts counts;
    CheckCuda(
        cudaMemcpyAsync(&counts, counts_.data(), sizeof counts, cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpy");
    CheckCuda(cudaStreamSynchronize(stream_), "GHSH's search");
    return counts;
  }

  void WriteRows(std::uint64_t rows, std::uint64_t n, const Matches& matches) {
    std::size_t bytes = 0;
    for (void* workspace = nullptr;; workspace = workspace_.data()) {
      CheckCuda(cub::DeviceScan::ExclusiveSum(workspace, bytes, matches.counts.data(),
                                              matches.offsets.data(), n, stream_),
                "ExclusiveSum");
      if (workspace != nullptr) break;
      workspace_.Reserve(std::max<std::size_t>(bytes, 1));
    }
    CheckCuda(cudaMemcpyAsync(&matches.offsets[n], &counts_.data()->rows, sizeof(std::uint64_t),
                              cudaMemcpyDeviceToDevice, stream_),
              "cudaMemcpy");
    if (rows > 0) {
      ScatterRows<<<BlocksFor(rows), kBlockThreads, 0, stream_>>>(
          rows_.data(), rows, matches.offsets.data(),
          reinterpret_cast<std::uint64_t*>(matches.keys.data()));
      CheckCuda(cudaGetLastError(), "ScatterRows");
    }
    CheckCuda(cudaStreamSynchronize(stream_), "ScatterRows");
  }

  const std::uint64_t max_batch_;
  const PeerSpec spec_;
  bool empty_ = true;  ///< nothing was ever inserted
  CudaStream stream_;
  Table table_{};
  std::unique_ptr<Pool> values_;
  std::array<std::unique_ptr<Pool>, kMaxSpaces> pools_;
  std::array<DeviceArray<std::uint32_t>, kMaxSpaces> heads_;
  std::vector<std::uint64_t> asked_;  ///< queries of each attribute in this period
  std::uint64_t asked_in_period_ = 0;
  std::vector<std::vector<std::uint32_t>> groups_;
  DeviceArray<std::uint32_t> references_, ids_, order_, sorted_ids_, sorted_order_, starts_;
  DeviceArray<std::uint32_t> numbers_;
  DeviceArray<std::uint64_t> count_;
  DeviceArray<SearchCounts> counts_;
  DeviceArray<Row> rows_;
  DeviceArray<std::byte> workspace_;
};

const RegisteredPeer registered({.name = "ghsh",
                                 .can = {.memory = ycsb::Memory::kDevice,
                                         .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase},
                                         .value_unit = 8,
                                         .mixed_erases = true,
                                         .inserts = Inserts::kNew,
                                         .grows = true,
                                         .searches = Searches::kKeys},
                                 .make = MakePeer<GhshAdapter>});

}  // namespace
}  // namespace gpm::bench::peers::ghsh
