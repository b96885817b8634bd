"""Ranks for tests: processes, and what joins them."""

import multiprocessing
import multiprocessing.connection
import os
import threading
import time
import traceback

from gpmstore.distributed import TorchExchange

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 120.0  # seconds until a test gives up processes


class PipeExchange:
    """Ranks joined by a pipe for each two: gpmstore.distributed.Exchange, without torch."""

    def __init__(self, rank, pipes, timeout):
        self.rank = rank
        self.ranks = len(pipes)
        self.timeout = timeout
        self._pipes = pipes  # of each other rank

    def all_to_all(self, send, receive):
        receive[self.rank][:] = send[self.rank]
        others = [peer for peer in range(self.ranks) if peer != self.rank]
        # (A part that is larger than a pipe's buffer waits until it is read.)
        writes = [_sending(self._pipes[peer], bytes(send[peer])) for peer in others]
        deadline = time.monotonic() + self.timeout
        for peer in others:
            if not self._pipes[peer].poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"rank {peer} has not come for {self.timeout} s")
            try:
                part = self._pipes[peer].recv_bytes()
            except (EOFError, OSError) as error:
                raise ConnectionError(f"rank {peer} is gone") from error
            if len(part) != len(receive[peer]):
                raise ValueError(f"rank {peer} sends {len(part)} bytes, not {len(receive[peer])}")
            receive[peer][:] = part
        for write in writes:
            write.join()

    def leave(self, why):
        for pipe in self._pipes:
            if pipe is not None:
                pipe.close()


def _sending(pipe, part):
    def send():
        try:
            pipe.send_bytes(part)
        except OSError:
            pass  # who reads sees it

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def _work(rank, make, work, arguments, answers):
    try:
        answer = work(make(rank), *arguments)
        answers.send(("ok", answer))
    except BaseException:
        answers.send(("raised", traceback.format_exc()))
    answers.close()


class _Pipes:
    def __init__(self, pipes, timeout):
        self.pipes = pipes
        self.timeout = timeout

    def __call__(self, rank):
        return PipeExchange(rank, self.pipes, self.timeout)


class _Torch:
    def __init__(self, ranks, meeting, timeout):
        self.ranks = ranks
        self.meeting = meeting
        self.timeout = timeout

    def __call__(self, rank):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return TorchExchange(init_method=f"file://{self.meeting}", rank=rank, ranks=self.ranks,
                             timeout=self.timeout)


def run(kind, ranks, folder, work, *arguments, timeout=60.0):
    """Calls work(exchange, *arguments) in a process for each rank.

    kind: "pipes" or "torch". work: a function of a module. Returns what each returned; None of one
    that died. What one raised is an AssertionError.
    """
    if kind == "pipes":
        table = [[None] * ranks for _ in range(ranks)]
        for i in range(ranks):
            for j in range(i):
                table[i][j], table[j][i] = SPAWN.Pipe()
        makes = [_Pipes(pipes, timeout) for pipes in table]
    else:
        run.meetings += 1
        meeting = os.path.join(folder, f"meeting{run.meetings}")
        makes = [_Torch(ranks, meeting, timeout) for _ in range(ranks)]
    started = []
    for rank in range(ranks):
        mine, its = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=_work, args=(rank, makes[rank], work, arguments, its))
        process.start()
        its.close()
        started.append((process, mine))
    if kind == "pipes":
        for pipes in table:
            for pipe in pipes:
                if pipe is not None:
                    pipe.close()
    answers = []
    deadline = time.monotonic() + PATIENCE
    try:
        for rank, (process, pipe) in enumerate(started):
            assert pipe.poll(max(0.0, deadline - time.monotonic())), f"rank {rank} does not end"
            try:
                outcome, answer = pipe.recv()
            except EOFError:
                answers.append(None)
                continue
            assert outcome == "ok", f"rank {rank}:\n{answer}"
            answers.append(answer)
    finally:
        for process, pipe in started:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
    return answers


run.meetings = 0
