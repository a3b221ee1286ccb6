"""Numbers and tables for people."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; numbers to the right."""
    lines = [list(headings), *(list(row) for row in rows)]
    count = max(len(line) for line in lines)
    for line in lines:
        line.extend([""] * (count - len(line)))
    widths = [max(len(line[i]) for line in lines) for i in range(count)]
    is_number = [all(re.match(r"[-\d]|$", line[i]) for line in lines[1:]) for i in range(count)]
    cells = (
        (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        )
        for line in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in cells)


def bytes_text(count: float) -> str:
    """2 MiB, 1.5 GiB, 700 B"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def seconds_text(seconds: float) -> str:
    """950 us, 1.2 s, 3 h 20 min"""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def parse_bytes(text: str) -> int:
    """4096, 4KiB, 2MiB (powers of 1024), 2MB (powers of 1000)"""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B|B)?", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; write for example 4096, 4KiB or 2MiB")
    power = "KMGT".index(match[2]) + 1 if match[2] else 0
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def add_node_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-e",
        "--endpoint",
        action="append",
        metavar="URL",
        help="a node: tcp://HOST:PORT or unix://PATH; repeat for several (KVSTORE_ENDPOINTS)",
    )
    parser.add_argument("--deadline", type=float, default=5.0, metavar="SECONDS", help="of each call (5)")
    parser.add_argument("--json", action="store_true", help="one JSON document, for scripts")
