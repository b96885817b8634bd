"""The examples and the benchmark in Python, on little data."""

import os
import pathlib
import subprocess
import sys

import pytest

from conftest import EXECUTOR

ROOT = pathlib.Path(__file__).parents[2]
NO_TORCH = "torch is not installed"


def run(script, *options, expect=0):
    done = subprocess.run([sys.executable, ROOT / script, *map(str, options)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    print(done.stdout)
    assert done.returncode == expect
    return done.stdout


@pytest.mark.parametrize("block_kib", [1, 64])
def test_prefix_cache(path, block_kib):
    out = run("examples/prefix_cache/prefix_cache.py", "--pool", path, "--blocks", 100,
              "--block-kib", block_kib, "--prompt-blocks", 10, "--look-up", 50)
    # Ten prompts of ten blocks; the first five are one of four beginnings.
    assert "100 blocks of" in out and ", 70 of them new" in out
    assert "45 of 50 keys were found, in one call, and each block is the one" in out
    assert not os.path.exists(path)


def test_prefix_cache_keeps_its_pool(path):
    options = ("--pool", path, "--blocks", 20, "--block-kib", 1, "--prompt-blocks", 10)
    run("examples/prefix_cache/prefix_cache.py", *options, "--keep")
    assert ", 0 of them new" in run("examples/prefix_cache/prefix_cache.py", *options)


def test_criteo_format(folder):
    pytest.importorskip("numpy")
    sys.path.insert(0, str(ROOT / "examples/dlrm"))
    import criteo

    file = folder + "/lines.txt"
    criteo.generate(file, 100, seed=5)
    lines = [line.split("\t") for line in pathlib.Path(file).read_text().splitlines()]
    assert {len(fields) for fields in lines} == {40} and {fields[0] for fields in lines} == {"0", "1"}
    assert any("" in fields[1:14] for fields in lines) and any("" in fields[14:] for fields in lines)
    batches = list(criteo.batches(file, 30, 5, 99))
    assert [batch.first for batch in batches] == [5, 35, 65]
    batch, fields = batches[1], lines[40]
    assert batch.clicks[5] == float(fields[0])
    assert [round(float(x)) for x in 2.718281828**batch.integers[5] - 1] == [
        int(field or 0) for field in fields[1:14]]
    assert batch.ids[5].tolist() == [column << 33 | (int(field, 16) + 1 if field else 0)
                                     for column, field in enumerate(fields[14:])]
    pathlib.Path(file).write_text("1\t2\n")
    with pytest.raises(ValueError, match="line 1: 2 fields"):
        list(criteo.batches(file, 1))


def test_dlrm(folder):
    pytest.importorskip("torch", reason=NO_TORCH)
    out = run("examples/dlrm/train.py", "--folder", folder + "/new", "--steps", 12, "--batch", 64,
              "--save-every", 4, "--test", 128, "--dim", 8, "--device",
              "cuda" if EXECUTOR == "cuda" else "cpu")
    assert "killed after step" in out and "no row was lost" in out
    assert out.count("\n    12 ") == 1


def test_benchmark(folder):
    pytest.importorskip("torch", reason=NO_TORCH)
    device = "cuda" if EXECUTOR == "cuda" else "cpu"
    out = run("python/bench/embedding.py", "--device", device, "--rows", 2000, "--batch", 500,
              "--dims", "2,8", "--steps", 2, "--warm-up", 1, "--finds", "100", "--folder", folder,
              "--json", folder + "/report.json")
    assert "2000 rows of 24 bytes" in out and "2000 rows of 96 bytes" in out
    assert os.path.getsize(folder + "/report.json") > 0
