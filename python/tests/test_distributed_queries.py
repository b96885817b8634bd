"""Searches, and snapshots, of stores that several processes have open together."""

import os

import numpy as np
import pytest

import gpmstore
from gpmstore import distributed

import ranks
from conftest import make_keys, make_values

VALUE_SIZE = 32
ITEMS = 900


def rows_of(keys):
    rows = make_values(len(keys), VALUE_SIZE)
    rows[:, :8] = (np.arange(len(keys)) % 10).astype(np.uint64)[:, None].view(np.uint8)
    return rows


def filled(exchange, folder, name="store"):
    """A store in which each rank has inserted a part of the items."""
    store = distributed.create(os.path.join(folder, name), value_size=VALUE_SIZE, shards=5,
                               exchange=exchange, executor="cpu", attributes={"session": (0, 8)})
    keys = make_keys(ITEMS)
    part = slice(ITEMS * store.rank // store.ranks, ITEMS * (store.rank + 1) // store.ranks)
    assert store.insert(keys[part], rows_of(keys)[part]).failed == 0
    return store


def in_order(keys):
    """As bytes, which a search has them in."""
    return keys[np.argsort(keys.byteswap(), kind="stable")]


def work_queries(exchange, folder):
    keys = make_keys(ITEMS)
    rows = rows_of(keys)
    with filled(exchange, folder) as store:
        mine = store.rank  # each rank asks for a session of its own
        found = store.search(session=mine, values=True, limit=20)
        assert found.count == ITEMS // 10 and found.more
        assert (found.keys == in_order(keys[mine::10])[:20]).all()
        assert (found.values[:, :8].copy().view(np.uint64) == mine).all()
        assert (store.search({"session": (mine, mine)}).keys == in_order(keys[mine::10])).all()
        assert store.count("session < 3") == ITEMS * 3 // 10 and store.count() == ITEMS

        def change(its_keys, values):
            with pytest.raises(gpmstore.BusyError):
                store.stats()
            values[:, 8] = mine

        assert store.update_where(session=(5, None), values=change) == ITEMS // 2
        assert store.update_where(session=4, values=b"4" * VALUE_SIZE) == ITEMS // 10
        assert store.erase_where("session = 0") == ITEMS // 10
        gone = store.find(keys, dtype=np.uint8)
        assert (gone.ok == (np.arange(ITEMS) % 10 != 0)).all()
        assert (gone.values[4::10] == ord("4")).all()
        assert (gone.values[1::10] == rows[1::10]).all()
        assert set(gone.values[5::10, 8].tolist()) == set(range(store.ranks))
        return store.stats()["items"]


def test_ranks_search_and_change_what_matches(kind, folder):
    assert sum(ranks.run(kind, 3, folder, work_queries, folder)) == ITEMS * 9 // 10


def work_refused(exchange, folder):
    texts = []
    with filled(exchange, folder) as store:
        def refused(call, *wrong_kinds):
            try:
                call(store.rank == 1)
            except wrong_kinds as error:
                texts.append(str(error))
            else:
                texts.append("not refused")

        bad = gpmstore.InvalidArgumentError
        refused(lambda wrong: store.search("model = 3" if wrong else "session = 3"), bad)
        refused(lambda wrong: store.search(session="3" if wrong else 3), bad, TypeError)
        refused(lambda wrong: store.erase_where(session=int(wrong)), bad)
        refused(lambda wrong: store.erase_where() if wrong else store.erase_where({}), bad, TypeError)
        refused(lambda wrong: store.update_where({}, values=b"" if wrong else bytes(VALUE_SIZE)), bad)
        refused(lambda wrong: store.reserve("many" if wrong else 1), bad, TypeError)
        refused(lambda wrong: store.snapshot(3 if wrong else os.path.join(folder, "s")), bad, TypeError)
        assert store.count() == ITEMS
    return texts


def test_what_one_rank_can_not_ask_for_is_told_to_all(kind, folder):
    first, second, third = ranks.run(kind, 3, folder, work_refused, folder)
    assert len(first) == 7 and first == third
    assert "not refused" not in first + second
    assert all("rank 1" in text for text in first), first
    assert not os.path.exists(os.path.join(folder, "s"))


def work_raises(exchange, folder):
    with filled(exchange, folder) as store:
        def change(keys, values):
            if store.rank == 1:
                raise ZeroDivisionError("mine")
            values[:, 9] = 77

        with pytest.raises(ZeroDivisionError if store.rank == 1 else gpmstore.IoError) as raised:
            store.update_where({}, values=change)
        seen = []
        store.for_each(lambda keys, values: seen.append((values[:, 9] == 77).all()))
        assert store.count() == ITEMS
        return str(raised.value), all(seen), len(seen)


def test_what_a_function_raises_the_others_hear_of(kind, folder):
    (text, changed, pages), (mine, of_mine, its_pages) = ranks.run(kind, 2, folder, work_raises,
                                                                   folder)
    assert text.startswith("rank 1: shard ") and text.endswith(": ZeroDivisionError: mine")
    assert changed and pages > 0
    assert mine == "mine" and not of_mine and its_pages > 0


def work_snapshot(exchange, folder):
    with filled(exchange, folder) as store:
        told = store.snapshot(os.path.join(folder, "snapshot"))
        assert told["items"] == told["written"] == ITEMS and told["bytes"] > ITEMS * VALUE_SIZE
        with pytest.raises(gpmstore.ExistsError):
            store.snapshot(os.path.join(folder, "snapshot"))


def work_restore(exchange, folder):
    keys = make_keys(ITEMS)
    with distributed.restore(os.path.join(folder, "snapshot"), os.path.join(folder, "restored"),
                             exchange=exchange, executor="cpu") as store:
        assert store.shards == 5
        values, found = store.find(keys)
        assert found.all() and (values == rows_of(keys)).all()
        return store.stats()["items"]


def test_a_snapshot_is_restored_by_other_ranks(kind, folder):
    ranks.run(kind, 3, folder, work_snapshot, folder)
    assert sum(ranks.run(kind, 2, folder, work_restore, folder)) == ITEMS
    with gpmstore.restore(os.path.join(folder, "snapshot"), os.path.join(folder, "alone"),
                          executor="cpu") as store:
        assert len(store) == ITEMS and store.shards == 5
