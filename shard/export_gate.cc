#include "shard/export_gate.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "engine/thread_number.h"
#include "gpmstore/error.h"

namespace gpm {

struct ExportGate::State {
  std::mutex mutex;
  std::condition_variable changed;        ///< when what follows does
  std::optional<std::uint64_t> exporter;  ///< thread that began the export that is open
  std::uint64_t exports_waiting = 0;
  std::uint64_t keeping_out = 0;
  std::uint64_t keepers_waiting = 0;
  std::uint64_t keepers_first = 0;  ///< so many go before the next export

  /// @throws Error(kBusy) when the calling thread has an export open
  void RefuseExporter() const {
    if (exporter != ThreadNumber()) return;
    throw Error(ErrorCode::kBusy,
                "this waits until the store's export has ended, and the calling thread has that "
                "open; end it first");
  }
  void End() {
    const std::lock_guard lock(mutex);
    exporter.reset();
    keepers_first = keepers_waiting;
    changed.notify_all();
  }
};

ExportGate::ExportGate() : state_(std::make_unique<State>()) {}
ExportGate::~ExportGate() {
  if (!process_.IsThis()) static_cast<void>(state_.release());
}

ExportGate::KeepsOut::KeepsOut(ExportGate& gate) : gate_(gate) {
  State& state = *gate.state_;
  std::unique_lock lock(state.mutex);
  state.RefuseExporter();
  ++state.keepers_waiting;
  state.changed.wait(lock, [&] {
    return !state.exporter && (state.exports_waiting == 0 || state.keepers_first > 0);
  });
  --state.keepers_waiting;
  if (state.keepers_first > 0) --state.keepers_first;
  ++state.keeping_out;
}

ExportGate::KeepsOut::~KeepsOut() {
  State& state = *gate_.state_;
  const std::lock_guard lock(state.mutex);
  --state.keeping_out;
  state.changed.notify_all();
}

std::shared_ptr<void> ExportGate::Begin(const std::shared_ptr<ExportGate>& gate) {
  State& state = *gate->state_;
  {
    std::unique_lock lock(state.mutex);
    state.RefuseExporter();
    ++state.exports_waiting;
    state.changed.wait(lock, [&] {
      return !state.exporter && state.keeping_out == 0 && state.keepers_first == 0;
    });
    --state.exports_waiting;
    state.exporter = ThreadNumber();
  }
  // (Should there be no memory for it, the deleter is called.)
  return std::shared_ptr<void>(&state, [gate](void*) {
    if (gate->process_.IsThis()) gate->state_->End();  // else nobody waits for it
  });
}

}  // namespace gpm
