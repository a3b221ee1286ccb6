"""SGLang's own host pools with the backend, without a model: called as SGLang calls it, many pages at once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("sglang")

import sglang_pools
import torch
from conftest import Node, free_port
from proxy import SET_GET, Proxy
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost
from sglang_pools import (
    HEADS,
    LAYERS,
    PAGE,
    PAGES,
    SIZE,
    Backend,
    check_loaded,
    emptied,
    filled,
    keys_of,
    mha_pool,
    mla_pool,
    page_of,
    put,
    tokens_of,
    wait_for_node,
)

import kvstore
from kvstore.errors import BadRequest, Unsupported
from kvstore.sglang import compat
from kvstore.sglang.figures import COUNTERS

backend, salt, sglang_context = sglang_pools.backend, sglang_pools.salt, sglang_pools.sglang_context  # fixtures
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head", "page_unified")
MLA_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_unified")


# -- sharing


@pytest.mark.parametrize("layout", LAYOUTS)
def test_engines_of_all_host_layouts_read_what_one_has_stored(layout: str, backend: Backend) -> None:
    pool = mha_pool(layout)
    keys = keys_of(20)
    put(backend(pool), keys, list(range(5, 25)))
    expected = [page_of(pool, page) for page in range(5, 25)]
    for other in LAYOUTS:
        target = emptied(mha_pool(other))
        check_loaded(backend(target), target, keys, expected)


@pytest.mark.parametrize("layout", MLA_LAYOUTS)
def test_latents_are_stored_once_and_read_by_all_ranks_in_all_layouts(
    layout: str, backend: Backend, node: Node
) -> None:
    pool = mla_pool(layout)
    keys = keys_of(20)
    writer = backend(pool, tp_rank=0, tp_size=4)
    put(writer, keys, list(range(5, 25)))
    expected = [page_of(pool, page) for page in range(5, 25)]
    again = backend(pool, tp_rank=1, tp_size=4)
    with kvstore.Client(node.endpoint) as client:
        was = client.stats()[0]["values"]["stored_blocks"]
        put(again, keys, list(range(5, 25)))
        assert client.stats()[0]["values"]["stored_blocks"] == was
    for i, other in enumerate(MLA_LAYOUTS):
        target = emptied(mla_pool(other))
        check_loaded(backend(target, tp_rank=i, tp_size=4), target, keys, expected)


@pytest.mark.parametrize("layout", ("layer_first", "page_first_direct", "page_unified"))
def test_engines_of_other_tensor_parallel_sizes_read_their_heads(layout: str, backend: Backend) -> None:
    whole = mha_pool("page_first_direct")
    keys = keys_of(10)
    put(backend(whole, more={"head_groups": 4}), keys, list(range(10)))
    expected = [page_of(whole, page) for page in range(10)]
    for size in (1, 2, 4):
        for rank in range(size):
            heads = HEADS // size
            target = emptied(mha_pool(layout, heads))
            mine = [page[:, :, :, rank * heads : (rank + 1) * heads] for page in expected]
            storage = backend(target, more={"head_groups": 4}, tp_rank=rank, tp_size=size)
            check_loaded(storage, target, keys, mine)


def test_what_several_ranks_have_stored_is_whole_when_all_have(backend: Backend) -> None:
    pools = [mha_pool("layer_first", 2) for _ in range(2)]
    keys = keys_of(6)
    target = emptied(mha_pool("page_first"))
    reader = backend(target, more={"head_groups": 2})
    for rank, pool in enumerate(pools):
        assert reader.batch_exists(keys) == 0
        put(backend(pool, more={"head_groups": 2}, tp_rank=rank, tp_size=2), keys, list(range(6)))
    expected = [torch.cat([page_of(pool, page) for pool in pools], dim=3) for page in range(6)]
    check_loaded(reader, target, keys, expected)


def test_keys_and_values_of_different_sizes_are_shared_by_both_layouts(backend: Backend) -> None:
    def pool(layout: str) -> Any:
        device = MHATokenToKVPool(PAGES * PAGE, PAGE, torch.bfloat16, HEADS, SIZE, LAYERS, "cpu", False, v_head_dim=8)
        return filled(
            AsymmetricMHATokenToKVPoolHost(
                device.get_device_pool_infos()[0].buffer_info,
                1.0,
                0,
                PAGE,
                layout,
                pin_memory=False,
                device_capacity_tokens=PAGES * PAGE,
                start_layer=0,
                end_layer=LAYERS,
            )
        )

    source, target = pool("page_first"), emptied(pool("page_first_direct"))
    keys = keys_of(5)
    put(backend(source), keys, list(range(5)))
    check_loaded(backend(target), target, keys, [page_of(source, page) for page in range(5)])


def test_what_shapes_the_bytes_keeps_engines_apart(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(4)
    put(backend(mha_pool("page_first_direct")), keys, list(range(4)))
    pool = mha_pool("page_first_direct")
    others: list[tuple[Any, dict[str, Any]]] = [
        (mha_pool("page_first_direct", dtype=torch.float16), {}),
        (mha_pool("page_first_direct", dtype=torch.float32), {}),
        (mha_pool("page_first_direct", layers=2), {}),
        (mha_pool("page_first_direct", heads=2), {}),
        (mha_pool("page_first_direct", heads=2), {"tp_rank": 0, "tp_size": 2}),
        (mha_pool("page_first_direct", heads=2), {"tp_rank": 1, "tp_size": 2}),
        (pool, {"more": {"salt": "other"}}),
        (pool, {"more": {"model": "other"}}),
        (pool, {"more": {"weights_epoch": 7}}),
        (pool, {"more": {"head_groups": 2}}),
        (pool, {"pp_rank": 0, "pp_size": 2}),
        (pool, {"attn_cp_rank": 0, "attn_cp_size": 2}),
    ]
    for other, config in others:
        storage = backend(other, **config)
        before = page_of(other, 0)
        assert storage.batch_exists(keys) == 0, config
        assert storage.batch_get_v1(keys, tokens_of([0, 1, 2, 3])) == [False] * 4, config
        assert torch.equal(page_of(other, 0), before)
    assert backend(pool, dp_rank=1).batch_exists(keys) == 4  # the same bytes
    monkeypatch.setattr(compat, "VERSION", "0.5.24")
    assert backend(pool).batch_exists(keys) == 0


def test_the_weights_keep_models_of_one_name_apart(
    backend: Backend, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "get_server_args", lambda: (_ for _ in ()).throw(ValueError("not published")))
    folders = []
    for i in range(2):
        folder = tmp_path / str(i) / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"hidden_size": 8}')
        (folder / "model.safetensors").write_bytes(bytes([i]) * 1000)
        folders.append(str(folder))
    keys, pool = keys_of(3), mha_pool("layer_first")
    put(backend(pool, model_name=folders[0]), keys, [0, 1, 2])
    assert backend(pool, model_name=folders[0]).batch_exists(keys) == 3
    assert backend(pool, model_name=folders[1]).batch_exists(keys) == 0


def test_what_cannot_be_served_is_refused_at_the_start_by_name(backend: Backend, caplog: Any, monkeypatch: Any) -> None:
    pool = mha_pool("layer_first")
    with pytest.raises(Unsupported, match="dcp_size"):
        backend(mla_pool("layer_first"), tp_rank=0, tp_size=2, dcp_size=2, dcp_rank=0, logical_page_size=32)
    with pytest.raises(BadRequest, match="'endpoint' is none of endpoints"):
        backend(pool, more={"endpoint": "unix:///x"})
    with pytest.raises(BadRequest, match="load_timeout is 0"):
        backend(pool, more={"load_timeout": 0})
    with pytest.raises(BadRequest, match="head_groups is 3"):
        backend(pool, more={"head_groups": 3})
    with pytest.raises(BadRequest, match="head_groups is 8"):
        backend(pool, more={"head_groups": 8})
    monkeypatch.setattr(compat, "VERSION", "0.9.0")
    with caplog.at_level(logging.WARNING):
        backend(pool)
    assert "SGLang 0.9.0 was not tried" in caplog.text


# -- the interfaces


def test_a_hit_ends_at_the_first_page_that_is_missing(backend: Backend) -> None:
    pool = mha_pool("page_first_direct")
    storage = backend(pool)
    keys = keys_of(8)
    put(storage, keys[:3] + keys[5:], [0, 1, 2, 5, 6, 7])
    assert storage.batch_exists(keys) == 3
    assert storage.batch_exists([]) == 0
    assert [storage.exists(key) for key in keys] == [True] * 3 + [False] * 2 + [True] * 3
    before = page_of(pool, 13)
    got = storage.batch_get_v1(keys, tokens_of(list(range(10, 18))))
    assert got == [True] * 3 + [False] * 2 + [True] * 3
    assert torch.equal(page_of(pool, 13), before)
    assert storage.batch_get_v1([], torch.empty(0, dtype=torch.int64)) == []


def test_a_batch_is_one_call_and_more_than_fits_is_several(backend: Backend, node: Node) -> None:
    port = free_port()
    with_tcp = Node("--listen", f"tcp://127.0.0.1:{port}")
    proxy = Proxy(("127.0.0.1", port))
    try:
        pool = mha_pool("layer_first", pages=160)
        storage = backend(pool, proxy.endpoint)
        wait_for_node(storage)
        keys = keys_of(128)
        put(storage, keys, list(range(128)))
        assert storage.batch_exists(keys) == 128
        assert storage.batch_get_v1(keys, tokens_of(list(range(128)))) == [True] * 128
        assert proxy.seen[SET_GET, False] == 1
        little = backend(pool, proxy.endpoint, more={"staging_bytes": 1})
        wait_for_node(little)
        assert little.batch_get_v1(keys[:10], tokens_of(list(range(10)))) == [True] * 10
        assert proxy.seen[SET_GET, False] == 11
    finally:
        proxy.close()
        with_tcp.close()


@pytest.mark.parametrize("layout", ("layer_first", "page_first", "page_first_direct", "page_head"))
def test_the_copying_interface_shares_pages_with_the_other(layout: str, backend: Backend) -> None:
    pool = mha_pool(layout)
    storage = backend(pool)
    keys = keys_of(6)
    values = [pool.get_data_page(page * PAGE) for page in range(6)]
    assert storage.batch_set(keys, values) is True
    targets = [pool.get_dummy_flat_data_page() for _ in range(6)]
    got = storage.batch_get(keys, targets)
    assert all(
        one is not None and torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        for one, other in zip(got, values, strict=True)
    )
    target = emptied(mha_pool("page_first_direct" if layout == "layer_first" else "layer_first"))
    check_loaded(backend(target), target, keys, [page_of(pool, page) for page in range(6)])
    more = keys_of(2, "single")
    assert storage.set(more[0], values[0]) is True
    assert storage.get(more[0], targets[1]) is targets[1]
    assert torch.equal(targets[1].view(torch.uint8), values[0].view(torch.uint8))
    assert storage.get(more[1], targets[1]) is None
    assert storage.batch_get([more[1], more[0]], targets[:2])[0] is None
    assert storage.get(more[0]) is None and storage.set(more[1]) is False


def test_clear_leaves_the_store_to_others(backend: Backend) -> None:
    pool = mha_pool("page_first_direct")
    one, rank, other = backend(pool), backend(pool), backend(pool)
    keys = keys_of(4)
    put(one, keys, list(range(4)))
    for each in (one, rank):
        each.clear()
        assert each.batch_exists(keys) == 0
        assert each.batch_get_v1(keys, tokens_of(list(range(4)))) == [False] * 4
    assert other.batch_exists(keys) == 4
    put(one, keys[:2], [0, 1])
    assert one.batch_exists(keys) == 2
    assert rank.batch_exists(keys) == 2  # a rank of the same engine
    one.clear()
    assert one.batch_exists(keys) == 0
    assert other.batch_exists(keys) == 4


def test_statistics_are_told_once(backend: Backend) -> None:
    pool = mha_pool("page_first_direct")
    storage = backend(pool)
    keys = keys_of(10)
    put(storage, keys, list(range(10)))
    assert storage.batch_get_v1(keys[:4], tokens_of([0, 1, 2, 3])) == [True] * 4
    stats = storage.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([10], [4])
    assert stats.backup_bandwidth[0] > 0 and stats.prefetch_bandwidth[0] > 0
    assert storage.get_stats().backup_pgs == []
    page = LAYERS * 2 * PAGE * HEADS * SIZE * 2
    assert storage.counters["stored_bytes"] == 10 * page and storage.counters["loaded_bytes"] == 4 * page


def test_sglangs_metrics_have_what_the_door_has_seen(backend: Backend) -> None:
    from prometheus_client import REGISTRY

    storage = backend(mha_pool("page_first_direct"), model_name="seen")
    labels = {"model_name": storage._facts.model, "tp_rank": "0", "pp_rank": "0"}

    def value(name: str, **more: str) -> float:
        return REGISTRY.get_sample_value(f"sglang:kvstore_{name}", labels | more) or 0.0

    storage.get_stats()
    before = {name: value(f"{name}_total") for name in COUNTERS}
    keys = keys_of(10)
    put(storage, keys, list(range(10)))
    assert storage.batch_exists(keys[:4]) == 4
    assert storage.batch_get_v1(keys[:4], tokens_of([0, 1, 2, 3])) == [True] * 4
    for _ in range(2):  # each change is reported once
        storage.get_stats()
    added = {name: value(f"{name}_total") - before[name] for name in COUNTERS}
    assert (added["stored_pages"], added["hit_pages"], added["loaded_pages"], added["failures"]) == (10, 4, 4, 0)
    assert value("paused", calls="loads") == 0
