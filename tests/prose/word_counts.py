#!/usr/bin/env python3
"""Counts words that make prose hard to read, per 1,000 words of comments and of docs.

tests/prose/word_counts.py [--files N] [ROOT]    the table; with --files the N files that have most of them
"""

import argparse
import re
import subprocess
import tokenize
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

FOLDERS = ("base", "index", "store", "transport", "gpu", "client", "cmake", "deploy")
PATTERNS = {
    "what, whatever": re.compile(r"\b(what|whatever)\b", re.IGNORECASE),
    "nobody, nothing, none, no": re.compile(r"\b(nobody|nothing|none|no)\b", re.IGNORECASE),
    "of it, them, those": re.compile(r"\bof (it|them|those)\b", re.IGNORECASE),
}


def comments(file: Path) -> Iterator[str]:
    text = file.read_text(errors="replace")
    if file.suffix in (".h", ".cc", ".c", ".cu", ".cuh", ".js", ".fbs"):
        yield from re.findall(r"(?<![:\"'])//[/!]?<?(.*)", text)
        yield from re.findall(r"/\*(.*?)\*/", text, re.DOTALL)
    elif file.suffix in (".py", ".pyi"):
        for token in tokenize.tokenize(BytesIO(text.encode()).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
                yield token.string
    elif file.suffix in (".sh", ".cmake", ".toml", ".yaml", ".yml") or file.name == "CMakeLists.txt":
        yield from re.findall(r"(?:^|\s)#(?!!)(.*)", text)


def prose(file: Path) -> Iterator[str]:
    """A page without its commands and listings."""
    text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.DOTALL | re.MULTILINE)
    for line in text.splitlines():
        if not line.startswith("    "):
            yield re.sub(r"`[^`]*`", "", line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent.parent)
    given = parser.parse_args()
    listed = subprocess.run(["git", "-C", given.root, "ls-files"], check=True, capture_output=True, text=True).stdout
    names = listed.splitlines()
    pages = [name for name in names if name.endswith(".md")]
    sources = [name for name in names if name.startswith(FOLDERS) and name not in pages]
    rows = []
    for title, files, read in (("comments", sources, comments), ("docs", pages, prose)):
        totals, words = dict.fromkeys(PATTERNS, 0), 0
        for name in files:
            text = " ".join(read(given.root / name))
            counts = {each: len(pattern.findall(text)) for each, pattern in PATTERNS.items()}
            words += (own := len(re.findall(r"\w[\w'-]*", text)))
            for each, count in counts.items():
                totals[each] += count
            rows.append((sum(counts.values()), name, own, counts))
        figures = ", ".join(f"{each}: {1000 * count / max(1, words):.1f}" for each, count in totals.items())
        print(f"{title}: {words} words; per 1,000: {figures}")
    for _, name, own, counts in sorted(rows, reverse=True)[: given.files]:
        print(f"{name}: {own} words, {', '.join(f'{each} {count}' for each, count in counts.items())}")


if __name__ == "__main__":
    main()
