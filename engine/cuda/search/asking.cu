#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>

#include "engine/cuda/load_kernels.h"
#include "engine/cuda/search/asking.h"
#include "engine/cuda/search/asking_kernels.cuh"
#include "engine/cuda/search/device_index.h"
#include "engine/pair_wishes.h"
#include "pm/gpu_host.h"

namespace gpm {
namespace {

/// Candidates that are looked at together, or those of one query, if they are more.
constexpr std::uint64_t kCandidatesAtOnce = std::uint64_t{1} << 24;
/// Rows whose keys are copied to the host together.
constexpr std::uint64_t kRowsAtOnce = std::uint64_t{1} << 22;
/// An Asking keeps so many bytes for the next search.
constexpr std::uint64_t kMostKeptBytes = std::uint64_t{64} << 20;

std::uint32_t BitsFor(std::uint64_t numbers) {
  return static_cast<std::uint32_t>(std::max(1, static_cast<int>(std::bit_width(numbers - 1))));
}

/// Queries that AnswerFew answers at once on this GPU: all its blocks begin together.
std::uint64_t MostFewQueries() {
  int device = 0;
  int multiprocessors = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
            "cudaDeviceGetAttribute");
  std::uint64_t most = kFewBlocks;
  for (const auto kernel : {AnswerFew<false>, AnswerFew<true>}) {
    int blocks = 0;
    CheckCuda(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                  &blocks, reinterpret_cast<const void*>(kernel), kStrideThreads, 0,
                  cudaOccupancyDefault),
              "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
    // (But for one: a refresh of the cache may have that room on each.)
    most = std::min(most, static_cast<std::uint64_t>(std::max(blocks - 1, 1)) *
                              static_cast<std::uint64_t>(multiprocessors));
  }
  return most * kFewOfBlock;
}

}  // namespace

struct Asking::Call {
  const SearchTiers& tiers;
  const TierQueries& queries;
  std::uint64_t count;
  std::uint64_t limit;
  std::uint32_t key_size;
  const AnswerPlaces& places;
};

Asking::Asking(CudaExecutor& executor, DeviceMemory* memory)
    : executor_(executor),
      memory_(memory),
      bounds_(memory, &stream_),
      begins_(memory, &stream_),
      counts_(memory, &stream_),
      offsets_(memory, &stream_),
      found_counts_(memory, &stream_),
      starts_(memory, &stream_),
      capped_(memory, &stream_),
      candidates_(memory, &stream_),
      single_(memory, &stream_),
      rows_(memory, &stream_),
      matches_(memory, &stream_),
      sorted_(memory, &stream_),
      flags_(memory, &stream_),
      keys_(memory, &stream_),
      library_(memory, &stream_),
      sums_(memory, &stream_),
      few_told_(memory, &stream_),
      few_queries_(MostFewQueries()) {
  sums_.Reserve(1);
  few_told_.Reserve(1);
  CheckCuda(cudaMemsetAsync(few_told_.data(), 0, sizeof(FewTold), stream_), "cudaMemsetAsync");
  CheckCuda(cudaStreamSynchronize(stream_), "a search");
}

void Asking::Shrink() {
  matches_.Clear();
  sorted_.Clear();
  flags_.Clear();
  rows_.Clear();
  keys_.Clear();
  bounds_.Clear();
  begins_.Clear();
  counts_.Clear();
  offsets_.Clear();
  found_counts_.Clear();
  starts_.Clear();
  capped_.Clear();
  candidates_.Clear();
  single_.Clear();
  library_.Clear();
}

std::uint64_t Asking::bytes() const {
  std::uint64_t words = 0;
  for (const auto* array : {&matches_, &sorted_, &bounds_, &begins_, &counts_, &offsets_,
                            &found_counts_, &starts_, &capped_}) {
    words += array->size();
  }
  return 8 * words + candidates_.size() * sizeof(TierCandidates) +
         4 * (rows_.size() + single_.size()) + flags_.size() + keys_.size() + library_.size();
}

std::unique_ptr<Asking> CudaExecutor::TakeAsking() {
  {
    const std::lock_guard lock(mutex_);
    if (!askings_.empty()) {
      auto asking = std::move(askings_.back());
      askings_.pop_back();
      return asking;
    }
  }
  return std::make_unique<Asking>(*this, &memory_);
}

void CudaExecutor::ReturnAsking(std::unique_ptr<Asking> asking) noexcept {
  if (asking->bytes() > kMostKeptBytes) asking->Shrink();
  const std::lock_guard lock(mutex_);
  try {
    askings_.push_back(std::move(asking));
  } catch (const std::bad_alloc&) {
    // The next search makes one.
  }
}

void Asking::LoadKernels() {
  LoadKernelsBeside(reinterpret_cast<const void*>(FindCandidates<false>));
}

const std::uint64_t* Asking::Bounds(const std::uint64_t* bounds, std::uint64_t count,
                                    bool on_device) {
  if (on_device || count == 0) return bounds;
  bounds_.Reserve(count);
  const std::uint64_t bytes = count * sizeof *bounds;
  if (bytes > HostCopier::kLeftToDriver) {
    executor_.Copier().ToDevice(reinterpret_cast<std::byte*>(bounds_.data()),
                                reinterpret_cast<const std::byte*>(bounds), bytes, stream_);
  } else {
    CheckCuda(cudaMemcpyAsync(bounds_.data(), bounds, bytes, cudaMemcpyHostToDevice, stream_),
              "cudaMemcpyAsync to the device");
  }
  return bounds_.data();
}

SearchSums Asking::ReadSums() {
  CheckCuda(cudaMemcpyAsync(told_.get(), sums_.data(), sizeof(SearchSums), cudaMemcpyDeviceToHost,
                            stream_),
            "cudaMemcpyAsync to the host");
  CheckCuda(cudaStreamSynchronize(stream_), "a search");
  return *told_.get();
}

void Asking::KeepRows(std::uint64_t rows, std::uint64_t kept) {
  if (rows <= rows_.size()) return;
  if (kept == 0) {
    rows_.Reserve(rows);
    return;
  }
  DeviceArray<std::uint32_t> more(memory_, &stream_);
  more.Reserve(std::max(rows, rows_.size() + rows_.size() / 2));
  CheckCuda(cudaMemcpyAsync(more.data(), rows_.data(), kept * sizeof(std::uint32_t),
                            cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpyAsync");
  rows_ = std::move(more);
}

AnswerTotals Asking::Answer(const SearchTiers& tiers, const TierQueries& queries,
                            std::uint64_t count, std::uint64_t limit, std::uint32_t key_size,
                            const AnswerPlaces& places) {
  const Call call{tiers, queries, count, limit, key_size, places};
  const bool rows = places.offsets != nullptr;
  AnswerTotals totals{.answered = count};
  try {
    if (count > 0) {
      AnswerSome(call, &totals);
    } else if (rows) {
      ClearOffsets(call, 1);
    }
    totals.given = totals.rows;
    if (rows && totals.rows > places.room) {
      Launch("CountAnswered", CountAnswered, 1, 1, stream_, places.offsets, count, places.room,
             sums_.data());
      const SearchSums sums = ReadSums();
      totals.answered = sums.answered;
      totals.given = sums.given;
      LaunchFor("CutOffsets", count - totals.answered, stream_, CutOffsets, places.offsets,
                totals.answered, count);
      CheckCuda(cudaStreamSynchronize(stream_), "a search");
    }
    return totals;
  } catch (...) {
    cudaStreamSynchronize(stream_);  // what runs still writes to arrays of the caller's
    throw;
  }
}

void Asking::AnswerSome(const Call& call, AnswerTotals* totals) {
  const std::uint64_t count = call.count;
  const AnswerPlaces& places = call.places;
  const bool rows = places.offsets != nullptr;
  candidates_.Reserve(count);
  single_.Reserve(count);
  begins_.Reserve(count + 1);
  if (rows && places.keys == nullptr) KeepRows(count, 0);
  const RowsOut out{places.keys == nullptr ? rows_.data() : nullptr, places.keys, places.room,
                    call.key_size};
  const SearchSums sums =
      count <= few_queries_ ? AnswerFewSingles(call, out) : AnswerManySingles(call, out);
  if (sums.many != 0) {
    AnswerAll(call, sums, totals);
  } else if (rows && call.limit > 0) {
    totals->rows = sums.candidates;
  } else if (rows) {
    ClearOffsets(call, count + 1);
  }
}

void Asking::ClearOffsets(const Call& call, std::uint64_t count) {
  CheckCuda(cudaMemsetAsync(call.places.offsets, 0, 8 * count, stream_), "cudaMemsetAsync");
  CheckCuda(cudaStreamSynchronize(stream_), "a search");
}

SearchSums Asking::AnswerFewSingles(const Call& call, const RowsOut& out) {
  const FewPlaces places{candidates_.data(),  single_.data(),   begins_.data(), call.places.counts,
                         call.places.offsets, few_told_.data(), told_.get()};
  const auto count = static_cast<std::uint32_t>(call.count);
  const auto launch = [&](auto* kernel, KernelGraph* graph) {
    graph->Launch({kernel, static_cast<unsigned>(BlocksFor(count, kFewOfBlock)), kStrideThreads,
                   call.tiers, call.queries, count, places, out},
                  stream_);
  };
  if (call.queries.pairs > 0) {
    launch(AnswerFew<true>, &few_of_pairs_);
  } else {
    launch(AnswerFew<false>, &few_);
  }
  CheckCuda(cudaStreamSynchronize(stream_), "a search");
  return *told_.get();
}

SearchSums Asking::AnswerManySingles(const Call& call, const RowsOut& out) {
  const std::uint64_t count = call.count;
  found_counts_.Reserve(count);
  CheckCuda(cudaMemsetAsync(sums_.data(), 0, sizeof(SearchSums), stream_), "cudaMemsetAsync");
  CheckCuda(cudaMemsetAsync(begins_.data(), 0, 8, stream_), "cudaMemsetAsync");
  LaunchFor("FindCandidates", count, stream_,
            call.queries.pairs > 0 ? FindCandidates<true> : FindCandidates<false>, call.tiers,
            call.queries, count, candidates_.data(), single_.data(), found_counts_.data(),
            sums_.data());
  CallCubWith(&library_, "DeviceScan", [&](void* storage, std::size_t& bytes) {
    return cub::DeviceScan::InclusiveSum(storage, bytes,
                                         static_cast<const std::uint64_t*>(found_counts_.data()),
                                         begins_.data() + 1, static_cast<int>(count), stream_);
  });
  LaunchFor("AnswerSingles", count, stream_, AnswerSingles, call.tiers, count, single_.data(),
            begins_.data(), sums_.data(), call.places.counts, call.places.offsets, out);
  return ReadSums();
}

void Asking::AnswerAll(const Call& call, const SearchSums& sums, AnswerTotals* totals) {
  CheckCuda(cudaMemsetAsync(call.places.counts, 0, 8 * call.count, stream_), "cudaMemsetAsync");
  if (call.places.offsets != nullptr) {
    CheckCuda(cudaMemsetAsync(call.places.offsets, 0, 8, stream_), "cudaMemsetAsync");
  }
  totals->rows = AnswerGroups(call, sums);
  // (How many match there is only known of rows.)
  const bool few = sums.candidates < 2 * (totals->rows + call.count) + PairWishes::kFewRows;
  if (call.queries.conditions > 1 && !few) totals->looked_at = sums.candidates;
  CheckCuda(cudaStreamSynchronize(stream_), "a search");
}

QuerySample Asking::Sample(const SearchTiers& tiers, const TierQueries& queries,
                           std::uint64_t count, std::uint64_t looked_at,
                           const std::uint64_t* counts) {
  const QueryGroup all{0, count, begins_.data(), candidates_.data(), single_.data()};
  Launch("SampleQuery", SampleQuery, 1, kMaxAttributes, stream_, tiers, queries, all, looked_at,
         counts, sample_.get());
  CheckCuda(cudaStreamSynchronize(stream_), "a search");
  return *sample_.get();
}

std::uint64_t Asking::AnswerGroups(const Call& call, const SearchSums& sums) {
  const bool unordered = sums.unordered != 0;
  if (sums.candidates <= kCandidatesAtOnce) {
    return AnswerGroup(call, 0, call.count, 0, sums.candidates, 0, unordered);
  }
  std::vector<std::uint64_t> begins(call.count + 1);
  Fetch(begins_.data(), begins.size(), begins.data());
  std::uint64_t rows = 0;
  for (std::uint64_t first = 0; first < call.count;) {
    const auto behind = std::upper_bound(begins.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                                         begins.end(), begins[first] + kCandidatesAtOnce);
    const auto fit = static_cast<std::uint64_t>(behind - begins.begin()) - 1;
    const std::uint64_t last = std::max(first + 1, fit);
    rows = AnswerGroup(call, first, last, begins[first], begins[last], rows, unordered);
    first = last;
  }
  return rows;
}

std::uint64_t Asking::AnswerGroup(const Call& call, std::uint64_t first, std::uint64_t last,
                                  std::uint64_t begin, std::uint64_t end, std::uint64_t before,
                                  bool unordered) {
  const std::uint64_t queries = last - first;
  const std::uint64_t candidates = end - begin;
  const QueryGroup group{first, queries, begins_.data(), candidates_.data(), single_.data()};
  if (call.places.offsets == nullptr) {
    LaunchFor("CountMatches", candidates, stream_, CountMatches, call.tiers, call.queries, group,
              begin, candidates, call.places.counts);
    return 0;
  }
  matches_.Reserve(candidates);
  sorted_.Reserve(candidates);
  flags_.Reserve(candidates);
  LaunchFor("LookAtCandidates", candidates, stream_, LookAtCandidates, call.tiers, call.queries,
            group, begin, candidates, sorted_.data(), flags_.data());
  std::uint64_t matched = 0;
  if (candidates > 0) {
    CallCubWith(&library_, "DeviceSelect", [&](void* storage, std::size_t& bytes) {
      return cub::DeviceSelect::Flagged(
          storage, bytes, static_cast<const std::uint64_t*>(sorted_.data()),
          static_cast<const std::uint8_t*>(flags_.data()), matches_.data(), &sums_.data()->matched,
          static_cast<std::int64_t>(candidates), stream_);
    });
    matched = ReadSums().matched;
  }
  if (unordered && matched > 1) {
    SortMatches(matched, BitsFor(call.tiers.rows()), queries > 1 ? BitsFor(queries) : 0);
  }
  starts_.Reserve(queries);
  capped_.Reserve(queries);
  LaunchFor("FindStarts", queries, stream_, FindStarts, matches_.data(), matched, queries,
            call.limit, before, starts_.data(), call.places.counts + first, capped_.data());
  std::uint64_t* const offsets = call.places.offsets + first;
  CallCubWith(&library_, "DeviceScan", [&](void* storage, std::size_t& bytes) {
    return cub::DeviceScan::InclusiveSum(storage, bytes,
                                         static_cast<const std::uint64_t*>(capped_.data()),
                                         offsets + 1, static_cast<int>(queries), stream_);
  });
  std::uint64_t rows = 0;
  Fetch(offsets + queries, 1, &rows);
  const bool keeps = call.places.keys == nullptr;
  if (keeps) KeepRows(rows, before);
  LaunchFor(
      "PutRows", rows - before, stream_, PutRows, call.tiers, matches_.data(), starts_.data(),
      offsets, queries, before, rows - before,
      RowsOut{keeps ? rows_.data() : nullptr, call.places.keys, call.places.room, call.key_size});
  return rows;
}

void Asking::SortMatches(std::uint64_t count, std::uint32_t row_bits, std::uint32_t query_bits) {
  const auto sort = [&](std::uint32_t from_bit, std::uint32_t to_bit) {
    CallCubWith(&library_, "DeviceRadixSort", [&](void* storage, std::size_t& bytes) {
      return cub::DeviceRadixSort::SortKeys(
          storage, bytes, static_cast<const std::uint64_t*>(matches_.data()), sorted_.data(),
          static_cast<std::int64_t>(count), static_cast<int>(from_bit), static_cast<int>(to_bit),
          stream_);
    });
    std::swap(matches_, sorted_);
  };
  sort(0, row_bits);
  if (query_bits > 0) sort(32, 32 + query_bits);
}

void Asking::CopyKeys(const SearchTiers& tiers, std::uint64_t count, std::uint32_t key_size,
                      std::byte* keys) {
  const AwaitAtEnd ended(stream_);  // what runs reads the index
  keys_.Reserve(std::min(count, kRowsAtOnce) * key_size);
  for (std::uint64_t first = 0; first < count; first += kRowsAtOnce) {
    const std::uint64_t n = std::min(kRowsAtOnce, count - first);
    LaunchFor("PutKeys", n, stream_, PutKeys, tiers,
              static_cast<const std::uint32_t*>(rows_.data() + first), n,
              RowsOut{nullptr, keys_.data(), n, key_size});
    FetchBytes(keys_.data(), n * key_size, keys + first * key_size);
  }
}

void Asking::Fetch(const std::uint64_t* from, std::uint64_t count, std::uint64_t* to) {
  FetchBytes(reinterpret_cast<const std::byte*>(from), count * sizeof *from,
             reinterpret_cast<std::byte*>(to));
}

void Asking::FetchBytes(const std::byte* from, std::uint64_t bytes, std::byte* to) {
  if (bytes == 0) return;
  if (bytes > HostCopier::kLeftToDriver) return executor_.Copier().ToHost(to, from, bytes, stream_);
  CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync to the host");
  CheckCuda(cudaStreamSynchronize(stream_), "a search");
}

namespace {

/// An Asking, until this ends.
class Borrowed {
 public:
  explicit Borrowed(CudaExecutor& executor) : executor_(executor), asking_(executor.TakeAsking()) {}
  ~Borrowed() { executor_.ReturnAsking(std::move(asking_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Asking* operator->() const { return asking_.get(); }

 private:
  CudaExecutor& executor_;
  std::unique_ptr<Asking> asking_;
};

/// Tells the index's wishes of rows that were looked at in vain, by a sample now and then.
template <class TakeSample>
void Wish(const DeviceIndex& index, const TierQueries& queries, const AnswerTotals& totals,
          const TakeSample& take_sample) {
  if (totals.looked_at == 0 || index.wishes() == nullptr) return;
  const std::uint64_t looked_at =
      index.wishes()->RowsToSample(totals.looked_at, index.tiers().rows());
  if (looked_at == 0) return;
  const QuerySample sample = take_sample();
  std::vector<PairWishes::Met> met;
  for (std::uint32_t c = 0; c < queries.conditions; ++c) {
    met.push_back(
        {{queries.attributes[c], sample.bounds[2 * c], sample.bounds[2 * c + 1]}, sample.rows[c]});
  }
  const double in_vain = 1 - static_cast<double>(sample.matches) /
                                 static_cast<double>(std::max<std::uint64_t>(1, sample.candidates));
  index.wishes()->Note(met, static_cast<std::uint64_t>(in_vain * static_cast<double>(looked_at)),
                       index.tiers().rows());
}

/// What queries in host memory match.
class DeviceRows : public MatchedRows {
 public:
  DeviceRows(const DeviceIndex& index, std::span<const Query> queries, bool rows,
             std::uint64_t limit)
      : index_(index), asking_(index.executor()) {
    const std::uint64_t count = queries.size();
    TierQueries of;
    const std::vector<std::uint64_t> bounds = BoundsOf(queries, &of);
    asking_->counts().Reserve(count);
    asking_->offsets().Reserve(count + 1);
    of.bounds = asking_->Bounds(bounds.data(), bounds.size(), false);
    AnswerPlaces places;
    places.counts = asking_->counts().data();
    if (rows) places.offsets = asking_->offsets().data();
    index.tiers().FindPairs(&of);
    const AnswerTotals totals =
        asking_->Answer(index.tiers(), of, count, limit, index.executor().key_size(), places);
    Wish(index, of, totals, [&] {
      return asking_->Sample(index.tiers(), of, count, totals.looked_at, places.counts);
    });
    counts_.resize(count);
    asking_->Fetch(places.counts, count, counts_.data());
    if (!rows) return;
    offsets_.resize(count + 1);
    asking_->Fetch(places.offsets, count + 1, offsets_.data());
  }

  void CopyRows(std::uint64_t count, std::byte* keys, std::byte* /*values*/,
                ThreadPool* /*threads*/) const override {
    const CurrentDevice current = index_.executor().Activate();
    asking_->CopyKeys(index_.tiers(), count, index_.executor().key_size(), keys);
  }

 private:
  /// Of queries with conditions on this and that: each gets one on all of their attributes.
  static std::vector<std::uint64_t> BoundsOf(std::span<const Query> queries, TierQueries* of) {
    SearchIndex::Mask mask = 0;
    for (const Query& query : queries) {
      for (const Condition& condition : query) mask |= SearchIndex::Mask{1} << condition.attribute;
    }
    std::uint32_t place[kMaxAttributes] = {};
    for (std::uint32_t a = 0; a < kMaxAttributes; ++a) {
      if ((mask >> a & 1) == 0) continue;
      place[a] = of->conditions;
      of->attributes[of->conditions++] = a;
    }
    std::vector<std::uint64_t> bounds(queries.size() * 2 * of->conditions);
    for (std::size_t i = 1; i < bounds.size(); i += 2) bounds[i] = ~std::uint64_t{0};
    for (std::size_t q = 0; q < queries.size(); ++q) {
      for (const Condition& condition : queries[q]) {
        std::uint64_t* const range =
            bounds.data() + 2 * (q * of->conditions + place[condition.attribute]);
        range[0] = std::max(range[0], condition.least);
        range[1] = std::min(range[1], condition.most);
      }
    }
    return bounds;
  }

  const DeviceIndex& index_;
  const Borrowed asking_;
};

}  // namespace

std::unique_ptr<MatchedRows> DeviceIndex::Ask(std::span<const Query> queries, bool rows,
                                              std::uint64_t limit, ThreadPool*) const {
  const CurrentDevice current = executor_.Activate();
  return std::make_unique<DeviceRows>(*this, queries, rows, limit);
}

std::optional<std::uint64_t> DeviceIndex::AskArrays(const QueryArray& queries, std::uint64_t limit,
                                                    Matches* matches) const {
  const CurrentDevice current = executor_.Activate();
  const Borrowed asking(executor_);
  const std::uint64_t count = queries.count();
  const std::uint32_t key_size = executor_.key_size();
  TierQueries of;
  of.conditions = static_cast<std::uint32_t>(queries.attributes.size());
  std::copy(queries.attributes.begin(), queries.attributes.end(), of.attributes);
  tiers_.FindPairs(&of);
  const auto place = [&](std::span<std::uint64_t> array, DeviceArray<std::uint64_t>* own) {
    if (array.empty()) return static_cast<std::uint64_t*>(nullptr);
    if (IsGpuMemory(array.data())) return array.data();
    own->Reserve(array.size());
    return own->data();
  };
  AnswerPlaces places;
  places.counts = place(matches->counts, &asking->counts());
  places.offsets = place(matches->offsets, &asking->offsets());
  const bool keys_on_device = IsGpuMemory(matches->keys.data());
  places.room = matches->keys.size() / key_size;
  if (keys_on_device) places.keys = matches->keys.data();
  of.bounds = asking->Bounds(queries.bounds.data(), queries.bounds.size(),
                             IsGpuMemory(queries.bounds.data()));
  const AnswerTotals totals = asking->Answer(tiers_, of, count, limit, key_size, places);
  Wish(*this, of, totals,
       [&] { return asking->Sample(tiers_, of, count, totals.looked_at, places.counts); });
  if (places.counts != matches->counts.data()) {
    asking->Fetch(places.counts, count, matches->counts.data());
  }
  if (places.offsets != nullptr && places.offsets != matches->offsets.data()) {
    asking->Fetch(places.offsets, count + 1, matches->offsets.data());
  }
  if (!keys_on_device && totals.given > 0) {
    asking->CopyKeys(tiers_, totals.given, key_size, matches->keys.data());
  }
  matches->answered = totals.answered;
  matches->rows = totals.rows;
  return totals.given;
}

}  // namespace gpm
