#ifndef GPM_BENCH_PEERS_GHSH_KERNELS_CUH_
#define GPM_BENCH_PEERS_GHSH_KERNELS_CUH_

#include <cub/block/block_scan.cuh>

#include "bench/peers/device.cuh"
#include "bench/peers/ghsh_queues.h"

/// GHSH's kernels: what they have of a warp, and what they do beside ghsh_table.h and
/// ghsh_queues.h.
namespace gpm::bench::peers::ghsh {

/// A warp of a kernel, as ghsh_table.h wants it.
class DeviceWarp {
 public:
  __device__ DeviceWarp() : tile_(cg::tiled_partition<kWarpThreads>(cg::this_thread_block())) {}
  __device__ std::uint32_t lane() const { return tile_.thread_rank(); }
  template <class Word>
  __device__ Word Load(const Word* row) const {
    return LoadWord(&row[lane()]);
  }
  template <class Word>
  __device__ Word LoadSome(const Word* row, std::uint32_t n) const {
    return lane() < n ? row[lane()] : Word{};
  }
  template <class Word, class F>
  __device__ auto Map(Word word, const F& f) const {
    return f(word);
  }
  template <class Word>
  __device__ void Set(Word* word, std::uint32_t to, Word wanted) const {
    if (lane() == to) *word = wanted;
  }
  template <class Word>
  __device__ std::uint32_t Match(Word word, Word wanted) const {
    return tile_.ballot(word == wanted) & kSlotLanes;
  }
  __device__ std::uint32_t Some(std::uint32_t word) const { return tile_.ballot(word != 0); }
  template <class Word>
  __device__ Word At(Word word, std::uint32_t of) const {
    return tile_.shfl(word, of);
  }
  template <class F>
  __device__ auto Leader(const F& f) const {
    decltype(f()) result{};
    tile_.sync();
    if (lane() == 0) result = f();
    tile_.sync();
    return tile_.shfl(result, 0);
  }
  template <class F>
  __device__ void Each(std::uint32_t n, const F& f) const {
    for (std::uint32_t i = lane(); i < n; i += kWarpThreads) f(i);
    Fence();
    tile_.sync();
  }
  template <class Word, class F>
  __device__ void EachOf(std::uint32_t lanes, Word word, const F& f) const {
    const std::uint32_t mine = 1u << lane();
    if ((lanes & mine) != 0) f(word, PopCount(lanes & (mine - 1)));
    tile_.sync();
  }

 protected:
  static constexpr std::uint32_t kSlotLanes = (1u << kSlots) - 1;
  cg::thread_block_tile<kWarpThreads> tile_;
};

/// A warp that has a node in shared memory, from which each lane compares all of it.
class SearchWarp : public DeviceWarp {
 public:
  /// @param node 32 words of the warp's own, in shared memory, 16-byte aligned
  __device__ explicit SearchWarp(std::uint32_t* node) : node_(node) {}

  __device__ std::uint32_t MatchEach(std::uint32_t word, std::uint32_t wanted,
                                     std::uint32_t n) const {
    std::uint32_t matching = 0;
    if (n <= kFew) {
      for (std::uint32_t of = 0; of < n; ++of) {
        const std::uint32_t lanes = Match(word, At(wanted, of));
        if (lane() == of) matching = lanes;
      }
      return matching;
    }
    tile_.sync();  // it has been read
    node_[lane()] = word;
    tile_.sync();
    bool some = false;
#pragma unroll
    for (std::uint32_t slot = 0; slot < kWarpThreads; slot += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(&node_[slot]);
      some = some | (four.x == wanted) | (four.y == wanted) | (four.z == wanted);
      if (slot + 3 < kSlots) some = some | (four.w == wanted);
    }
    if (!tile_.any(some && lane() < n)) return 0;
    if (some && lane() < n) {
      for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        matching |= static_cast<std::uint32_t>(node_[slot] == wanted) << slot;
      }
    }
    tile_.sync();
    return matching;
  }

 private:
  /// Queries for which the warp compares a node's words at once with one after the other.
  static constexpr std::uint32_t kFew = 8;
  std::uint32_t* const node_;
};

__device__ inline std::uint64_t ThisThread() {
  return blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
}

/// Puts a block's words into an array, in any order, with one access to `count`. By all threads.
__device__ inline void Append(bool has, std::uint32_t word, std::uint32_t* array,
                              std::uint64_t* count) {
  using Scan = cub::BlockScan<std::uint32_t, kBlockThreads>;
  __shared__ typename Scan::TempStorage workspace;
  __shared__ std::uint64_t first;
  std::uint32_t place = 0;
  std::uint32_t all = 0;
  Scan(workspace).ExclusiveSum(has ? 1u : 0u, place, all);
  if (threadIdx.x == 0) first = AtomicAdd(count, all);
  __syncthreads();
  if (has) array[first + place] = word;
}

/// Takes a cell for each lane that wants one, with one access to the ring's counter. @return 0: for
/// those that do not
template <class Key>
__device__ std::uint32_t TakeCells(const DeviceWarp& warp, const Table<Key>& table, bool wants) {
  const std::uint32_t takers = warp.Some(wants ? 1 : 0);
  if (takers == 0) return 0;
  const std::uint64_t first =
      warp.Leader([&] { return AtomicAdd(&table.values.counters[0], PopCount(takers)); });
  const std::uint32_t before = PopCount(takers & ((1u << warp.lane()) - 1));
  return wants ? table.values.ring[(first + before) % table.values.ring_size] : 0;
}

/// Gives each lane's cell back, if it has one.
template <class Key>
__device__ void GiveCells(const DeviceWarp& warp, const Table<Key>& table, std::uint32_t cell) {
  const std::uint32_t givers = warp.Some(cell);
  if (givers == 0) return;
  const std::uint64_t first =
      warp.Leader([&] { return AtomicAdd(&table.values.counters[1], PopCount(givers)); });
  const std::uint32_t before = PopCount(givers & ((1u << warp.lane()) - 1));
  if (cell != 0) table.values.ring[(first + before) % table.values.ring_size] = cell;
}

/// Copies the values of lanes' operations between cells and rows of a batch, several words of each
/// lane in flight together. @param cell of this lane's operation, or 0 @param row_of row_of(k):
/// that of the k-th lane's
template <bool kToCells, class Key, class RowOf>
__device__ void CopyValues(const DeviceWarp& warp, const Table<Key>& table, std::uint32_t cell,
                           std::uint32_t count, const RowOf& row_of) {
  constexpr std::uint32_t kAtOnce = 4;
  const std::uint32_t row_words = table.value_bytes / 8;
  const std::uint32_t all = count * row_words;
  for (std::uint32_t first = 0; first < all; first += kAtOnce * kWarpThreads) {
    std::uint64_t words[kAtOnce];
    std::uint64_t* to[kAtOnce];
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      const std::uint32_t i = first + k * kWarpThreads + warp.lane();
      const std::uint32_t operation = i / row_words;
      const std::uint32_t its_cell = warp.At(cell, operation % kWarpThreads);
      to[k] = nullptr;
      if (i >= all || its_cell == 0) continue;
      auto* const row = reinterpret_cast<std::uint64_t*>(row_of(operation)) + i % row_words;
      auto* const value =
          reinterpret_cast<std::uint64_t*>(table.values.AddressOf(its_cell)) + i % row_words;
      to[k] = kToCells ? value : row;
      words[k] = kToCells ? *row : LoadWord(value);
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      if (to[k] != nullptr) *to[k] = words[k];
    }
  }
}

/// What the references of new values are: of this lane's operation, if it writes one. Nothing is
/// written to a cell when it returns but is seen by all.
template <class Key>
__device__ std::uint32_t NewValues(const DeviceWarp& warp, const Table<Key>& table,
                                   const KernelBatch& batch, std::uint64_t first,
                                   std::uint32_t count, bool writes) {
  if constexpr (Table<Key>::kInPlace) {
    return writes ? *reinterpret_cast<const std::uint32_t*>(batch.ValueOf(first + warp.lane())) : 0;
  } else {
    const std::uint32_t cell = TakeCells(warp, table, writes);
    CopyValues<true>(warp, table, cell, count, [&](std::uint32_t k) {
      return const_cast<std::byte*>(batch.ValueOf(first + k));
    });
    Fence();
    return cell;
  }
}

/// Writes the values that lanes' finds found. @param found its reference, if there
template <class Key>
__device__ void WriteFound(const DeviceWarp& warp, const Table<Key>& table,
                           const KernelBatch& batch, std::uint64_t first, std::uint32_t count,
                           bool there, std::uint32_t found) {
  if (batch.found == nullptr) return;
  if constexpr (Table<Key>::kInPlace) {
    if (there) *reinterpret_cast<std::uint32_t*>(batch.FoundOf(first + warp.lane())) = found;
  } else {
    CopyValues<false>(warp, table, there ? found : 0, count,
                      [&](std::uint32_t k) { return batch.FoundOf(first + k); });
  }
}

/// Operations of a warp, and the thread's own.
struct Part {
  std::uint64_t first;
  std::uint32_t count;
  bool is_one;
  std::uint64_t i;
  __device__ Part(const DeviceWarp& warp, std::uint64_t n, unsigned per_warp)
      : first(ThisThread() / kWarpThreads * per_warp),
        count(first >= n ? 0 : static_cast<std::uint32_t>(umin64(n - first, per_warp))),
        is_one(warp.lane() < count),
        i(first + warp.lane()) {}
  __device__ static std::uint64_t umin64(std::uint64_t x, std::uint64_t y) { return x < y ? x : y; }
};

/// Kernel: a warp carries out the operations of its lanes, one after the other (WCWS).
template <class Key>
__global__ void __launch_bounds__(kBlockThreads)
    ApplyOperations(Table<Key> table, KernelBatch batch, unsigned per_warp) {
  const DeviceWarp warp;
  const Part part(warp, batch.n, per_warp);
  if (part.count == 0) return;
  const Key my_key = part.is_one ? batch.KeyOf<Key>(part.i) : kEmpty<Key>;
  const Op my_op = part.is_one ? batch.KindOf(part.i) : Op::kFind;
  const bool is_reserved = Table<Key>::IsReserved(my_key);
  const std::uint32_t my_value =
      NewValues(warp, table, batch, part.first, part.count,
                !is_reserved && (my_op == Op::kInsert || my_op == Op::kUpdate));
  Result my_result = Result::kOk;
  bool found_any = false;
  std::uint32_t my_found = 0;  // a reference
  std::uint32_t my_freed = 0;  // a cell
  for (std::uint32_t k = 0; k < part.count; ++k) {
    const Key key = warp.At(my_key, k);
    const std::uint32_t value = warp.At(my_value, k);
    Result result = Result::kOk;
    bool there = false;
    std::uint32_t found = 0, freed = 0;
    if (Table<Key>::IsReserved(key)) {
      result = Result::kInvalid;
    } else {
      switch (static_cast<Op>(warp.At(static_cast<std::uint32_t>(my_op), k))) {
        case Op::kFind: {
          const std::uint32_t* const reference = table.Find(warp, key);
          there = reference != nullptr;
          if (there) {
            found = warp.Leader([&] { return Table<Key>::Refer(reference); });
            there = Table<Key>::kInPlace || found != 0;
          }
          if (!there) result = Result::kNotFound;
          break;
        }
        case Op::kInsert:
          table.Insert(warp, key, value);
          break;
        case Op::kUpdate:
          if (!table.Update(warp, key, value, &freed)) result = Result::kNotFound;
          break;
        case Op::kErase:
          if (!table.Erase(warp, key, &freed)) result = Result::kNotFound;
          break;
        default:
          result = Result::kInvalid;
      }
    }
    if (warp.lane() != k) continue;
    my_result = result;
    found_any = there;
    my_found = found;
    my_freed = freed;
  }
  Fence();
  WriteFound(warp, table, batch, part.first, part.count, found_any, my_found);
  if constexpr (!Table<Key>::kInPlace) GiveCells(warp, table, my_freed);
  if (part.is_one) batch.results[part.i] = my_result;
}

/// Kernel: a warp finds the keys of its lanes, beside which nothing is changed.
template <class Key>
__global__ void __launch_bounds__(kBlockThreads)
    FindKeys(Table<Key> table, KernelBatch batch, unsigned per_warp) {
  const DeviceWarp warp;
  const Part part(warp, batch.n, per_warp);
  if (part.count == 0) return;
  const Key key = part.is_one ? batch.KeyOf<Key>(part.i) : kEmpty<Key>;
  const std::uint32_t* const reference = table.FindEach(warp, key, part.count);
  const bool there = reference != nullptr;
  const std::uint32_t found = there ? Table<Key>::Refer(reference) : 0;
  WriteFound(warp, table, batch, part.first, part.count, there, found);
  if (!part.is_one) return;
  batch.results[part.i] = there                         ? Result::kOk
                          : Table<Key>::IsReserved(key) ? Result::kInvalid
                                                        : Result::kNotFound;
}

/// Kernel: a warp writes values of a bulk build, each to a cell of its own, if cells have them.
template <class Key>
__global__ void __launch_bounds__(kBlockThreads)
    StoreValues(Table<Key> table, KernelBatch batch, unsigned per_warp, std::uint32_t* references) {
  const DeviceWarp warp;
  const Part part(warp, batch.n, per_warp);
  if (part.count == 0) return;
  const bool is_reserved = part.is_one && Table<Key>::IsReserved(batch.KeyOf<Key>(part.i));
  const std::uint32_t reference =
      NewValues(warp, table, batch, part.first, part.count, part.is_one && !is_reserved);
  if (!part.is_one) return;
  references[part.i] = reference;
  batch.results[part.i] = is_reserved ? Result::kInvalid : Result::kOk;
}

/// Kernel: the bucket of each item, and the item's number.
template <class Key>
__global__ void __launch_bounds__(kBlockThreads)
    HashItems(Table<Key> table, std::uint32_t space, const Key* keys,
              const std::uint32_t* references, std::uint64_t n, std::uint32_t* buckets,
              std::uint32_t* order) {
  const std::uint64_t i = ThisThread();
  if (i >= n) return;
  buckets[i] = BucketOfItem(table, table.spaces[space], keys[i], references[i]);
  order[i] = static_cast<std::uint32_t>(i);
}

/// Kernel: lists the places at which something begins (IsStart).
static __global__ void __launch_bounds__(kBlockThreads)
    ListStarts(const std::uint32_t* ids, std::uint64_t n, std::uint64_t length,
               std::uint32_t* starts, std::uint64_t* count) {
  const std::uint64_t i = ThisThread();
  Append(i < n && IsStart(ids, i, length), static_cast<std::uint32_t>(i), starts, count);
}

/// Kernel: a warp makes a super node of what begins at a start.
template <class Key>
__global__ void __launch_bounds__(kBlockThreads)
    BuildNodes(Table<Key> table, std::uint32_t space, SortedItems<Key> items,
               const std::uint32_t* starts, const std::uint64_t* count) {
  const std::uint64_t i = ThisThread() / kWarpThreads;
  if (i < *count) BuildNode(DeviceWarp{}, table, table.spaces[space], items, starts[i]);
}

/// Kernel: lists the items of the index of keys, from all its super nodes.
template <class Key>
__global__ void __launch_bounds__(kBlockThreads)
    CollectItems(Table<Key> table, std::uint64_t nodes, Key* keys, std::uint32_t* references,
                 std::uint64_t* count) {
  const std::uint64_t i = ThisThread();
  if (i >= nodes * kSlots) return;
  const SuperNode<Key> node = table.spaces[0].NodeAt(static_cast<std::uint32_t>(i / kSlots + 1));
  const Key key = node.keys()[i % kSlots];
  if (Table<Key>::IsReserved(key)) return;
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
template <class Key>
__global__ void __launch_bounds__(kBlockThreads)
    ClassifyQueries(Table<Key> table, QueryShape shape, const std::uint64_t* bounds,
                    std::uint64_t n, std::uint32_t* lists, std::uint32_t* order,
                    std::uint32_t* numbers, SearchCounts* counts) {
  __shared__ std::uint32_t asked[kMaxAttributes];
  if (threadIdx.x < kMaxAttributes) asked[threadIdx.x] = 0;
  __syncthreads();
  const std::uint64_t i = ThisThread();
  if (i < n) {
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
    } else {
      const std::uint32_t attribute = shape.attributes[wanted];
      const std::uint64_t number = bounds[2 * (i * shape.conditions + wanted)];
      atomicAdd(&asked[attribute], 1u);
      if (number <= 0xFFFFFFFF && table.space_of[attribute] != 0) {
        numbers[i] = static_cast<std::uint32_t>(number);
        lists[i] = ListOf(table, attribute, numbers[i]);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x < kMaxAttributes && asked[threadIdx.x] != 0) {
    AtomicAdd(&counts->asked[threadIdx.x], asked[threadIdx.x]);
  }
}

/// Kernel: lists where lists begin, and brings the numbers that queries want into their order.
static __global__ void __launch_bounds__(kBlockThreads)
    ListQueries(SortedQueries queries, const std::uint32_t* numbers, std::uint32_t* sorted_numbers,
                std::uint32_t* starts, std::uint64_t* count) {
  const std::uint64_t i = ThisThread();
  if (i < queries.n && queries.lists[i] != kNoList) sorted_numbers[i] = numbers[queries.order[i]];
  Append(i < queries.n && IsStart(queries.lists, i, 0), static_cast<std::uint32_t>(i), starts,
         count);
}

/// A match: the nth of its query.
struct Row {
  std::uint64_t key;
  std::uint32_t query;
  std::uint32_t nth;
};

/// What is found, as rows in any order; those of a block come there together.
struct Rows {
  Row* rows;             ///< or null: they are counted only
  std::uint64_t room;    ///< of rows
  std::uint64_t* count;  ///< that there are, whether there was room or not
};

/// Kernel: a warp answers a list's queries from some buckets. @param buckets that a list goes to at
/// most
template <class Key>
__global__ void __launch_bounds__(kBlockThreads, 4)
    SearchLists(Table<Key> table, SortedQueries queries, const std::uint32_t* starts,
                const std::uint64_t* lists, std::uint64_t buckets, std::uint64_t* matches,
                Rows rows) {
  constexpr unsigned kBlockRows = 256;
  __shared__ alignas(16) std::uint32_t nodes[kBlockThreads];
  __shared__ Row found_rows[kBlockRows];
  __shared__ unsigned found_count;
  __shared__ std::uint64_t block_place;
  const std::uint64_t parts = (buckets + kBucketsAtOnce - 1) / kBucketsAtOnce;
  if (blockIdx.x * std::uint64_t{kBlockThreads / kWarpThreads} / parts >= *lists) return;
  if (threadIdx.x == 0) found_count = 0;
  __syncthreads();
  const SearchWarp warp(&nodes[threadIdx.x / kWarpThreads * kWarpThreads]);
  const std::uint64_t w = ThisThread() / kWarpThreads;
  if (w / parts < *lists) {
    SearchBuckets(warp, table, queries, starts[w / parts], w % parts * kBucketsAtOnce,
                  [&](std::uint32_t query, Key keys, std::uint32_t lanes) {
                    const unsigned found = PopCount(lanes);
                    const std::uint64_t nth =
                        warp.Leader([&] { return AtomicAdd(&matches[query], found); });
                    if (rows.rows == nullptr) return;
                    const unsigned in_block = warp.Leader([&] {
                      for (unsigned old = *const_cast<volatile unsigned*>(&found_count);;) {
                        if (old + found > kBlockRows) return kBlockRows;
                        const unsigned seen = atomicCAS(&found_count, old, old + found);
                        if (seen == old) return old;
                        old = seen;
                      }
                    });
                    const bool fits = in_block < kBlockRows;
                    const std::uint64_t place =
                        fits ? 0 : warp.Leader([&] { return AtomicAdd(rows.count, found); });
                    warp.EachOf(lanes, keys, [&](Key key, std::uint32_t i) {
                      const Row row{key, query, static_cast<std::uint32_t>(nth + i)};
                      if (fits) {
                        found_rows[in_block + i] = row;
                      } else if (place + i < rows.room) {
                        rows.rows[place + i] = row;
                      }
                    });
                  });
  }
  __syncthreads();
  if (found_count == 0) return;
  if (threadIdx.x == 0) block_place = AtomicAdd(rows.count, found_count);
  __syncthreads();
  for (unsigned i = threadIdx.x; i < found_count; i += kBlockThreads) {
    if (block_place + i < rows.room) rows.rows[block_place + i] = found_rows[i];
  }
}

/// Kernel: brings the rows to where their queries' keys are, if there is room for all.
static __global__ void __launch_bounds__(kBlockThreads)
    ScatterRows(Rows rows, const std::uint64_t* offsets, std::uint64_t* keys) {
  const std::uint64_t i = ThisThread();
  if (*rows.count > rows.room || i >= *rows.count) return;
  keys[offsets[rows.rows[i].query] + rows.rows[i].nth] = rows.rows[i].key;
}

}  // namespace gpm::bench::peers::ghsh

#endif  // GPM_BENCH_PEERS_GHSH_KERNELS_CUH_
