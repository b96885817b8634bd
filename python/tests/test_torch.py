"""gpmstore.torch against torch.nn.Embedding and torch's optimizers. GPM_TEST_EXECUTOR=cuda: on a
GPU."""

import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import gpmstore  # noqa: E402
from conftest import EXECUTOR  # noqa: E402
from gpmstore.torch import SGD, Adagrad, Adam, Embedding, EmbeddingBag  # noqa: E402

DEVICE = "cuda" if EXECUTOR == "cuda" else "cpu"
IDS, DIM = 50, 6
OPTIMIZERS = {
    "sgd": (lambda: SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adagrad": (lambda: Adagrad(lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "adam": (lambda: Adam(lr=0.01, betas=(0.8, 0.99)),
             lambda p: torch.optim.SparseAdam(p, lr=0.01, betas=(0.8, 0.99))),
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(int(os.environ.get("GPM_TEST_SEED") or 1))


@pytest.fixture
def make(path):
    """Makes modules on one pool, and closes them."""
    made = []

    def make_one(kind=Embedding, dim=DIM, init=gpmstore.Normal(0, 0.1, seed=3), optimizer=None,
                 where=path, **options):
        options.setdefault("executor", EXECUTOR)
        made.append(kind(where, dim, init, optimizer or SGD(lr=0.1), **options))
        return made[-1]

    yield make_one
    for module in made:
        module.close()


def ids_of(*shape):
    return torch.randint(0, IDS, shape, device=DEVICE)


def all_rows(module, ids=None):
    with torch.no_grad():
        return module(torch.arange(IDS, device=DEVICE) if ids is None else ids).clone()


def reference(ours, padding_idx=None):
    """torch's module with the same weights."""
    theirs = torch.nn.Embedding(IDS, DIM, padding_idx=padding_idx, sparse=True, device=DEVICE)
    with torch.no_grad():
        theirs.weight.copy_(all_rows(ours))
    return theirs


def assert_near(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("padding_idx", [None, 7])
def test_embedding_as_torch(make, name, padding_idx):
    make_ours, make_theirs = OPTIMIZERS[name]
    ours = make(optimizer=make_ours(), padding_idx=padding_idx)
    theirs = reference(ours, padding_idx)
    optimizer = make_theirs(theirs.parameters())
    head = 0.1 * torch.randn(DIM, device=DEVICE)
    for shape in [(40,), (3, 30), (2, 2, 2), (1,), (200,)] * 4:
        ids = ids_of(*shape)
        out, expected = ours(ids), theirs(ids)
        assert out.shape == expected.shape and out.dtype == torch.float32
        assert_near(out, expected)
        optimizer.zero_grad()
        for rows in (out, expected):
            torch.tanh(rows @ head).sum().backward()
        optimizer.step()
        assert_near(all_rows(ours), theirs.weight)
    assert ours.rows == IDS - (padding_idx is not None)
    assert ours.steps == 20


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("padding_idx", [None, 7])
def test_bag_as_torch(make, mode, name, padding_idx):
    make_ours, make_theirs = OPTIMIZERS[name]
    ours = make(EmbeddingBag, mode=mode, optimizer=make_ours(), padding_idx=padding_idx)
    ids = torch.arange(IDS, device=DEVICE)
    theirs = torch.nn.EmbeddingBag(IDS, DIM, mode=mode, sparse=name != "adam", device=DEVICE,
                                   padding_idx=padding_idx)
    with torch.no_grad():
        theirs.weight.copy_(all_rows(ours, ids[:, None]))
    # SparseAdam wants a sparse gradient, and rows without one to keep their moments.
    optimizer = make_theirs(theirs.parameters())
    head = 0.1 * torch.randn(DIM, device=DEVICE)
    for step in range(12):
        if step % 2:
            given = (ids_of(9, 5),)
        else:
            given = (ids_of(30), torch.tensor([0, 0, 4, 11, 30], device=DEVICE, dtype=torch.int64))
        out, expected = ours(*given), theirs(*given)
        assert_near(out, expected)
        optimizer.zero_grad()
        for rows in (out, expected):
            torch.tanh(rows @ head).sum().backward()
        if name == "adam":
            rows = torch.unique(given[0])
            rows = rows[rows != padding_idx] if padding_idx is not None else rows
            theirs.weight.grad = torch.sparse_coo_tensor(rows[None], theirs.weight.grad[rows],
                                                         theirs.weight.shape)
        optimizer.step()
        assert_near(all_rows(ours, ids[:, None]), theirs.weight)


def test_weighted_bags(make):
    ours = make(EmbeddingBag, mode="sum", include_last_offset=True)
    theirs = torch.nn.EmbeddingBag(IDS, DIM, mode="sum", include_last_offset=True, device=DEVICE)
    with torch.no_grad():
        ids = torch.arange(IDS, device=DEVICE)
        theirs.weight.copy_(ours(ids, torch.arange(IDS + 1, device=DEVICE)))
    given = ids_of(20), torch.tensor([0, 3, 20], device=DEVICE, dtype=torch.int32)
    shares = [torch.rand(20, device=DEVICE).requires_grad_() for _ in range(2)]
    with torch.no_grad():
        shares[1].copy_(shares[0])
    outs = [ours(*given, shares[0]), theirs(given[0], given[1].long(), shares[1])]
    assert_near(*outs)
    for out in outs:
        (out * out).sum().backward()
    assert_near(shares[0].grad, shares[1].grad)


def test_two_forwards_before_backward(make):
    """Each is a step, on the rows that the other left."""
    ours = make()
    weights = all_rows(ours)
    ids = [ids_of(30), ids_of(20)]
    outs = [ours(one) for one in ids]
    (outs[0].sum() + 2 * outs[1].sum()).backward()
    for one, gradient in zip(ids, (1, 2)):
        weights.index_add_(0, one, torch.full((len(one), DIM), -0.1 * gradient, device=DEVICE))
    assert_near(all_rows(ours), weights)
    out = ours(ids[0])
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    weights.index_add_(0, ids[0], torch.full((30, DIM), -0.2, device=DEVICE))
    assert_near(all_rows(ours), weights)


def test_rows_outlive_the_process(make):
    ours = make(optimizer=Adam(lr=0.01))
    for _ in range(3):
        ours(ids_of(40)).square().sum().backward()
    weights = all_rows(ours)
    pool = dict(ours.store.items())
    ours.close()
    again = make(optimizer=Adam(lr=0.5))
    assert again.steps == 3 and dict(again.store.items()) == pool
    assert torch.equal(all_rows(again), weights)


def test_a_row_is_weights_and_state(make):
    ours = make(optimizer=Adam(lr=0.01))
    assert ours.store.value_size == 4 * 3 * DIM
    weights = ours(torch.tensor([5], device=DEVICE))
    row = np.frombuffer(ours.store[5], np.float32)
    assert np.array_equal(row[:DIM], weights[0].detach().cpu().numpy()) and not row[DIM:].any()
    weights.sum().backward()
    row = np.frombuffer(ours.store[5], np.float32)
    assert np.allclose(row[DIM:2 * DIM], 0.1) and np.allclose(row[2 * DIM:], 0.001)


def test_eval_changes_nothing(make):
    ours = make()
    rows = all_rows(ours)
    ours.eval()
    out = ours(torch.tensor([[3, 1000], [1000, 4]], device=DEVICE))
    assert not out.requires_grad and ours.rows == IDS
    assert torch.equal(out[0, 0], rows[3]) and torch.equal(out[1, 1], rows[4])
    assert not out[0, 1].any() and not out[1, 0].any()


def test_inputs(make):
    ours = make(padding_idx=0)
    assert ours(torch.empty(0, 3, dtype=torch.int64, device=DEVICE)).shape == (0, 3, DIM)
    ours(torch.empty(0, dtype=torch.int64, device=DEVICE)).sum().backward()
    assert not ours(torch.zeros(4, dtype=torch.int64, device=DEVICE)).any() and ours.rows == 0
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert ours(torch.tensor(5, dtype=dtype, device=DEVICE)).shape == (DIM,)
    ours(torch.tensor([-1, -2**63 + 1, 2**63 - 1], device=DEVICE)).sum().backward()
    assert ours.rows == 4
    strided = torch.arange(12, device=DEVICE).view(3, 4).t()
    assert torch.equal(ours(strided), ours(strided.contiguous()))
    out = ours(torch.tensor([5], device=DEVICE))
    out.mul_(2).sum().backward()  # an output may be written to


def test_bad_input(make, path):
    ours = make()
    with pytest.raises(TypeError, match="float32; ids are integers"):
        ours(torch.ones(3, device=DEVICE))
    with pytest.raises(TypeError, match="bool; ids are integers"):
        ours(torch.ones(3, device=DEVICE, dtype=torch.bool))
    with pytest.raises(TypeError, match="'list'"):
        ours([1, 2])
    with pytest.raises(gpmstore.InvalidArgumentError, match="reserved"):
        ours(torch.tensor([1, -2**63], device=DEVICE))
    with pytest.raises(TypeError, match="pickled"):
        torch.save(ours, path + ".pt")
    assert ours.rows == 0
    other = path + ".other"
    for given, error, text in (({"dim": 0}, ValueError, "dim: 0"),
                               ({"init": 0.5}, TypeError, "init: 0.5"),
                               ({"init": gpmstore.Constant(bytes(4))}, ValueError, "24"),
                               ({"init": gpmstore.Constant(np.ones(DIM, np.int32))}, TypeError,
                                "init: they are int32"),
                               ({"init": gpmstore.Constant(np.ones(DIM // 2))}, TypeError,
                                "init: they are float64"),
                               ({"init": gpmstore.Constant(np.ones(DIM, ">f4"))}, TypeError,
                                "init: .* byte order"),
                               ({"init": gpmstore.Constant(torch.ones(DIM))}, TypeError,
                                "init: 'Tensor'"),
                               ({"init": gpmstore.Uniform(0, 1, dtype="float16")}, ValueError,
                                "float16"),
                               ({"capacity": 1000}, ValueError, "header"),
                               ({"capacity_bytes": 1 << 30}, ValueError, "header"),
                               ({"shards": 2}, ValueError, "shards: .* is one pool"),
                               ({"devices": [0]}, ValueError, "devices: .* is one pool"),
                               ({"optimizer": "adam"}, TypeError, "gpmstore.torch.SGD")):
        with pytest.raises(error, match=text):
            make(where=other, **given)
    assert not os.path.exists(other)
    with pytest.raises(gpmstore.InvalidArgumentError, match="'max'"):
        make(EmbeddingBag, mode="max", where=other)
    bag = make(EmbeddingBag, where=other)
    for given, text in (((ids_of(4),), "offsets"), ((ids_of(4, 4), ids_of(2)), "offsets"),
                        ((ids_of(2, 2, 2),), "dimensions"),
                        ((ids_of(2, 2), None, torch.ones(2, 2)), "per_sample_weights")):
        with pytest.raises(gpmstore.InvalidArgumentError, match=text):
            bag(*given)


def test_other_pools_are_refused(make, path):
    make(dim=12).close()
    with pytest.raises(gpmstore.InvalidArgumentError, match="dim 6 with Adam are values of 72"):
        make(optimizer=Adam())
    with pytest.raises(gpmstore.InvalidArgumentError, match="rows of dim 12 with SGD, not of dim 6 "
                                                            "with Adagrad"):
        make(dim=6, optimizer=Adagrad())
    other = path + ".other"
    with gpmstore.create(other, value_size=48, executor="cpu") as store:
        store[5] = bytes(48)
    with pytest.raises(gpmstore.InvalidArgumentError, match="other items"):
        make(where=other, dim=12)


def test_init(make, path):
    row = np.arange(DIM, dtype=np.float32)
    ours = make(init=gpmstore.Constant(row), optimizer=Adagrad())
    assert (all_rows(ours).cpu().numpy() == row).all()
    drawn = [all_rows(make(init=gpmstore.Uniform(1, 2, seed=5), where=f"{path}.{i}"))
             for i in range(2)]
    assert torch.equal(*drawn) and float(drawn[0].min()) >= 1 and float(drawn[0].std()) > 0


@pytest.mark.parametrize("as_files", [False, True])
def test_state_dict(make, folder, as_files):
    options = {"snapshots": folder + "/kept"} if as_files else {}
    model = torch.nn.Sequential(make(optimizer=Adam(), **options), torch.nn.Linear(DIM, 1).to(DEVICE))
    ids = ids_of(60)
    for _ in range(2):
        model(ids).sum().backward()
    expected, pool = model(ids).detach(), dict(model[0].store.items())
    torch.save(model.state_dict(), folder + "/model.pt")
    for _ in range(2):
        model(ids + 20).sum().backward()
    assert dict(model[0].store.items()) != pool
    state = torch.load(folder + "/model.pt", weights_only=True)
    model.load_state_dict(state)
    assert torch.equal(model(ids), expected) and dict(model[0].store.items()) == pool
    assert model[0].steps == 2
    other = torch.nn.Sequential(make(optimizer=Adam(), where=folder + "/other"),
                                torch.nn.Linear(DIM, 1).to(DEVICE))
    other.load_state_dict(state)
    assert torch.equal(other(ids), expected)
    assert sorted(name for name in os.listdir(folder) if name != "kept") == [
        "model.pt", "other", "test.pool"]


def test_a_backward_after_load_state_dict(make):
    ours = make()
    weights, state = all_rows(ours), ours.state_dict()
    out = ours(ids_of(40))
    ours(ids_of(40)).sum().backward()
    ours.load_state_dict(state)
    assert_near(all_rows(ours), weights)
    ids = ids_of(40)
    out = ours(ids)
    ours.load_state_dict(state)
    out.sum().backward()
    weights.index_add_(0, ids, torch.full((40, DIM), -0.1, device=DEVICE))
    assert_near(all_rows(ours), weights)


def test_a_bad_state_leaves_the_rows(make, folder):
    ours = make(dim=12)
    rows = all_rows(ours)
    other = make(optimizer=Adagrad(), where=folder + "/other")
    state = ours.state_dict()
    broken = state["_extra_state"].clone()
    broken[len(broken) // 2] ^= 0xFF
    for wrong, error, text in ((other.state_dict()["_extra_state"], gpmstore.InvalidArgumentError,
                                "Adagrad"),
                               (broken, gpmstore.DamagedError, "snapshot"),
                               (folder + "/absent", gpmstore.NotFoundError, "absent"),
                               (5, TypeError, "snapshot")):
        with pytest.raises(error, match=text):
            ours.load_state_dict({"_extra_state": wrong})
        assert torch.equal(all_rows(ours), rows)
    assert sorted(os.listdir(folder)) == ["other", "test.pool"]


def test_a_state_of_a_pool_with_options_of_its_creation(make):
    attributes = {"first": (0, 4)}
    ours = make(attributes=attributes, overwrite=False, geometry="2L-2H-4S", initial_capacity=100,
                hash_seed=7)
    rows = all_rows(ours)
    ours.load_state_dict(ours.state_dict())
    assert torch.equal(all_rows(ours), rows) and ours.store.attributes == attributes


def test_a_state_is_refused_where_the_pool_has_snapshots(make, folder):
    ours = make(snapshot=folder + "/kept")
    rows, state = all_rows(ours), ours.state_dict()
    pinned = make(where="pinned:", snapshot=folder + "/of_pinned")
    for module, text in ((ours, "without snapshot=, close that"), (pinned, "without snapshot=$")):
        with pytest.raises(gpmstore.InvalidArgumentError, match=text):
            module.load_state_dict(state)
    assert torch.equal(all_rows(ours), rows) and pinned.rows == 0
    ours.close()
    make(snapshot=folder + "/kept").close()
    plain = make()
    plain.load_state_dict(state)
    plain.close()
    assert torch.equal(all_rows(make(snapshot=folder + "/other")), rows)


def test_paths_are_those_of_the_start(make, folder, monkeypatch):
    for name in ("first", "second"):
        os.mkdir(f"{folder}/{name}")
    monkeypatch.chdir(folder + "/first")
    ours = make(where="pool", snapshots="kept")
    weights, state = all_rows(ours), ours.state_dict()
    monkeypatch.chdir(folder + "/second")
    ours(ids_of(40)).sum().backward()
    ours.load_state_dict(state)
    assert torch.equal(all_rows(ours), weights)
    ours.state_dict()
    assert os.listdir(folder + "/second") == []
    assert sorted(os.listdir(folder + "/first")) == ["kept", "pool"]
    assert len(os.listdir(folder + "/first/kept")) == 2


def test_a_state_keeps_links_owner_and_permissions(make, folder, path, monkeypatch):
    os.symlink(path, folder + "/link")
    ours = make(where=folder + "/link")
    weights, state = all_rows(ours), ours.state_dict()
    os.chmod(path, 0o600)
    owner = (1234, 2345) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    os.chown(path, *owner)
    restore, hidden = gpmstore._open.restore, []

    def look(files, pool, **options):
        hidden.append(os.stat(os.path.dirname(pool)).st_mode & 0o777)
        return restore(files, pool, **options)

    monkeypatch.setattr(gpmstore._open, "restore", look)
    for name, files in (("killed", ["restored_pool"]), ("killed_early", []),
                        ("of_mine", ["restored_pool", "notes"]), ("too", ["model.pt"])):
        os.mkdir(f"{path}.restoring_{name}")
        for file in files:
            open(f"{path}.restoring_{name}/{file}", "w").close()
    os.mkdir(folder + "/elsewhere")
    open(folder + "/elsewhere/restored_pool", "w").close()
    os.symlink(folder + "/elsewhere", path + ".restoring_link")
    ours(ids_of(40)).sum().backward()
    ours.load_state_dict(state)
    status = os.lstat(path)
    assert status.st_mode & 0o7777 == 0o600 and (status.st_uid, status.st_gid) == owner
    assert hidden == [0o700]  # nobody else has opened what gets its permissions later
    assert os.path.islink(folder + "/link")
    # What processes left that were killed is gone, and nothing else.
    assert sorted(os.listdir(folder)) == [
        "elsewhere", "link", "test.pool", "test.pool.restoring_link",
        "test.pool.restoring_of_mine", "test.pool.restoring_too"]
    assert os.listdir(folder + "/elsewhere") == ["restored_pool"]
    assert len(os.listdir(path + ".restoring_of_mine")) == 2
    ours.close()
    assert torch.equal(all_rows(make()), weights)


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes the place of other users")
def test_a_state_is_refused_where_the_owner_would_change(make, folder, path, monkeypatch):
    ours = make()
    rows, state = all_rows(ours), ours.state_dict()
    os.chmod(folder, 0o777)
    os.chmod(path, 0o666)
    os.chown(path, 1234, 2345)

    def no_restore(*_, **__):
        raise AssertionError("it was restored")

    monkeypatch.setattr(gpmstore._open, "restore", no_restore)
    os.seteuid(4321)
    try:
        with pytest.raises(gpmstore.IoError, match="user 1234 and group 2345.* user 4321.*load it"):
            ours.load_state_dict(state)
        assert torch.equal(all_rows(ours), rows)
    finally:
        os.seteuid(0)
    assert os.listdir(folder) == ["test.pool"]


def test_no_other_store_opens_a_pool_that_is_replaced(make, path, monkeypatch):
    ours = make()
    state = ours.state_dict()
    restore, refused = gpmstore._open.restore, []

    def look(files, pool, **options):
        with pytest.raises(gpmstore.BusyError):
            gpmstore.open(path, executor="cpu")
        refused.append(pool)
        return restore(files, pool, **options)

    with monkeypatch.context() as patch:
        patch.setattr(gpmstore._open, "restore", look)
        ours.load_state_dict(state)
    assert len(refused) == 1

    reader = gpmstore.torch._table.Reader

    def late(pool):
        with gpmstore.open(path, executor="cpu") as other:  # it was first
            other.put(1000, bytes(other.value_size))
            return reader(pool)

    monkeypatch.setattr(gpmstore.torch._table, "Reader", late)
    with pytest.raises(gpmstore.BusyError):
        ours.load_state_dict(state)
    assert 1000 in ours.store


def test_a_pool_that_another_store_took_is_opened_again(make, path, monkeypatch):
    ours = make(optimizer=Adam())
    ours(ids_of(40)).sum().backward()
    rows, state = all_rows(ours), ours.state_dict()
    out = ours(ids_of(40))
    reader, others = gpmstore.torch._table.Reader, []

    def late(pool):
        others.append(gpmstore.open(path, executor="cpu"))  # it was first, and stays
        return reader(pool)

    monkeypatch.setattr(gpmstore.torch._table, "Reader", late)
    with pytest.raises(gpmstore.BusyError):
        ours.load_state_dict(state)
    for use in (lambda: all_rows(ours), lambda: ours.rows, lambda: ours.store, ours.state_dict,
                lambda: ours.load_state_dict(state), lambda: out.sum().backward(retain_graph=True)):
        with pytest.raises(gpmstore.BusyError):
            use()
    monkeypatch.undo()
    others[0].put(1000, bytes(others[0].value_size))
    others[0].close()
    assert 1000 in ours.store and torch.equal(all_rows(ours), rows) and ours.steps == 1
    out.sum().backward()
    assert ours.steps == 2
    ours.load_state_dict(state)
    assert 1000 not in ours.store and torch.equal(all_rows(ours), rows) and ours.steps == 1

    monkeypatch.setattr(gpmstore.torch._table, "Reader", late)
    with pytest.raises(gpmstore.BusyError):
        ours.load_state_dict(state)
    others[1].close()
    ours.close()  # before it was opened again
    with pytest.raises(gpmstore.InvalidArgumentError, match="closed"):
        ours.load_state_dict(state)


def test_a_pool_whose_file_is_gone(make, folder, path, monkeypatch):
    ours = make(optimizer=Adam())
    ours(ids_of(40)).sum().backward()
    rows, state = all_rows(ours), ours.state_dict()
    os.remove(path)
    ours.load_state_dict(state)
    assert torch.equal(all_rows(ours), rows) and ours.steps == 1
    os.remove(path)
    for _ in range(2):
        with pytest.raises(gpmstore.NotFoundError, match="absent"):
            ours.load_state_dict({"_extra_state": folder + "/absent"})
        for use in (lambda: all_rows(ours), lambda: ours.rows):
            with pytest.raises(gpmstore.NotFoundError, match="test.pool"):
                use()
        assert os.listdir(folder) == []  # training does not go on from nothing
    restore = gpmstore._open.restore

    def look(files, pool, **options):
        gpmstore.create(path, value_size=16, executor="cpu").close()
        return restore(files, pool, **options)

    with monkeypatch.context() as patch:
        patch.setattr(gpmstore._open, "restore", look)
        with pytest.raises(gpmstore.ExistsError, match="another was made"):
            ours.load_state_dict(state)
    with pytest.raises(gpmstore.InvalidArgumentError, match="other items"):
        all_rows(ours)
    os.remove(path)
    ours.load_state_dict(state)
    assert torch.equal(all_rows(ours), rows) and os.listdir(folder) == ["test.pool"]


def test_a_state_is_refused_where_the_module_was_closed(make, folder):
    ours, pinned = make(), make(where="pinned:")
    rows, state = all_rows(ours), ours.state_dict()
    ours(ids_of(40)).sum().backward()
    trained = all_rows(ours)
    for module in (ours, pinned):
        module.close()
        with pytest.raises(gpmstore.InvalidArgumentError, match="closed"):
            module.load_state_dict(state)
    assert not torch.equal(rows, trained) and torch.equal(all_rows(make()), trained)


def test_default_dtype(make):
    torch.set_default_dtype(torch.float64)
    try:
        out = make(optimizer=Adam())(ids_of(10))
        out.sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert out.dtype == torch.float32


def test_volatile_pool(make):
    ours = make(where="pinned:")
    ours(ids_of(20)).sum().backward()
    state, rows = ours.state_dict(), all_rows(ours, torch.arange(3, device=DEVICE))
    ours(torch.arange(3, device=DEVICE)).sum().backward()
    ours.load_state_dict(state)
    assert torch.equal(all_rows(ours, torch.arange(3, device=DEVICE)), rows)


def test_compiled(make):
    ours = make()
    model = torch.nn.Sequential(ours, torch.nn.Linear(DIM, 1).to(DEVICE))
    ids = ids_of(30)
    expected = model(ids)
    assert_near(torch.compile(model, backend="eager")(ids), expected)


def test_torch_is_imported_only_for_it():
    program = "import sys, gpmstore; assert 'torch' not in sys.modules; import gpmstore.torch"
    subprocess.run([sys.executable, "-c", program], check=True)
