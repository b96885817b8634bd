#ifndef GPM_MPI_EXCHANGE_H_
#define GPM_MPI_EXCHANGE_H_

#include <mpi.h>

#include <chrono>
#include <memory>

#include "gpmstore/exchange.h"

namespace gpm {

/// Ranks that are the processes of an MPI communicator. Of the library gpmstore_mpi, which is there
/// where MPI was when it was built.
///
/// MPI itself ends all processes of a job when one of them dies, unless it was started otherwise
/// (Open MPI: mpirun --enable-recovery). Where it does not, the others' calls throw after the
/// timeout.
///
/// A rank that gives up can't take back what MPI has begun to send and receive. So those who get
/// parts of more than 1 KiB wait, once more for as long as the timeout, until the senders say that
/// they have sent them. After Error(kIo) the arrays of that call stay as they are until all ranks
/// have thrown, or are gone: MPI may still use them. (A DistributedStore keeps those of a batch
/// until it is closed.)
///
/// @param communicator is duplicated: what else is sent over it does not matter. All its ranks call
///        this. MPI is initialized, and not finalized while the exchange lives. Its threads' level
///        has to allow that the thread which uses the exchange calls MPI: for batches in flight
///        (DistributedStore::ApplyAsync) that is another one, so MPI_THREAD_SERIALIZED, or MULTIPLE
///        where the process calls MPI itself meanwhile.
/// @throws Error kIo
std::unique_ptr<Exchange> MakeMpiExchange(MPI_Comm communicator,
                                          std::chrono::milliseconds timeout = kExchangeTimeout);

}  // namespace gpm

#endif  // GPM_MPI_EXCHANGE_H_
