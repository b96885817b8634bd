#include "engine/ticket.h"

#include <utility>

namespace gpm {

Ticket::Ticket() = default;
Ticket::Ticket(std::unique_ptr<State> state) : state_(std::move(state)) {}
Ticket::Ticket(Ticket&&) noexcept = default;

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    Ticket finished(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

Ticket::~Ticket() {
  try {
    Wait();
  } catch (...) {
    // A destructor can't report it; Wait can.
  }
}

void Ticket::Wait() {
  if (state_ != nullptr) state_->Wait();
}

bool Ticket::Done() { return state_ == nullptr || state_->Done(); }

}  // namespace gpm
