"""Engines of several ranks and of a pipeline's stages; with synthetic.py."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import scheduled
from conftest import Node
from scheduled import BOTH, prompt_of, settle
from synthetic import BLOCK, cache_config, engine_config, ours
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

import kvstore
from kvstore.vllm import KVStoreConnector
from kvstore.vllm.messages import Report, Stage

engines, model = scheduled.engines, scheduled.model  # fixtures


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
    assert first.side.saves._held_count == 0
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
    spaces = [space.namespace for space in first.side.loads._spaces]
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
    assert connector._side.loads._spaces == []
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
    while not any(load.left == 1 and load.missing == 3 for load in side.loads._under_way.values()):
        assert time.monotonic() < until
        second.step()
    assert side._requests[name].is_loading
    second.abort(name)
    second.silent = set()
    second.run()
    assert side.counters["saved_blocks"] == 0 and not side.loads._under_way
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
        assert not engine.side.saves.has_pending and not engine.side._requests and not engine.side.loads._under_way
        assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == engine.cache.num_blocks - 1
    assert sum(engine.worker_side.counters["loaded_blocks"] for engine in pair) > 0


def test_reports_of_several_workers_add_up() -> None:
    both = Report({1: 1, 2: 1}, {3: (1, None), 4: (1, 3)}).aggregate(
        Report({1: 1}, {3: (1, 5), 4: (1, 2), 5: (1, None)})
    )
    assert both.gathered == {1: 2, 2: 1}
    assert both.loaded == {3: (2, 5), 4: (2, 2), 5: (1, None)}
