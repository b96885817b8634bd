#!/usr/bin/env python3
"""Finds includes that run up, from a floor of the house to one above it or beside it.

    scripts/check_floors.py [ROOT]

docs/ARCHITECTURE.md has the floors. Exit status 1 when an include runs up. Needs nothing beyond
Python.
"""

import pathlib
import re
import sys

# Folders of one height do not use each other.
HEIGHT = {"include": 0, "examples": 1, "pm": 1, "table": 2, "cache": 3, "recovery": 3, "snapshot": 3, "engine": 4,
          "support": 4, "shard": 5, "ycsb": 5, "crash_sim": 5, "cli": 6, "bench": 6, "python": 6}
# These stand on what is installed, and on nothing between. (Figure 10 of bench runs the examples.)
ON_INCLUDE = {"python", "examples"}
# It is inlined into the user's kernels, and looks into the engine.
EXCEPT = {"include/gpmstore/device_view.cuh"}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    wrong = 0
    for floor, height in HEIGHT.items():
        for path in sorted((root / floor).rglob("*.*")):
            name = path.relative_to(root).as_posix()
            if path.suffix not in {".h", ".cc", ".cu", ".cuh"} or name in EXCEPT:
                continue
            for included in INCLUDE.findall(path.read_text()):
                to = included.split("/")[0]
                if floor == "examples" and (to == ".." or "/" not in included):
                    continue  # as a user's program, it names its own files from where it is
                to = "include" if to == "gpmstore" else to
                limit = 1 if floor in ON_INCLUDE else height
                if to != floor and HEIGHT.get(to, 99) >= limit:
                    print(f"{name} includes {included}, which is no floor below it")
                    wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
