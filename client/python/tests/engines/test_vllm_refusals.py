"""What the connector refuses at the start, and what shapes its blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import scheduled
import torch
import vllm
from synthetic import BLOCK, KNOWN, cache_config, engine_config, named
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
)

import kvstore
from kvstore.vllm import KVStoreConnector, compat
from kvstore.vllm.model import Model

model = scheduled.model  # a fixture


def refused(model: Path, text: str, cache: KVCacheConfig | None = None, **more: Any) -> None:
    stages = more.pop("stages", 1)
    config = engine_config(model, "unix:///nowhere", **more)
    config.parallel_config.pipeline_parallel_size = stages
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
    monkeypatch.setattr(vllm, "__version_tuple__", (0, 29, 9))
    refused(model, "it is too old. Tried were 0.31.0, ")


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
