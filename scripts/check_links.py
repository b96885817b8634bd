#!/usr/bin/env python3
"""Finds documents and comments that name a file which is not in the repository.

    scripts/check_links.py [ROOT]

Checked are, in markdown: links with their anchors, and paths of the repository. In the comments of
sources and scripts: names of sources, scripts and documents, and sections of documents that are
named in capitals. What a build makes (build/...) is not looked at. Exit status 1 when something is
missing. Needs nothing beyond Python.
"""

import os
import pathlib
import re
import sys

SOURCES = (".h", ".cc", ".cu", ".cuh")
SCRIPTS = (".py", ".sh", ".cmake")
NAMED = r"(?:h|cc|cu|cuh|py|sh|md|cmake)"
PATH = re.compile(r"(?<![\w$%<}/.-])((?:[\w-]+/|\{[\w,-]+\}/)*(?:[\w-]|\{[\w,.-]+\})+\." + NAMED + r")(?![\w/(])")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r"<img[^>]*\bsrc=\"([^\"]+)\"")
SECTION = re.compile(r"\b([A-Z]{4,})(?:\.md)?,?\s+sections?\s+\d")
COMMENT = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


class Tree:
    """The repository's files, without what builds made."""

    def __init__(self, root):
        self.root = root
        self.files = set()
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if not f.startswith(("build", "__pycache__", ".git"))]
            for name in names:
                self.files.add(os.path.relpath(os.path.join(folder, name), root))
        self.names = {os.path.basename(f) for f in self.files}
        self.folders = {os.path.dirname(f) for f in self.files}
        for folder in list(self.folders):
            while folder := os.path.dirname(folder):
                self.folders.add(folder)
        self.top = {f for f in self.folders if f and "/" not in f}

    def has(self, path, near):
        """Whether a path means something: from the root, include/, or the folder `near`."""
        for start in ("", "include", near):
            whole = os.path.normpath(os.path.join(start, path))
            if whole in self.files or whole in self.folders:
                return True
        return "/" not in path and path in self.names


def expand(path):
    """table/{hash,probe}.h is table/hash.h and table/probe.h."""
    match = re.search(r"\{([^{}]*)\}", path)
    if not match:
        return [path]
    return [p for choice in match[1].split(",")
            for p in expand(path[:match.start()] + choice + path[match.end():])]


def slugs(text):
    """The anchors that GitHub gives a document's headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", text, re.M):
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return found


def comments(path, text):
    """The text of a file's comments, all else blank, so that positions stay."""
    if path.endswith(SOURCES):
        kept = [m.span() for m in COMMENT.finditer(text) if m[0].startswith(("//", "/*"))]
    else:
        kept = [m.span() for m in re.finditer(r"(?m)(?:^|(?<=\s))#[^\n]*", text)]
        if path.endswith(".py"):
            kept += [m.span() for m in re.finditer(r'""".*?"""', text, re.S)]
    blank = [c if c == "\n" else " " for c in text]
    for first, last in kept:
        blank[first:last] = text[first:last]
    # The marks of a comment would part what goes on in its next line.
    return re.sub(r"(?m)^(\s*)(///?<?|#+)", lambda m: m[1] + " " * len(m[2]), "".join(blank))


def check(tree, path):
    """Yields (position, what is wrong) for one file."""
    text = (tree.root / path).read_text(errors="replace")
    near = os.path.dirname(path)
    is_document = path.endswith(".md")
    checked = text if is_document else comments(path, text)
    if is_document:
        for match in list(LINK.finditer(text)) + list(IMAGE.finditer(text)):
            target, _, anchor = match[1].partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            whole = os.path.normpath(os.path.join(near, target)) if target else path
            if whole not in tree.files and whole not in tree.folders:
                yield match.start(), f"link to {match[1]}, which does not exist"
            elif anchor and anchor not in slugs((tree.root / whole).read_text()):
                yield match.start(), f"link to {match[1]}, where there is no such heading"
        tops = "|".join(re.escape(top) for top in sorted(tree.top))
        folders = re.compile(r"(?<![\w/.<-])((?:" + tops + r")/(?:[\w.-]|[{},/](?=\w))*)")
        for match in folders.finditer(text):
            for each in expand(match[1].rstrip(".,")):
                if "{" not in each and not tree.has(each.rstrip("/"), near):
                    yield match.start(), f"{each} does not exist"
    for match in PATH.finditer(checked):
        for each in expand(match[1]):
            if not tree.has(each, near):
                yield match.start(), f"{each} is not a file of the repository"
    for match in SECTION.finditer(checked):
        if f"docs/{match[1]}.md" not in tree.files:
            yield match.start(), f"cites {match[1]}, which is not in docs/"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    tree = Tree(root if len(sys.argv) > 1 else root.parent.parent)
    wrong = set()
    for path in sorted(tree.files):
        if path.endswith((".md", "CMakeLists.txt") + SOURCES + SCRIPTS):
            text = (tree.root / path).read_text(errors="replace")
            for position, what in check(tree, path):
                wrong.add(f"{path}:{text.count(chr(10), 0, position) + 1}: {what}")
    for line in sorted(wrong):
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
