#ifndef GPM_ENGINE_TICKET_H_
#define GPM_ENGINE_TICKET_H_

#include "gpmstore/store.h"

namespace gpm {

/// What a ticket waits for. Thread safety: one thread at a time. Destroyed when it has ended.
class Ticket::State {
 public:
  virtual ~State() = default;
  virtual void Wait() = 0;  ///< Ticket::Wait
  virtual bool Done() = 0;  ///< Ticket::Done
};

}  // namespace gpm

#endif  // GPM_ENGINE_TICKET_H_
