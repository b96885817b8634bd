#include "shard/export_gate.h"

#include "gpmstore/error.h"

namespace gpm {

void ExportGate::RefuseExporter() {
  if (exporter_ != std::this_thread::get_id()) return;
  throw Error(ErrorCode::kBusy,
              "this waits until the store's export has ended, and the calling thread has that "
              "open; end it first");
}

ExportGate::KeepsOut::KeepsOut(ExportGate& gate) : gate_(gate) {
  MutexLock lock(gate.mutex_);
  gate.RefuseExporter();
  gate.changed_.wait(lock.native(), [&]() GPM_REQUIRES(gate.mutex_) { return !gate.exporter_; });
  ++gate.keeping_out_;
}

ExportGate::KeepsOut::~KeepsOut() {
  const MutexLock lock(gate_.mutex_);
  --gate_.keeping_out_;
  gate_.changed_.notify_all();
}

std::shared_ptr<void> ExportGate::Begin(const std::shared_ptr<ExportGate>& gate) {
  {
    MutexLock lock(gate->mutex_);
    gate->RefuseExporter();
    gate->changed_.wait(lock.native(), [&]() GPM_REQUIRES(gate->mutex_) {
      return !gate->exporter_ && gate->keeping_out_ == 0;
    });
    gate->exporter_ = std::this_thread::get_id();
  }
  const auto end = [](ExportGate* open) {
    if (!open->process_.IsThis()) return;  // nobody waits, and the lock may be held for ever
    const MutexLock lock(open->mutex_);
    open->exporter_.reset();
    open->changed_.notify_all();
  };
  // (Should there be no memory for it, the deleter is called.)
  return std::shared_ptr<void>(gate.get(), [gate, end](void*) { end(gate.get()); });
}

}  // namespace gpm
