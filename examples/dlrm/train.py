#!/usr/bin/env python3
"""Trains a small recommendation model, is killed in the middle, and goes on from the pool.

    python examples/dlrm/train.py                          # on data that it makes, on the CPU
    python examples/dlrm/train.py --data day_0 --device cuda --plot loss.png

The model has the shape of DLRM (Naumov et al., "Deep Learning Recommendation Model for
Personalization and Recommendation Systems", 2019): an MLP for the integers, a row for each category,
the products of all pairs of those, and an MLP on top. The rows are in a pool, which a killed process
leaves whole. The MLPs are saved every few steps; after a kill, the steps since then are done again,
on rows that have them already. Needs torch; the picture needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

try:
    import torch
    from torch import Tensor, nn
except ImportError as missing:
    sys.exit(f"train.py: needs torch (pip install torch): {missing}")

import criteo
import gpmstore
import gpmstore.torch


class Dlrm(nn.Module):
    """All but the rows: those are given."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        vectors = 1 + criteo.CATEGORIES
        self.bottom = nn.Sequential(nn.Linear(criteo.INTEGERS, 64), nn.ReLU(), nn.Linear(64, dim),
                                    nn.ReLU())
        self.top = nn.Sequential(nn.Linear(dim + vectors * (vectors - 1) // 2, 64), nn.ReLU(),
                                 nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)

    def forward(self, integers: Tensor, rows: Tensor) -> Tensor:
        """Integers (n, 13), rows (n, 26, dim): n logits."""
        below = self.bottom(integers)
        vectors = torch.cat([below[:, None], rows], 1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([below, products[:, self.pairs[0], self.pairs[1]]], 1))[:, 0]


class Training:
    """What a worker does, from the first step or from where one that was killed was."""

    def __init__(self, given: argparse.Namespace) -> None:
        torch.manual_seed(1)
        self.given = given
        self.device = given.device
        self.rows = gpmstore.torch.Embedding(
            os.path.join(given.folder, "rows.pool"), given.dim, gpmstore.Normal(0, 0.1, seed=1),
            gpmstore.torch.Adagrad(lr=0.05), executor=given.device)
        self.model = Dlrm(given.dim).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.tests = list(criteo.batches(given.data, given.batch, 0, given.test))
        self.saved = os.path.join(given.folder, "mlps.pt")
        self.step = 0
        if os.path.exists(self.saved):
            state = torch.load(self.saved, weights_only=True, map_location=self.device)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]

    def run(self) -> None:
        given = self.given
        tell(event="started", step=self.step, rows=self.rows.rows)
        for batch in criteo.batches(given.data, given.batch, given.test + self.step * given.batch):
            if self.step == given.steps:
                break
            clicks, logits = self.look(batch)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
            self.optimizer.zero_grad()
            loss.backward()  # and the rows of the batch are updated, in the pool
            self.optimizer.step()
            self.step += 1
            tell(event="step", step=self.step, loss=loss.item(), rows=self.rows.rows)
            if self.step % given.save_every == 0 or self.step == given.steps:
                self.save()
                tell(event="tested", step=self.step, auc=self.test(), rows=self.rows.rows)
        self.rows.close()

    def look(self, batch: criteo.Batch) -> tuple[Tensor, Tensor]:
        clicks, integers, ids = (torch.from_numpy(part).to(self.device) for part in batch[1:])
        return clicks, self.model(integers, self.rows(ids))

    def save(self) -> None:
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "step": self.step}, self.saved + ".new")
        os.replace(self.saved + ".new", self.saved)

    def test(self) -> float:
        """The area under the curve, on lines that are not trained on."""
        self.model.eval(), self.rows.eval()
        with torch.no_grad():
            parts = [self.look(batch) for batch in self.tests]
        self.model.train(), self.rows.train()
        clicks, logits = (torch.cat(part) for part in zip(*parts))
        ranks = logits.argsort().argsort().double() + 1
        ones = clicks.sum().double()
        zeros = len(clicks) - ones
        return float(((ranks * clicks).sum() - ones * (ones + 1) / 2) / (ones * zeros))


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def work(given: argparse.Namespace, kill_after: int | None) -> list[dict[str, Any]]:
    """A worker's events. It is killed some time after it told of the step `kill_after`."""
    worker = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--worker", "--folder",
                               given.folder, "--data", given.data], stdout=subprocess.PIPE, text=True)
    events = []
    try:
        for line in worker.stdout:
            if not line.endswith("\n"):
                break  # what a killed one was just writing
            events.append(json.loads(line))
            if kill_after is not None and events[-1].get("step") == kill_after:
                time.sleep(0.01)  # so that it is in the middle of one
                worker.kill()
                kill_after = None
    finally:
        worker.kill()
        code = worker.wait()
    if code not in (0, -9):
        sys.exit(f"train.py: the worker failed ({code})")
    return events


def recovered(pool: str) -> gpmstore.Store:
    """The pool of a killed process, which a GPU's driver may hold for a moment longer."""
    for _ in range(100):
        try:
            return gpmstore.open(pool, executor="cpu")
        except gpmstore.BusyError:
            time.sleep(0.1)
    return gpmstore.open(pool, executor="cpu")


def seen_rows(given: argparse.Namespace, steps: int) -> Any:
    """The ids of the first steps."""
    ids = [torch.from_numpy(batch.ids).flatten() for batch in criteo.batches(
        given.data, given.batch, given.test, given.test + steps * given.batch)]
    return torch.unique(torch.cat(ids))


def show(before: list[dict[str, Any]], after: list[dict[str, Any]], plot: str | None) -> None:
    print(f"\n{'step':>6}{'loss':>9}{'AUC':>9}{'rows':>9}")
    for events in before, after:
        losses: list[float] = []
        for event in events:
            if event["event"] == "step":
                losses.append(event["loss"])
            elif event["event"] == "tested":
                print(f"{event['step']:>6}{sum(losses) / len(losses):>9.4f}{event['auc']:>9.4f}"
                      f"{event['rows']:>9}")
                losses = []
        if events is before:
            print(f"       killed after step {events[-1]['step']}; a new process goes on from step "
                  f"{after[0]['step']}")
    if plot is None:
        return
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(7, 4))
    right = axes.twinx()
    for events, name in ((before, "before the kill"), (after, "after it")):
        steps = [event for event in events if event["event"] == "step"]
        tests = [event for event in events if event["event"] == "tested"]
        axes.plot([event["step"] for event in steps], [event["loss"] for event in steps],
                  label="loss " + name, linewidth=1)
        right.plot([event["step"] for event in tests], [event["auc"] for event in tests], "o-",
                   label="AUC " + name)
    axes.axvline(before[-1]["step"], color="grey", linestyle=":")
    axes.set(xlabel="step", ylabel="loss")
    right.set(ylabel="AUC")
    figure.legend(loc="upper center", ncol=2)
    figure.savefig(plot, dpi=120)
    print(f"\n{plot} shows it.")


def main() -> int:
    given = arguments()
    if given.worker:
        Training(given).run()
        return 0
    made = None
    if given.folder is None:
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        given.folder = made = tempfile.mkdtemp(prefix="gpmstore_dlrm_", dir=shared)
    else:
        os.makedirs(given.folder)
    try:
        if given.data is None:
            given.data = os.path.join(given.folder, "criteo.txt")
            lines = given.test + given.steps * given.batch
            print(f"making {lines} lines in Criteo's format, as no --data is given")
            criteo.generate(given.data, lines)
        before = work(given, given.steps // 2 + given.save_every // 3)
        told = before[-1]
        pool = os.path.join(given.folder, "rows.pool")
        ids = seen_rows(given, told["step"])
        with recovered(pool) as store:
            in_pool = len(store) - 1  # without the embedding's header
            there = int(store.contains(ids).sum())
        after = work(given, None)
        show(before, after, given.plot)
        print(f"\nrows: {told['rows']} when the killed process told last, {in_pool} in the pool after "
              f"the kill, {after[0]['rows']} when the next began, {after[-1]['rows']} at the end")
        print(f"of the {len(ids)} rows that finished steps had used, {there} were in the pool")
        whole = there == len(ids) and told["rows"] <= in_pool == after[0]["rows"]
        print("no row was lost" if whole else "rows were lost")
        return 0 if whole and after[-1]["step"] == given.steps else 1
    finally:
        if made:
            shutil.rmtree(made)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a file in Criteo's format; else one is made")
    parser.add_argument("--folder", help="a new folder for the pool and the MLPs; by default a "
                        "temporary one")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dim", type=int, default=16, help="weights of a row")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--test", type=int, default=8192, help="lines, the first, to test with")
    parser.add_argument("--plot", help="a picture of it: .png, .svg")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
