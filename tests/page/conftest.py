"""One browser and three nodes, with no blocks, ten and a million, which the tests share."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "programs"))

import browser as browsers
import pytest
from forest import Forest
from processes import LIBRARY, NODE, Node, client_of
from programs import BUILD, ROOT

MILLION = 1_000_000
#: Text that a page must not take for anything else. A record's values are printable ASCII.
HOSTILE = '<img src=x onerror="window.hurt=1">'
HOSTILE_TENANT = '"><script>window.hurt=2</script>'

said: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "complains: a test whose page has errors on its console, as it should")


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="kvpage"))  # short: a Unix socket's path has 107 bytes
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots are kept: with the other logs of a test run."""
    made = Path(os.environ.get("KV_PAGE_PICTURES", ROOT / "build/test-logs/page"))
    made.mkdir(parents=True, exist_ok=True)
    return made


@pytest.fixture(scope="session")
def browser(folder: Path) -> Iterator[browsers.Browser]:
    if lacks := browsers.missing():
        pytest.skip(f"there is no {', no '.join(lacks)}")
    made = browsers.Browser(folder)
    yield made
    made.close()


def need_programs() -> None:
    if absent := [str(file.relative_to(BUILD)) for file in (NODE, LIBRARY) if not file.exists()]:
        pytest.skip(f"there is no {', no '.join(absent)} (build it)")


@pytest.fixture(scope="session")
def empty(folder: Path) -> Iterator[Node]:
    need_programs()
    node = Node(folder, "empty")
    yield node
    node.stop()


@pytest.fixture(scope="session")
def small(folder: Path) -> Iterator[Node]:
    """Ten blocks, in a namespace whose names are hostile and in one whose are not."""
    need_programs()
    node = Node(folder, "small")
    with client_of(node) as client:
        hostile = client.open(block_bytes=64, block_size=16, model=HOSTILE, tenant=HOSTILE_TENANT)
        plain = client.open(block_bytes=64, block_size=16, model="plain-7b", tenant="acme", salt="c0ffee")
        forest = Forest(1)
        root = forest.chain(4)
        assert client.put(hostile, root + forest.chain(2)) == 6
        assert client.put(hostile, root + forest.chain(1)) == 1
        assert client.put(plain, forest.chain(3)) == 3
    yield node
    node.stop()


@pytest.fixture(scope="session")
def large(folder: Path) -> Iterator[Node]:
    """A million blocks of a few models: system prompts, what follows them, and conversations."""
    need_programs()
    disk = [f"--disk-path={folder}/disk", "--disk-capacity=1GiB", "--eviction-policy=lru"]
    node = Node(folder, "kv-a17", "--index-bytes-max=1GiB", *disk, capacity="128MiB")
    try:
        began = time.monotonic()
        with client_of(node) as client:
            stored = Forest(2).fill(client, MILLION)
        said.append(f"{stored:,} blocks stored in {time.monotonic() - began:.1f} s")
    except BaseException:
        node.stop()
        raise
    yield node
    node.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in said:
        terminalreporter.write_line(f"page: {line}")
