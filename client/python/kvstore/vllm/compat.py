"""What differs between releases of vLLM, and the releases that were tried. Whatever asks which release runs is here; the rest is
written for the newest.

From 0.30 on a connector is given the cache manager, and says by name which requests' loads have failed. Up to 0.29 it is
given the block pool alone, and says which pages have failed; with several cache groups that does not say whose they are.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig

__all__ = [
    "HAS_CACHE_MANAGER",
    "TRIED_VERSIONS",
    "CacheHitSource",
    "KVConnectorTransferResults",
    "PageTables",
    "draws_hashes",
    "engine_name",
    "heads_text",
    "instruction_set",
    "is_plain",
    "layout_of",
    "page_parts",
    "replicas_of",
    "tokens_in_flight",
    "why_too_old",
]

#: Releases that the tests ran with.
TRIED_VERSIONS = ("0.32.0",)

#: From 0.30 on.
HAS_CACHE_MANAGER = hasattr(base.KVConnectorBase_V1, "bind_kv_cache_manager")

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource  # from 0.32 on
except ImportError:

    class CacheHitSource(enum.Enum):  # type: ignore[no-redef]
        """Nobody asks."""

        HOST = "host"
        DISK = "disk"
        EXTERNAL_UNSPECIFIED = "external_unspecified"


if HAS_CACHE_MANAGER:
    KVConnectorTransferResults = base.KVConnectorTransferResults
else:

    @dataclass
    class KVConnectorTransferResults:
        finished_sending: set[str] | None = None
        finished_recving: set[str] | None = None
        failed_recving: set[str] | None = None


def engine_name() -> str:
    """As the namespace has it: releases may pack pages differently."""
    return f"vllm {vllm.__version__}"


def why_too_old(config: Any) -> str:
    """Why this release cannot be served, or nothing."""
    if vllm.__version_tuple__[:2] < (0, 19):
        return "its connectors cannot hold pages. 0.19 is the oldest that can be served"
    if not HAS_CACHE_MANAGER and config.scheduler_config.async_scheduling:
        return "its asynchronous scheduling does not say which tokens are being computed. Set --no-async-scheduling"
    return ""


def is_plain(group: Any) -> bool:
    """Whether a group's pages hold each token's own state, as it is, for the model that answers."""
    spec = group.kv_cache_spec
    quant_mode = getattr(spec, "kv_quant_mode", None)
    return not (
        getattr(group, "is_eagle_group", False)
        or getattr(group, "host_resident", False)
        or getattr(spec, "tokens_per_state", 1) != 1
        or getattr(spec, "compress_ratio", 1) != 1  # its name up to 0.29
        or getattr(spec, "extra_retained_tokens", 0)
        or (quant_mode is not None and quant_mode.name != "NONE")
    )


def heads_text(spec: Any) -> str:
    heads = getattr(spec, "num_heads", spec.num_kv_heads)
    return f"{heads}x{spec.head_size}+{getattr(spec, 'head_size_v', spec.head_size)}"


def layout_of(config: Any, cache: Any) -> str:
    """In which order layers (L), blocks (B), heads (H), tokens (N) and content (C) follow each other. Up to 0.28 there is
    one order on the CPU, and no word for it.
    """
    said = getattr(cache, "kv_cache_layout", None) or getattr(config.cache_config, "kv_cache_layout", None)
    return str(said or ("" if "kv_cache_layout" in KVCacheConfig.__dataclass_fields__ else "LBHNC"))


def page_parts(is_mla: bool) -> int:
    """How many tensors a layer's pages lie in: 2 where all keys come before all values: in 0.22, no longer in 0.25."""
    shape_of = getattr(CPUAttentionBackend, "get_kv_cache_shape", None)
    return 2 if not is_mla and shape_of is not None and shape_of(7, 32, 1, 32)[0] == 2 else 1


def replicas_of(cache: Any) -> int:
    """How many consecutive tensor-parallel ranks hold the same bytes, where the engine says so."""
    return int(getattr(cache, "kv_tp_replicas", 1) or 1)


def instruction_set(config: Any, block_size: int) -> str:
    """What the kernels for the CPU pack keys for."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    model = config.model_config
    return str(_get_attn_isa(model.dtype, block_size, model.get_head_size()))


def tokens_in_flight(request: Any) -> int:
    """Of the request's computed tokens, those whose step has not ended. Up to 0.27 nobody counts them: without asynchronous
    scheduling there are none.
    """
    return int(getattr(request, "num_in_flight_tokens", 0))


def draws_hashes(algorithm: str) -> bool:
    """Whether each process makes other hashes of the same tokens. Up to 0.28, of any algorithm."""
    is_drawn = algorithm.startswith("xxhash") or not hasattr(kv_cache_utils, "resolve_none_hash_seed")
    return is_drawn and os.environ.get("PYTHONHASHSEED") is None


class PageTables:
    """Stands for the cache manager where there is only the block pool: a request's pages, as the scheduler tells them to
    workers. It does not tell of pages that a window has left behind, so windows are refused there.
    """

    def __init__(self, block_pool: Any) -> None:
        self.block_pool = block_pool
        self._pages: dict[str, tuple[list[int], ...]] = {}

    def follow(self, output: Any) -> None:
        """Before anything is asked of the step ``output``."""
        for request_id in output.finished_req_ids:
            self._pages.pop(request_id, None)
        for new in output.scheduled_new_reqs:
            self._pages[new.req_id] = tuple(list(table) for table in new.block_ids)
        cached = output.scheduled_cached_reqs
        for request_id, tables in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if tables is None:
                continue
            if request_id in cached.resumed_req_ids:
                self._pages[request_id] = tuple(list(table) for table in tables)
            else:
                for known, more in zip(self._pages[request_id], tables, strict=True):
                    known.extend(more)

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self._pages[request_id]
