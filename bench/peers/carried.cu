// Data management assisted by the CPU (GPHash, FAST 2025, section 4.1): an index on the CPU, to
// which each batch is carried from the GPU, and from which the answers are carried back. The
// indexes are Dash (dash.cc) and our store with executor cpu, with their items on PM, and
// libcuckoo, with its items in DRAM.
//
// Left out: the paper's other indexes (Clevel and SEPH on the CPU), and overlapping the copies with
// the work, which the paper does not do either.

#include <cuda_runtime_api.h>

#include <chrono>

#include "bench/peer.h"
#include "engine/cuda/memory.h"
#include "ycsb/buffer.h"

namespace gpm::bench::peers {
namespace {

/// Carries batches through pinned memory, which is allocated for the largest one.
class CarriedAdapter : public KvAdapter {
  using Clock = std::chrono::steady_clock;

 public:
  CarriedAdapter(std::unique_ptr<KvAdapter> index, const PeerSpec& spec)
      : index_(std::move(index)),
        ops_(ycsb::Memory::kPinned, spec.max_batch * sizeof(Op)),
        keys_(ycsb::Memory::kPinned, spec.max_batch * spec.key_bytes),
        values_(ycsb::Memory::kPinned, spec.max_batch * spec.value_bytes),
        found_(ycsb::Memory::kPinned, spec.max_batch * spec.value_bytes),
        results_(ycsb::Memory::kPinned, spec.max_batch * sizeof(Result)) {}

  void Apply(const Batch& batch) override {
    const std::uint64_t n = batch.results.size();
    const Clock::time_point begun = Clock::now();
    Batch carried;
    carried.op = batch.op;
    carried.keys = Fetch(batch.keys, keys_);
    carried.values = Fetch(batch.values, values_);
    if (!batch.ops.empty()) {
      Fetch(std::as_bytes(batch.ops), ops_);
      carried.ops = ops_.as<const Op>().first(n);
    }
    carried.found = found_.bytes().first(batch.found.size());
    carried.results = results_.as<Result>().first(n);
    Await();
    const Clock::time_point here = Clock::now();
    index_->Apply(carried);
    const Clock::time_point applied = Clock::now();
    Copy(batch.results.data(), carried.results.data(), n * sizeof(Result));
    Copy(batch.found.data(), carried.found.data(), carried.found.size());
    Await();
    carried_ += (here - begun) + (Clock::now() - applied);
  }
  double CarriedSeconds() const override { return std::chrono::duration<double>(carried_).count(); }

  std::uint64_t SlotCount() const override { return index_->SlotCount(); }

 private:
  void Copy(void* to, const void* from, std::uint64_t bytes) {
    if (bytes == 0) return;
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpy");
  }
  void Await() { CheckCuda(cudaStreamSynchronize(stream_), "cudaMemcpy"); }
  std::span<const std::byte> Fetch(std::span<const std::byte> from, const ycsb::Buffer& to) {
    Copy(to.bytes().data(), from.data(), from.size());
    return to.bytes().first(from.size());
  }

  std::unique_ptr<KvAdapter> index_;
  Clock::duration carried_{0};
  CudaStream stream_;
  ycsb::Buffer ops_;
  ycsb::Buffer keys_;
  ycsb::Buffer values_;
  ycsb::Buffer found_;
  ycsb::Buffer results_;
};

/// @param name of a peer with batches in host memory
std::unique_ptr<KvAdapter> MakeCarried(const char* name, const PeerSpec& spec) {
  return std::make_unique<CarriedAdapter>(FindPeer(name, ycsb::Memory::kHost).make(spec), spec);
}

const RegisteredPeer dash({.name = "dash-carried",
                           .can = {.memory = ycsb::Memory::kDevice,
                                   .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kUpsert,
                                             Op::kErase}},
                           .make = [](const PeerSpec& spec) { return MakeCarried("dash", spec); }});

const RegisteredPeer libcuckoo(
    {.name = "libcuckoo-carried",
     .can = {.memory = ycsb::Memory::kDevice,
             .kinds = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kUpsert, Op::kErase},
             .longer_keys = {kLongerKeys.begin(), kLongerKeys.end()},
             .value_unit = 128,
             .max_value_bytes = 128,
             .grows = true},
     .make = [](const PeerSpec& spec) { return MakeCarried("libcuckoo", spec); }});

const RegisteredPeer store({.name = "gpmstore-cpu-carried",
                            .can =
                                [] {
                                  Capabilities can =
                                      StoreAdapter::CapabilitiesOf(ycsb::Memory::kDevice);
                                  can.searches = Searches::kNone;  // nobody carries those
                                  can.caches = false;              // executor cpu has none
                                  return can;
                                }(),
                            .make = [](const PeerSpec& spec) -> std::unique_ptr<KvAdapter> {
                              CreateOptions create;
                              create.key_size = spec.key_bytes;
                              create.value_size = spec.value_bytes;
                              create.initial_capacity = spec.items;
                              OpenOptions open;
                              open.executor = ExecutorKind::kCpu;
                              open.threads = spec.threads;
                              return std::make_unique<CarriedAdapter>(
                                  std::make_unique<StoreAdapter>(std::string(), create, open),
                                  spec);
                            }});

}  // namespace
}  // namespace gpm::bench::peers
