"""A real node for each test module, and shared helpers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kvstore

ROOT = Path(__file__).resolve().parents[3]
#: AddressSanitizer has its own allocator, which keeps freed memory (deploy/test.sh --python-asan).
needs_own_allocator = pytest.mark.skipif(
    "libclang_rt.asan" in os.environ.get("LD_PRELOAD", ""), reason="not with AddressSanitizer's allocator"
)


def node_binary() -> str | None:
    """KV_NODE, the build tree's, or the one on PATH."""
    named = os.environ.get("KV_NODE")
    if named:
        return named
    built = ROOT / "build/release/store/node/kvstore-node"
    return str(built) if built.exists() else shutil.which("kvstore-node")


class Node:
    """A kvstore-node on a Unix socket and, on demand, on TCP."""

    def __init__(
        self, *options: str, capacity: str = "256MiB", admin: str = "none", binary: Path | str | None = None
    ) -> None:
        binary = binary or node_binary()
        if binary is None:
            pytest.skip("there is no kvstore-node: build it, or name it in KV_NODE")
        self.folder = Path(tempfile.mkdtemp(prefix="kvnode"))
        self.socket = self.folder / "node"
        self.endpoint = f"unix://{self.socket}"
        self.arguments = [binary, "--listen", self.endpoint, "--capacity", capacity, "--admin", admin, *options]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self.log = open(self.folder / "log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(self.arguments, stdout=self.log, stderr=self.log)
        until = time.monotonic() + 120
        while not self._listens():  # the file exists before the node listens, when clients are refused
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.01)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # until it has stopped: it may answer before

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


@pytest.fixture
def own_node() -> Iterator[Node]:
    """A node that the test may kill."""
    made = Node()
    yield made
    made.close()


@pytest.fixture
def client(node: Node) -> Iterator[kvstore.Client]:
    with kvstore.Client(node.endpoint, deadline=10) as made:
        yield made


@pytest.fixture
def random() -> np.random.Generator:
    """KV_SEED repeats a run."""
    seed = int(os.environ.get("KV_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"KV_SEED={seed}")
    return np.random.default_rng(seed)


_names = iter(range(10**9))


def namespace(block_bytes: int = 4096, block_size: int = 16, **more: object) -> kvstore.Namespace:
    """A namespace unique to the test."""
    return kvstore.Namespace(
        model=f"test-{os.getpid()}-{next(_names)}", block_size=block_size, block_bytes=block_bytes, **more
    )


@pytest.fixture
def space(client: kvstore.Client) -> kvstore.Space:
    return client.open(namespace())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pattern(count: int, block_bytes: int = 4096, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, block_bytes), dtype=np.uint8)


def tokens(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**31, count, dtype=np.uint32)
