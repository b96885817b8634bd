"""What joins the ranks of a store that several processes have open together."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any, Protocol, Sequence

from ._errors import InvalidArgumentError, IoError, UnsupportedError


class Exchange(Protocol):
    """What joins ranks: any object with these serves. All ranks make the same calls, in the same
    order, each by one thread at a time.

    It may also have a `device`, this rank's GPU, and a `timeout`, for which NCCL waits then.
    """

    rank: int  # of this process, from 0
    ranks: int  # in all

    def all_to_all(self, send: Sequence[memoryview], receive: Sequence[memoryview]) -> None:
        """Every rank i gets `send[i]`, and what it sends here goes to `receive[i]`.

        send, receive: bytes, for each rank, the caller itself too; `receive[i]` has as many as rank
        i sends here. They are the store's memory: to be used until this returns, and what is sent
        to be read alone. (It is writable for libraries that want that.)

        Raises when a rank is gone, or does not come within a time of its own. Then this object is
        told to `leave`, and not called again.
        """

    def leave(self, why: str) -> None:
        """This rank takes no further part, so that what the others call soon raises. Called once;
        `why` is empty when the store was closed, or could not be opened."""


def _distributed() -> Any:
    try:
        import torch.distributed as distributed
    except ImportError as error:
        raise UnsupportedError(
            "torch is not installed, by which ranks meet; install torch, or give an exchange of "
            "your own (gpmstore.distributed.Exchange)") from error
    if not distributed.is_available():
        raise UnsupportedError("this build of torch has no torch.distributed; install one that "
                               "has, or give an exchange of your own")
    return distributed


class TorchExchange:
    """The ranks of torch.distributed, whose gloo backend sends the bytes. All of them make one.

    Processes that torchrun started need no arguments. Without torchrun, and where
    torch.distributed is not initialized, `init_method` says where the ranks meet, such as
    "file:///shared/folder/name" or "tcp://host:port", and `rank` and `ranks` which one this is;
    torch.distributed stays initialized, with gloo, when the store is closed.

    group: a process group of gloo, of which this rank is one; it is used for nothing else
    meanwhile. By default a new one, of all ranks. timeout: seconds that a rank is waited for.
    """

    def __init__(self, group: Any = None, *, init_method: str | None = None,
                 rank: int | None = None, ranks: int | None = None,
                 timeout: float = 60.0) -> None:
        if not timeout > 0:
            raise InvalidArgumentError(f"timeout: {timeout}; it must be more than 0 seconds")
        distributed = _distributed()
        wait = datetime.timedelta(seconds=timeout)
        self.timeout = timeout
        self._is_ours = group is None
        self._group = None
        try:
            if not distributed.is_initialized():
                distributed.init_process_group(
                    "gloo", init_method=init_method, timeout=wait,
                    rank=-1 if rank is None else rank, world_size=-1 if ranks is None else ranks)
            elif init_method is not None:
                raise InvalidArgumentError("init_method: torch.distributed is initialized already")
            if group is None:
                group = distributed.new_group(backend="gloo", timeout=wait)
            elif distributed.get_rank(group) < 0:
                raise InvalidArgumentError("group: this rank is none of it")
            elif distributed.get_backend(group) != "gloo":
                raise UnsupportedError(
                    f"group: its backend is {distributed.get_backend(group)}, and the bytes go by "
                    'gloo; give torch.distributed.new_group(backend="gloo")')
        except ValueError as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(f"torch.distributed: {error}; start the processes by "
                                       "torchrun, or give init_method, rank and ranks") from error
        except RuntimeError as error:
            raise IoError(f"torch.distributed: the ranks have not met: {error}") from error
        self._group = group
        self.rank: int = distributed.get_rank(group)
        self.ranks: int = distributed.get_world_size(group)

    @property
    def device(self) -> int | None:
        """The GPU of this rank, as torchrun's LOCAL_RANK says; None where that is not known."""
        import torch

        local_rank = os.environ.get("LOCAL_RANK")
        if local_rank is None or not torch.cuda.is_available():
            return None
        return int(local_rank) % torch.cuda.device_count()

    def all_to_all(self, send: Sequence[memoryview], receive: Sequence[memoryview]) -> None:
        if self._group is None:
            raise IoError("this rank has left")
        receive[self.rank][:] = send[self.rank]
        # Each rank begins with another one.
        begin, peer = self._begin, self.rank
        works: list[tuple[int, Any]] = []
        deadline = time.monotonic() + self.timeout
        try:
            for step in range(1, self.ranks):
                peer = (self.rank - step) % self.ranks
                begin(works, self._group.recv, receive[peer], peer)
            for step in range(1, self.ranks):
                peer = (self.rank + step) % self.ranks
                begin(works, self._group.send, send[peer], peer)
            for peer, work in works:
                left = max(deadline - time.monotonic(), 1e-3)
                if not work.wait(datetime.timedelta(seconds=left)):
                    raise RuntimeError("the operation was given up")
        except RuntimeError as error:
            raise IoError(f"rank {peer} is gone, or has not come for {self.timeout:g} s: "
                          f"{error}") from None
        finally:
            works.clear()  # which refer to the memory

    @staticmethod
    def _begin(works: list[tuple[int, Any]], call: Any, part: memoryview, peer: int) -> None:
        if len(part) == 0:
            return
        import torch

        # The tag is the length: ranks that do not agree about it, as they make different calls, do
        # not get each other's bytes.
        work = call([torch.frombuffer(part, dtype=torch.uint8)], peer, len(part) & 0x7FFFFFFF)
        works.append((peer, work))

    def leave(self, why: str = "") -> None:
        group, self._group = self._group, None
        if group is None or not self._is_ours:
            return
        try:
            _distributed().destroy_process_group(group)  # which closes its connections
        except (AssertionError, RuntimeError, ValueError):
            pass  # torch.distributed was ended before
