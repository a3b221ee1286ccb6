"""vLLM with LMCache's server, and the store behind it: one engine's blocks are loaded by another one with a fresh server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

os.environ["LMCACHE_TRACK_USAGE"] = "false"  # on by default
pytest.importorskip("vllm")
pytest.importorskip("lmcache")

import peers
import tiny
from conftest import Node, free_port
from test_vllm_engine import Engine, prompt_of

import kvstore

TOKENS, CHUNK = 1500, 256
HIT = TOKENS // CHUNK * CHUNK


class House:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.model = tiny.make("llama", folder)
        self.node = Node(capacity="512MiB")
        stack.callback(self.node.close)

    def server(self, name: str, door: str) -> tuple[ExitStack, int]:
        """LMCache's server, with empty memory."""
        port, http = free_port(), free_port()
        adapter = {
            "type": door,
            "module_path": "kvstore.lmcache",
            "class_name": {"plugin": "Adapter", "native_plugin": "Connector"}[door],
            "adapter_params": {"endpoints": self.node.endpoint, "model": "llama-1", "weights_epoch": 1},
        }
        command = [str(Path(sys.executable).parent / "lmcache"), "server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--http-port", str(http), "--l1-size-gb", "1", "--chunk-size", str(CHUNK)]
        # The default mode has the server copy by CUDA.
        command += ["--eviction-policy", "LRU", "--supported-transfer-mode", "auto", "--disable-observability"]
        own = self.stack.enter_context(ExitStack())
        own.enter_context(
            peers._server([*command, "--l2-adapter", json.dumps(adapter)], self.folder / f"{name}.log", port)
        )
        return own, port

    def engine(self, name: str, port: int) -> Engine:
        config = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": port,
                "lmcache.mp.mq_timeout": 60,
            },
        }
        made = Engine(
            self.model,
            None,
            self.folder / f"engine-{name}.log",
            kv_transfer_config=config,
            dtype="float32",
            num_gpu_blocks_override=500,
        )
        self.stack.callback(made.close)
        made.wait_ready()
        return made

    def objects(self) -> int:
        with kvstore.Client(self.node.endpoint, deadline=30) as client:
            (node,) = client.stats()
        return int(node["values"]["stored_blocks"])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("lmcache")
    peers.write_plugin(folder)
    before = os.environ.get("PYTHONPATH", "")
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), here, *filter(None, [before])])
    os.environ["LMCACHE_DISABLE_BANNER"] = "1"
    with ExitStack() as stack:
        yield House(folder, stack)
    os.environ["PYTHONPATH"] = before


def test_another_engine_with_a_fresh_server_loads_what_one_has_stored(house: House) -> None:
    """Stored by one adapter and loaded by the other, in other processes: tokens and log-probabilities are equal."""
    prompt = prompt_of(TOKENS, 1)
    server, port = house.server("one", "plugin")
    one = house.engine("one", port)
    cold = one.generate(prompt)
    assert cold["cached"] == [0]
    until = time.monotonic() + 60
    while house.objects() < HIT // CHUNK:
        assert time.monotonic() < until
        time.sleep(0.1)
    one.close()
    server.close()
    _, port = house.server("two", "native_plugin")
    two: Any = house.engine("two", port)
    hit = two.generate(prompt)
    assert hit["cached"] == [HIT]
    assert hit["tokens"] == cold["tokens"]
    for a, b in zip(hit["logprobs"][0], cold["logprobs"][0], strict=True):
        assert abs(a - b) < 1e-4
    own = two.generate(prompt)  # from the engine's own pages, which hold the loaded blocks
    assert own["tokens"] == cold["tokens"]
    house.node.kill()
    later = prompt_of(TOKENS, 2)
    answers = [two.generate(later) for _ in range(2)]  # without the store, then from the engine's own pages
    assert answers[0]["cached"] == [0]
    assert answers[0]["tokens"] == answers[1]["tokens"]
