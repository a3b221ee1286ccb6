"""LMCache's engine for encoder outputs (``ECCacheEngine``) with the store behind it, and a real node. It is called as LMCache's own adapter
for vLLM does, since vLLM 0.32.0 has no connector for it. As shipped it loads from its own memory alone, which ``set_backend_bypass`` skips.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["LMCACHE_TRACK_USAGE"] = "false"  # on by default
pytest.importorskip("lmcache")
pytest.importorskip("lmcache.v1.ec_engine")

import numpy as np
import torch
from conftest import Node
from lmcache.v1.config import load_ec_engine_config
from lmcache.v1.ec_engine import ECCacheEngine
from lmcache.v1.metadata import LMCacheMetadata

_numbers = iter(range(10**9))


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Any]:
    made: list[ECCacheEngine] = []
    model = f"m{os.getpid()}-{next(_numbers)}"

    def make(endpoint: str, of: str = model, as_shipped: bool = False, **options: Any) -> ECCacheEngine:
        """Each with its own memory, as in separate processes."""
        plugin = "remote_storage_plugin.kvstore"
        extra = {f"{plugin}.module_path": "kvstore.lmcache", f"{plugin}.class_name": "EncoderRemote"}
        given = {"endpoints": endpoint, "model": "outputs", "weights_epoch": 1, "deadline": 5.0} | options
        extra |= {f"kvstore.{name}": value for name, value in given.items()}
        config = tmp_path / f"{len(made)}.yaml"
        # Only these lines are the encoder's: lines for chunks may stand beside them.
        config.write_text(
            "chunk_size: 256\nec:\n  max_local_cpu_size: 0.1\n  remote_storage_plugins: [kvstore]\n"
            f"  extra_config: {json.dumps(extra)}\n"
        )
        metadata = LMCacheMetadata(of, 1, 1, 0, 0, torch.bfloat16, (4, 2, 256, 4, 32), role="worker")
        engine = ECCacheEngine(load_ec_engine_config(config_file_path=str(config)), metadata, torch.bfloat16)
        made.append(engine)
        engine._storage_manager.set_backend_bypass("LocalCPUBackend", not as_shipped)
        client = remote_of(engine)._door.client
        for _ in range(50):
            if client.ping(deadline=0.1) != [None]:
                break
        return engine

    yield make
    for each in made:
        each.close()


def remote_of(engine: ECCacheEngine) -> Any:
    (backend,) = (
        each for each in engine._storage_manager.storage_backends.values() if type(each).__name__ == "RemoteBackend"
    )
    return backend.connection.getWrappedConnector()


def output_of(mm_hash: str, dtype: Any = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(random.Random(mm_hash).randrange(1 << 30))
    rows = 1 + random.Random(mm_hash).randrange(700)
    return torch.randn(rows, 96, generator=generator).to(dtype)


def until_held(engine: ECCacheEngine, *hashes: str) -> None:
    """An engine stores in the background."""
    until = time.monotonic() + 20
    while not all(engine.contains(each) for each in hashes):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_outputs_of_any_shape_come_back_in_another_engine(engines: Any, own_node: Node) -> None:
    one, other = engines(own_node.endpoint), engines(own_node.endpoint)
    names = [f"image {i}" for i in range(5)]
    for each in names:
        assert other.get(each, "cpu") is None
        assert one.put(each, output_of(each))
    until_held(other, *names)
    for each in reversed(names):
        got = other.get(each, "cpu")
        assert got is not None and got.dtype == torch.bfloat16
        assert torch.equal(got, output_of(each))
    assert not other.contains("image 6")


def test_as_shipped_it_says_what_is_there_and_does_not_load_it(engines: Any, own_node: Node) -> None:
    """``StorageManager.batched_get`` of 0.5.6 takes its own memory's ``[None]`` for all. If this fails, update docs/engines/encoders.md."""
    one, other = engines(own_node.endpoint), engines(own_node.endpoint, as_shipped=True)
    assert one.put("a", output_of("a"))
    until_held(other, "a")
    assert other.get("a", "cpu") is None


def test_other_models_and_salts_do_not_share(engines: Any, own_node: Node) -> None:
    one = engines(own_node.endpoint)
    assert one.put("a", output_of("a"))
    until_held(engines(own_node.endpoint), "a")
    assert not engines(own_node.endpoint, of="another").contains("a")
    assert not engines(own_node.endpoint, model="other outputs").contains("a")


def test_without_a_node_nothing_is_there_and_nothing_raises(engines: Any, own_node: Node) -> None:
    own_node.kill()
    one = engines(own_node.endpoint, deadline=0.2, as_shipped=True)
    assert one.put("a", output_of("a"))  # in its own memory
    got = one.get("a", "cpu")
    assert got is not None and torch.equal(got, output_of("a"))
    assert not one.contains("b")
    other = engines(own_node.endpoint, deadline=0.2)
    assert other.put("a", output_of("a"))
    assert other.get("a", "cpu") is None


def test_a_node_that_stands_still_costs_the_deadline(engines: Any, own_node: Node) -> None:
    one = engines(own_node.endpoint, deadline=0.3)
    own_node.pause()
    began = time.monotonic()
    assert not one.contains("b")
    assert one.get("b", "cpu") is None
    assert time.monotonic() - began < 5
    own_node.resume()


def test_bytes_that_are_no_output_are_not_loaded(engines: Any, own_node: Node) -> None:
    one = engines(own_node.endpoint)
    store = remote_of(one)
    junk = {"ones": np.ones(1000, np.uint8), "few": np.ones(3, np.uint8)}
    for name, data in junk.items():
        assert store._space.put(store._names([one._make_cache_key(name)]), [data], deadline=5).stored == 1
        assert one.contains(name)
        assert one.get(name, "cpu") is None
