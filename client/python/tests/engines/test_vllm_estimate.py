"""Whether a hit is loaded or computed: whichever is faster."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

import scheduled
from conftest import Node
from scheduled import BOTH, prompt_of, settle
from synthetic import BLOCK

from kvstore.vllm.estimate import Estimate

engines, model = scheduled.engines, scheduled.model  # fixtures


def measured(
    *,
    compute: float | None = None,
    memory: float | None = None,
    disk: float | None = None,
    now: list[float] | None = None,
) -> Estimate:
    """An engine and a store that take so many seconds for 1,024 tokens."""
    clock = now or [0.0]
    made = Estimate(lambda: clock[0])
    for _ in range(3):
        if compute is not None:
            made.computed(1024, compute)
        if memory is not None:
            made.loaded(1024, 0, memory)
        if disk is not None:
            made.loaded(1024, 1024, disk)
    return made


def test_what_is_faster_is_chosen() -> None:
    all_of_it, half = (2048, 1024), (1024, 0)
    hits = [all_of_it, half]
    assert measured(compute=1.0, memory=0.1, disk=0.2).choose(hits) == 2048
    assert measured(compute=1.0, memory=0.1, disk=2.0).choose(hits) == 1024  # the part on disk is computed
    assert measured(compute=0.01, memory=0.1, disk=0.1).choose(hits) == 0
    assert measured(compute=0.1, memory=0.14, disk=0.14).choose(hits) == 2048  # a load leaves the processors to others
    assert measured(compute=0.1, memory=0.16, disk=0.16).choose(hits) == 0
    assert measured(compute=0.01).choose([]) == 0


def test_what_is_not_known_is_loaded() -> None:
    assert measured().choose([(1024, 0)]) == 1024
    assert measured(memory=9.0).choose([(1024, 0)]) == 1024
    assert measured(compute=0.01).choose([(1024, 0)]) == 1024
    assert measured(compute=0.01, memory=9.0).choose([(1024, 1024)]) == 1024
    # For loads of another size, the constant part may dominate.
    assert measured(compute=0.01, memory=9.0).choose([(1024 * 5, 0)]) == 1024 * 5
    assert measured(compute=0.01, memory=9.0).choose([(1024 * 4, 0)]) == 0
    decoding = measured(memory=9.0)
    for _ in range(3):
        decoding.computed(8, 0.001)
    assert decoding.choose([(1024, 0)]) == 1024


def test_measurements_are_forgotten_after_a_minute() -> None:
    now = [0.0]
    estimate = measured(compute=0.01, memory=9.0, now=now)
    assert estimate.choose([(1024, 0)]) == 0
    now[0] = 61.0
    assert estimate.choose([(1024, 0)]) == 1024


def test_a_load_from_both_says_what_the_disk_takes() -> None:
    estimate = measured(compute=1.0, memory=0.1)
    for _ in range(3):
        estimate.loaded(2048, 1024, 3.0)  # of which 2.9 s are for 1,024 tokens from the disk
    assert estimate.choose([(2048, 1024), (1024, 0)]) == 1024
    assert estimate.choose([(1024, 1024)]) == 0


@BOTH
def test_a_hit_is_computed_where_that_is_faster(engines: Any, own_node: Node, windows: bool) -> None:
    prompt = prompt_of(700, 60)
    (expected,) = engines(None, windows=windows).generate(prompt, max_tokens=2)
    first = engines(own_node.endpoint, windows=windows)
    first.generate(prompt, max_tokens=2)
    settle(first, 21)
    second = engines(own_node.endpoint, windows=windows, options={"compute_cheap_hits": True})
    second.side.loads._estimate = measured(compute=0.001, memory=1.0)
    assert second.generate(prompt, max_tokens=2) == [expected]
    assert second.last_cached() == 0
    counters = second.side.counters
    assert counters["hit_tokens"] == counters["computed_hit_tokens"] == 21 * BLOCK
    assert counters["loads"] == counters["saved_tokens"] == 0  # the store has it already
    third = engines(own_node.endpoint, windows=windows, options={"compute_cheap_hits": True})
    third.side.loads._estimate = measured(compute=1.0, memory=0.001)
    assert third.generate(prompt, max_tokens=2) == [expected]
    assert third.last_cached() == 21 * BLOCK
    assert third.side.counters["computed_hit_tokens"] == 0


def test_loads_and_steps_are_measured(engines: Any, own_node: Node) -> None:
    prompts = [prompt_of(700, 61 + i) for i in range(3)]
    first = engines(own_node.endpoint)
    expected = [first.generate(prompt)[0] for prompt in prompts]
    settle(first, 3 * 21)
    second = engines(own_node.endpoint, options={"compute_cheap_hits": True})
    estimate = second.side.loads._estimate
    assert [second.generate(prompt)[0] for prompt in prompts] == expected
    assert second.side.counters["loads"] == 3
    assert 0 < estimate._memory.seconds(21 * BLOCK) < 60
    assert estimate._computed.seconds(256, of_any_size=True) is None  # the computed rest was small
    first.generate(prompt_of(1024, 64))
    assert 0 < first.side.loads._estimate._computed.seconds(256) < 60
