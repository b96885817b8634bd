#!/usr/bin/env python3
"""Times a training step of gpmstore.torch.Embedding, and what Python adds to a find.

    python python/bench/embedding.py                # on a GPU, with 40 GB of /dev/shm
    python python/bench/embedding.py --device cpu --rows 100000 --batch 16384 --steps 5

A step is forward, backward and the optimizer's update, from ids on the device to rows in the pool.
Its ids follow a power law: the row of rank r comes with a probability of r^-1.05. With Adam a row
of `dim` weights has 12 * dim bytes: 504 bytes at dim 42, and at dim 128, whose weights alone are 512
bytes, 1536.

A find by `Store.find` is compared with the library's call, which `_core` times in the same process
on the same arrays.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any, Callable

try:
    import torch
except ImportError as missing:
    sys.exit(f"embedding.py: needs torch (pip install torch): {missing}")
try:
    import gpmstore
    import gpmstore.torch
except ImportError as missing:
    sys.exit(f"embedding.py: needs the package gpmstore (pip install ., or a folder with it in "
             f"PYTHONPATH): {missing}")

OPTIMIZERS = {"sgd": gpmstore.torch.SGD, "adagrad": gpmstore.torch.Adagrad,
              "adam": gpmstore.torch.Adam}


def main() -> None:
    given = arguments()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("embedding.py: torch sees no GPU; --device cpu tries the rest")
    torch.manual_seed(given.seed)
    report: dict[str, Any] = {"torch": torch.__version__, "gpmstore": gpmstore.__version__,
                              "machine": (torch.cuda.get_device_name() if given.device == "cuda"
                                          else "cpu"),
                              "arguments": vars(given), "steps": [], "finds": []}
    print(f"gpmstore {gpmstore.__version__}, torch {torch.__version__}, {report['machine']}")
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="gpmstore_bench_") as folder:
        for dim in given.dims:
            report["steps"].append(measure_steps(given, os.path.join(folder, "steps.pool"), dim))
        if given.finds:
            report["finds"] = measure_finds(given, os.path.join(folder, "finds.pool"))
    if given.json:
        with open(given.json, "w") as file:
            json.dump(report, file, indent=1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rows", type=int, default=16 << 20)
    parser.add_argument("--batch", type=int, default=1 << 20, help="ids of a step")
    parser.add_argument("--exponent", type=float, default=1.05)
    parser.add_argument("--dims", type=lambda text: [int(dim) for dim in text.split(",") if dim],
                        default=[42, 128],
                        help="weights of a row, separated by commas; '' for no steps")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=10, help="steps before those")
    parser.add_argument("--finds", type=lambda text: [int(n) for n in text.split(",") if n],
                        default=[4096, 1 << 20], help="keys of a find; '' for none")
    parser.add_argument("--threads", type=int, default=0, help="of finds on the CPU; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default=shared, help="where pools are made")
    parser.add_argument("--json", help="a file for all figures")
    return parser.parse_args()


def check_room(given: argparse.Namespace, row_bytes: int) -> None:
    folder = given.folder or tempfile.gettempdir()
    free, wanted = shutil.disk_usage(folder).free, 1.5 * given.rows * row_bytes
    if free < wanted:
        sys.exit(f"embedding.py: {folder} has {free / 1e9:.1f} GB free, and {given.rows} rows of "
                 f"{row_bytes} bytes need some {wanted / 1e9:.1f}; give --folder, fewer --rows, or "
                 "other --dims")


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(device: str, call: Callable[[], Any]) -> tuple[Any, float]:
    synchronize(device)
    start = time.perf_counter()
    result = call()
    synchronize(device)
    return result, 1e3 * (time.perf_counter() - start)


def power_law(given: argparse.Namespace) -> Callable[[], Any]:
    """Draws batches of ids."""
    ranks = torch.arange(1, given.rows + 1, dtype=torch.float64, device=given.device)
    shares = torch.cumsum(ranks.pow_(-given.exponent), 0)
    ids = torch.randperm(given.rows, device=given.device)

    def draw() -> Any:
        at = torch.rand(given.batch, dtype=torch.float64, device=given.device) * shares[-1]
        return ids[torch.searchsorted(shares, at).clamp_(max=given.rows - 1)]

    return draw


def measure_steps(given: argparse.Namespace, pool: str, dim: int) -> dict[str, Any]:
    device = given.device
    check_room(given, max(16, 4 * dim * (1 + OPTIMIZERS[given.optimizer].states)))
    module = gpmstore.torch.Embedding(pool, dim, gpmstore.Normal(0, 0.02, seed=given.seed),
                                      OPTIMIZERS[given.optimizer](lr=1e-3), executor=device,
                                      initial_capacity=given.rows + 1)
    row_bytes = module.store.value_size
    print(f"\n{given.rows} rows of {row_bytes} bytes ({dim} weights, {given.optimizer}), batches of "
          f"{given.batch}, power law {given.exponent}")
    with torch.no_grad():
        for first in range(0, given.rows, 1 << 20):
            module(torch.arange(first, min(first + (1 << 20), given.rows), device=device))
    draw = power_law(given)
    gradient = torch.randn(given.batch, dim, device=device)
    steps, forwards, backwards, different = [], [], [], []
    for step in range(given.warm_up + given.steps):
        ids = draw()
        out, forward = timed(device, lambda: module(ids))
        _, backward = timed(device, lambda: out.backward(gradient))
        del out
        if step >= given.warm_up:
            forwards.append(forward)
            backwards.append(backward)
            ids = draw()  # and another, without a stop between the two
            _, both = timed(device, lambda: module(ids).backward(gradient))
            steps.append(both)
            different.append(torch.unique(ids).shape[0])
    parts = measure_parts(device, module, draw, gradient)
    report = {"dim": dim, "row_bytes": row_bytes, "different_ids": statistics.median(different),
              "step_ms": statistics.median(steps), "slowest_step_ms": max(steps),
              "forward_ms": statistics.median(forwards),
              "backward_ms": statistics.median(backwards), "parts_ms": parts,
              "cache": module.store.stats()["cache"]}
    print(f"{report['different_ids']:.0f} different ids; step {report['step_ms']:.2f} ms (median of "
          f"{len(steps)}; slowest {max(steps):.2f}), forward {report['forward_ms']:.2f}, backward "
          f"and update {report['backward_ms']:.2f}")
    moved = report["different_ids"] * row_bytes
    print(f"rows read and written: {moved / 1e6:.0f} MB each way a step")
    for name, took in parts.items():
        print(f"    {name:<28}{took:>9.3f} ms")
    module.close()
    os.remove(pool)
    return report


def measure_parts(device: str, module: Any, draw: Callable[[], Any],
                  gradient: Any) -> dict[str, float]:
    """What a step is made of, with a stop after each part: medians of some steps."""
    table, dim = module._table, module.dim
    parts: dict[str, list[float]] = {}

    def part(name: str, call: Callable[[], Any]) -> Any:
        result, took = timed(device, call)
        parts.setdefault(name, []).append(took)
        return result

    for _ in range(7):
        ids = draw()
        unique, rows_of = part("unique", lambda: torch.unique(ids, return_inverse=True))
        n = unique.shape[0]
        rows = torch.empty(n + 1, table.width, device=device)
        found = torch.empty_like(rows)
        part("find_or_insert", lambda: module.store.find_or_insert(unique, table.initial, rows[:n]))
        part("(find instead)", lambda: module.store.find(unique, found[:n]))
        part("gather", lambda: rows[:, :dim].index_select(0, rows_of))
        sums = part("sum of gradients", lambda: torch.zeros(n + 1, dim, device=device).index_add_(
            0, rows_of, gradient))
        part("optimizer", lambda: module.optimizer.update(rows[:n], sums[:n], module.steps + 1))
        part("update", lambda: module.store.update(unique, rows[:n]))
    return {name: statistics.median(took[1:]) for name, took in parts.items()}


def measure_finds(given: argparse.Namespace, pool: str) -> list[dict[str, Any]]:
    """Uniform keys that are there, values of 128 bytes."""
    device, report = given.device, []
    with gpmstore.create(pool, executor=device, initial_capacity=given.rows,
                         threads=given.threads) as store:
        for first in range(0, given.rows, 1 << 20):
            keys = torch.arange(first, min(first + (1 << 20), given.rows), device=device)
            store.insert(keys, torch.zeros(len(keys), 32, device=device))
        print(f"\nfinds in {given.rows} items with values of 128 bytes, medians")
        print(f"{'keys':>10}{'C++, ms':>12}{'Python, ms':>14}{'more, us':>12}{'more, %':>10}"
              f"{'new arrays, ms':>17}")
        for n in given.finds:
            keys = torch.randint(0, given.rows, (n,), device=device)
            out = torch.empty(n, 128, dtype=torch.uint8, device=device)
            results = torch.empty(n, dtype=torch.uint8, device=device)
            arrays = gpmstore._arrays
            stream = arrays.stream_of(keys)
            times: dict[str, list[float]] = {"cpp": [], "python": [], "new": []}
            for turn in range(30 if n <= 65536 else 10):  # in turns, as a machine's clock drifts
                synchronize(device)
                cpp = store._core.time_finds(*(arrays.exported(array, "array", stream)
                                               for array in (keys, out, results)), stream, 10)
                python, new = [], []
                for _ in range(10):  # each as long on its own: other arrays are other memory
                    start = time.perf_counter()
                    store.find(keys, out, results=results)
                    python.append(time.perf_counter() - start)
                for _ in range(10):
                    start = time.perf_counter()
                    store.find(keys)
                    new.append(time.perf_counter() - start)
                if turn > 1:
                    times["cpp"] += cpp
                    times["python"] += python
                    times["new"] += new
            cpp, python, new = (1e3 * statistics.median(took) for took in times.values())
            report.append({"keys": n, "cpp_ms": cpp, "python_ms": python, "new_arrays_ms": new})
            print(f"{n:>10}{cpp:>12.4f}{python:>14.4f}{1e3 * (python - cpp):>12.1f}"
                  f"{100 * (python / cpp - 1):>10.2f}{new:>17.4f}")
    os.remove(pool)
    return report


if __name__ == "__main__":
    main()
