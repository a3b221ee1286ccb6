"""Real vLLM engines with small models, and a real node that is killed, stopped and restarted under them.

What an engine says is compared with an engine without a store: cold with cold, a hit from the store with a hit in the
engine's own cache. Both are the same computation, so tokens and log-probabilities are equal to the last bit.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import tiny
from conftest import Node

BLOCK = 32
START_SECONDS = 400


class Engine:
    def __init__(self, model: Path, endpoint: str | None, log: Path, **arguments: Any) -> None:
        arguments["model"] = str(model)
        if endpoint is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": "KVStoreConnector",
                "kv_connector_module_path": "kvstore.vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                # A busy machine must not look like a store that is away.
                "kv_connector_extra_config": {"endpoints": endpoint, "lookup_timeout": 2.0, "load_timeout": 5.0},
            }
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("engine.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
                # With several threads, sums are divided differently from run to run, and near ties turn out otherwise.
                env=os.environ
                | {"VLLM_LOGGING_LEVEL": "WARNING", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            )
        self._write(arguments)
        self._is_ready = False

    def _write(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text(errors="replace")[-4000:]
        return json.loads(line)

    def wait_ready(self) -> None:
        if not self._is_ready:
            assert self._read() == {"ready": True}
            self._is_ready = True

    def begin(self, *prompts: list[int], **more: Any) -> None:
        self.wait_ready()
        self._write({"generate": prompts} | more)

    def end(self) -> Any:
        return self._read()

    def generate(self, *prompts: list[int], **more: Any) -> Any:
        self.begin(*prompts, **more)
        return self.end()

    def reset(self) -> None:
        self.wait_ready()
        self._write({"reset": True})
        assert self._read() == {"reset": True}

    def kill(self) -> None:
        """The engine and its processes: they are a session of their own."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


def prompt_of(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1024), k=count)


def same(one: Any, other: Any) -> bool:
    return bool(one["tokens"] == other["tokens"] and one["logprobs"] == other["logprobs"])


def until_cached(engine: Engine, prompt: list[int], tokens: int, *expected: Any) -> Any:
    """Asks until the store's blocks are used; the tokens are some of the expected each time."""
    until = time.monotonic() + 90
    while True:
        engine.reset()
        answer = engine.generate(prompt)
        assert answer["tokens"] in [each["tokens"] for each in expected]
        if answer["cached"] == [tokens]:
            return answer
        assert time.monotonic() < until, answer["cached"]
        time.sleep(0.2)


class Trio:
    """Two engines with a store, of which the first began while the node was away, and one without."""

    def __init__(self, folder: Path, node: Node) -> None:
        model = tiny.make("llama", folder)
        node.kill()
        self.node = node
        self.plain = Engine(model, None, folder / "plain.log")
        self.one = Engine(model, node.endpoint, folder / "one.log")
        self.one.wait_ready()
        node.start()
        self.other = Engine(model, node.endpoint, folder / "other.log")
        self.all = (self.plain, self.one, self.other)

    def close(self) -> None:
        for each in self.all:
            each.close()


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    node = Node()
    made = Trio(tmp_path_factory.mktemp("engines"), node)
    yield made
    made.close()
    node.close()


@pytest.fixture
def running(trio: Trio) -> Iterator[Trio]:
    """With the node up at the end, whatever the test does to it."""
    yield trio
    trio.node.resume()
    if trio.node.process.poll() is not None:
        trio.node.start()


def test_a_second_process_computes_only_what_is_new(running: Trio) -> None:
    """The first engine began without a store."""
    prompt = prompt_of(1500, 1)
    cold = running.plain.generate(prompt)
    local = running.plain.generate(prompt)
    assert cold["cached"] == [0] and local["cached"] == [46 * BLOCK]
    assert len(set(cold["tokens"][0])) > 4
    first = running.one.generate(prompt)
    assert same(first, cold)
    warm = until_cached(running.other, prompt, 46 * BLOCK, cold)
    assert same(warm, local)


def test_a_conversation_goes_on_in_another_process(running: Trio) -> None:
    talk = prompt_of(300, 2)
    for turn in range(5):
        engine = (running.one, running.other)[turn % 2]
        expected = running.plain.generate(talk, max_tokens=64)
        answer = engine.generate(talk, max_tokens=64)
        assert same(answer, expected), turn
        assert turn == 0 or answer["cached"] == expected["cached"], turn
        talk = talk + answer["tokens"][0] + prompt_of(50, 20 + turn)
        time.sleep(0.5)  # what was generated last is stored after the answer


def test_a_killed_node_costs_a_recompute_and_a_restarted_one_is_used(running: Trio) -> None:
    prompt = prompt_of(1000, 3)
    expected = running.plain.generate(prompt)
    running.one.generate(prompt)
    until_cached(running.other, prompt, 31 * BLOCK, expected)
    running.node.kill()
    running.other.reset()
    lost = running.other.generate(prompt)
    assert same(lost, expected) and lost["cached"] == [0]
    running.node.start()  # empty: the engine's own hit puts the blocks there again
    until = time.monotonic() + 90
    while True:
        assert running.other.generate(prompt)["tokens"] == expected["tokens"]
        running.one.reset()
        again = running.one.generate(prompt)
        assert again["tokens"] == expected["tokens"]
        if again["cached"] == [31 * BLOCK]:
            break
        assert time.monotonic() < until
        time.sleep(0.5)


def test_a_node_killed_while_blocks_are_stored_changes_nothing(running: Trio) -> None:
    prompts = [prompt_of(700, 40 + i) for i in range(4)]
    expected = running.plain.generate(*prompts, max_tokens=100)
    running.one.begin(*prompts, max_tokens=100)
    time.sleep(0.3)
    running.node.kill()
    assert running.one.end()["tokens"] == expected["tokens"]


def test_a_stopped_node_changes_nothing(running: Trio) -> None:
    prompt = prompt_of(800, 5)
    expected = running.plain.generate(prompt)
    running.node.pause()
    assert same(running.one.generate(prompt), expected)
    running.node.resume()


def test_two_engines_that_store_one_prefix_at_once_agree(running: Trio) -> None:
    root = prompt_of(600, 6)
    prompts = [root + prompt_of(100, 60 + i) for i in range(4)]
    expected = running.plain.generate(*prompts, max_tokens=40)
    running.one.begin(*prompts, max_tokens=40)
    running.other.begin(*prompts, max_tokens=40)
    assert running.one.end()["tokens"] == expected["tokens"]
    assert running.other.end()["tokens"] == expected["tokens"]


def test_an_engine_killed_while_it_stores_leaves_right_blocks(running: Trio) -> None:
    """The last test: there is no first engine after it."""
    prompts = [prompt_of(900, 70 + i) for i in range(4)]
    expected = running.plain.generate(*prompts)
    running.one.begin(*prompts, max_tokens=300)
    time.sleep(1)
    running.one.kill()
    assert running.other.generate(*prompts)["tokens"] == expected["tokens"]


@pytest.mark.parametrize(("kind", "block_size"), [("gemma3", 32), ("deepseek", 16)])
def test_other_models_are_shared_too(kind: str, block_size: int, own_node: Node, tmp_path: Path) -> None:
    """Sliding windows beside full attention, and MLA, where vLLM's own hit gives other tokens than no hit does."""
    model = tiny.make(kind, tmp_path)
    pair = [Engine(model, own_node.endpoint, tmp_path / f"{i}.log", block_size=block_size) for i in range(2)]
    prompt = prompt_of(1500, 8)
    cold = pair[0].generate(prompt)
    local = pair[0].generate(prompt)
    hit = 1499 // block_size * block_size
    assert cold["cached"] == [0] and local["cached"] == [hit]
    assert len(set(cold["tokens"][0])) > 4
    assert same(until_cached(pair[1], prompt, hit, cold, local), local)
    for each in pair:
        each.close()
