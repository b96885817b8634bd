#!/usr/bin/env python3
"""Applies BasicDB traces to a dictionary and prints what `gpmstore replay --results` must print.

usage: replay_dictionary.py LOAD RUN
"""
import gzip
import sys


def lines(path):
    opener = gzip.open if open(path, "rb").read(2) == b"\x1f\x8b" else open
    with opener(path, "rb") as file:
        for line in file:
            yield line.rstrip(b"\n")


def main():
    items = {}
    out = sys.stdout.buffer
    for path in sys.argv[1:3]:
        for line in lines(path):
            operation, _, key, *rest = line.split(b" ", 3)
            value = None
            if rest and rest[0].startswith(b"[ field0="):
                value = rest[0][len(b"[ field0="):-len(b" ]")]
            fields = [operation, key]
            if operation == b"INSERT":
                fields.append(b"exists" if key in items else b"ok")
                items.setdefault(key, value)
            elif operation == b"UPDATE":
                fields.append(b"ok" if key in items else b"not-found")
                if key in items:
                    items[key] = value
            elif operation == b"READ":
                fields += [b"ok", items[key]] if key in items else [b"not-found"]
            elif operation == b"DELETE":
                fields.append(b"not-found" if items.pop(key, None) is None else b"ok")
            else:
                sys.exit(f"{path}: {operation!r} is not an operation of these traces")
            out.write(b"\t".join(fields) + b"\n")


if __name__ == "__main__":
    main()
