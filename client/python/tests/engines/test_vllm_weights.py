"""Blocks are the weights' that have made them: adapters, resets, epochs and models of one name; with synthetic.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import scheduled
import tiny
from conftest import Node
from scheduled import BOTH, lora, prompt_of, settle
from synthetic import BLOCK, Engine

engines, model = scheduled.engines, scheduled.model  # fixtures


def test_adapters_share_by_what_they_are(engines: Any, own_node: Node) -> None:
    """By content, under any name and path. An adapter's first request in an engine is computed: its content is unknown until then."""
    prompt, other = prompt_of(10 * BLOCK, 7), prompt_of(10, 8)
    contents = {"/adapters/1": 1, "/elsewhere": 1, "/adapters/2": 2}
    first = engines(own_node.endpoint, adapters=contents)
    expected = first.generate(prompt, lora_request=lora(1))
    settle(first, 10)
    for request in (lora(2), None):
        engine = engines(own_node.endpoint, adapters=contents)
        engine.generate(other, lora_request=request)
        assert engine.generate(prompt, lora_request=request) != expected
        assert engine.last_cached() == 0
    for request in (lora(1), lora(3, "other-name", "/elsewhere")):
        engine = engines(own_node.endpoint, adapters=contents)
        engine.generate(other, lora_request=request)
        assert engine.generate(prompt, lora_request=request) == expected
        assert engine.last_cached() == 9 * BLOCK
    trained = engines(own_node.endpoint, adapters={"/adapters/1": 4})
    trained.generate(other, lora_request=lora(1))
    assert trained.generate(prompt, lora_request=lora(1)) == engines(None, adapters={"/adapters/1": 4}).generate(
        prompt, lora_request=lora(1)
    )
    assert trained.last_cached() == 0


def test_salts_of_an_adapters_requests_never_share(engines: Any, own_node: Node) -> None:
    prompt, other = prompt_of(10 * BLOCK, 120), prompt_of(10, 121)
    first = engines(own_node.endpoint)
    first.generate(prompt, lora_request=lora(1), cache_salt="a")
    settle(first, 10)
    second = engines(own_node.endpoint)
    second.generate(other, lora_request=lora(1))
    for salt, hit in (("b", 0), (None, 0), ("a", 9 * BLOCK)):
        second.scheduler.reset_prefix_cache()
        second.generate(prompt, lora_request=lora(1), cache_salt=salt)
        assert second.last_cached() == hit


def test_an_adapter_that_is_loaded_again_in_place_has_other_blocks(engines: Any, own_node: Node) -> None:
    prompt, other = prompt_of(10 * BLOCK, 122), prompt_of(10, 123)
    engine = engines(own_node.endpoint, adapters={"/adapters/1": 1})
    engine.generate(prompt, lora_request=lora(1))
    settle(engine, 10)
    engine.contents["/adapters/1"] = 2  # trained further
    assert engine.scheduler.reset_prefix_cache()
    expected = engines(None, adapters={"/adapters/1": 2}).generate(prompt, lora_request=lora(1))
    assert engine.generate(prompt, lora_request=lora(1, load_inplace=True)) == expected
    assert engine.last_cached() == 0
    second = engines(own_node.endpoint, adapters={"/adapters/1": 2})
    second.generate(other, lora_request=lora(1))
    until = time.monotonic() + 20
    while True:
        assert second.generate(prompt, lora_request=lora(1)) == expected
        if second.last_cached() == 9 * BLOCK:
            break
        assert time.monotonic() < until
        second.scheduler.reset_prefix_cache()
        engine.generate(other, lora_request=lora(1))


def test_what_another_adapter_has_computed_is_not_stored_under_the_first_ones_name(
    engines: Any, own_node: Node
) -> None:
    """vLLM had dropped the adapter, and loaded its folder's new content. The scheduler gets the report after the step."""
    prompt, other = prompt_of(10 * BLOCK, 124), prompt_of(10, 125)
    engine = engines(own_node.endpoint, adapters={"/adapters/1": 1})
    engine.generate(other, lora_request=lora(1))
    engine.contents["/adapters/1"] = 2
    for worker in engine.loaded:
        worker.adapters.clear()
    engine.generate(prompt, lora_request=lora(1))
    engine.generate(other, lora_request=lora(1))
    assert engine.worker_side.counters["dropped_blocks"] > 0
    second = engines(own_node.endpoint, adapters={"/adapters/1": 1})
    expected = second.generate(other, lora_request=lora(1)), second.generate(prompt, lora_request=lora(1))
    assert second.last_cached() == 0
    assert expected == tuple(
        engines(None, adapters={"/adapters/1": 1}).generate(each, lora_request=lora(1)) for each in (other, prompt)
    )


def test_an_adapter_whose_folder_changes_shares_nothing_until_it_is_loaded_again(
    engines: Any, own_node: Node, tmp_path: Path
) -> None:
    prompt = prompt_of(10 * BLOCK, 126)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"1")
    contents = {str(tmp_path): 1}
    engine = engines(own_node.endpoint, adapters=contents)
    engine.generate(prompt, lora_request=lora(1, "a", str(tmp_path)))
    settle(engine, 10)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"22")
    assert engine.scheduler.reset_prefix_cache()
    lookups = engine.side.counters["lookups"]
    engine.generate(prompt, lora_request=lora(1, "a", str(tmp_path)))
    assert engine.side.counters["lookups"] == lookups and engine.last_cached() == 0
    contents[str(tmp_path)] = 2
    for worker in engine.loaded:
        worker.adapters.clear()
    engine.generate(prompt_of(10, 127), lora_request=lora(1, "a", str(tmp_path)))
    engine.generate(prompt_of(3 * BLOCK, 128), lora_request=lora(1, "a", str(tmp_path)))
    assert engine.side.counters["lookups"] == lookups + 1


def reset(engine: Any, weight: float | None = None) -> None:
    """As an update of weights, or sleep and pause without one."""
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    for worker in engine.loaded if weight is not None else ():
        worker.change(weight)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_reset_with_unchanged_weights_goes_on_with_what_was_stored(engines: Any, own_node: Node, ranks: int) -> None:
    prompt, other = prompt_of(10 * BLOCK, 8), prompt_of(10, 9)
    engine = engines(own_node.endpoint, ranks=ranks)
    expected = engine.generate(prompt)
    settle(engine, 10, *range(ranks))
    reset(engine)
    lookups = engine.side.counters["lookups"]
    engine.generate(prompt)  # computed: the workers digest their weights in this step
    assert engine.side.counters["lookups"] == lookups and engine.last_cached() == 0
    assert engine.scheduler.reset_prefix_cache()
    assert engine.generate(prompt) == expected
    assert engine.last_cached() == 9 * BLOCK
    new = engine.generate(other + prompt)
    second = engines(own_node.endpoint, ranks=ranks)
    until = time.monotonic() + 20
    while True:
        assert second.generate(other + prompt) == new
        if second.last_cached() == 10 * BLOCK:
            break
        assert time.monotonic() < until
        second.scheduler.reset_prefix_cache()
        engine.generate(other)


def test_engines_with_the_same_new_weights_share_after_a_reset(engines: Any, own_node: Node) -> None:
    prompt, other = prompt_of(10 * BLOCK, 8), prompt_of(10, 9)
    one, two, three = (engines(own_node.endpoint) for _ in range(3))
    one.generate(prompt)
    settle(one, 10)
    for engine, weight in ((one, 2.0), (two, 2.0), (three, 3.0)):
        reset(engine, weight)
        engine.generate(other)
    one.generate(prompt)
    assert one.last_cached() == 0
    settle(one, 20)
    two.generate(prompt)
    assert two.last_cached() == 9 * BLOCK
    three.generate(prompt)
    assert three.last_cached() == 0
    reset(one, 1.0)
    one.generate(other)
    one.generate(prompt)
    assert one.last_cached() == 9 * BLOCK


def test_what_ran_when_the_caches_were_reset_is_not_stored(engines: Any, own_node: Node) -> None:
    """Its pages were begun with the old weights."""
    engine = engines(own_node.endpoint)
    name = engine.add(prompt_of(4 * BLOCK, 130), max_tokens=3 * BLOCK)
    while len(engine.tokens[name]) < 2:
        engine.step()
    saved = engine.side.counters["saved_blocks"]
    engine.scheduler.reset_prefix_cache(reset_connector=True)
    engine.run()
    assert engine.side.counters["saved_blocks"] == saved


def test_requests_with_other_weights_epochs_never_share(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(10 * BLOCK, 96)
    first = engines(own_node.endpoint)
    first.generate(prompt, params={"weights_epoch": 7})
    settle(first, 10)
    for params in (None, {"weights_epoch": 6}):
        other = engines(own_node.endpoint)
        other.generate(prompt, params=params)
        assert other.last_cached() == 0
    same = engines(own_node.endpoint)
    same.generate(prompt, params={"weights_epoch": 7})
    assert same.last_cached() == 9 * BLOCK


@pytest.mark.parametrize("epoch", [-1, "7", True, 1 << 64])
def test_a_request_whose_weights_epoch_is_wrong_shares_nothing(engines: Any, own_node: Node, epoch: Any) -> None:
    engine = engines(own_node.endpoint)
    engine.generate(prompt_of(10 * BLOCK, 97), params={"weights_epoch": epoch})
    assert engine.side.counters["lookups"] == engine.side.counters["saved_blocks"] == 0


@BOTH
def test_what_began_with_blocks_of_another_epoch_is_not_stored(engines: Any, own_node: Node, windows: bool) -> None:
    """vLLM's own cache ignores the epoch: an engine without a reset goes on with old blocks, and does not store them."""
    prompt = prompt_of(10 * BLOCK, 98)
    engine = engines(own_node.endpoint, windows=windows)
    engine.generate(prompt, params={"weights_epoch": 1})
    saved = engine.side.counters["saved_blocks"]
    for i, params in enumerate(({"weights_epoch": 2}, None)):
        engine.generate(prompt + prompt_of(5 * BLOCK, 100 + i), params=params)
        assert engine.last_cached() == 10 * BLOCK
        assert engine.side.counters["saved_blocks"] == saved
    assert engine.scheduler.reset_prefix_cache()
    engine.generate(prompt, params={"weights_epoch": 2})
    assert engine.last_cached() == 0
    now = engine.side.counters["saved_blocks"]
    assert now == 2 * saved
    # In its own epoch, a request stores the blocks that follow the engine's.
    engine.generate(prompt + prompt_of(5 * BLOCK, 99), params={"weights_epoch": 2})
    assert engine.last_cached() >= 9 * BLOCK
    assert engine.side.counters["saved_blocks"] > now


def test_models_of_one_name_and_other_weights_never_share(engines: Any, own_node: Node, tmp_path: Path) -> None:
    one, other = tiny.make("llama", tmp_path / "1", seed=1), tiny.make("llama", tmp_path / "2", seed=2)
    other = other.rename(other.with_name(one.name))
    first, second = Engine(one, own_node.endpoint), Engine(other, own_node.endpoint)
    same = Engine(one, own_node.endpoint)
    assert first.side._model.namespace == same.side._model.namespace
    assert first.side._model.namespace != second.side._model.namespace
    for each in (first, second, same):
        each.close()
