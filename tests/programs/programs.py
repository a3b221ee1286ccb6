"""Programs that tests start, on loopback: their logs, when they are ready, and how they end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KV_BUILD", ROOT / "build/release"))

T = TypeVar("T")


def eventually(what: str, look: Callable[[], T | None], seconds: float = 30) -> T:
    """The first answer of `look` that is true. Fails after so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def free_port() -> int:
    """Free now, and below the ports that the kernel hands out itself: no other process is given it meanwhile."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def get(url: str) -> str:
    """Whoever answers: certificates are not looked at."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(url, timeout=10, context=anybody) as answer:
        text: str = answer.read().decode()
        return text


def answers(url: str) -> bool:
    try:
        get(url)
    except (urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError):
        return False
    return True


class Process:
    """A program whose output goes to a file, and which answers at `ready_url` once it has started."""

    def __init__(self, log: Path, arguments: Sequence[str], ready_url: str, more: dict[str, str] | None = None) -> None:
        self.log, self.arguments, self.ready_url = log, list(arguments), ready_url
        self.environment = {**os.environ, **(more or {})}
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.arguments, stdout=log, stderr=log, env=self.environment)
        try:
            eventually(f"{self.ready_url} answers", lambda: self.process.poll() is not None or answers(self.ready_url))
            assert self.process.poll() is None, f"it ended with {self.process.returncode}"
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"{self.arguments[0]}: {error}\n{self.log.read_text()[-4000:]}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


class Etcd(Process):
    """A cluster's list of nodes: one member."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.url = url or f"http://127.0.0.1:{free_port()}"
        peer_url = f"http://127.0.0.1:{free_port()}"
        clients = [f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}"]
        peers = [f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}"]
        name = ["--name=own", f"--initial-cluster=own={peer_url}", f"--data-dir={folder}/etcd"]
        super().__init__(folder / "etcd.log", ["etcd", *name, *clients, *peers], f"{self.url}/health")
