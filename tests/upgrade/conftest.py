"""Two builds: this one, and the one that is to be understood still (KV_PREVIOUS names its folder; deploy/test.sh --upgrade)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "programs"))

import pytest
from programs import BUILD, Process, eventually, free_port


@dataclass(frozen=True)
class Build:
    name: str
    folder: Path

    @property
    def node(self) -> Path:
        return self.folder / "store/node/kvstore-node"

    def tool(self, name: str) -> Path:
        return self.folder / "client/tools" / name

    def replay(self, trace: Path, endpoints: list[str], *options: str) -> dict[str, Any]:
        """What kvstore-bench tells. Every byte is checked."""
        where = [f"--endpoint={each}" for each in endpoints]
        command = [str(self.tool("kvstore-bench")), "replay", f"--trace={trace}", *where, "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{self.name}: {done.returncode}\n{done.stdout}{done.stderr}"
        told: dict[str, Any] = json.loads(done.stdout)
        assert told["wrong_bytes"] == 0 and told["promised_not_got"] == 0, told
        return told

    def ctl(self, *arguments: str) -> Any:
        command = [str(self.tool("kvstorectl")), *arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{self.name} {arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout)


CURRENT = Build("current", BUILD)


class Node(Process):
    def __init__(self, build: Build, folder: Path, name: str, *options: str) -> None:
        self.tcp, self.unix = f"tcp://127.0.0.1:{free_port()}", f"unix://{folder}/{name}.sock"
        admin = f"127.0.0.1:{free_port()}"
        arguments = [str(build.node), f"--node-id={name}", f"--listen={self.tcp}", f"--listen={self.unix}"]
        arguments += [f"--admin={admin}", "--capacity-block-bytes=4096", "--eviction-policy=lru", *options]
        super().__init__(folder / f"{name}.log", arguments, f"http://{admin}/readyz")

    def wait_for_disk(self) -> None:
        """Until it has read what earlier starts left there."""
        done = "blocks of earlier starts are there again"
        eventually("its disk is read", lambda: done in self.log.read_text().rpartition(" starting: ")[2])


@pytest.fixture(scope="session")
def previous() -> Build:
    named = os.environ.get("KV_PREVIOUS")
    if not named:
        pytest.skip("KV_PREVIOUS names no folder with the previous build (deploy/test.sh --upgrade)")
    build = Build("previous", Path(named))
    assert build.node.exists(), f"KV_PREVIOUS is '{named}', which has no {build.node.relative_to(named)}"
    return build


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="kvup"))  # short: a Unix socket's path has 107 bytes
    yield made
    shutil.rmtree(made, ignore_errors=True)


def write_trace(file: Path, conversations: int, turns: int) -> Path:
    """Conversations that take turns and grow by four blocks a turn."""
    requests = [
        {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for turn in range(1, turns + 1)
        for conversation in range(conversations)
        for ids in [[conversation * 1000 + i for i in range(4 * turn)]]
    ]
    file.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return file


@pytest.fixture
def trace(folder: Path) -> Path:
    """512 blocks, 2,304 times asked for."""
    return write_trace(folder / "trace.jsonl", conversations=16, turns=8)
