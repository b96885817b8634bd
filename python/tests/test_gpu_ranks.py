"""Stores of several processes, each with a GPU, and arrays there. Needs GPUs, torch, and for arrays
that go from one to the other a package with NCCL: GPM_TEST_EXECUTOR=cuda."""

import os

import numpy as np
import pytest

import gpmstore
from gpmstore import _core, distributed

import ranks
from conftest import EXECUTOR, make_keys, make_values

if EXECUTOR != "cuda":
    pytest.skip("GPM_TEST_EXECUTOR is not cuda", allow_module_level=True)
torch = pytest.importorskip("torch", reason="torch is not installed")

VALUE_SIZE = 64
N = 5000


def work(exchange, folder, nccl):
    """Each rank has its GPU, and looks for what the next one has."""
    rank, n = exchange.rank, exchange.ranks
    device = rank % torch.cuda.device_count()
    torch.cuda.set_device(device)

    def keys_of(owner):
        keys = make_keys(N, first=N * (owner % n)).view(np.int64)
        return torch.from_numpy(keys.copy()).cuda()

    rows = torch.from_numpy(make_values(N, VALUE_SIZE, rank)).cuda()
    nexts = make_values(N, VALUE_SIZE, (rank + 1) % n)
    with distributed.create(os.path.join(folder, "store"), value_size=VALUE_SIZE, shards=2 * n,
                            exchange=exchange, executor="cuda", device=device,
                            nccl=nccl) as store:
        assert store.stats()["executor"] == "cuda"
        if not nccl:
            # Host arrays go as they are; those on a GPU have to be copied.
            if n > 1:
                with pytest.raises(gpmstore.UnsupportedError, match="host memory|can't take"):
                    store.upsert(keys_of(rank), rows)
            assert store.upsert(keys_of(rank).cpu(), rows.cpu()).failed == 0
            values, found = store.find(keys_of(rank + 1).cpu())
            assert found.all() and (values.numpy() == nexts).all()
            return
        assert store.upsert(keys_of(rank), rows).failed == 0
        values, found = store.find(keys_of(rank + 1))
        assert values.is_cuda and bool(found.all()) and (values.cpu().numpy() == nexts).all()
        # One rank's arrays on its GPU, the others' in host memory.
        keys = keys_of(rank + 1)
        values, found = store.find(keys if rank == 0 else keys.cpu())
        assert bool(found.all()) and (values.cpu().numpy() == nexts).all()
        # What a stream makes is not waited for by the default stream.
        with torch.cuda.stream(torch.cuda.Stream()):
            with pytest.raises(gpmstore.UnsupportedError, match="default stream"):
                store.find(keys)
        assert store.find(keys).count == N


@pytest.mark.parametrize("kind", ["pipes", "torch"])
@pytest.mark.parametrize("nccl", [False, True])
def test_ranks_with_gpus(kind, nccl, folder):
    number = min(torch.cuda.device_count(), 2)
    if nccl and not _core.NCCL:
        pytest.skip("the package was built without NCCL")
    ranks.run(kind, number, folder, work, folder, nccl)
