#include "pm/persist.h"

#include <cstring>

#include "pm/tracer.h"

namespace gpm {

void Persist::FlushExplicitly(Step step, const void* address, std::size_t bytes) const {
  if (tracer_ != nullptr) {
    tracer_->Flush(step, address, bytes);
  } else {
    flush_(address, bytes);
  }
}

void Persist::FenceExplicitly(Step step) const {
  if (tracer_ != nullptr) {
    tracer_->Fence(step);
  } else {
    drain_();
  }
}

void Persist::Write(void* target, const void* source, std::size_t bytes) const {
  if (tracer_ == nullptr) {
    std::memcpy(target, source, bytes);
    return;
  }
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(source) + i, sizeof word);
    tracer_->Store(reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(target) + i), word);
  }
}

void Persist::Copy(void* target, const void* source, std::size_t bytes) const {
  if (tracer_ == nullptr) {
    std::memcpy(target, source, bytes);
    return;
  }
  auto* const to = static_cast<std::uint64_t*>(target);
  const auto* const from = static_cast<const std::uint64_t*>(source);
  for (std::size_t i = 0; i < bytes / 8; ++i) tracer_->Store(to + i, tracer_->Load(from + i));
}

void Persist::Zero(void* target, std::size_t bytes) const {
  if (tracer_ == nullptr) {
    std::memset(target, 0, bytes);
    return;
  }
  for (std::size_t i = 0; i < bytes; i += 8) {
    tracer_->Store(reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(target) + i), 0);
  }
}

}  // namespace gpm
