"""Shared parts of the measuring scripts: ways measured in turn, in paired rounds, a table of medians, and peers' servers."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Measured = dict[str, list[float]]


def in_turn(names: Sequence[str], rounds: int, measure: Callable[[str, int], dict[str, float]]) -> dict[str, Measured]:
    """Each round measures each way once, in another order. Returns all rounds of all ways for each quantity of ``measure``."""
    found: dict[str, Measured] = {}
    for i in range(rounds):
        for name in random.Random(i).sample(list(names), len(names)):
            for what, value in measure(name, i).items():
                found.setdefault(what, {}).setdefault(name, []).append(value)
    return found


def ratio(measured: Measured, name: str, to: str) -> tuple[float, float, float]:
    """Median, least and most of the rounds' quotients."""
    quotients = [a / b for a, b in zip(measured[name], measured[to], strict=True)]
    return statistics.median(quotients), min(quotients), max(quotients)


def table(found: dict[str, Measured], names: Sequence[str], to: str) -> str:
    """A row for each way: medians in milliseconds, and in brackets how many times as long ``to`` took in the same round."""
    rows = [["", *found]]
    for name in names:
        cells = [name]
        for measured in found.values():
            cell = f"{statistics.median(measured[name]):.3g} ms"
            cells.append(cell if name == to else f"{cell} ({ratio(measured, to, name)[0]:.2f} x)")
        rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, f"load of the machine: {', '.join(f'{each:.1f}' for each in os.getloadavg())}"])


def first_token_parser(tokens: str) -> argparse.ArgumentParser:
    """``tokens``: the default lengths of measured prompts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=lambda text: [int(each) for each in text.split(",")], default=tokens)
    parser.add_argument("--mooncake", action=argparse.BooleanOptionalAction, default=True)
    return parser


def drop_what_fails(ways: dict[str, Any], use: Callable[[str], object]) -> None:
    """Uses each way once. Leaves Mooncake out, with a message, if it fails; the others must work."""
    for name in list(ways):
        try:
            use(name)
        except (AssertionError, RuntimeError) as error:
            if "Mooncake" not in name:
                raise
            print(f"{name} does not run: {error}")
            del ways[name]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_listening(port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nobody listens on port {port}")


@contextlib.contextmanager
def running(*command: str, port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_listening(port)
        yield
    finally:
        process.terminate()
        process.wait()


def mooncake_master() -> str | None:
    beside = Path(sys.executable).with_name("mooncake_master")
    return str(beside) if beside.exists() else shutil.which("mooncake_master")
