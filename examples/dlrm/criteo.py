"""Criteo's file format: a click or none, 13 integers and 26 categories, separated by tabs.

    0<TAB>1<TAB><TAB>5 ... <TAB>68fd1e64<TAB> ...      # what is not known is empty
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

import numpy as np

INTEGERS = 13
CATEGORIES = 26


class Batch(NamedTuple):
    first: int  # line, from 0
    clicks: np.ndarray  # n float32, 0 or 1
    integers: np.ndarray  # (n, 13) float32, as the model wants them: log(1 + x); 0 for none
    ids: np.ndarray  # (n, 26) int64, one for each value of each category, and for none


def generate(path: str, lines: int, seed: int = 1, values: int = 4000) -> None:
    """Writes lines in the format, in which clicks depend on what is before them.

    values: of each category. Some are frequent, most are rare. Every value of the first eight
    categories makes a click likelier or less likely, and so do the first three integers.
    """
    random = np.random.default_rng(seed)
    names = random.integers(0, 2**32, (CATEGORIES, values), dtype=np.uint64)
    weights = random.normal(0, 0.7, (8, values))
    shares = 1 / np.arange(1, values + 1)**1.05
    categories = random.choice(values, (lines, CATEGORIES), p=shares / shares.sum())
    integers = random.geometric(0.1, (lines, INTEGERS)) - 1
    score = -1.0 + sum(weights[column][categories[:, column]] for column in range(8))
    score += np.log1p(integers[:, :3]) @ np.array([0.5, -0.5, 0.3]) - 0.6
    clicks = random.random(lines) < 1 / (1 + np.exp(-score))
    unknown = random.random((lines, INTEGERS + CATEGORIES)) < 0.03
    with open(path, "w") as file:
        for line in range(lines):
            numbers = [str(number) for number in integers[line]]
            words = [f"{names[column, value]:08x}" for column, value in enumerate(categories[line])]
            fields = ["" if missing else field
                      for field, missing in zip(numbers + words, unknown[line])]
            file.write("\t".join([str(int(clicks[line])), *fields]) + "\n")


def batches(path: str, rows: int, first: int = 0, last: int | None = None) -> Iterator[Batch]:
    """Batches of `rows` lines, from line `first` to before `last`; what is left over is left out."""
    lines: list[list[str]] = []
    with open(path) as file:
        for number, line in enumerate(file):
            if last is not None and number >= last:
                return
            if number < first:
                continue
            fields = line.rstrip("\n").split("\t")
            if len(fields) != 1 + INTEGERS + CATEGORIES:
                raise ValueError(f"{path}, line {number + 1}: {len(fields)} fields; Criteo's format "
                                 f"has {1 + INTEGERS + CATEGORIES}")
            lines.append(fields)
            if len(lines) == rows:
                yield _batch(lines, number + 1 - rows)
                lines = []


def _batch(lines: list[list[str]], first: int) -> Batch:
    integers = np.array([[max(int(field), 0) if field else 0 for field in fields[1:1 + INTEGERS]]
                         for fields in lines], np.float32)
    # The column, and 32 bits of the value; 0 for none.
    ids = np.array([[column << 33 | (int(field, 16) + 1 if field else 0)
                     for column, field in enumerate(fields[1 + INTEGERS:])] for fields in lines],
                   np.int64)
    clicks = np.array([fields[0] == "1" for fields in lines], np.float32)
    return Batch(first, clicks, np.log1p(integers), ids)
