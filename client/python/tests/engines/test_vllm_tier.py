"""The tier behind vLLM's pool in host memory: vLLM's own code, a real node, arithmetic for a model (synthetic.py, tier_cpu.py)."""

from __future__ import annotations

import functools
import gc
import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")
pytest.importorskip("vllm.v1.kv_offload.tiering.base")

import tiny
from conftest import Node, free_port
from proxy import PUT_DATA, SET_GET, Proxy
from scheduled import lora, prompt_of
from synthetic import Engine
from tier_cpu import transfer_config
from vllm.v1.kv_offload.base import LookupResult, ReqContext
from vllm.v1.kv_offload.tiering.base import TransferJob

import kvstore
from kvstore.vllm.chunks import KEYS_MAX, the_engine
from kvstore.vllm.tier import COUNTERS, KVStoreTier

SHAPES = pytest.mark.parametrize("shape", [{}, {"windows": True}], ids=["full", "windows"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def engines(model: Path) -> Iterator[Any]:
    made: list[Engine] = []

    def make(
        endpoint: str | None, *, tier: dict[str, Any] | None = None, extra: dict[str, Any] | None = None, **more: Any
    ) -> Engine:
        """With a tier unless there is no endpoint, or ``tier`` is False: then it has KVStoreConnector."""
        if endpoint is not None and tier is not False:
            more["kv_transfer_config"] = transfer_config(endpoint, 16 << 20, tier, **(extra or {}))
        made.append(Engine(model, endpoint, **more))
        if endpoint is not None and tier is not False:
            warm(made[-1])
        return made[-1]

    before = {name for name in os.listdir("/dev/shm") if name.startswith("vllm_offload")}
    yield make
    for each in made:
        each.close()
    assert {name for name in os.listdir("/dev/shm") if name.startswith("vllm_offload")} <= before


def tier_of(engine: Engine) -> KVStoreTier:
    (tier,) = engine.scheduler.connector.connector_scheduler.manager.secondary_tiers
    return tier


def warm(engine: Engine) -> None:
    """Waits for the tier's connection, if there is a node: before that, lookups miss."""
    tier = tier_of(engine)
    until = time.monotonic() + 5
    while tier._door.client.ping(deadline=0.2) == [None] and time.monotonic() < until:
        if not any(os.path.exists(each["endpoint"].removeprefix("unix://")) for each in tier._door.client.nodes()):
            return
        time.sleep(0.01)


def settle(engine: Engine) -> None:
    """Waits until all of the pool's chunks are stored or given up: vLLM passes them to tiers in later steps."""
    until = time.monotonic() + 20
    quiet = 0
    manager = engine.scheduler.connector.connector_scheduler.manager
    while quiet < 5:
        assert time.monotonic() < until
        engine.step()
        quiet = 0 if manager.has_pending_work() else quiet + 1
        time.sleep(0.002)


def stored(engine: Engine, *prompts: list[int]) -> list[list[int]]:
    answers = engine.generate(*prompts)
    settle(engine)
    return answers


# -- hits


@SHAPES
def test_another_engine_loads_what_one_has_stored(engines: Any, own_node: Node, shape: dict[str, Any]) -> None:
    prompt = prompt_of(1000, 1)
    expected = engines(None, **shape).generate(prompt)
    one, other = engines(own_node.endpoint, **shape), engines(own_node.endpoint, **shape)
    assert tier_of(one).why_apart == ""
    assert stored(one, prompt) == expected
    assert tier_of(one).counters["stored_chunks"] >= 31
    assert other.generate(prompt) == expected
    assert other.last_cached() >= 960
    assert tier_of(other).counters["lookups"] == 1


def test_vllms_metrics_have_what_the_tier_has_seen(engines: Any, own_node: Node) -> None:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadPromMetrics

    one, other = engines(own_node.endpoint), engines(own_node.endpoint)
    stored(one, prompt := prompt_of(1000, 1))
    other.generate(prompt)
    registry = CollectorRegistry()
    kinds = {each: functools.partial(each, registry=registry) for each in (Counter, Gauge, Histogram)}
    shown = OffloadPromMetrics(other.config, kinds, ["engine"], {0: ["0"]})
    tier_of(other)._has_told = False  # the engine's own steps were reported already
    tier_of(other)._door._told.clear()
    shown.observe(tier_of(other).get_stats().data)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"vllm:kvstore_tier_{name}", {"engine": "0"} | labels)

    for name in COUNTERS:
        assert value(f"{name}_total") is not None
    assert value("hit_chunks_total") == value("loaded_chunks_total") > 0
    assert value("loaded_bytes_total") == value("loaded_chunks_total") * tier_of(other).block_size_bytes
    assert value("paused", calls="lookups") == 0
    assert tier_of(other).get_stats() is None  # each change is reported once


def test_states_are_stored_as_rows_and_change_no_token(engines: Any, own_node: Node) -> None:
    """vLLM's pool has the state at a chunk's end. The connector names states otherwise, so these rows are the tier's alone."""
    prompt, later = prompt_of(1000, 31), prompt_of(1000, 32)
    expected = engines(None, states=True).generate(prompt, later)
    one, other = engines(own_node.endpoint, states=True), engines(own_node.endpoint, states=True)
    assert tier_of(one).why_apart.startswith("states ")
    assert stored(one, prompt) == expected[:1]
    assert stored(other, prompt) == expected[:1]
    assert other.last_cached() == 992
    assert tier_of(other).counters["loaded_chunks"] >= 32  # 31 of full attention, and a state per group
    assert other.generate(later) == expected[1:]


@SHAPES
def test_the_tier_and_the_connector_share_blocks(engines: Any, own_node: Node, shape: dict[str, Any]) -> None:
    by_tier, by_connector = prompt_of(1000, 2), prompt_of(1000, 3)
    expected = engines(None, **shape).generate(by_tier, by_connector)
    tier, connector = engines(own_node.endpoint, **shape), engines(own_node.endpoint, tier=False, **shape)
    assert stored(tier, by_tier) == expected[:1]
    assert connector.generate(by_tier) == expected[:1]
    assert connector.last_cached() >= 960
    assert connector.generate(by_connector) == expected[1:]
    until = time.monotonic() + 10
    with kvstore.Client(own_node.endpoint) as client:
        while client.stats()[0]["values"]["stored_blocks"] < 2 * 31:
            assert time.monotonic() < until
            connector.step()
            time.sleep(0.01)
    # The node counts the last saves before they are visible: ask until all are there.
    other = engines(own_node.endpoint, **shape)
    assert other.generate(by_connector) == expected[1:]
    assert other.last_cached() >= 960


@pytest.mark.parametrize("ranks", [2])
def test_the_tier_of_two_ranks_shares_with_the_connector_of_two_and_of_one(
    engines: Any, own_node: Node, ranks: int
) -> None:
    prompt = prompt_of(1000, 4)
    expected = engines(None).generate(prompt)
    tier = engines(own_node.endpoint, ranks=ranks)
    assert tier_of(tier).why_apart == ""
    assert stored(tier, prompt) == expected
    assert tier_of(tier).namespace.fields["x.parts"] == "2"
    for more in ({"ranks": 2}, {"options": {"head_groups": 2}}):
        other = engines(own_node.endpoint, tier=False, **more)
        assert other.generate(prompt) == expected
        assert other.last_cached() == 992
    again = engines(own_node.endpoint, ranks=ranks)
    assert again.generate(prompt) == expected
    assert again.last_cached() == 992


def test_a_chunk_of_which_a_rank_has_nothing_is_a_miss(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(600, 40)
    one = engines(own_node.endpoint, ranks=2)
    expected = stored(one, prompt)
    other = engines(own_node.endpoint, ranks=2)
    tier = tier_of(other)
    look = tier._look

    def drop_one(batch: Any) -> None:
        names = tier._chunks.names(batch.keys[4:5])
        tier._space.drop([bytes(names[1])], deadline=5)  # the second rank's part of the fifth chunk
        look(batch)

    tier._look = drop_one  # type: ignore[method-assign]
    assert other.generate(prompt) == expected
    assert other.last_cached() == 4 * 32


def test_chunks_of_several_blocks_are_found_by_such_engines_alone(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(1000, 5)
    expected = engines(None).generate(prompt)
    one = engines(own_node.endpoint, extra={"blocks_per_chunk": 4})
    assert "last block" in tier_of(one).why_apart
    assert stored(one, prompt) == expected
    same = engines(own_node.endpoint, extra={"blocks_per_chunk": 4})
    assert same.generate(prompt) == expected
    assert same.last_cached() == 896
    for other in (engines(own_node.endpoint), engines(own_node.endpoint, extra={"blocks_per_chunk": 2})):
        assert other.generate(prompt) == expected
        assert other.last_cached() == 0


@pytest.mark.parametrize("option", [{"salt": "a"}, {"weights_epoch": 3}, {"model": "other"}])
def test_what_tells_engines_apart_keeps_blocks_apart(engines: Any, own_node: Node, option: dict[str, Any]) -> None:
    prompt = prompt_of(300, 6)
    stored(engines(own_node.endpoint), prompt)
    other = engines(own_node.endpoint, tier=option)
    other.generate(prompt)
    assert other.last_cached() == 0


def test_any_traffic_gives_the_tokens_of_an_engine_without_a_store(engines: Any, own_node: Node) -> None:
    """With a pool so small that chunks are evicted and promoted all the time, and few pages."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    dice = random.Random(seed)
    plain = engines(None, page_count=120)
    extra = {"cpu_bytes_to_use": 60 * 4096}
    pair = [engines(own_node.endpoint, page_count=120, extra=extra) for _ in range(2)]
    trunks = [prompt_of(dice.randrange(40, 700), dice.random()) for _ in range(4)]
    for _ in range(30):
        prompts = []
        for _ in range(dice.randrange(1, 4)):
            trunk = dice.choice(trunks)
            prompts.append(trunk[: dice.randrange(1, len(trunk) + 1)] + prompt_of(dice.randrange(1, 60), dice.random()))
        expected = plain.generate(*prompts)
        engine = dice.choice(pair)
        assert engine.generate(*prompts) == expected
        if dice.random() < 0.5:
            engine.scheduler.reset_prefix_cache()
    assert sum(tier_of(each).counters["loaded_chunks"] for each in pair) > 0


def reset(engine: Engine) -> None:
    until = time.monotonic() + 10
    while not engine.scheduler.reset_prefix_cache(reset_connector=True):
        assert time.monotonic() < until
        engine.step()


@SHAPES
def test_a_reset_of_the_caches_forgets_what_the_store_has_for_this_engine_alone(
    engines: Any, own_node: Node, shape: dict[str, Any]
) -> None:
    prompt = prompt_of(600, 41)
    one = engines(own_node.endpoint, **shape)
    expected = stored(one, prompt)
    before = tier_of(one).counters["stored_chunks"]
    reset(one)
    for worker in one.loaded:
        worker.change(2.0)
    assert stored(one, prompt) == expected
    assert one.last_cached() == 0
    assert tier_of(one).counters["stored_chunks"] > before  # under names of its own
    other = engines(own_node.endpoint, **shape)
    assert other.generate(prompt) == expected
    assert other.last_cached() >= 544


def test_a_reset_with_unchanged_weights_goes_on_with_what_was_stored(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(600, 50)
    one, other = engines(own_node.endpoint), engines(own_node.endpoint)
    expected = stored(one, prompt)
    reset(other)
    assert other.generate(prompt_of(10, 51)) != expected  # the workers digest their weights
    assert other.generate(prompt) == expected
    assert other.last_cached() == 576
    reset(other)
    for worker in other.loaded:
        worker.change(2.0)
    other.generate(prompt_of(10, 51))
    assert other.generate(prompt) == expected
    assert other.last_cached() == 0


def test_requests_with_an_adapter_share_nothing(engines: Any, own_node: Node) -> None:
    """vLLM gives its tiers only an adapter's name and path."""
    prompt = prompt_of(600, 52)
    one, other = (engines(own_node.endpoint, adapters={"/adapters/1": i}) for i in (1, 2))
    one.generate(prompt, lora_request=lora(1))
    settle(one)
    assert tier_of(one).counters["stored_chunks"] == 0
    assert other.generate(prompt, lora_request=lora(1)) == engines(None, adapters={"/adapters/1": 2}).generate(
        prompt, lora_request=lora(1)
    )
    assert other.last_cached() == 0


def test_after_a_request_of_other_weights_nothing_is_shared_until_a_reset(engines: Any, own_node: Node) -> None:
    """vLLM's cache and its pool ignore a request's weights_epoch."""
    one, other = engines(own_node.endpoint), engines(own_node.endpoint)
    one.generate(prompt_of(300, 42), params={"weights_epoch": 7})
    settle(one)
    stored(one, prompt_of(300, 43))
    assert tier_of(one).counters["stored_chunks"] == 0
    for seed in (42, 43):
        other.generate(prompt_of(300, seed))
        assert other.last_cached() == 0
    reset(one)
    stored(one, prompt_of(300, 44))
    assert tier_of(one).counters["stored_chunks"] >= 9


# -- a store that is away, dies, is slow, wrong or full


def test_without_a_node_the_engine_starts_and_computes(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(600, 7)
    own_node.kill()
    expected = engines(None).generate(prompt)
    one = engines(own_node.endpoint)
    assert one.generate(prompt) == expected
    settle(one)
    own_node.start()
    warm(one)
    until = time.monotonic() + 40
    seed = 100
    while tier_of(one).counters["stored_chunks"] == 0:  # after the pauses caused by the failures
        assert time.monotonic() < until
        stored(one, prompt_of(100, seed))
        seed += 1
    other = engines(own_node.endpoint)
    assert other.generate(prompt_of(100, seed - 1)) == engines(None).generate(prompt_of(100, seed - 1))
    assert other.last_cached() == 96


def test_a_node_killed_between_lookup_and_load_costs_a_recompute(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(600, 8)
    expected = stored(engines(own_node.endpoint), prompt)
    other = engines(own_node.endpoint)
    tier = tier_of(other)
    submit, lookups = tier.submit_load, []

    def kill_first(job: TransferJob) -> None:
        lookups.append(len(list(job.keys)))
        own_node.kill()
        submit(job)

    tier.submit_load = kill_first  # type: ignore[method-assign]
    assert other.generate(prompt) == expected
    assert lookups == [18]
    assert other.last_cached() == 0


def test_blocks_that_are_gone_at_the_load_are_computed(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(600, 9)
    one = engines(own_node.endpoint)
    expected = stored(one, prompt)
    other = engines(own_node.endpoint)
    tier = tier_of(other)
    submit = tier.submit_load

    def drop_one(job: TransferJob) -> None:
        names = tier._chunks.names(list(job.keys))
        tier._space.drop([bytes(names[7])], deadline=5)
        submit(job)

    tier.submit_load = drop_one  # type: ignore[method-assign]
    assert other.generate(prompt) == expected
    assert other.last_cached() == 7 * 32  # blocks before the gap are kept
    assert tier.counters["loaded_chunks"] == 17


def test_a_stopped_node_costs_the_timeout_and_writes_nothing_later(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(600, 10)
    expected = stored(engines(own_node.endpoint), prompt)
    other = engines(own_node.endpoint, tier={"load_timeout": 0.3, "save_timeout": 0.3})
    tier = tier_of(other)
    submit = tier.submit_load

    def stop_first(job: TransferJob) -> None:
        own_node.pause()
        submit(job)

    tier.submit_load = stop_first  # type: ignore[method-assign]
    began = time.monotonic()
    assert other.generate(prompt) == expected
    assert time.monotonic() - began < 5
    pool = np.array(tier._chunks._pool)
    own_node.resume()
    time.sleep(0.5)
    assert np.array_equal(pool, tier._chunks._pool)


@pytest.fixture
def proxied() -> Iterator[tuple[Node, Proxy]]:
    port = free_port()
    node = Node("--listen", f"tcp://127.0.0.1:{port}")
    proxy = Proxy(("127.0.0.1", port))
    yield node, proxy
    proxy.close()
    node.close()


def test_wrong_bytes_are_never_used(engines: Any, proxied: tuple[Node, Proxy]) -> None:
    node, proxy = proxied
    prompt = prompt_of(600, 11)
    expected = stored(engines(node.endpoint), prompt)
    other = engines(proxy.endpoint)
    tier_of(other)._space.wait_open(deadline=5)
    proxy.flips = True
    assert other.generate(prompt) == expected
    assert proxy.flipped > 0
    assert other.last_cached() < 576


def test_a_slow_node_is_waited_for_and_used(engines: Any, proxied: tuple[Node, Proxy]) -> None:
    node, proxy = proxied
    prompt = prompt_of(600, 12)
    expected = stored(engines(node.endpoint), prompt)
    other = engines(proxy.endpoint)
    tier_of(other)._space.wait_open(deadline=5)
    proxy.delay = 0.2
    assert other.generate(prompt) == expected
    assert other.last_cached() == 576


@pytest.mark.parametrize("kind", [SET_GET, PUT_DATA])
def test_a_node_killed_in_the_middle_of_a_transfer_changes_nothing(
    engines: Any, proxied: tuple[Node, Proxy], kind: int
) -> None:
    node, proxy = proxied
    prompt, later = prompt_of(600, 13), prompt_of(600, 14)
    plain = engines(None).generate(prompt, later)
    if kind == SET_GET:
        stored(engines(node.endpoint), prompt)
    other = engines(proxy.endpoint)
    tier_of(other)._space.wait_open(deadline=5)
    sprung = proxy.trap(kind, node.kill, response=kind == SET_GET, middle=True)
    assert other.generate(prompt, later) == plain
    settle(other)
    assert sprung.wait(10)


def test_a_full_node_keeps_what_it_has_and_the_engine_goes_on(engines: Any, model: Path) -> None:
    node = Node(capacity="8MiB")
    try:
        prompts = [prompt_of(1500, 20 + i) for i in range(60)]  # 46 blocks of 4 KiB each
        expected = engines(None).generate(*prompts)
        one = engines(node.endpoint)
        for prompt, tokens in zip(prompts, expected, strict=True):
            assert stored(one, prompt) == [tokens]
        other = engines(node.endpoint)
        assert other.generate(*prompts) == expected
    finally:
        node.close()


def test_a_node_that_was_restarted_empty_is_used_again(engines: Any, own_node: Node) -> None:
    prompt = prompt_of(600, 15)
    one = engines(own_node.endpoint)
    expected = stored(one, prompt)
    own_node.kill()
    own_node.start()
    other = engines(own_node.endpoint)
    assert other.generate(prompt) == expected
    assert other.last_cached() == 0
    settle(other)
    third = engines(own_node.endpoint)
    assert third.generate(prompt) == expected
    assert third.last_cached() == 576


# -- the tier alone, as vLLM's manager calls it


def context(name: str) -> ReqContext:
    return ReqContext(req_id=name)


def looked_up(tier: KVStoreTier, keys: list[bytes], name: str = "r") -> list[LookupResult]:
    tier.on_new_request(context(name))
    for _ in range(2000):
        found = [tier.lookup(key, context(name)) for key in keys]  # type: ignore[arg-type]
        if LookupResult.RETRY not in found:
            return found
        tier.on_schedule_end(None)  # type: ignore[arg-type]
        time.sleep(0.001)
    raise AssertionError("no answer")


def finished(tier: KVStoreTier, job: int) -> Any:
    until = time.monotonic() + 20
    while True:
        for each in tier.get_finished_jobs():
            assert each.job_id == job
            return each
        assert time.monotonic() < until
        time.sleep(0.0005)


def job(number: int, keys: list[bytes], rows: Any, load: bool, name: str = "r") -> TransferJob:
    return TransferJob(number, keys, np.asarray(rows, np.int32), load, context(name))  # type: ignore[arg-type]


def keys_of(count: int) -> list[bytes]:
    return [random.randbytes(32) + bytes(4) for _ in range(count)]


def test_a_job_of_many_keys_is_made_in_short_calls(engines: Any, own_node: Node) -> None:
    """And all of its chunks are in their places."""
    tier = tier_of(engines(own_node.endpoint))
    pool = tier._chunks._pool
    count = 3 * KEYS_MAX + 5
    keys, rows = keys_of(count), np.random.default_rng(1).permutation(len(pool))[:count]
    pool[:] = np.random.default_rng(2).integers(0, 256, pool.shape, np.uint8)
    before = np.array(pool)
    tier.submit_store(job(1, keys, rows, False))
    assert finished(tier, 1).success
    assert looked_up(tier, keys) == [LookupResult.HIT] * count
    pool[rows] = 0
    tier.submit_load(job(2, keys, rows, True))
    result = finished(tier, 2)
    assert result.success
    assert result.transfer_bytes == count * 4096
    assert np.array_equal(pool, before)


def test_what_a_load_did_not_bring_is_a_miss_for_that_request(engines: Any, own_node: Node) -> None:
    tier = tier_of(engines(own_node.endpoint))
    keys = keys_of(10)
    tier.submit_store(job(1, keys[:9], range(9), False))
    assert finished(tier, 1).success
    assert looked_up(tier, keys) == [LookupResult.HIT] * 9 + [LookupResult.MISS]
    tier._space.drop([keys[3][:32]], deadline=5)
    tier.submit_load(job(2, keys[:9], range(20, 29), True))
    result = finished(tier, 2)
    assert not result.success
    assert set(result.successful_keys) == set(keys[:3] + keys[4:9])
    assert [tier.lookup(key, context("r")) for key in keys[2:5]] == [  # type: ignore[arg-type]
        LookupResult.HIT,
        LookupResult.MISS,
        LookupResult.HIT,
    ]


def test_a_drain_ends_all_jobs_and_tells_each_once(engines: Any, own_node: Node) -> None:
    tier = tier_of(engines(own_node.endpoint, tier={"load_timeout": 0.5, "save_timeout": 0.5}))
    keys = keys_of(4)
    own_node.pause()
    tier.submit_store(job(1, keys, range(4), False))
    tier.submit_load(job(2, keys, range(4, 8), True))
    began = time.monotonic()
    tier.drain_jobs()
    assert time.monotonic() - began < 3
    assert sorted(each.job_id for each in tier.get_finished_jobs()) == [1, 2]
    assert list(tier.get_finished_jobs()) == []


def test_after_three_failures_the_store_is_not_asked_for_a_while(engines: Any, own_node: Node) -> None:
    tier = tier_of(engines(own_node.endpoint, tier={"lookup_timeout": 0.02}))
    own_node.pause()
    for i in range(3):
        assert looked_up(tier, keys_of(2), f"r{i}") == [LookupResult.MISS] * 2
    began = time.monotonic()
    assert tier.lookup(keys_of(1)[0], context("r9")) == LookupResult.MISS  # type: ignore[arg-type]
    assert time.monotonic() - began < 0.01
    own_node.resume()
    time.sleep(1.1)
    assert looked_up(tier, keys_of(1), "late") == [LookupResult.MISS]
    assert tier._door.lookups.allows()


def test_stored_chunks_are_told_as_events_if_asked_for(engines: Any, own_node: Node) -> None:
    events = {"enable_kv_cache_events": True, "publisher": "null"}
    for wants, expected in ((True, 1), (False, 0)):
        tier = tier_of(
            engines(own_node.endpoint, tier={"enable_kv_events": wants, "locality": "REMOTE"}, kv_events_config=events)
        )
        keys = keys_of(3)
        tier.submit_store(job(1, keys, range(3), False))
        assert finished(tier, 1).success
        told = list(tier.take_events())
        assert len(told) == expected
        if told:
            assert told[0].keys == keys
            assert not told[0].removed
            assert told[0].locality.name == "REMOTE"
        assert list(tier.take_events()) == []


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_stays_flat(engines: Any, own_node: Node) -> None:
    """10^5 calls. Prints the median and the longest of each call's processor time, in us (pytest -s)."""
    tier = tier_of(engines(own_node.endpoint))
    keys = keys_of(46)
    tier.submit_store(job(0, keys, range(46), False))
    assert finished(tier, 0).success
    times: dict[str, list[float]] = {}

    def timed(name: str, call: Any, *arguments: Any) -> Any:
        began = time.thread_time()
        answer = call(*arguments)
        times.setdefault(name, []).append(time.thread_time() - began)
        return answer

    def one_round(i: int) -> None:
        name = f"r{i}"
        timed("on_new_request", tier.on_new_request, context(name))
        while LookupResult.RETRY in [timed("lookup", tier.lookup, key, context(name)) for key in keys]:
            timed("on_schedule_end", tier.on_schedule_end, None)
            for each in tier._asked[name].values():
                if each[0].future is not None:
                    each[0].future.wait(5)
        timed("submit_load", tier.submit_load, job(i, keys, range(46, 92), True, name))
        tier._jobs[0].future.wait(5)  # type: ignore[union-attr]
        (result,) = timed("get_finished_jobs", tier.get_finished_jobs)
        assert result.success
        timed("on_request_finished", tier.on_request_finished, context(name))

    gc.collect()
    for i in range(1, 100):
        one_round(i)
    before = resident_bytes()
    rounds = int(os.environ.get("KV_TIER_ROUNDS", "1000"))
    for i in range(100, 100 + rounds):
        one_round(i)
    assert sum(map(len, times.values())) >= rounds * 95
    assert resident_bytes() - before < 4 << 20
    assert not tier._asked
    print({name: [round(1e6 * figure(each), 1) for figure in (statistics.median, max)] for name, each in times.items()})


# -- refusals


def spec_of(engine: Engine) -> Any:
    return tier_of(engine)._offloading_spec


def test_without_the_connector_that_tells_of_the_model_the_tier_is_refused(engines: Any, own_node: Node) -> None:
    config = transfer_config(own_node.endpoint, 16 << 20)
    config |= {"kv_connector": "OffloadingConnector", "kv_connector_module_path": None}
    with pytest.raises(kvstore.errors.BadRequest, match="KVStoreOffloadingConnector"):
        engines(own_node.endpoint, tier=False, kv_transfer_config=config)
    # vLLM leaves the region of a failed connector.
    for name in os.listdir("/dev/shm"):
        if name.startswith("vllm_offload"):
            os.unlink(f"/dev/shm/{name}")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"endpoint": "unix:///x"}, "'endpoint' is none of"),
        ({"load_timeout": 0}, "load_timeout is 0"),
        ({"locality": "NEAR"}, "locality is 'NEAR'"),
        ({"enable_kv_events": 1}, "enable_kv_events is 1"),
    ],
)
def test_options_are_checked(engines: Any, own_node: Node, option: dict[str, Any], text: str) -> None:
    made = engines(own_node.endpoint)
    view = tier_of(made)._primary_kv_view
    token = the_engine.set((made.config, made.cache))
    try:
        with pytest.raises(kvstore.errors.BadRequest, match=text):
            KVStoreTier(spec_of(made), view, "KVStoreTier", **option)
    finally:
        the_engine.reset(token)


@pytest.mark.parametrize("name", ["enable_prefix_caching", "calculate_kv_scales"])
def test_engines_whose_blocks_others_cannot_use_are_refused(engines: Any, own_node: Node, name: str) -> None:
    made = engines(own_node.endpoint)
    cache = SimpleNamespace(**vars(made.config.cache_config))
    setattr(cache, name, name == "calculate_kv_scales")
    config = SimpleNamespace(**(vars(made.config) | {"cache_config": cache}))
    token = the_engine.set((config, made.cache))
    try:
        with pytest.raises(kvstore.errors.Unsupported, match=name):
            KVStoreTier(spec_of(made), tier_of(made)._primary_kv_view, "KVStoreTier", endpoints=own_node.endpoint)
    finally:
        the_engine.reset(token)
