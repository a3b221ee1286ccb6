"""Engines of vLLM's own scheduler and arithmetic (synthetic.py), and what their tests do to them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import vllm
from synthetic import KNOWN, Engine, ours

from kvstore.vllm.messages import Step

BOTH = pytest.mark.parametrize("windows", [False, True], ids=["full", "windows"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def engines(model: Path) -> Iterator[Any]:
    made = []

    def make(endpoint: str | None, **more: Any) -> Engine:
        if "kv_tp_replicas" not in KNOWN and more.get("replicas", 1) > 1:
            pytest.skip(f"vLLM {vllm.__version__}: does not say which ranks hold the same heads")
        made.append(Engine(model, endpoint, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def prompt_of(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=count)


def settle(engine: Engine, at_least: int, *workers: int) -> None:
    """Waits until so many blocks of each worker are stored: puts are counted with the next step's saves."""
    until = time.monotonic() + 20
    for side in [ours(engine.workers[number])._worker for number in workers or (0,)]:
        while side.counters["stored_blocks"] < at_least:
            assert time.monotonic() < until, side.counters
            side.end_step(Step())
            time.sleep(0.002)


def lora(number: int, name: str = "", path: str = "", **more: Any) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(name or f"adapter-{number}", number, path or f"/adapters/{number}", **more)
