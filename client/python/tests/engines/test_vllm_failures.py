"""The connector and a node that dies, stops, comes back or has lost blocks; with synthetic.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import scheduled
from conftest import Node
from scheduled import BOTH, prompt_of, settle
from synthetic import BLOCK

import kvstore
from kvstore.doors.gates import Breaker

engines, model = scheduled.engines, scheduled.model  # fixtures


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
    """The node restarted, or evicted them, between lookup and load: the load is short or empty."""
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
    # Lost blocks are stored again, once.
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
    assert not engine.side.saves.has_pending


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
