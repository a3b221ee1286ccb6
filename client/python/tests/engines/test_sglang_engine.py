"""Real SGLang engines with a small model, and a real node that is killed, stopped and restarted under them.

Engines are compared with one without a store: cold with cold, a hit from the store with a hit in the engine's own cache. Both are the same
computation, so tokens and log-probabilities are equal to the last bit.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang")

import sglang_cpu
import tiny
from conftest import Node, free_port
from proxy import PUT_DATA, SET_GET, Proxy

import kvstore

PAGE = 32


def hicache(endpoint: str, layout: str, interface_v1: int, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "enable_hierarchical_cache": True,
        "hicache_ratio": 2.0,
        "hicache_write_policy": "write_through",
        "hicache_io_backend": "direct",
        "hicache_mem_layout": layout,
        "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_storage_backend": "dynamic",
        "hicache_storage_backend_extra_config": json.dumps(
            {
                "backend_name": "kvstore",
                "module_path": "kvstore.sglang",
                "class_name": "KVStoreHiCache",
                "interface_v1": interface_v1,
                "prefetch_threshold": PAGE,
                "endpoints": endpoint,
                # A busy machine must not look like an absent store.
                "lookup_timeout": 5.0,
                "load_timeout": 5.0,
                "staging_bytes": 64 << 20,
            }
            | options
        ),
    }


class Engine:
    def __init__(
        self,
        model: Path,
        endpoint: str | None,
        log: Path,
        environment: dict[str, str],
        layout: str = "page_first_direct",
        interface_v1: int = 1,
        options: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        arguments["model_path"] = str(model)
        if endpoint is not None:
            arguments |= hicache(endpoint, layout, interface_v1, options or {})
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("engine_sglang.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
                # With several threads, sums are split differently from run to run, which changes near ties.
                env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
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
            assert answer == {"ready": True}, (answer, self.log.read_text(errors="replace")[-4000:])
            self._is_ready = True

    def begin(self, *prompts: list[int], max_tokens: int = 16) -> None:
        self.wait_ready()
        self._write({"generate": list(prompts), "max_tokens": max_tokens})

    def end(self) -> Any:
        return self._read()

    def generate(self, *prompts: list[int], max_tokens: int = 16) -> Any:
        self.begin(*prompts, max_tokens=max_tokens)
        return self.end()

    def flush(self) -> None:
        self.wait_ready()
        self._write({"flush": True})
        assert self._read() == {"flush": True}

    def tell(self, what: dict[str, Any]) -> None:
        self.wait_ready()
        self._write(what)
        answer = self._read()
        assert answer == dict.fromkeys(what, True), answer

    def begin_close(self) -> None:
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.close()

    def close(self) -> None:
        self.begin_close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def prompt_of(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=count)


def same(one: Any, other: Any) -> bool:
    return bool(one["tokens"] == other["tokens"] and one["logprobs"] == other["logprobs"])


class House:
    """``plain`` has no store. ``one`` has pages in its host pool and a direct connection; ``other`` has layers and uses a proxy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = tiny.make("llama", folder)
        port = free_port()
        self.node = Node("--listen", f"tcp://127.0.0.1:{port}")
        self.proxy = Proxy(("127.0.0.1", port))
        self.node.kill()  # engines start without it
        self.environment = sglang_cpu.environment(folder / "plugin")
        self.plain = self.engine("plain", None)
        self.one = self.engine("one", self.node.endpoint)
        self.other = self.engine("other", self.proxy.endpoint, layout="layer_first")
        for each in (self.plain, self.one, self.other):
            each.wait_ready()
        self.node.start()

    def engine(self, name: str, endpoint: str | None, **more: Any) -> Engine:
        environment = self.environment | more.pop("environment", {})
        return Engine(self.model, endpoint, self.folder / f"{name}.log", environment, **more)

    def stored_blocks(self) -> int:
        with kvstore.Client(self.node.endpoint, deadline=30) as client:
            (node,) = client.stats()
        assert node["error"] is None, node
        return int(node["values"]["stored_blocks"])

    def store(self, engine: Engine, prompt: list[int], expected: Any) -> None:
        """Has the engine compute the prompt until all its whole pages are stored: it may have begun without the node. After a hit of
        another length the computation differs: the same tokens, nearly the same sums.
        """
        wanted = self.stored_blocks() + len(prompt) // PAGE
        until = time.monotonic() + 120
        while self.stored_blocks() < wanted:
            assert time.monotonic() < until
            engine.flush()
            answer = engine.generate(prompt)
            assert answer["tokens"] == expected["tokens"]
            pause = time.monotonic() + 5
            while self.stored_blocks() < wanted and time.monotonic() < pause:
                time.sleep(0.02)

    def load(self, engine: Engine, prompt: list[int], expected: Any) -> Any:
        """Has the engine answer until the hit from the store is complete."""
        until = time.monotonic() + 60
        while True:
            engine.flush()
            answer = engine.generate(prompt)
            assert answer["tokens"] == expected["tokens"]
            if answer["stored"] == [(len(prompt) - 1) // PAGE * PAGE]:
                return answer
            assert time.monotonic() < until, answer
            time.sleep(0.5)

    def close(self) -> None:
        for each in (self.plain, self.one, self.other):
            each.begin_close()
        for each in (self.plain, self.one, self.other):
            each.close()
        self.proxy.close()
        self.node.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("sglang"))
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


def expected_of(house: House, prompt: list[int]) -> tuple[Any, Any]:
    """Cold, and after a hit in the engine's own cache."""
    house.plain.flush()
    return house.plain.generate(prompt), house.plain.generate(prompt)


def test_a_second_process_of_another_host_layout_computes_only_what_is_new(running: House) -> None:
    """Both engines began without a store."""
    prompt = prompt_of(1500, 1)
    cold, local = expected_of(running, prompt)
    assert cold["cached"] == [0] and local["cached"] == [46 * PAGE]
    assert len(set(cold["tokens"][0])) > 4
    running.store(running.one, prompt, cold)
    assert same(running.load(running.other, prompt, cold), local)
    other = prompt_of(1000, 2)
    cold, local = expected_of(running, other)
    running.store(running.other, other, cold)
    assert same(running.load(running.one, other, cold), local)


def test_a_conversation_goes_on_in_another_process(running: House) -> None:
    talk = prompt_of(300, 3)
    engines = (running.one, running.other)
    for turn in range(4):
        cold, _ = expected_of(running, talk)
        engines[turn % 2].flush()
        assert engines[turn % 2].generate(talk)["tokens"] == cold["tokens"], turn
        running.load(engines[(turn + 1) % 2], talk, cold)
        talk = talk + cold["tokens"][0] + prompt_of(50, 20 + turn)


def test_a_killed_node_costs_a_recompute_and_a_restarted_one_is_used(running: House) -> None:
    prompt = prompt_of(1000, 4)
    cold, local = expected_of(running, prompt)
    running.store(running.one, prompt, cold)
    assert same(running.load(running.other, prompt, cold), local)
    running.node.kill()
    running.other.flush()
    lost = running.other.generate(prompt)
    assert same(lost, cold) and lost["stored"] == [0]
    running.node.start()  # empty
    running.store(running.one, prompt, cold)
    assert same(running.load(running.other, prompt, cold), local)


def test_a_node_killed_between_lookup_and_load_or_in_the_middle_of_it_costs_a_recompute(running: House) -> None:
    for seed, more in ((5, {}), (6, {"response": True, "middle": True})):
        prompt = prompt_of(1000, seed)
        cold, local = expected_of(running, prompt)
        running.store(running.one, prompt, cold)
        assert same(running.load(running.other, prompt, cold), local)
        running.other.flush()
        killed = running.proxy.trap(SET_GET, running.node.kill, **more)
        assert running.other.generate(prompt)["tokens"] == cold["tokens"]
        assert killed.wait(10)
        running.node.start()


def test_a_stopped_node_costs_the_timeouts_and_changes_nothing(running: House) -> None:
    prompt = prompt_of(1000, 7)
    cold, local = expected_of(running, prompt)
    running.store(running.one, prompt, cold)
    assert same(running.load(running.other, prompt, cold), local)
    running.node.pause()
    for engine in (running.one, running.other):
        engine.flush()
        answer = engine.generate(prompt)
        assert same(answer, cold) and answer["stored"] == [0]
        assert answer["seconds"] < 30
    running.node.resume()


def test_a_node_stopped_between_lookup_and_load_costs_a_recompute(running: House) -> None:
    prompt = prompt_of(1000, 8)
    cold, local = expected_of(running, prompt)
    running.store(running.one, prompt, cold)
    assert same(running.load(running.other, prompt, cold), local)
    running.other.flush()
    stopped = running.proxy.trap(SET_GET, running.node.pause)
    assert running.other.generate(prompt)["tokens"] == cold["tokens"]
    assert stopped.wait(10)
    running.node.resume()
    assert same(running.load(running.other, prompt, cold), local)


def test_wrong_bytes_on_the_way_are_never_used(running: House) -> None:
    """From the node: the load fails. To the node: the page is refused, and another engine misses it."""
    prompt, new = prompt_of(1000, 9), prompt_of(1000, 10)
    cold, local = expected_of(running, prompt)
    running.store(running.one, prompt, cold)
    assert same(running.load(running.other, prompt, cold), local)
    running.other.flush()
    running.proxy.flips = True
    assert running.other.generate(prompt)["tokens"] == cold["tokens"]
    loaded = running.proxy.flipped
    assert loaded > 0
    cold = running.plain.generate(new)
    put = running.proxy.seen[PUT_DATA, False]
    assert same(running.other.generate(new), cold)
    until = time.monotonic() + 20
    while running.proxy.flipped == loaded and running.proxy.seen[PUT_DATA, False] == put:
        assert time.monotonic() < until
        time.sleep(0.01)
    running.proxy.flips = False
    running.one.flush()
    assert running.one.generate(new)["tokens"] == cold["tokens"]


def test_a_store_that_is_full_gives_what_it_still_has(running: House) -> None:
    capacity = running.node.arguments.index("--capacity") + 1
    was, running.node.arguments[capacity] = running.node.arguments[capacity], "16MiB"
    prompts = [prompt_of(1000, 80 + i) for i in range(6)]  # 4 MB each
    running.node.kill()
    running.node.start()
    try:
        answers = [expected_of(running, prompt) for prompt in prompts]
        for prompt, (cold, _) in zip(prompts, answers, strict=True):
            running.one.flush()
            assert running.one.generate(prompt)["tokens"] == cold["tokens"]
            time.sleep(1)  # a flush drops pages that wait to be stored
        stored = []
        for prompt, (cold, _) in zip(prompts, answers, strict=True):
            running.other.flush()
            answer = running.other.generate(prompt)
            assert answer["tokens"] == cold["tokens"]
            stored += answer["stored"]
        assert min(stored) < 31 * PAGE
    finally:
        running.node.arguments[capacity] = was
        running.node.kill()
        running.node.start()


def test_many_requests_at_once_share_a_prefix_and_agree(running: House) -> None:
    root = prompt_of(600, 11)
    prompts = [root + prompt_of(100, 60 + i) for i in range(8)]
    expected = running.plain.generate(*prompts)["tokens"]
    for _ in range(2):  # computed and stored; then partly loaded
        running.one.begin(*prompts)
        running.other.begin(*prompts)
        assert running.one.end()["tokens"] == expected
        assert running.other.end()["tokens"] == expected
        time.sleep(1)
        running.one.flush()
        running.other.flush()


def test_the_copying_interface_and_sglangs_own_failures_change_nothing(running: House) -> None:
    """An engine without ``interface_v1`` shares pages with those that have it; then SGLang's own injector fails a third of the calls."""
    prompt = prompt_of(1000, 12)
    cold, local = expected_of(running, prompt)
    running.store(running.one, prompt, cold)
    copying = running.engine("copying", running.node.endpoint, interface_v1=0)
    assert same(running.load(copying, prompt, cold), local)
    new = prompt_of(1000, 13)
    cold, local = expected_of(running, new)
    running.store(copying, new, cold)
    assert same(running.load(running.other, new, cold), local)
    copying.close()
    failing = running.engine(
        "failing",
        running.node.endpoint,
        environment={"SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.3"},
    )
    stored = 0
    for _ in range(12):
        failing.flush()
        answer = failing.generate(new)
        assert answer["tokens"] == cold["tokens"]
        stored += answer["stored"][0]
    assert stored > 0
    failing.close()


def test_engines_of_other_tensor_parallel_sizes_share_pages(running: House) -> None:
    """Two ranks store, one loads. Ranks add their parts in another order, so page bytes are not compared, but the loaded pages are those
    two ranks computed: an answer after them is that of two ranks, or nearly.
    """
    prompt = prompt_of(1000, 14)
    two = running.engine(
        "two",
        running.node.endpoint,
        options={"head_groups": 2},
        tp_size=2,
        environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
    )
    was = running.stored_blocks()
    cold = two.generate(prompt)
    until = time.monotonic() + 30
    while running.stored_blocks() < was + 2 * 31:
        assert time.monotonic() < until
        time.sleep(0.05)
    two.flush()
    warm = two.generate(prompt)
    assert warm["stored"] == [31 * PAGE] and warm["tokens"] == cold["tokens"]
    two.close()
    single = running.engine("single", running.node.endpoint, options={"head_groups": 2}, layout="layer_first")
    answer = single.generate(prompt)
    assert answer["stored"] == [31 * PAGE]
    alone = running.plain.generate(prompt)
    assert answer["tokens"][0][0] == alone["tokens"][0][0]
    assert abs(answer["logprobs"][0][0] - alone["logprobs"][0][0]) < 0.5
    single.close()


def test_no_file_of_ours_is_in_shared_memory(running: House) -> None:
    """SGLang has files of its own there."""
    seen = 0
    for each in (running.one, running.other):
        for process in os.listdir("/proc"):
            if process.isdigit() and int(process) != each.process.pid and is_of(int(process), each.process.pid):
                assert not [name for name in sglang_cpu.shared_files(int(process)) if "kv" in name.lower()]
                seen += 1
    assert seen > 0


def is_of(process: int, session: int) -> bool:
    try:
        return os.getsid(process) == session
    except OSError:
        return False
