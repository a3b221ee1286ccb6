"""The connector with vLLM's own scheduler and block pool, a real node, and arithmetic in place of a model (synthetic.py)."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import scheduled
import vllm
from conftest import Node
from scheduled import BOTH, prompt_of, settle
from synthetic import BLOCK, HAS_SOURCES
from vllm.v1.request import RequestStatus

import kvstore
from kvstore.vllm.compat import CacheHitSource
from kvstore.vllm.messages import Step

engines, model = scheduled.engines, scheduled.model  # fixtures
ON_DISK = 2
SHAPES = pytest.mark.parametrize(
    "shape",
    [{}, {"windows": True}, {"windows": True, "states": True}, {"states": True, "hash_tokens": 8}],
    ids=["full", "windows", "states", "tails"],
)


def fill(client: kvstore.Client, blocks: int) -> None:
    """Stores so many other blocks, of a synthetic engine's size."""
    space = client.open_set(kvstore.Namespace({"kind": "set", "model": "filler", "block_bytes_max": 4096}))
    names = [random.randbytes(32) for _ in range(blocks)]
    assert space.put(names, np.ones((blocks, 4096), np.uint8)).stored == blocks


def wait_for_disk(client: kvstore.Client) -> None:
    """A node serves before its disk is open, and until then loses the blocks it evicts."""
    probes = client.open_set(kvstore.Namespace({"kind": "set", "model": "probe", "block_bytes_max": 4096}))
    until = time.monotonic() + 60
    while True:
        probe = random.randbytes(32)
        assert probes.put([probe], np.ones((1, 4096), np.uint8)).stored == 1
        for _ in range(4):
            fill(client, 600)
        if probes.match([probe]).held[0] == ON_DISK:
            return
        assert time.monotonic() < until
        time.sleep(0.05)


# -- loads equal saves


@BOTH
def test_another_engine_computes_only_what_is_new(engines: Any, own_node: Node, windows: bool) -> None:
    prompt = prompt_of(700, 1)
    (expected,) = engines(None, windows=windows).generate(prompt, max_tokens=80)
    first = engines(own_node.endpoint, windows=windows)
    assert first.generate(prompt, max_tokens=80) == [expected]
    assert first.last_cached() == 0
    settle(first, 24)
    second = engines(own_node.endpoint, windows=windows)
    assert second.generate(prompt, max_tokens=80) == [expected]
    assert second.last_cached() == 21 * BLOCK
    # The next turn: the first engine's generated blocks are there too.
    turn = prompt + expected + prompt_of(40, 2)
    third = engines(own_node.endpoint, windows=windows)
    (answer,) = third.generate(turn)
    assert third.last_cached() == 24 * BLOCK
    assert [answer] == engines(None, windows=windows).generate(turn)


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK - 1, 4 * BLOCK, 4 * BLOCK + 1])
def test_the_last_token_is_computed(engines: Any, own_node: Node, length: int) -> None:
    prompt = prompt_of(length, length)
    first = engines(own_node.endpoint)
    expected = first.generate(prompt, max_tokens=2)
    if length >= BLOCK:
        settle(first, length // BLOCK)
    second = engines(own_node.endpoint)
    assert second.generate(prompt, max_tokens=2) == expected
    assert second.last_cached() == (length - 1) // BLOCK * BLOCK


def test_a_finished_requests_last_block_is_stored(engines: Any, own_node: Node) -> None:
    """The last token completes its hash, so the save outlives the request."""
    engine = engines(own_node.endpoint)
    engine.generate(prompt_of(BLOCK, 3), max_tokens=BLOCK + 1)
    settle(engine, 2)
    assert engine.side.counters["saved_blocks"] == 2


def test_each_block_is_stored_once(engines: Any, own_node: Node) -> None:
    engine = engines(own_node.endpoint)
    prompt = prompt_of(20 * BLOCK, 4)
    engine.generate(prompt, max_tokens=3 * BLOCK)
    settle(engine, 22)
    assert engine.side.counters["saved_blocks"] == 22
    # Recomputed blocks are offered again, and only those.
    engine.generate(prompt, max_tokens=3 * BLOCK)
    assert engine.side.counters["saved_blocks"] == 22 + 3


def test_generated_tokens_are_not_stored_if_so_asked(engines: Any, own_node: Node) -> None:
    engine = engines(own_node.endpoint, options={"save_decode": False})
    engine.generate(prompt_of(3 * BLOCK, 5), max_tokens=3 * BLOCK)
    settle(engine, 3)
    assert engine.side.counters["saved_blocks"] == 3


def test_salts_never_share(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(10 * BLOCK, 6)
    first = engines(own_node.endpoint)
    first.generate(prompt, cache_salt="a")
    settle(first, 10)
    second = engines(own_node.endpoint)
    second.generate(prompt, cache_salt="b")
    assert second.last_cached() == 0
    second.generate(prompt)
    assert second.last_cached() == 0
    third = engines(own_node.endpoint)
    third.generate(prompt, cache_salt="a")
    assert third.last_cached() == 9 * BLOCK


# -- what is used


@pytest.mark.parametrize(("said", "passed_on"), [("never", "never"), (30, 30), ("soon", None), (None, None)])
def test_what_a_request_says_of_its_future_goes_with_its_lookup_and_its_blocks(
    engines: Any, own_node: Node, monkeypatch: pytest.MonkeyPatch, said: Any, passed_on: Any
) -> None:
    told: dict[str, list[Any]] = {"submit_match": [], "submit_put": []}

    def listen(name: str) -> None:
        call = getattr(kvstore.SetSpace, name)

        def told_and_called(*given: Any, **more: Any) -> Any:
            told[name].append(more["reuse"])
            return call(*given, **more)

        monkeypatch.setattr(kvstore.SetSpace, name, told_and_called)

    for name in told:
        listen(name)
    engine = engines(own_node.endpoint)
    engine.generate(prompt_of(10 * BLOCK, 61), params={"reuse": said})
    settle(engine, 10)
    assert set(told["submit_match"]) == set(told["submit_put"]) == {passed_on}


def test_what_the_engine_has_itself_is_used_in_the_store_too(engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a full store would evict the beginning of a long conversation first."""
    node = Node(capacity="4MiB")
    engine = engines(node.endpoint)
    side = engine.side
    prompt = prompt_of(16 * BLOCK, 60)
    engine.generate(prompt)
    settle(engine, 16)
    touches = []
    submit = kvstore.SetSpace.submit_touch
    monkeypatch.setattr(kvstore.SetSpace, "submit_touch", lambda *given, **more: touches.append(submit(*given, **more)))
    name = engine.add(prompt)
    names = side.loads._names(side._requests[name], 16)

    with kvstore.Client(node.endpoint, deadline=10) as client:
        fill(client, 600)
        engine.run()
        assert [each.result(10) for each in touches] == [16, 8]
        fill(client, 600)
        assert all(client.open_set(side._model.namespace).match(names).held)
    node.close()


# -- beside another connector


FICKLE = {"kv_connector": "FickleConnector", "kv_connector_module_path": "fickle", "kv_role": "kv_both"}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_what_another_connector_has_not_delivered_is_not_stored(engines: Any, own_node: Node, is_async: bool) -> None:
    """It fills the pages with wrong bytes, and reports this at the step's end. Two requests share the pages."""
    beside = FICKLE | {"kv_connector_extra_config": {"is_async": is_async}}
    root = prompt_of(12 * BLOCK, 67)
    prompts = [root + prompt_of(10, 68), root + prompt_of(10, 69)]
    expected = engines(None).generate(*prompts, max_tokens=40)
    first = engines(own_node.endpoint, beside=beside)
    assert first.generate(*prompts, max_tokens=40) == expected
    settle(first, 13)
    second = engines(own_node.endpoint)
    for prompt, tokens in zip(prompts, expected, strict=True):
        second.scheduler.reset_prefix_cache()
        assert second.generate(prompt, max_tokens=40) == [tokens]
        assert second.last_cached() == 12 * BLOCK


def test_nothing_is_stored_of_a_request_that_ends_while_another_connector_loads(engines: Any, own_node: Node) -> None:
    engine = engines(
        own_node.endpoint, beside=FICKLE | {"kv_connector_extra_config": {"is_async": True, "is_mute": True}}
    )
    prompt = prompt_of(12 * BLOCK, 70)
    name = engine.add(prompt)
    until = time.monotonic() + 10
    while engine.scheduler.requests[name].status != RequestStatus.WAITING_FOR_REMOTE_KVS:
        assert time.monotonic() < until
        engine.step()
    assert engine.scheduler.requests[name].num_computed_tokens == 11 * BLOCK
    engine.abort(name)
    engine.step()
    assert engine.side.counters["lookups"] == 1
    assert engine.side.counters["saved_blocks"] == 0


# -- reports to vLLM


@pytest.mark.skipif(
    vllm.__version_tuple__[:2] < (0, 28),
    reason="the scheduler's half is asked only when a worker has something to tell",
)
def test_statistics_tell_what_was_loaded_and_stored_once(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(10 * BLOCK + 1, 61)
    first = engines(own_node.endpoint)
    first.generate(prompt)
    settle(first, 10)
    first.generate(prompt)  # a hit of its own; the worker's later counts come with its steps
    told = first.stats.reduce()
    assert (told["lookups"], told["saved_tokens"], told["stored_bytes"]) == (2, 10 * BLOCK, 10 * 4096)
    assert "hit_tokens" not in told and "failures" not in told
    second = engines(own_node.endpoint)
    second.generate(prompt)
    told = second.stats.reduce()
    assert (told["lookups"], told["loads"]) == (1, 1)
    assert told["hit_tokens"] == told["loaded_tokens"] == 10 * BLOCK
    assert told["loaded_bytes"] == 10 * 4096
    assert not HAS_SOURCES or second.hits_by_source == {CacheHitSource.HOST: 10 * BLOCK}
    assert second.side.take_stats() is None and second.worker_side.take_stats() is None


def test_statistics_tell_failures_and_pauses(engines: Any, own_node: Node) -> None:
    engine = engines(own_node.endpoint, options={"lookup_timeout": 0.05})
    own_node.kill()
    for i in range(4):
        engine.generate(prompt_of(300, 62 + i))
    told = engine.stats.reduce()
    assert told["failures"] >= 3 and told["paused_lookups"] == 1
    assert "hit_tokens" not in told and "stored_bytes" not in told


def test_blocks_on_a_nodes_disk_are_loaded_and_told_apart(engines: Any, tmp_path: Path) -> None:
    # Puts wait for a disk that a busy machine starves: otherwise blocks are evicted unwritten.
    patient = ("--spill-put-wait-seconds", "5")
    node = Node("--disk-path", str(tmp_path / "disk"), "--disk-capacity", "1GiB", *patient, capacity="4MiB")
    prompt = prompt_of(16 * BLOCK + 1, 66)
    with kvstore.Client(node.endpoint, deadline=10) as client:
        wait_for_disk(client)
    first = engines(node.endpoint)
    expected = first.generate(prompt)
    settle(first, 16)
    with kvstore.Client(node.endpoint, deadline=10) as client:
        for _ in range(4):
            fill(client, 600)
    second = engines(node.endpoint)
    assert second.generate(prompt) == expected
    assert second.last_cached() == 16 * BLOCK
    assert not HAS_SOURCES or second.hits_by_source == {CacheHitSource.DISK: 16 * BLOCK}
    node.close()


# -- pages


@SHAPES
def test_any_traffic_gives_the_tokens_of_an_engine_without_a_store(
    engines: Any, own_node: Node, model: Path, shape: dict[str, Any]
) -> None:
    """Few pages, so requests are preempted during saves and loads; aborts in every state; emptied caches; memory for eight blocks."""
    seed = random.randrange(10**9)
    print("seed", seed)
    rng = random.Random(seed)
    block_bytes = 2 * 2 * BLOCK * 16 * 2
    options = {"staging_bytes": 16 * block_bytes, "lookup_timeout": 5.0, "load_timeout": 5.0, "save_timeout": 5.0}
    plain = engines(None, page_count=2000, **shape)
    page_count = 100 if shape else 40
    pair = [engines(own_node.endpoint, page_count=page_count, options=options, **shape) for _ in range(2)]
    roots = [prompt_of(rng.randrange(100, 500), seed + i) for i in range(4)]
    expected: dict[tuple[int, ...], list[int]] = {}
    began: list[dict[str, tuple[int, ...]]] = [{}, {}]
    aborted: set[tuple[int, str]] = set()
    until = time.monotonic() + 12
    while time.monotonic() < until:
        for i, engine in enumerate(pair):
            if len(engine.scheduler.requests) < 6 and rng.random() < 0.3:
                prompt = rng.choice(roots)[: rng.randrange(40, 500)] + prompt_of(rng.randrange(1, 60), rng.randrange(8))
                began[i][engine.add(prompt, max_tokens=40)] = tuple(prompt)
            if engine.scheduler.requests and rng.random() < 0.02:
                name = rng.choice(list(engine.scheduler.requests))
                aborted.add((i, name))
                engine.abort(name)
            if rng.random() < 0.02:
                # vLLM raises if a waiting request, or a save, holds pages.
                is_quiet = not engine.side.saves.has_pending and all(
                    each.status == RequestStatus.RUNNING or each.num_computed_tokens == 0
                    for each in engine.scheduler.requests.values()
                )
                engine.scheduler.reset_prefix_cache(reset_running_requests=is_quiet)
            engine.step()
    assert sum(len(each) for each in began) > 20
    checked = 0
    for i, engine in enumerate(pair):
        engine.run()
        for name, prompt in began[i].items():
            if prompt not in expected:
                (expected[prompt],) = plain.generate(list(prompt), max_tokens=40)
            tokens = engine.tokens[name]
            assert tokens == expected[prompt][: len(tokens)], (seed, name)
            assert (i, name) in aborted or len(tokens) == 40
            checked += 1
        # Every request was looked up: with leaked leases the node would refuse some.
        assert engine.side.counters["lookups"] >= len(began[i])
        # All pages are free again.
        assert not engine.side.saves.has_pending and not engine.side._requests
        assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == engine.cache.num_blocks - 1
    assert sum(engine.worker_side.counters["loaded_blocks"] for engine in pair) > 0
    assert sum(engine.preemptions for engine in pair) > 0
    print(checked, [(engine.side.counters, engine.worker_side.counters) for engine in pair])


def test_pages_of_a_save_stay_until_they_are_gathered(engines: Any, own_node: Node) -> None:
    """The node is stopped, and memory is for eight blocks: the rest waits for the node after its request has ended."""
    block_bytes = 2 * 2 * BLOCK * 16 * 2
    options = {"staging_bytes": 16 * block_bytes, "save_timeout": 20.0}
    engine = engines(own_node.endpoint, options=options, page_count=60)
    pool = engine.scheduler.kv_cache_manager.block_pool
    first = prompt_of(8 * BLOCK, 13)
    engine.generate(first)
    settle(engine, 8)
    own_node.pause()
    name = engine.add(prompt_of(14 * BLOCK, 14), max_tokens=1)
    while name in engine.scheduler.requests:
        engine.step()
        if not engine.tokens[name] and engine.side._requests[name].lookup is not None:
            time.sleep(0.01)
    held = engine.side.saves._held_count
    assert 0 < held <= 14
    assert pool.get_num_free_blocks() == 59 - held
    own_node.resume()
    engine.run()
    assert engine.side.saves._held_count == 0
    assert pool.get_num_free_blocks() == 59


def test_what_a_preempted_request_has_computed_is_stored_as_it_was(engines: Any, own_node: Node) -> None:
    """The node is stopped while others write into a preempted request's pages; half of its blocks are gathered only afterwards."""
    block_bytes = 2 * 2 * BLOCK * 16 * 2
    engine = engines(
        own_node.endpoint, options={"staging_bytes": 16 * block_bytes, "save_timeout": 20.0}, page_count=60
    )
    worker = engine.worker_side
    for i in range(3):
        engine.add(prompt_of(13 * BLOCK + 1, 50 + i), max_tokens=100)
    while any(not tokens for tokens in engine.tokens.values()):
        engine.step()
    while worker._saves or worker._puts:
        worker.end_step(Step())
        time.sleep(0.002)
    stored = worker.counters["stored_blocks"]
    prompt = prompt_of(15 * BLOCK + 16, 53)
    name = engine.add(prompt, max_tokens=100)
    lookup = engine.side._requests[name].lookup
    lookup.futures[0].wait(10)
    own_node.pause()
    while not engine.preemptions:
        assert name in engine.scheduler.requests
        engine.step()
    assert worker._saves  # not gathered yet
    for _ in range(20):
        engine.step()
    own_node.resume()
    engine.run()
    settle(engine, stored + 15)
    other = engines(own_node.endpoint)
    assert other.generate(prompt, max_tokens=20) == engines(None).generate(prompt, max_tokens=20)
    assert other.last_cached() == 15 * BLOCK
    assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 59
