"""The stack that the tests share, and what they say at the end."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "programs"))

import pytest
from stack import Stack, missing

#: Median seconds of each dashboard's query.
query_seconds: dict[str, float] = {}


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    if lacks := missing():
        pytest.skip(f"there is no {', no '.join(lacks)}")
    folder = Path(tempfile.mkdtemp(prefix="kvobserve"))  # short: a Unix socket's path has 107 bytes
    running = Stack(folder)
    try:
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def promtool() -> str:
    return program("promtool")


@pytest.fixture(scope="session")
def amtool() -> str:
    return program("amtool")


@pytest.fixture(scope="session")
def etcd() -> str:
    return program("etcd", "--cluster")


def program(name: str, flag: str = "--observe") -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} (deploy/install-dependencies.sh {flag})")
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if query_seconds:
        slowest = max(query_seconds, key=lambda name: query_seconds[name])
        terminalreporter.write_line(
            f"{len(query_seconds)} queries of dashboards: {statistics.median(query_seconds.values()) * 1e3:.1f} ms in the median, "
            f"the slowest {query_seconds[slowest] * 1e3:.1f} ms ({slowest})"
        )
