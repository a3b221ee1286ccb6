"""The connector with vLLM's own scheduler and block pool, a real node, and arithmetic in place of a model (synthetic.py)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import tiny
import torch
import vllm
from conftest import Node
from synthetic import BLOCK, HAS_SOURCES, KNOWN, Engine, cache_config, engine_config, named, ours
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, KVConnectorRole
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
)
from vllm.v1.request import RequestStatus

import kvstore
from kvstore._breaker import Breaker
from kvstore.vllm import KVStoreConnector, compat
from kvstore.vllm.compat import HAS_CACHE_MANAGER, CacheHitSource
from kvstore.vllm.estimate import Estimate
from kvstore.vllm.messages import Report, Stage, Step
from kvstore.vllm.model import Model

BOTH = pytest.mark.parametrize("windows", [False, True], ids=["full", "windows"])
ON_DISK = 2
HAS_STAGES = hasattr(KVConnectorBase_V1, "set_xfer_handshake_metadata_pp_aware")
SHAPES = pytest.mark.parametrize(
    "shape",
    [{}, {"windows": True}, {"windows": True, "states": True}, {"states": True, "hash_tokens": 8}],
    ids=["full", "windows", "states", "tails"],
)
needs_tails = pytest.mark.skipif(
    not hasattr(KVConnectorBase_V1, "register_finished_partial_tail"),
    reason="of releases whose hits may end inside a page",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def engines(model: Path) -> Iterator[Any]:
    made = []

    def make(endpoint: str | None, **more: Any) -> Engine:
        if not HAS_CACHE_MANAGER and (more.get("windows") or more.get("states")):
            pytest.skip(f"vLLM {vllm.__version__}: windows and states are served from 0.30 on")
        if not HAS_STAGES and more.get("stages", 1) > 1:
            pytest.skip(f"vLLM {vllm.__version__}: its pipeline's stages cannot say what they store")
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


def lora(number: int, name: str = "", path: str = "", **more: Any) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(name or f"adapter-{number}", number, path or f"/adapters/{number}", **more)


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
    names = side._names(side._requests[name], 16)

    with kvstore.Client(node.endpoint, deadline=10) as client:
        fill(client, 600)
        engine.run()
        assert [each.result(10) for each in touches] == [16, 8]
        fill(client, 600)
        assert all(client.open_set(side._model.namespace).match(names).held)
    node.close()


# -- load or compute


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
    second.side._estimate = measured(compute=0.001, memory=1.0)
    assert second.generate(prompt, max_tokens=2) == [expected]
    assert second.last_cached() == 0
    counters = second.side.counters
    assert counters["hit_tokens"] == counters["computed_hit_tokens"] == 21 * BLOCK
    assert counters["loads"] == counters["saved_tokens"] == 0  # the store has it already
    third = engines(own_node.endpoint, windows=windows, options={"compute_cheap_hits": True})
    third.side._estimate = measured(compute=1.0, memory=0.001)
    assert third.generate(prompt, max_tokens=2) == [expected]
    assert third.last_cached() == 21 * BLOCK
    assert third.side.counters["computed_hit_tokens"] == 0


def test_loads_and_steps_are_measured(engines: Any, own_node: Node) -> None:
    prompts = [prompt_of(700, 61 + i) for i in range(3)]
    first = engines(own_node.endpoint)
    expected = [first.generate(prompt)[0] for prompt in prompts]
    settle(first, 3 * 21)
    second = engines(own_node.endpoint, options={"compute_cheap_hits": True})
    estimate = second.side._estimate
    assert [second.generate(prompt)[0] for prompt in prompts] == expected
    assert second.side.counters["loads"] == 3
    assert 0 < estimate._memory.seconds(21 * BLOCK) < 60
    assert estimate._computed.seconds(256, of_any_size=True) is None  # the computed rest was small
    first.generate(prompt_of(1024, 64))
    assert 0 < first.side._estimate._computed.seconds(256) < 60


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
    assert not engine.side.has_pending_saves


# -- states


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


# -- several workers


@BOTH
@pytest.mark.parametrize("writers", [1, 2, 4])
def test_ranks_of_other_numbers_share_blocks(engines: Any, own_node: Node, windows: bool, writers: int) -> None:
    """Four kv heads in four parts: each rank takes the parts of its heads."""
    options = {"head_groups": 4}
    prompt = prompt_of(10 * BLOCK + 1, 80)
    expected = engines(None, windows=windows, heads=4).generate(prompt)
    first = engines(own_node.endpoint, windows=windows, heads=4, ranks=writers, options=options)
    assert first.generate(prompt) == expected
    settle(first, 10 * 4 // writers, *range(writers))
    for readers in (1, 2, 4):
        other = engines(own_node.endpoint, windows=windows, heads=4, ranks=readers, options=options)
        assert other.side._model.namespace == first.side._model.namespace
        assert other.generate(prompt) == expected
        assert other.last_cached() == 10 * BLOCK


def test_two_heads_of_a_part_are_loaded_by_one_rank(engines: Any, own_node: Node) -> None:
    options = {"head_groups": 2}
    prompt = prompt_of(10 * BLOCK + 1, 81)
    first = engines(own_node.endpoint, heads=4, ranks=1, options=options)
    expected = first.generate(prompt)
    settle(first, 20)
    other = engines(own_node.endpoint, heads=4, ranks=2)  # two parts by default
    assert other.generate(prompt) == expected
    assert other.last_cached() == 10 * BLOCK


def test_other_numbers_of_parts_are_not_shared(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(10 * BLOCK + 1, 82)
    first = engines(own_node.endpoint, heads=4, ranks=2)
    expected = first.generate(prompt)
    settle(first, 10, 0, 1)
    other = engines(own_node.endpoint, heads=4, ranks=1)
    assert other.generate(prompt) == expected
    assert other.last_cached() == 0


def test_a_hit_is_what_all_ranks_have(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(10 * BLOCK + 1, 83)
    first = engines(own_node.endpoint, heads=4, ranks=2, options={"head_groups": 4})
    expected = first.generate(prompt)
    settle(first, 20, 0, 1)
    other = engines(own_node.endpoint, heads=4, ranks=4, options={"head_groups": 4})
    name = other.add(prompt)
    model = other.side._model
    gone = model.part_name(model.name(other.scheduler.requests[name].block_hashes[6], 0), 3)
    other.abort(name)
    with kvstore.Client(own_node.endpoint, deadline=10) as client:
        assert client.open_set(model.namespace).drop([gone]).block_count == 1
    assert other.generate(prompt) == expected
    assert other.last_cached() == 6 * BLOCK


def test_of_ranks_with_the_same_heads_one_stores_and_all_load(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(10 * BLOCK + 1, 84)
    first = engines(own_node.endpoint, heads=2, ranks=2, replicas=2)
    expected = first.generate(prompt)
    settle(first, 10, 0, 2)
    assert [ours(each)._worker.counters["stored_blocks"] for each in first.workers] == [10, 0, 10, 0]
    assert first.side._held_count == 0
    other = engines(own_node.endpoint, heads=2, ranks=2, replicas=2)
    assert other.generate(prompt) == expected
    assert other.last_cached() == 10 * BLOCK
    assert [ours(each)._worker.counters["loaded_blocks"] for each in other.workers] == [10] * 4
    fewer = engines(own_node.endpoint, heads=2, ranks=2)
    assert fewer.generate(prompt) == expected
    assert fewer.last_cached() == 10 * BLOCK


@BOTH
def test_stages_of_a_pipeline_store_their_own_layers_and_a_hit_is_what_all_have(
    engines: Any, own_node: Node, windows: bool
) -> None:
    prompt = prompt_of(10 * BLOCK + 1, 85)
    expected = engines(None, windows=windows).generate(prompt)
    first = engines(own_node.endpoint, windows=windows, ranks=2, stages=2)
    assert first.generate(prompt) == expected
    settle(first, 10, 0, 1, 2, 3)
    spaces = [space.namespace for space in first.side._spaces]
    assert [each.fields["layer_range"] for each in spaces] == ["0-0", "1-1"]
    other = engines(own_node.endpoint, windows=windows, ranks=2, stages=2)
    assert other.generate(prompt) == expected
    assert other.last_cached() == 10 * BLOCK
    third = engines(own_node.endpoint, windows=windows, ranks=2, stages=2)
    name = third.add(prompt)
    model = third.side._model
    gone = model.part_name(model.name(third.scheduler.requests[name].block_hashes[6], 0), 1)
    third.abort(name)
    with kvstore.Client(own_node.endpoint, deadline=10) as client:
        assert client.open_set(spaces[1]).drop([gone]).block_count == 1
    assert third.generate(prompt) == expected
    assert third.last_cached() == 6 * BLOCK
    whole = engines(own_node.endpoint, windows=windows, ranks=2)
    assert whole.generate(prompt) == expected
    assert whole.last_cached() == 0


def test_what_another_connectors_workers_say_is_ignored(model: Path) -> None:
    config = engine_config(model, "unix:///nowhere")
    connector = KVStoreConnector(config, KVConnectorRole.SCHEDULER, cache_config(20))
    connector.set_xfer_handshake_metadata_pp_aware({(0, 0): object()})
    assert connector._side._spaces == []
    connector.shutdown()


def test_nothing_is_looked_up_or_stored_before_the_workers_have_told(
    engines: Any, own_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside a connector whose worker messages come first: then the first step's report carries ours."""
    monkeypatch.setattr(KVStoreConnector, "get_handshake_metadata", lambda self: None)
    prompt = prompt_of(10 * BLOCK, 131)
    engine = engines(own_node.endpoint)
    expected = engine.generate(prompt)
    assert engine.side.counters["lookups"] == 0
    settle(engine, 10)
    assert engine.scheduler.reset_prefix_cache()
    assert engine.generate(prompt) == expected
    assert engine.last_cached() == 9 * BLOCK


@pytest.mark.parametrize(
    ("field", "of_rank"),
    [("x.weights", 1), ("x.rotation", 1), ("x.config", 2)],
)
@pytest.mark.skipif(not HAS_STAGES, reason="of releases whose stages can tell")
def test_workers_that_have_loaded_something_else_end_the_engine(model: Path, field: str, of_rank: int) -> None:
    """Two ranks, two stages; the stages' rotations may differ, since each has its own layers."""
    config = engine_config(model, "unix:///nowhere")
    config.parallel_config.tensor_parallel_size = config.parallel_config.pipeline_parallel_size = 2
    connector = KVStoreConnector(config, KVConnectorRole.SCHEDULER, cache_config(20))

    def said(number: int) -> Stage:
        fields = {
            "kind": "set",
            "model": "m",
            "block_bytes_max": 1,
            "x.weights": "w",
            "x.rotation": number // 2,
            "x.config": "c",
        }
        return Stage(kvstore.Namespace(fields | ({field: "other"} if number == of_rank else {})).text, (1,))

    with pytest.raises(kvstore.Error, match=f"ranks . and {of_rank}, {field} is .*'other'"):
        connector.set_xfer_handshake_metadata_pp_aware({divmod(i, 2): said(i) for i in range(4)})
    connector.shutdown()


def test_nothing_is_stored_of_a_load_that_has_ended_on_one_rank_alone(engines: Any, own_node: Node) -> None:
    """The first rank reports missing blocks; the other one has not ended; then the request is aborted."""
    prompt = prompt_of(10 * BLOCK + 1, 86)
    first = engines(own_node.endpoint, windows=True, ranks=2)
    expected = first.generate(prompt)
    settle(first, 10, 0, 1)
    second = engines(own_node.endpoint, windows=True, ranks=2)
    side = second.side
    second.silent = {1}

    def drop() -> None:
        if side.counters["loads"] == 1:
            second.between = lambda: None
            request = next(iter(second.scheduler.requests.values()))
            names = [side._model.part_name(side._model.name(request.block_hashes[i], 0), 0) for i in (3, 4)]
            with kvstore.Client(own_node.endpoint, deadline=10) as client:
                assert client.open_set(side._model.namespace).drop(names).block_count == 2

    second.between = drop
    name = second.add(prompt)
    until = time.monotonic() + 20
    while not any(load.left == 1 and load.missing == 3 for load in side._loads.values()):
        assert time.monotonic() < until
        second.step()
    assert side._requests[name].is_loading
    second.abort(name)
    second.silent = set()
    second.run()
    assert side.counters["saved_blocks"] == 0 and not side._loads
    assert second.generate(prompt) == expected
    pool = second.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == second.cache.num_blocks - 1


def test_any_traffic_on_several_workers_gives_the_tokens_of_one(engines: Any, own_node: Node) -> None:
    """Two engines of different shapes over one store, randomly late workers, few pages and little lent memory."""
    seed = random.randrange(10**9)
    print("seed", seed)
    rng = random.Random(seed)
    options = {"head_groups": 4, "staging_bytes": 64 << 10, "save_timeout": 5.0}
    plain = engines(None, heads=4, page_count=2000)
    pair = [engines(own_node.endpoint, heads=4, ranks=ranks, page_count=40, options=options) for ranks in (2, 4)]
    roots = [prompt_of(rng.randrange(100, 500), seed + i) for i in range(4)]
    began: list[dict[str, list[int]]] = [{}, {}]
    until = time.monotonic() + 8
    while time.monotonic() < until:
        for i, engine in enumerate(pair):
            if len(engine.scheduler.requests) < 6 and rng.random() < 0.3:
                prompt = rng.choice(roots)[: rng.randrange(40, 500)] + prompt_of(rng.randrange(1, 60), rng.randrange(8))
                began[i][engine.add(prompt, max_tokens=20)] = prompt
            if engine.scheduler.requests and rng.random() < 0.05:
                engine.abort(rng.choice(list(engine.scheduler.requests)))
            if rng.random() < 0.05:
                engine.scheduler.reset_prefix_cache()
            engine.silent = {number for number in range(len(engine.workers)) if rng.random() < 0.3}
            engine.step()
    for i, engine in enumerate(pair):
        engine.silent = set()
        engine.run()
        for name, prompt in began[i].items():
            (expected,) = plain.generate(prompt, max_tokens=20)
            tokens = engine.tokens[name]
            assert tokens == expected[: len(tokens)], (seed, name)
        assert not engine.side.has_pending_saves and not engine.side._requests and not engine.side._loads
        assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == engine.cache.num_blocks - 1
    assert sum(engine.worker_side.counters["loaded_blocks"] for engine in pair) > 0


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
    node = Node("--spill-path", str(tmp_path / "spill"), "--spill-capacity", "1GiB", *patient, capacity="4MiB")
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
        # Every request was looked up: with leaked leases the node would refuse some.
        assert engine.side.counters["lookups"] >= len(began[i])
        # All pages are free again.
        assert not engine.side.has_pending_saves and not engine.side._requests
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
    held = engine.side._held_count
    assert 0 < held <= 14
    assert pool.get_num_free_blocks() == 59 - held
    own_node.resume()
    engine.run()
    assert engine.side._held_count == 0
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


def test_reports_of_several_workers_add_up() -> None:
    both = Report({1: 1, 2: 1}, {3: (1, None), 4: (1, 3)}).aggregate(
        Report({1: 1}, {3: (1, 5), 4: (1, 2), 5: (1, None)})
    )
    assert both.gathered == {1: 2, 2: 1}
    assert both.loaded == {3: (2, 5), 4: (2, 2), 5: (1, None)}


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


# -- refusals


def refused(model: Path, text: str, cache: KVCacheConfig | None = None, **more: Any) -> None:
    stages, is_async = more.pop("stages", 1), more.pop("is_async", False)
    config = engine_config(model, "unix:///nowhere", **more)
    config.parallel_config.pipeline_parallel_size = stages
    config.scheduler_config.async_scheduling |= is_async
    with pytest.raises(kvstore.Error, match=text):
        KVStoreConnector(config, KVConnectorRole.SCHEDULER, cache or cache_config(20))


def test_the_default_policy_is_refused_and_says_what_to_set(model: Path) -> None:
    refused(model, '"kv_load_failure_policy": "recompute"', policy="fail")


def test_an_engine_whose_own_cache_is_off_is_refused(model: Path) -> None:
    refused(model, "--enable-prefix-caching", enable_prefix_caching=False)


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


def test_drafts_that_depend_on_the_next_token_are_refused(model: Path) -> None:
    config = engine_config(model, "unix:///nowhere")
    config.parallel_config.tensor_parallel_size = 2
    config.speculative_config = SimpleNamespace(method="eagle", draft_tensor_parallel_size=None)
    texts = (
        ["method 'eagle' is not supported, only draft_model and ngram"] if compat.SERVES_DRAFTS else ["from 0.32 on"]
    )
    if compat.SERVES_DRAFTS:
        texts.append("draft_tensor_parallel_size is 1, only that of the model is supported: 2")
    for text in texts:
        with pytest.raises(kvstore.Error, match=text):
            KVStoreConnector(config, KVConnectorRole.SCHEDULER, cache_config(20))
        config.speculative_config = SimpleNamespace(method="draft_model", draft_tensor_parallel_size=1)


def test_groups_that_are_not_understood_are_refused(model: Path) -> None:
    common: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 8, "dtype": torch.bfloat16}
    local = ChunkedLocalAttentionSpec(**common, attention_chunk_size=64)
    state = MambaSpec(block_size=BLOCK, shapes=((4,),), dtypes=(torch.float32,))
    draft = replace(state, mamba_cache_mode="align", num_speculative_blocks=1)
    for spec, text in (
        (local, "ChunkedLocalAttentionSpec is not supported"),
        (state, "mamba_cache_mode 'none' keeps no states that could be stored"),
        (draft, "MambaSpec of a draft model"),
    ):
        cache = cache_config(20)
        cache.kv_cache_groups.append(KVCacheGroupSpec(["state.0"], spec))
        refused(model, f"cache group 1: {text}", cache)


def test_releases_that_are_too_old_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version_tuple__", (0, 21, 9))
    refused(model, "it is too old. Tried were 0.28.0, ")
    monkeypatch.setattr(vllm, "__version_tuple__", (0, 27, 0))
    refused(model, "Set --no-async-scheduling", is_async=True)


@pytest.mark.skipif(HAS_CACHE_MANAGER, reason="of releases up to 0.29")
def test_what_an_older_release_cannot_be_served_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(model, "sliding windows and states are served from 0.30 on", cache_config(20, windows=True))
    if not HAS_STAGES:
        refused(model, "the stages of its pipelines cannot say what they store", stages=2)
    monkeypatch.delenv("PYTHONHASHSEED")
    refused(model, "Set PYTHONHASHSEED to one value for all engines")


def test_parts_that_do_not_come_out_even_are_refused(model: Path) -> None:
    refused(model, "head_groups is 3: cache group 0 has 2 kv heads", options={"head_groups": 3})
    if "kv_cache_layout" in KNOWN:  # earlier releases have one layout
        refused(
            model,
            "head_groups: pages of the layout LBNHC do not have the bytes of a kv head in one piece",
            cache_config(20, kv_cache_layout="LBNHC"),
            options={"head_groups": 2},
        )


def test_all_ranks_of_mla_hold_the_same_and_one_stores(model: Path) -> None:
    spec = MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.bfloat16)
    cache = cache_config(20, kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)])
    made = []
    for ranks in (1, 4):
        config = engine_config(model, "unix:///nowhere", options={"head_groups": 8})
        config.parallel_config.tensor_parallel_size = ranks
        made.append(named(Model(config, cache), config))
    assert [(each.replicas, each.part_count) for each in made] == [(1, 1), (4, 1)]
    assert made[0].namespace == made[1].namespace


def on_cuda(monkeypatch: pytest.MonkeyPatch, is_cuda: bool = True) -> None:
    """As if this were vLLM's build for GPUs."""
    monkeypatch.setattr(compat, "current_platform", SimpleNamespace(device_type="cuda", is_cuda=lambda: is_cuda))


needs_gpu_release = pytest.mark.skipif("0.32" not in vllm.__version__, reason="CUDA devices are served from 0.32 on")


@needs_gpu_release
def test_engines_on_a_gpu_share_what_has_the_same_bytes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    rows = [KVCacheGroupSpec(["layer.0"], spec)]
    config = engine_config(model, "unix:///nowhere")

    def made(cache: KVCacheConfig) -> Model:
        return named(Model(config, cache), config)

    host = [made(cache_config(20)), made(cache_config(20, kv_cache_groups=rows))]
    on_cuda(monkeypatch)
    # vLLM's default there has tokens before heads.
    there = [
        made(cache_config(20, kv_cache_layout="LBNHC")),
        made(cache_config(20, kv_cache_layout="BLNHC", kv_cache_groups=rows)),
    ]
    assert host[1].namespace == there[1].namespace, "a token of MLA's is a row, whatever computes it"
    assert host[0].namespace != there[0].namespace, "the CPU keeps all keys of a head before its values"
    heads_first = made(cache_config(20, kv_cache_layout="LBHNC"))
    assert heads_first.namespace not in (host[0].namespace, there[0].namespace)
    other = made(cache_config(20, kv_cache_layout="BLHNC"))
    assert other.namespace == heads_first.namespace, "where layers lie does not shape a block"


@needs_gpu_release
def test_heads_that_are_divided_come_first_on_a_gpu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, divided = (engine_config(model, "unix:///nowhere", options=each) for each in ({}, {"head_groups": 2}))
    assert KVStoreConnector.get_required_kvcache_layout(divided) is None
    on_cuda(monkeypatch)
    assert KVStoreConnector.get_required_kvcache_layout(plain) is None
    assert KVStoreConnector.get_required_kvcache_layout(divided) == "HND"


def test_what_is_not_tried_on_a_gpu_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cuda(monkeypatch, is_cuda=False)
    refused(model, "only engines on a CPU and on CUDA devices", cache_config(20))
    on_cuda(monkeypatch)
    monkeypatch.setattr(compat.vllm, "__version_tuple__", (0, 31, 0))
    refused(model, "CUDA devices are served from 0.32 on", cache_config(20))


@needs_gpu_release
def test_a_backends_own_packing_is_refused(model: Path) -> None:
    spec = replace(cache_config(20).kv_cache_groups[0].kv_cache_spec, num_head_slots=2, state_content_bytes=64)
    refused(model, "FullAttentionSpec of", cache_config(20, kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)]))


def test_models_of_one_name_and_other_weights_never_share(engines: Any, own_node: Node, tmp_path: Path) -> None:
    one, other = tiny.make("llama", tmp_path / "1", seed=1), tiny.make("llama", tmp_path / "2", seed=2)
    other = other.rename(other.with_name(one.name))
    first, second = Engine(one, own_node.endpoint), Engine(other, own_node.endpoint)
    same = Engine(one, own_node.endpoint)
    assert first.side._model.namespace == same.side._model.namespace
    assert first.side._model.namespace != second.side._model.namespace
    for each in (first, second, same):
        each.close()
