"""The connector with vLLM's own scheduler and block pool, a real node, and arithmetic in place of a model (synthetic.py)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import tiny
from conftest import Node
from synthetic import BLOCK, HAS_SOURCES, Engine, cache_config, engine_config
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import RequestStatus

import kvstore
from kvstore.vllm import KVStoreConnector
from kvstore.vllm.breaker import Breaker
from kvstore.vllm.compat import HAS_CACHE_MANAGER, CacheHitSource
from kvstore.vllm.messages import Report

BOTH = pytest.mark.parametrize(
    "windows",
    [
        False,
        pytest.param(True, marks=pytest.mark.skipif(not HAS_CACHE_MANAGER, reason="windows are served from 0.30 on")),
    ],
    ids=["full", "windows"],
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def engines(model: Path) -> Iterator[Any]:
    made = []

    def make(endpoint: str | None, **more: Any) -> Engine:
        made.append(Engine(model, endpoint, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def prompt_of(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=count)


def settle(engine: Engine, at_least: int) -> None:
    """Until the engine's blocks are in the store: what is put is counted with the next step's saves."""
    until = time.monotonic() + 20
    while engine.worker_side.counters["stored_blocks"] < at_least:
        assert time.monotonic() < until, engine.worker_side.counters
        engine.worker_side.save([])
        time.sleep(0.002)


def fill(client: kvstore.Client, blocks: int) -> None:
    """Stores so many other blocks, of the size of a synthetic engine's."""
    space = client.open_set(kvstore.Namespace({"kind": "set", "model": "filler", "block_bytes_max": 4096}))
    names = [random.randbytes(32) for _ in range(blocks)]
    assert space.put(names, np.ones((blocks, 4096), np.uint8)).stored == blocks


# -- what is loaded is what was stored


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
    # The next turn: what the first engine generated is there too.
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
    """Its hash is known only when the last token is: the save outlives the request."""
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
    # The same again: what is computed again is offered again, and nothing else.
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


def test_adapters_never_share(engines: Any, own_node: Node) -> None:
    from vllm.lora.request import LoRARequest

    def adapter(number: int) -> LoRARequest:
        return LoRARequest(f"adapter-{number}", number, f"/adapters/{number}")

    prompt = prompt_of(10 * BLOCK, 7)
    first = engines(own_node.endpoint)
    first.generate(prompt, lora_request=adapter(1))
    settle(first, 10)
    for request in (adapter(2), None):
        other = engines(own_node.endpoint)
        other.generate(prompt, lora_request=request)
        assert other.last_cached() == 0
    same = engines(own_node.endpoint)
    same.generate(prompt, lora_request=adapter(1))
    assert same.last_cached() == 9 * BLOCK


def test_a_reset_of_the_cache_forgets_what_the_store_has_for_this_engine_alone(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(10 * BLOCK, 8)
    engine = engines(own_node.endpoint)
    expected = engine.generate(prompt)
    settle(engine, 10)
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert engine.generate(prompt) == expected
    assert engine.last_cached() == 0
    settle(engine, 20)
    assert engine.scheduler.reset_prefix_cache()
    assert engine.generate(prompt) == expected
    assert engine.last_cached() == 9 * BLOCK
    other = engines(own_node.endpoint)
    other.generate(prompt)
    assert other.last_cached() == 9 * BLOCK


def test_what_the_engine_has_itself_is_used_in_the_store_too(engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the beginning of a conversation that goes on for long is the first that a full store evicts."""
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
    names = side._names(engine.scheduler.requests[name], 16)

    with kvstore.Client(node.endpoint, deadline=10) as client:
        fill(client, 600)
        engine.run()
        assert [each.result(10) for each in touches] == [16, 8]
        fill(client, 600)
        assert all(client.open_set(side._model.namespace).match(names).held)
    node.close()


# -- failure


@BOTH
def test_a_node_killed_between_lookup_and_load_costs_a_recompute(engines: Any, own_node: Node, windows: bool) -> None:
    prompt = prompt_of(700, 9)
    first = engines(own_node.endpoint, windows=windows)
    (expected,) = first.generate(prompt)
    settle(first, 21)
    second = engines(own_node.endpoint, windows=windows)

    def kill() -> None:
        if second.side.counters["loads"] == 1 and own_node.process.poll() is None:
            own_node.kill()

    second.between = kill
    assert second.generate(prompt) == [expected]
    assert second.side.counters["loads"] == 1
    assert second.side.counters["loads_failed"] == 1


@BOTH
def test_blocks_that_are_gone_are_computed(engines: Any, own_node: Node, windows: bool) -> None:
    """The node was restarted, or has evicted them, between lookup and load: the load is short or empty."""
    prompt = prompt_of(700, 10)
    first = engines(own_node.endpoint, windows=windows)
    (expected,) = first.generate(prompt)
    settle(first, 21)
    second = engines(own_node.endpoint, windows=windows)
    side = second.side

    def drop() -> None:
        if side.counters["loads"] == 1 and side.counters["loads_failed"] == 0:
            request = next(iter(second.scheduler.requests.values()))
            second.between = lambda: None
            names = [side._model.name(h, g) for h in request.block_hashes[7:9] for g in range(1 + 2 * windows)]
            with kvstore.Client(own_node.endpoint, deadline=10) as client:
                assert client.open_set(side._model.namespace).drop(names).block_count > 0

    second.between = drop
    assert second.generate(prompt) == [expected]
    assert side.counters["loads_failed"] == 1
    # What went is stored again, once.
    settle(second, 2)
    third = engines(own_node.endpoint, windows=windows)
    assert third.generate(prompt) == [expected]
    assert third.last_cached() == 21 * BLOCK


def test_a_stopped_node_costs_the_timeouts_and_then_the_breaker_nothing(engines: Any, own_node: Node) -> None:
    plain = engines(None)
    engine = engines(own_node.endpoint, options={"lookup_timeout": 0.05, "load_timeout": 0.2, "save_timeout": 0.2})
    own_node.pause()
    for i in range(8):
        assert engine.generate(prompt_of(300, 100 + i)) == plain.generate(prompt_of(300, 100 + i))
    assert engine.side.counters["lookups"] < 8
    assert engine.side.counters["hit_tokens"] == 0
    own_node.resume()


def test_a_node_stopped_before_the_load_costs_its_timeout(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(700, 11)
    first = engines(own_node.endpoint)
    (expected,) = first.generate(prompt)
    settle(first, 21)
    second = engines(own_node.endpoint, options={"lookup_timeout": 5.0, "load_timeout": 0.3})

    def stop() -> None:
        if second.side.counters["loads"] == 1:
            own_node.pause()
            second.between = lambda: None

    second.between = stop
    assert second.generate(prompt) == [expected]
    assert second.side.counters["loads_failed"] >= 1
    own_node.resume()
    # Rows that the node may have written meanwhile come back, and the next load is right.
    until = time.monotonic() + 30
    while True:
        assert second.scheduler.reset_prefix_cache()
        assert second.generate(prompt) == [expected]
        if second.last_cached():
            break
        assert time.monotonic() < until
        time.sleep(0.1)
    assert second.last_cached() == 21 * BLOCK


def test_the_engine_lives_without_the_store(engines: Any, tmp_path: Path, own_node: Node) -> None:
    own_node.kill()
    engine = engines(own_node.endpoint, options={"lookup_timeout": 0.05})
    prompt = prompt_of(300, 12)
    expected = engines(None).generate(prompt)
    assert engine.generate(prompt) == expected
    own_node.start()
    until = time.monotonic() + 60
    while True:  # the store came later, and is used
        assert engine.scheduler.reset_prefix_cache()
        assert engine.generate(prompt) == expected
        if engine.last_cached():
            break
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_node_killed_during_saves_costs_nothing_but_the_blocks(engines: Any, own_node: Node) -> None:
    plain, engine = engines(None), engines(own_node.endpoint, options={"save_timeout": 0.5})

    def kill() -> None:
        if engine.side.counters["saved_blocks"] > 8 and own_node.process.poll() is None:
            own_node.kill()

    engine.between = kill
    prompts = [prompt_of(500, 200 + i) for i in range(4)]
    assert engine.generate(*prompts, max_tokens=60) == plain.generate(*prompts, max_tokens=60)
    assert own_node.process.poll() is not None
    assert not engine.side.has_pending_saves


# -- beside another connector


FICKLE = {"kv_connector": "FickleConnector", "kv_connector_module_path": "fickle", "kv_role": "kv_both"}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_what_another_connector_has_not_delivered_is_not_stored(engines: Any, own_node: Node, is_async: bool) -> None:
    """It has filled the pages with wrong bytes, and says so when the step has ended. Two requests share the pages."""
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


# -- what vLLM is told


def test_statistics_tell_what_was_loaded_and_stored_once(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(10 * BLOCK + 1, 61)
    first = engines(own_node.endpoint)
    first.generate(prompt)
    settle(first, 10)
    first.generate(prompt)  # a hit of its own; what the worker has seen since is told in its steps
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
    node = Node("--spill-path", str(tmp_path / "spill"), "--spill-capacity", "1GiB", capacity="4MiB")
    prompt = prompt_of(16 * BLOCK + 1, 66)
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


@BOTH
def test_any_traffic_gives_the_tokens_of_an_engine_without_a_store(
    engines: Any, own_node: Node, model: Path, windows: bool
) -> None:
    """Few pages, so that requests are preempted while blocks are saved and loaded; aborts in every state; the engines'
    own caches emptied; memory for eight blocks at once.
    """
    seed = random.randrange(10**9)
    print("seed", seed)
    rng = random.Random(seed)
    block_bytes = 2 * 2 * BLOCK * 16 * 2
    options = {"staging_bytes": 16 * block_bytes, "lookup_timeout": 5.0, "load_timeout": 5.0, "save_timeout": 5.0}
    plain = engines(None, windows=windows, page_count=2000)
    pair = [
        engines(own_node.endpoint, windows=windows, page_count=100 if windows else 40, options=options)
        for _ in range(2)
    ]
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
                # vLLM raises if a request that does not run, or a save, holds pages.
                is_quiet = not engine.side.has_pending_saves and all(
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
        # Every request was looked up: leases that are not ended would have the node refuse them.
        assert engine.side.counters["lookups"] >= len(began[i])
        # Nothing holds a page any more.
        assert not engine.side.has_pending_saves and not engine.side._requests
        assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == engine.cache.num_blocks - 1
    assert sum(engine.worker_side.counters["loaded_blocks"] for engine in pair) > 0
    assert sum(engine.preemptions for engine in pair) > 0
    print(checked, [(engine.side.counters, engine.worker_side.counters) for engine in pair])


def test_pages_of_a_save_stay_until_they_are_gathered(engines: Any, own_node: Node) -> None:
    """The node stands, and memory is for eight blocks: the rest waits for the node, while its request is gone."""
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
    held = engine.side._held_count
    assert 0 < held <= 14
    assert pool.get_num_free_blocks() == 59 - held
    own_node.resume()
    engine.run()
    assert engine.side._held_count == 0
    assert pool.get_num_free_blocks() == 59


def test_what_a_preempted_request_has_computed_is_stored_as_it_was(engines: Any, own_node: Node) -> None:
    """The node stands while a request is preempted and others write into pages that it had. Memory is for eight blocks, so
    half of what the request has computed is gathered only after that.
    """
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
        worker.save([])
        time.sleep(0.002)
    stored = worker.counters["stored_blocks"]
    prompt = prompt_of(15 * BLOCK + 16, 53)
    name = engine.add(prompt, max_tokens=100)
    lookup = engine.side._requests[name].lookup
    lookup.future.wait(10)
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


def test_reports_of_several_workers_add_up() -> None:
    both = Report({1: 1, 2: 1}, {"a": None, "b": 3}).aggregate(Report({1: 1}, {"a": 5, "b": 2, "c": None}))
    assert both.gathered == {1: 2, 2: 1}
    assert both.missing == {"a": 5, "b": 2, "c": None}


def test_the_breaker_pauses_longer_each_time_and_any_success_ends_it() -> None:
    now = 0.0
    breaker = Breaker(lambda: now)
    assert [breaker.failed() for _ in range(3)] == [False, False, True]
    assert not breaker.allows()
    for pause in (1, 2, 4, 8, 16, 30, 30):
        now += pause - 0.01
        assert not breaker.allows()
        now += 0.01
        assert breaker.allows()
        assert breaker.failed()
    breaker.succeeded()
    assert breaker.allows()
    assert not breaker.failed()


# -- what is refused


def refused(model: Path, text: str, cache: KVCacheConfig | None = None, **more: Any) -> None:
    config = engine_config(model, "unix:///nowhere", **more)
    with pytest.raises(kvstore.Error, match=text):
        KVStoreConnector(config, KVConnectorRole.SCHEDULER, cache or cache_config(20))


def test_the_default_policy_is_refused_and_says_what_to_set(model: Path) -> None:
    refused(model, '"kv_load_failure_policy": "recompute"', policy="fail")


def test_a_hash_that_no_other_process_makes_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    refused(model, "--prefix-caching-hash-algo sha256_cbor", prefix_caching_hash_algo="xxhash")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lookup": 1}, "'lookup' is none of endpoints, "),
        ({"load_timeout": 0}, "load_timeout is 0, allowed is seconds, over 0"),
        ({"save_decode": "no"}, "save_decode is 'no', allowed is true or false"),
        ({"staging_bytes": -1}, "staging_bytes is -1"),
        ({"endpoints": 7}, "endpoints is 7"),
    ],
)
def test_options_are_checked(model: Path, options: dict[str, Any], text: str) -> None:
    refused(model, text, options=options)


def test_groups_that_are_not_understood_are_refused(model: Path) -> None:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, MambaSpec

    cache = cache_config(20)
    cache.kv_cache_groups.append(
        KVCacheGroupSpec(["state"], MambaSpec(block_size=BLOCK, shapes=((4,),), dtypes=(torch.float32,)))
    )
    refused(model, "cache group 1: MambaSpec is not supported", cache)


def test_models_of_one_name_and_other_weights_never_share(engines: Any, own_node: Node, tmp_path: Path) -> None:
    one, other = tiny.make("llama", tmp_path / "1", seed=1), tiny.make("llama", tmp_path / "2", seed=2)
    other = other.rename(other.with_name(one.name))
    first, second = Engine(one, own_node.endpoint), Engine(other, own_node.endpoint)
    same = Engine(one, own_node.endpoint)
    assert first.side._model.namespace == same.side._model.namespace
    assert first.side._model.namespace != second.side._model.namespace
    for each in (first, second, same):
        each.close()
