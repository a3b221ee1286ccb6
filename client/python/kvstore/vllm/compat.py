"""What differs between releases of vLLM, and the releases that were tried. Whatever asks which release runs is here; the rest is
written for the newest.
"""

from __future__ import annotations

import os
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.v1.kv_cache_interface import KVQuantMode, MambaSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

__all__ = [
    "TRIED_VERSIONS",
    "CacheHitSource",
    "KVConnectorTransferResults",
    "draws_hashes",
    "engine_name",
    "has_heads_apart",
    "hash_tokens",
    "head_count",
    "heads_text",
    "instruction_set",
    "is_plain",
    "layout_of",
    "replicas_of",
    "states_of",
    "tokens_in_flight",
    "why_too_old",
]

#: Releases that the tests ran with.
TRIED_VERSIONS = ("0.32.0",)


def engine_name() -> str:
    """As the namespace has it: releases may pack pages differently."""
    return f"vllm {vllm.__version__}"


def why_too_old(config: Any) -> str:
    """Why this release cannot be served, or nothing."""
    if not hasattr(base.KVConnectorBase_V1, "bind_kv_cache_manager"):
        return f"its connectors cannot hold pages. Tried were {', '.join(TRIED_VERSIONS)}"
    return ""


def is_plain(group: Any) -> bool:
    """Whether a group's pages hold each token's own state, or the state after the last one, as it is, for the model that
    answers.
    """
    spec = group.kv_cache_spec
    return not (
        group.is_eagle_group
        or group.host_resident
        or getattr(spec, "extra_retained_tokens", 0)
        or getattr(spec, "num_speculative_blocks", 0)
        or getattr(spec, "num_prefill_checkpoint_blocks", 0)
        or getattr(spec, "kv_quant_mode", KVQuantMode.NONE) != KVQuantMode.NONE
        or (not isinstance(spec, MambaSpec) and spec.tokens_per_state != 1)
    )


def head_count(spec: Any) -> int:
    """Of one rank."""
    return int(spec.num_heads)


def heads_text(spec: Any, rank_count: int = 1) -> str:
    return f"{head_count(spec) * rank_count}x{spec.head_size}+{spec.head_size_v}"


def layout_of(config: Any, cache: Any) -> str:
    """In which order layers (L), blocks (B), heads (H), tokens (N) and content (C) follow each other."""
    return str(cache.kv_cache_layout or config.cache_config.kv_cache_layout or "")


def has_heads_apart(layout: str) -> bool:
    """Whether a page has the bytes of each kv head in one piece. Then it does not matter how kernels order them inside: those
    for the CPU keep a head's keys before its values, and pack keys in an order of the instruction set's.
    """
    return layout.endswith("HNC")


def replicas_of(cache: Any) -> int:
    """How many consecutive tensor-parallel ranks hold the same bytes, where the engine says so."""
    return int(getattr(cache, "kv_tp_replicas", 1) or 1)


def instruction_set(config: Any, block_size: int) -> str:
    """What the kernels for the CPU pack keys for."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    model = config.model_config
    return str(_get_attn_isa(model.dtype, block_size, model.get_head_size()))


def hash_tokens(cache: Any, block_size: int) -> int:
    """Of how many tokens each of a request's hashes is."""
    return int(cache.hash_block_size or block_size)


def states_of(output: Any) -> dict[str, list[tuple[int, int, int]]]:
    """States that a step leaves at a block's end: of each request, cache group, page and tokens before the end. A request's
    pages do not tell: most states are never kept.
    """
    told = output.kv_connector_block_state
    return {} if told is None else dict(told.boundary_state_offloads)


def tokens_in_flight(request: Any) -> int:
    """Of the request's computed tokens, those whose step has not ended."""
    return int(request.num_in_flight_tokens)


def draws_hashes(algorithm: str) -> bool:
    """Whether each process makes other hashes of the same tokens."""
    return os.environ.get("PYTHONHASHSEED") is None and algorithm.startswith("xxhash")
