"""Models with states and windows, and hits that end inside a page; with synthetic.py."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import scheduled
from conftest import Node
from scheduled import prompt_of, settle
from synthetic import BLOCK
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1

import kvstore

engines, model = scheduled.engines, scheduled.model  # fixtures
needs_tails = pytest.mark.skipif(
    not hasattr(KVConnectorBase_V1, "register_finished_partial_tail"),
    reason="of releases whose hits may end inside a page",
)


def test_a_hit_ends_where_every_group_has_what_the_next_token_needs(engines: Any, own_node: Node) -> None:
    """Full attention, two windows and two groups of states. The engine keeps a state at the end of each chunk."""
    prompt = prompt_of(20 * BLOCK + 5, 90)
    shape: dict[str, Any] = {"windows": True, "states": True}
    expected = engines(None, **shape).generate(prompt, max_tokens=3 * BLOCK)
    first = engines(own_node.endpoint, **shape)
    assert first.generate(prompt, max_tokens=3 * BLOCK) == expected
    assert first.last_cached() == 0
    settle(first, 5 * 8)
    other = engines(own_node.endpoint, **shape)
    assert other.generate(prompt, max_tokens=3 * BLOCK) == expected
    assert other.last_cached() == 20 * BLOCK
    # Of 20 blocks with five groups: all of full attention, the last of 80-token windows, and one state per group.
    assert other.worker_side.counters["loaded_blocks"] == 20 + 2 * 3 + 2
    assert other.side.counters["lookups"] == 1
    # The next turn begins with the states left by generation.
    turn = prompt + expected[0] + prompt_of(40, 91)
    third = engines(own_node.endpoint, **shape)
    answer = third.generate(turn)
    assert third.last_cached() == 23 * BLOCK
    assert answer == engines(None, **shape).generate(turn)


def test_without_the_state_at_its_end_a_hit_is_shorter(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(20 * BLOCK + 5, 92)
    first = engines(own_node.endpoint, states=True)
    expected = first.generate(prompt)
    settle(first, 20 + 2)
    other = engines(own_node.endpoint, states=True)
    model = other.side._model
    name = other.add(prompt)
    names = [model.name(each, 2) for each in other.scheduler.requests[name].block_hashes[:20]]
    other.abort(name)
    with kvstore.Client(own_node.endpoint, deadline=10) as client:
        states = client.open_set(model.namespace)
        held = np.flatnonzero(states.match(names).held)
        assert held[-1] == 19 and len(held) > 1
        assert states.drop([names[19]]).block_count == 1
    assert other.generate(prompt) == expected
    assert other.last_cached() == (held[-2] + 1) * BLOCK


def test_a_state_that_is_gone_when_it_is_loaded_costs_a_recompute(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(20 * BLOCK + 5, 93)
    first = engines(own_node.endpoint, states=True)
    expected = first.generate(prompt)
    settle(first, 20 + 2)
    second = engines(own_node.endpoint, states=True)
    side = second.side

    def drop() -> None:
        if side.counters["loads"] == 1:
            second.between = lambda: None
            request = next(iter(second.scheduler.requests.values()))
            with kvstore.Client(own_node.endpoint, deadline=10) as client:
                gone = [side._model.name(request.block_hashes[19], 1)]
                assert client.open_set(side._model.namespace).drop(gone).block_count == 1

    second.between = drop
    assert second.generate(prompt) == expected
    assert side.counters["loads_failed"] == 1


def test_hashes_of_fewer_tokens_than_a_page_name_whole_pages(engines: Any, own_node: Node) -> None:
    """Two prompts that part in the middle of a page."""
    shape: dict[str, Any] = {"windows": True, "hash_tokens": 16}
    prompt = prompt_of(10 * BLOCK + 20, 94)
    other = prompt[: 6 * BLOCK + 16] + prompt_of(5 * BLOCK, 95)
    plain = engines(None, **shape)
    first = engines(own_node.endpoint, **shape)
    assert first.generate(prompt) == plain.generate(prompt)
    settle(first, 30)
    second = engines(own_node.endpoint, **shape)
    assert second.generate(prompt) == plain.generate(prompt)
    assert second.last_cached() == 10 * BLOCK
    third = engines(own_node.endpoint, **shape)
    expected = plain.generate(other)
    assert third.generate(other) == expected
    assert third.last_cached() == 6 * BLOCK
    assert engines(own_node.endpoint, windows=True).side._model.namespace != third.side._model.namespace


@needs_tails
def test_a_hit_ends_inside_a_page_where_an_earlier_prompt_ended(engines: Any, own_node: Node) -> None:
    """Full attention and two groups of states, with four hashes per page."""
    shape: dict[str, Any] = {"states": True, "hash_tokens": 8}
    prompt = prompt_of(20 * BLOCK + 20, 110)  # its last hash before the last token ends at 16 of the page
    expected = engines(None, **shape).generate(prompt, max_tokens=4)
    first = engines(own_node.endpoint, **shape)
    assert first.generate(prompt, max_tokens=4) == expected
    assert first.last_cached() == 0
    settle(first, 20 + 3)
    second = engines(own_node.endpoint, **shape)
    assert second.generate(prompt, max_tokens=4) == expected
    assert second.last_cached() == 20 * BLOCK + 16
    # The pages of full attention, including the tail's, and a state per group.
    assert second.worker_side.counters["loaded_blocks"] == 20 + 1 + 2
    counters = second.side.counters
    assert counters["hit_tokens"] == counters["loaded_tokens"] == 20 * BLOCK + 16
    turn = prompt + expected[0] + prompt_of(3 * BLOCK, 111)
    third = engines(own_node.endpoint, **shape)
    answer = third.generate(turn)
    assert third.last_cached() == 20 * BLOCK + 16
    assert answer == engines(None, **shape).generate(turn)
    # Blocks computed by third behind a tail are stored right, too.
    end = (len(turn) - 1) // 8 * 8
    until = time.monotonic() + 20
    while True:
        fourth = engines(own_node.endpoint, **shape)
        assert fourth.generate(turn) == answer
        if fourth.last_cached() == end:
            break
        assert time.monotonic() < until, fourth.last_cached()
        third.generate(prompt_of(10, 112))


@needs_tails
def test_a_prompt_of_less_than_a_page_is_found_by_its_tail(engines: Any, own_node: Node) -> None:
    shape: dict[str, Any] = {"states": True, "hash_tokens": 8}
    prompt = prompt_of(20, 113)
    first = engines(own_node.endpoint, **shape)
    expected = first.generate(prompt)
    settle(first, 3)
    second = engines(own_node.endpoint, **shape)
    assert second.generate(prompt) == expected
    assert second.last_cached() == 16
    # It parts from the first before the tail.
    other = prompt[:12] + prompt_of(20, 114)
    assert second.generate(other) == engines(None, **shape).generate(other)
    assert second.last_cached() == 0
    third = engines(own_node.endpoint, options={"load_blocks_min": 2}, **shape)
    assert third.generate(prompt) == expected
    assert third.last_cached() == 0


@needs_tails
@pytest.mark.parametrize("group", [0, 2])
def test_a_tail_that_a_group_lacks_is_no_hit(engines: Any, own_node: Node, group: int) -> None:
    shape: dict[str, Any] = {"states": True, "hash_tokens": 8}
    prompt = prompt_of(20 * BLOCK + 20, 115)
    first = engines(own_node.endpoint, **shape)
    expected = first.generate(prompt)
    settle(first, 20 + 3)
    second = engines(own_node.endpoint, **shape)
    model = second.side._model
    name = second.add(prompt)
    gone = model.name(model.tail_hash(second.scheduler.requests[name], 20 * BLOCK + 16), group)
    second.abort(name)
    with kvstore.Client(own_node.endpoint, deadline=10) as client:
        assert client.open_set(model.namespace).drop([gone]).block_count == 1
    assert second.generate(prompt) == expected
    assert 0 < second.last_cached() <= 20 * BLOCK and second.last_cached() % BLOCK == 0


@needs_tails
def test_a_tail_that_is_gone_when_it_is_loaded_costs_a_recompute(engines: Any, own_node: Node) -> None:
    shape: dict[str, Any] = {"states": True, "hash_tokens": 8}
    prompt = prompt_of(20 * BLOCK + 20, 116)
    first = engines(own_node.endpoint, **shape)
    expected = first.generate(prompt)
    settle(first, 20 + 3)
    second = engines(own_node.endpoint, **shape)
    side = second.side

    def drop() -> None:
        if side.counters["loads"] == 1:
            second.between = lambda: None
            request = next(iter(second.scheduler.requests.values()))
            gone = side._model.name(side._model.tail_hash(request, 20 * BLOCK + 16), 0)
            with kvstore.Client(own_node.endpoint, deadline=10) as client:
                assert client.open_set(side._model.namespace).drop([gone]).block_count == 1

    second.between = drop
    assert second.generate(prompt) == expected
    assert side.counters["loads_failed"] == 1


@needs_tails
def test_the_engines_own_tail_is_not_loaded_again(engines: Any, own_node: Node) -> None:
    shape: dict[str, Any] = {"states": True, "hash_tokens": 8}
    prompt = prompt_of(20 * BLOCK + 20, 117)
    engine = engines(own_node.endpoint, **shape)
    expected = engine.generate(prompt)
    settle(engine, 20 + 3)
    assert engine.generate(prompt) == expected
    assert engine.last_cached() == 20 * BLOCK + 16
    assert engine.side.counters["loads"] == 0
    # Blocks after such a hit are stored.
    longer = prompt + prompt_of(3 * BLOCK, 118)
    answer = engine.generate(longer)
    assert engine.last_cached() == 20 * BLOCK + 16
    assert answer == engines(None, **shape).generate(longer)
    other = engines(own_node.endpoint, **shape)
    until = time.monotonic() + 20
    while True:
        assert other.generate(longer) == answer
        if other.last_cached() == (len(longer) - 1) // 8 * 8:
            break
        assert time.monotonic() < until, other.last_cached()
        other.scheduler.reset_prefix_cache()
        engine.generate(prompt_of(10, 119))
