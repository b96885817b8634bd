"""Exports: the items of one instant, in pages, while batches go on."""

import gc
import threading
import time

import numpy as np
import pytest

import gpmstore
from conftest import EXECUTOR, make_keys, make_values


def filled(path, n=1000, key_size=8, **options):
    store = gpmstore.create(path, key_size=key_size, value_size=24, executor=EXECUTOR, **options)
    keys, values = make_keys(n, key_size), make_values(n, 24)
    store.insert(keys, values)
    return store, keys, values


def as_dict(pages):
    return {key.tobytes(): value.tobytes() for keys, values in pages
            for key, value in zip(keys, values)}


@pytest.mark.parametrize("key_size", [8, 32])
def test_pages_are_of_the_instant(path, key_size):
    store, keys, values = filled(path, key_size=key_size)
    with store:
        seen = []
        for page in store.export(page=300):
            seen.append(page)
            store.upsert(keys, make_values(1000, 24, salt=len(seen)))
            store.erase(keys[:100])
        assert [len(page_keys) for page_keys, _ in seen] == [300, 300, 300, 100]
        assert as_dict(seen) == as_dict([(keys, values)])
        assert len(store) == 900


def test_a_score(path):
    with gpmstore.create(path, value_size=16, executor=EXECUTOR) as store:
        rows = np.zeros((100, 4), np.uint32)
        rows[:, 2] = np.arange(100)
        store.insert(np.arange(100), rows)
        wanted = np.concatenate([keys for keys, _ in store.export(7, score=(8, 4), least=20,
                                                                  most=29)])
        assert sorted(wanted) == list(range(20, 30))
        with pytest.raises(gpmstore.InvalidArgumentError, match="score"):
            store.export(score=(13, 4))
        for bounds in ({"least": 5}, {"most": 1}, {"least": 5, "most": 1}):
            with pytest.raises(gpmstore.InvalidArgumentError, match="give score, too"):
                store.export(**bounds)


def test_it_ends_at_any_page(path):
    store, keys, _ = filled(path)
    with store:
        export = store.export(page=10)
        next(export)
        with pytest.raises(gpmstore.BusyError):
            store.compact()
        export.close()
        assert list(export) == []
        store.compact()
        with store.export(page=10, with_values=False) as export:
            assert next(export)[1] is None
        export = store.export()
        del export
        gc.collect()
        for _ in store.export(page=100):
            break
        gc.collect()
        store.reserve(5000)
        assert sum(len(page) for page, _ in store.export()) == len(keys)


def test_what_changed_since_a_snapshot(path, tmp_path):
    store, keys, _ = filled(path)
    with store:
        first = tmp_path / "first.snap"
        store.snapshot(first)
        assert list(store.export(changed_since=first)) == []
        store.update(keys[:5], make_values(5, store.value_size, salt=9))
        exported = [key for page, _ in store.export(changed_since=first) for key in page]
        assert set(keys[:5]) <= set(exported) and len(exported) < 50
        with pytest.raises(gpmstore.NotFoundError):
            store.export(changed_since=tmp_path / "none.snap")
        store.snapshot(tmp_path / "second.snap", base=first)
        with pytest.raises(gpmstore.InvalidArgumentError, match="base"):
            store.export(changed_since=first)


def test_scores_that_no_value_has(path):
    store, _, _ = filled(path)
    with store:
        for score, message in (((21, 4), "score: 4 bytes at 21 are not within a value of 24"),
                               ((0, 3), "score: 3 bytes; it must have 4 or 8")):
            with pytest.raises(gpmstore.InvalidArgumentError, match="^" + message):
                store.export(score=score)


def test_closing_the_store_ends_it(path):
    store, _, _ = filled(path)
    whole = store.export(page=1000)
    next(whole)
    closed = store.export(page=10)
    closed.close()
    export = store.export(page=10)
    next(export)
    store.close()
    for _ in range(2):  # it does not look like the end
        with pytest.raises(gpmstore.InvalidArgumentError, match="closed before the export ended"):
            next(export)
    assert list(whole) == [] and list(closed) == []
    export.close()
    with gpmstore.open(path, executor=EXECUTOR) as again:
        assert len(again) == 1000
        assert again.stats()["recovery"]["was_clean"]


def test_closing_while_exports_begin(path):
    """An export that the closing thread did not see when it began to close."""
    store, _, _ = filled(path)
    # (Of the module _core, which a list of the package's would not have.)
    core = store._core.export(0, 0, 0, 2**64 - 1, "", "")
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    closing.join(timeout=60)
    assert not closing.is_alive()
    core.close()

    store = gpmstore.open(path, executor=EXECUTOR)
    outcomes = []

    def export():
        try:
            for _ in range(10**6):
                for _ in store.export(page=100):
                    pass
        except gpmstore.InvalidArgumentError as error:
            outcomes.append("closed" in str(error))

    threads = [threading.Thread(target=export, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    store.close()
    for thread in threads:
        thread.join(timeout=60)
    assert outcomes == [True] * 3


def test_ending_an_export_that_a_waiting_close_waits_for(path):
    """A call of another thread waits for the export, and close for that call."""
    store, _, _ = filled(path)
    core = store._core.export(0, 0, 0, 2**64 - 1, "", "")
    threads = [threading.Thread(target=call, daemon=True) for call in (store.compact, store.close)]
    for thread in threads:
        thread.start()
        thread.join(timeout=0.2)
    core.close()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_dropped_in_a_visitor(path):
    store, _, _ = filled(path)
    with store:
        held = [store.export(page=10)]
        store.for_each(lambda keys, values: held.clear())
        gc.collect()
        store.compact()


def test_an_empty_store(path):
    with gpmstore.create(path, value_size=8, executor=EXECUTOR) as store:
        assert list(store.export()) == []
        with pytest.raises(ValueError):
            store.export(page=0)
        store.compact()
