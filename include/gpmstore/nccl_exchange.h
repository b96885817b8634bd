#ifndef GPM_NCCL_EXCHANGE_H_
#define GPM_NCCL_EXCHANGE_H_

#include <chrono>
#include <memory>

#include "gpmstore/exchange.h"

namespace gpm {

/// An exchange whose ranks send arrays in GPU memory by NCCL, over what joins their GPUs. Of the
/// library gpmstore_nccl, which is there where NCCL was when it was built.
///
/// When a rank is lost, the others' calls throw Error(kIo) after the timeout, at the latest: they
/// end what NCCL has begun (ncclCommAbort). The exchange is of no use then.
///
/// @param host joins the same ranks for what is in host memory, and to begin with: processes of MPI
///        (MakeMpiExchange), or threads (MakeThreadExchanges). All its ranks call this.
/// @param device of this rank, the one on which its shards are: no two ranks have the same
/// @throws Error kUnsupported (no such device), kInvalidArgument (no exchange), kIo; on all ranks
std::unique_ptr<Exchange> MakeNcclExchange(std::unique_ptr<Exchange> host, int device,
                                           std::chrono::milliseconds timeout = kExchangeTimeout);

}  // namespace gpm

#endif  // GPM_NCCL_EXCHANGE_H_
