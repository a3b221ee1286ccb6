"""Real vLLM engines with small models, and a real node that is killed, stopped and restarted under them.

Engines are compared with one without a store: cold with cold, a hit from the store with a hit in the engine's own cache. Both are the same
computation, so tokens and log-probabilities are equal to the last bit.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import tiny
import torch
import vllm
from conftest import Node, free_port
from proxy import PUT_DATA, SET_GET, Proxy

import kvstore

BLOCK = 32
START_SECONDS = 400


def connector(endpoint: str, **options: Any) -> dict[str, Any]:
    return {
        "kv_connector": "KVStoreConnector",
        "kv_connector_module_path": "kvstore.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        # A busy machine must not look like an absent store.
        "kv_connector_extra_config": {
            "endpoints": endpoint,
            "lookup_timeout": 2.0,
            "load_timeout": 5.0,
            "compute_cheap_hits": False,
            # Touched at the start, and many engines run at once.
            "staging_bytes": 128 << 20,
        }
        | options,
    }


class Engine:
    def __init__(
        self,
        model: Path,
        endpoint: str | None,
        log: Path,
        options: dict[str, Any] | None = None,
        beside: dict[str, Any] | None = None,
        threads: int = 1,
        in_process: bool = False,
        env: dict[str, str] | None = None,
        **arguments: Any,
    ) -> None:
        """``in_process``: the whole engine is in one process, and can report its pages' content."""
        arguments["model"] = str(model)
        if endpoint is not None:
            arguments["kv_transfer_config"] = connector(endpoint, **(options or {}))
        if beside is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"connectors": [beside, arguments["kv_transfer_config"]]},
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
                # With several threads, sums are split differently from run to run, which changes near ties.
                env=os.environ
                | {
                    "VLLM_LOGGING_LEVEL": "WARNING",
                    "OMP_NUM_THREADS": str(threads),
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                    "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not in_process)),
                }
                | (env or {}),
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
            answer = self._read()
            assert answer == {"ready": True}, answer
            self._is_ready = True

    def begin(self, *prompts: list[int], **more: Any) -> None:
        self.wait_ready()
        self._write({"generate": prompts} | more)

    def end(self) -> Any:
        return self._read()

    def generate(self, *prompts: list[int], **more: Any) -> Any:
        self.begin(*prompts, **more)
        return self.end()

    def reset(self, connector: bool = False) -> None:
        """``connector``: as if the weights might have changed."""
        self.wait_ready()
        self._write({"reset": True, "connector": connector})
        assert self._read() == {"reset": True}

    def scale(self, factor: float) -> None:
        """Changes weights in place, in an engine of one process."""
        self.wait_ready()
        self._write({"scale": factor})
        assert self._read() == {"scaled": True}

    def metrics(self, prefix: str) -> dict[str, float]:
        self.wait_ready()
        self._write({"metrics": prefix})
        return dict(self._read())

    def pages(self, prompt: list[int]) -> Any:
        """For each block and cache group, a digest of its bytes, or None. Only for an engine of one process."""
        self.wait_ready()
        self._write({"pages": prompt})
        return self._read()

    def kill(self) -> None:
        """Kills the engine's session, with all its processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()

    def begin_close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        self.begin_close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


def prompt_of(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1024), k=count)


def same(one: Any, other: Any) -> bool:
    return bool(one["tokens"] == other["tokens"] and one["logprobs"] == other["logprobs"])


def until_cached(engine: Engine, prompt: list[int], tokens: int, *expected: Any, **more: Any) -> Any:
    """Asks until the store's blocks are used; every answer has one of the expected token lists."""
    until = time.monotonic() + 300
    while True:
        engine.reset()
        answer = engine.generate(prompt, **more)
        assert answer["tokens"] in [each["tokens"] for each in expected]
        if answer["cached"] == [tokens]:
            return answer
        assert time.monotonic() < until, answer["cached"]
        time.sleep(0.2)


class House:
    """Engines that share a node, all started while it was away.

    ``plain`` has no store. ``one`` reaches the node by its Unix socket, ``other`` by TCP through a proxy. ``tight`` has so few pages that
    it has to preempt, and so little lent memory that saves and loads take several steps. ``beside`` has another connector too, which is
    asked first and keeps files in ``beside_folder``.
    """

    def __init__(self, folder: Path) -> None:
        model = tiny.make("llama", folder)
        port = free_port()
        self.node = Node("--listen", f"tcp://127.0.0.1:{port}")
        self.node.kill()
        self.proxy = Proxy(("127.0.0.1", port))

        def engine(name: str, endpoint: str | None, **more: Any) -> Engine:
            # In bfloat16 a request recomputed after a preemption could flip near ties.
            return Engine(
                model, endpoint, folder / f"{name}.log", dtype="float32", **{"num_gpu_blocks_override": 2000} | more
            )

        self.plain = engine("plain", None, in_process=True)
        self.one = engine("one", self.node.endpoint)
        self.other = engine("other", self.proxy.endpoint)
        self.tight = engine(
            "tight", self.node.endpoint, options={"staging_bytes": 4 << 20}, num_gpu_blocks_override=140
        )
        self.beside_folder = folder / "beside"
        example = {"shared_storage_path": str(self.beside_folder)}
        self.beside = engine(
            "beside",
            self.node.endpoint,
            beside={"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": example},
        )
        self.all = (self.plain, self.one, self.other, self.tight, self.beside)
        for each in self.all:
            each.wait_ready()
        self.node.start()

    def stored(self, prompt: list[int]) -> Any:
        """The plain engine's answer, after ``one`` has stored the prompt and ``other`` has loaded and dropped it."""
        expected = self.plain.generate(prompt)
        self.one.generate(prompt)
        until_cached(self.other, prompt, (len(prompt) - 1) // BLOCK * BLOCK, expected)
        self.other.reset()
        return expected

    def stored_blocks(self) -> int:
        """Blocks stored since the node began."""
        with kvstore.Client(self.node.endpoint, deadline=30) as client:
            (node,) = client.stats()
        assert node["error"] is None, node
        return int(node["values"]["stored_blocks"])

    def close(self) -> None:
        for each in self.all:
            each.begin_close()
        for each in self.all:
            each.close()
        self.proxy.close()
        self.node.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("engines"))
    yield made
    made.close()


@pytest.fixture
def running(house: House) -> Iterator[House]:
    """Restores the node after each test."""
    yield house
    house.proxy.reset()
    house.node.resume()
    if house.node.process.poll() is not None:
        house.node.start()


def test_a_second_process_computes_only_what_is_new(running: House) -> None:
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


def test_a_conversation_goes_on_in_another_process(running: House) -> None:
    talk = prompt_of(300, 2)
    blocks = 0
    for turn in range(5):
        engine = (running.one, running.other)[turn % 2]
        was = running.stored_blocks()
        expected = running.plain.generate(talk, max_tokens=64)
        answer = engine.generate(talk, max_tokens=64)
        assert same(answer, expected), turn
        assert turn == 0 or answer["cached"] == expected["cached"], turn
        # The last generated block is stored after the answer. Its last token is not computed.
        new, blocks = (len(talk) + 63) // BLOCK - blocks, (len(talk) + 63) // BLOCK
        until = time.monotonic() + 60
        while running.stored_blocks() < was + new:
            assert time.monotonic() < until, turn
            time.sleep(0.02)
        talk = talk + answer["tokens"][0] + prompt_of(50, 20 + turn)


def test_vllms_metrics_tell_of_the_store(running: House) -> None:
    prompt = prompt_of(500, 9)
    expected = running.stored(prompt)
    was = running.other.metrics("vllm:kvstore")
    assert running.other.generate(prompt)["cached"] == [15 * BLOCK]
    now = running.other.metrics("vllm:")
    for name, change in {"lookups": 1, "loads": 1, "hit_tokens": 15 * BLOCK, "loaded_tokens": 15 * BLOCK}.items():
        assert now[f"vllm:kvstore_{name}"] - was[f"vllm:kvstore_{name}"] == change, name
    assert now["vllm:kvstore_loaded_bytes"] - was["vllm:kvstore_loaded_bytes"] == 15 * (128 << 10)
    assert running.one.metrics("vllm:kvstore")["vllm:kvstore_saved_tokens"] >= 15 * BLOCK
    assert now["vllm:kvstore_paused,calls=lookups"] == 0
    running.node.kill()
    for i in range(5):
        running.other.generate(prompt_of(100, 900 + i), max_tokens=2)
    assert running.other.metrics("vllm:kvstore")["vllm:kvstore_paused,calls=lookups"] == 1
    assert running.other.generate(prompt)["tokens"] == expected["tokens"]


def test_a_killed_node_costs_a_recompute_and_a_restarted_one_is_used(running: House) -> None:
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


def test_a_node_killed_between_lookup_and_load_costs_a_recompute(running: House) -> None:
    prompt = prompt_of(1000, 31)
    expected = running.stored(prompt)
    killed = running.proxy.trap(SET_GET, running.node.kill)
    assert running.other.generate(prompt)["tokens"] == expected["tokens"]
    assert killed.wait(10)


def test_a_node_killed_in_the_middle_of_a_load_costs_a_recompute(running: House) -> None:
    prompt = prompt_of(1000, 32)
    expected = running.stored(prompt)
    killed = running.proxy.trap(SET_GET, running.node.kill, response=True, middle=True)
    assert running.other.generate(prompt)["tokens"] == expected["tokens"]
    assert killed.wait(10)


def test_a_node_stopped_between_lookup_and_load_costs_a_recompute(running: House) -> None:
    prompt = prompt_of(1000, 33)
    expected = running.stored(prompt)
    stopped = running.proxy.trap(SET_GET, running.node.pause)
    assert running.other.generate(prompt)["tokens"] == expected["tokens"]
    assert stopped.wait(10)


def test_a_node_killed_while_blocks_are_stored_changes_nothing(running: House) -> None:
    prompts = [prompt_of(700, 40 + i) for i in range(4)]
    expected = running.plain.generate(*prompts, max_tokens=100)
    killed = running.proxy.trap(PUT_DATA, running.node.kill, middle=True)
    assert running.other.generate(*prompts, max_tokens=100)["tokens"] == expected["tokens"]
    assert killed.wait(10)


def test_wrong_bytes_on_the_way_are_never_used(running: House) -> None:
    """From the node: the load fails. To the node: the block is refused, and another engine misses it."""
    prompt, new = prompt_of(1000, 34), prompt_of(1000, 35)
    expected = running.stored(prompt), running.plain.generate(new)
    running.proxy.flips = True
    assert running.other.generate(prompt)["tokens"] == expected[0]["tokens"]
    loaded = running.proxy.flipped
    assert loaded > 0
    assert running.other.generate(new)["tokens"] == expected[1]["tokens"]
    until = time.monotonic() + 20
    while running.proxy.flipped == loaded:
        assert time.monotonic() < until
        time.sleep(0.01)
    running.proxy.flips = False
    running.one.reset()
    assert running.one.generate(new)["tokens"] == expected[1]["tokens"]


def test_a_slow_node_is_waited_for_and_used(running: House) -> None:
    prompt = prompt_of(1000, 36)
    expected = running.stored(prompt)
    running.proxy.delay = 0.1
    answer = running.other.generate(prompt)
    assert answer["tokens"] == expected["tokens"] and answer["cached"] == [31 * BLOCK]


def test_a_store_that_is_full_gives_what_it_still_has(running: House) -> None:
    capacity = running.node.arguments.index("--capacity") + 1
    was, running.node.arguments[capacity] = running.node.arguments[capacity], "16MiB"
    prompts = [prompt_of(1000, 80 + i) for i in range(8)]  # 4 MB each
    expected = [running.plain.generate(prompt) for prompt in prompts]
    running.node.kill()
    running.node.start()
    try:
        cached = []
        for prompt, answer in zip(prompts, expected, strict=True):
            assert running.one.generate(prompt)["tokens"] == answer["tokens"]
        until_cached(running.other, prompts[-1], 31 * BLOCK, expected[-1])
        for prompt, answer in zip(prompts, expected, strict=True):
            running.other.reset()
            got = running.other.generate(prompt)
            assert got["tokens"] == answer["tokens"]
            cached += got["cached"]
        assert min(cached) == 0
    finally:
        running.node.arguments[capacity] = was
        running.node.kill()
        running.node.start()


def test_preemption_while_blocks_are_stored_and_loaded_changes_no_token(running: House) -> None:
    prompts = [prompt_of(700, 90 + i) for i in range(6)]
    expected = running.plain.generate(*prompts, max_tokens=200)
    for _ in range(2):  # computed and stored; then partly loaded
        assert running.tight.generate(*prompts, max_tokens=200)["tokens"] == expected["tokens"]
        running.tight.reset()
    assert sum(running.tight.metrics("vllm:num_preemptions").values()) > 0
    found = 0
    for prompt, tokens in zip(prompts, expected["tokens"], strict=True):
        answer = running.one.generate(prompt, max_tokens=200)
        assert answer["tokens"] == [tokens]
        found += answer["cached"][0]
    assert found > 0


def test_a_stopped_node_changes_nothing(running: House) -> None:
    prompt = prompt_of(800, 5)
    expected = running.plain.generate(prompt)
    running.node.pause()
    assert same(running.one.generate(prompt), expected)
    running.node.resume()


def test_two_engines_that_store_one_prefix_at_once_agree(running: House) -> None:
    root = prompt_of(600, 6)
    prompts = [root + prompt_of(100, 60 + i) for i in range(4)]
    expected = running.plain.generate(*prompts, max_tokens=40)
    running.one.begin(*prompts, max_tokens=40)
    running.other.begin(*prompts, max_tokens=40)
    assert running.one.end()["tokens"] == expected["tokens"]
    assert running.other.end()["tokens"] == expected["tokens"]


def test_beside_another_connector_both_store_and_the_first_that_has_it_loads(running: House) -> None:
    prompt = prompt_of(1000, 37)
    cold = running.plain.generate(prompt)
    local = running.plain.generate(prompt)
    assert same(running.beside.generate(prompt), cold)
    assert any(running.beside_folder.rglob("*.safetensors"))
    until_cached(running.other, prompt, 31 * BLOCK, cold)
    loads = "vllm:kvstore_loads"
    for count, gone in ((0, False), (1, True)):
        if gone:
            shutil.rmtree(running.beside_folder)
        was = running.beside.metrics(loads)[loads]
        running.beside.reset()
        warm = running.beside.generate(prompt)
        assert same(warm, local) and warm["cached"] == [31 * BLOCK]
        assert running.beside.metrics(loads)[loads] - was == count


def test_an_engine_killed_while_it_stores_leaves_right_blocks(running: House) -> None:
    """The last test of the house: it kills an engine."""
    prompts = [prompt_of(900, 70 + i) for i in range(4)]
    expected = running.plain.generate(*prompts)
    killed = running.proxy.trap(PUT_DATA, running.other.kill, middle=True)
    running.other.begin(*prompts, max_tokens=300)
    assert killed.wait(60)
    assert running.one.generate(*prompts)["tokens"] == expected["tokens"]


HAS_AMX = torch.cpu._is_amx_tile_supported()
#: Block size of vLLM's MLA kernels for this CPU.
MLA_BLOCK = 32 if HAS_AMX else 16


@pytest.mark.parametrize(
    ("kind", "more"), [("gemma3", {}), ("deepseek", {"block_size": MLA_BLOCK, "force_prefix_caching": True})]
)
def test_other_models_are_shared_too(kind: str, more: dict[str, Any], own_node: Node, tmp_path: Path) -> None:
    """Windows beside full attention, and MLA: vLLM's CPU kernels differ slightly after a hit, equally for own and stored hits."""
    model = tiny.make(kind, tmp_path)
    endpoints = [own_node.endpoint, own_node.endpoint, None]
    one, other, plain = (
        Engine(model, each, tmp_path / f"{i}.log", in_process=each is None, **more) for i, each in enumerate(endpoints)
    )
    prompt = prompt_of(1500, 8)
    cold = one.generate(prompt)
    assert same(cold, plain.generate(prompt))
    local = plain.generate(prompt)
    hit = 1499 // more.get("block_size", BLOCK) * more.get("block_size", BLOCK)
    assert cold["cached"] == [0] and local["cached"] == [hit]
    assert len(set(cold["tokens"][0])) > 4
    assert same(until_cached(other, prompt, hit, cold, local), local)
    for each in (one, other, plain):
        each.close()


@pytest.mark.skipif(vllm.__version_tuple__[:2] < (0, 32), reason="draft models are served from 0.32 on")
def test_what_a_draft_model_keeps_is_loaded_with_the_rest(own_node: Node, tmp_path: Path) -> None:
    """The draft has the model's own weights, so all its tokens are accepted; without its part of the blocks its guesses would be random."""
    model, other = tiny.make("llama", tmp_path), tiny.make("llama", tmp_path, seed=2)
    prompt = prompt_of(1000, 12)

    def engine(name: str, endpoint: str | None, draft: Path = model) -> Engine:
        speculative = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3}
        log = tmp_path / f"{name}.log"
        return Engine(
            model, endpoint, log, dtype="float32", in_process=True, speculative_config=speculative, max_num_seqs=2
        )

    plain = engine("plain", None)
    cold = plain.generate(prompt)
    pages = plain.pages(prompt)
    plain.close()
    first = engine("first", own_node.endpoint)
    assert same(first.generate(prompt), cold)
    first.generate(prompt_of(10, 13))
    first.close()
    second = engine("second", own_node.endpoint)
    warm = until_cached(second, prompt, 31 * BLOCK, cold)
    assert second.pages(prompt) == pages
    was = second.metrics("vllm:spec_decode")
    second.reset()
    warm = second.generate(prompt)
    assert warm["tokens"] == cold["tokens"] and warm["cached"] == [31 * BLOCK]
    now = second.metrics("vllm:spec_decode")
    drafted, accepted = (
        now[name] - was[name] for name in ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")
    )
    assert accepted == drafted >= 9
    second.close()
    # Another draft keeps other blocks, so it misses the first one's.
    third = engine("third", own_node.endpoint, other)
    assert third.generate(prompt)["cached"] == [0]
    third.close()


@pytest.mark.skipif(HAS_AMX, reason="vLLM's MLA kernels take hits on this machine's CPU")
def test_mla_is_refused_where_its_kernels_are_wrong_after_a_hit(own_node: Node, tmp_path: Path) -> None:
    model = tiny.make("deepseek", tmp_path)
    engine = Engine(model, own_node.endpoint, tmp_path / "log", block_size=MLA_BLOCK)
    with pytest.raises(AssertionError, match="error"):
        engine.wait_ready()
    assert "enable_prefix_caching: it is off" in (tmp_path / "log").read_text()
    engine.close()
