"""Differences between releases of vLLM, and the releases tried. All checks of the release are here; other code is for the newest.

Before 0.30 a connector was given no cache manager, and could not report which requests' loads have failed.
"""

from __future__ import annotations

import enum
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import MambaSpec

from ..errors import Unsupported

#: vLLM's class that other modules import from here.
__all__ = ["CacheHitSource"]

TRIED_VERSIONS = ("0.31.0", "0.32.0")

#: The same for the tiers behind a pool in host memory (tier.py).
TIERS_TRIED = ("0.32.0",)

#: Draft models were tried with 0.32.
SERVES_DRAFTS = vllm.__version_tuple__[:2] >= (0, 32)

#: So were prompt modules.
SERVES_MODULES = vllm.__version_tuple__[:2] >= (0, 32)

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource  # from 0.32 on
except ImportError:

    class CacheHitSource(enum.Enum):  # type: ignore[no-redef]
        """A stand-in: older releases do not ask for sources."""

        HOST = "host"
        DISK = "disk"
        EXTERNAL_UNSPECIFIED = "external_unspecified"


def engine_name() -> str:
    """As in the namespace: releases may pack pages differently."""
    return f"vllm {vllm.__version__}"


def why_too_old() -> str:
    """Why this release cannot be served, or ""."""
    if vllm.__version_tuple__[:2] < (0, 30):
        return f"it is too old. Tried were {', '.join(TRIED_VERSIONS)}"
    return ""


def has_choice_of_layout() -> bool:
    """Whether kernels accept heads before tokens as well as tokens before heads: the CPU's accept one order alone."""
    return bool(current_platform.is_cuda())


def why_not_here() -> str:
    """Why pages of this platform cannot be served, or ""."""
    if current_platform.device_type == "cpu":
        return ""
    if not current_platform.is_cuda():  # ROCm's device type is "cuda" too
        return "only engines on a CPU and on CUDA devices are supported"
    if vllm.__version_tuple__[:2] < (0, 32):
        return "engines on CUDA devices are served from 0.32 on"
    return ""


def is_plain(group: Any) -> bool:
    """Whether a group's pages hold each token's own state, or the state after the last token, as it is, for the model that answers."""
    spec = group.kv_cache_spec
    quant_mode = getattr(spec, "kv_quant_mode", None)
    return not (
        getattr(group, "is_eagle_group", False)
        or getattr(group, "host_resident", False)
        or getattr(spec, "extra_retained_tokens", 0)
        or getattr(spec, "num_speculative_blocks", 0)
        or getattr(spec, "num_prefill_checkpoint_blocks", 0)
        # A backend's own packing: its "head" may be all keys of a page.
        or getattr(spec, "num_head_slots", None) is not None
        or getattr(spec, "state_content_bytes", None) is not None
        or (quant_mode is not None and quant_mode.name != "NONE")
        or (not isinstance(spec, MambaSpec) and getattr(spec, "tokens_per_state", 1) != 1)
    )


def head_count(spec: Any) -> int:
    """Heads on one rank."""
    return int(getattr(spec, "num_heads", spec.num_kv_heads))


def heads_text(spec: Any, rank_count: int = 1) -> str:
    return f"{head_count(spec) * rank_count}x{spec.head_size}+{spec.head_size_v}"


def layout_of(config: Any, cache: Any) -> str:
    """The order of layers (L), blocks (B), heads (H), tokens (N) and content (C)."""
    return str(getattr(cache, "kv_cache_layout", None) or getattr(config.cache_config, "kv_cache_layout", None) or "")


def has_heads_apart(layout: str) -> bool:
    """Whether a page has the bytes of each kv head in one piece. Then the kernels' order inside does not matter: CPU kernels keep a head's
    keys before its values, and pack keys in an order of the instruction set's.
    """
    return layout.endswith("HNC")


def replicas_of(cache: Any) -> int:
    """How many consecutive tensor-parallel ranks hold the same bytes, if the engine reports it."""
    return int(getattr(cache, "kv_tp_replicas", 1) or 1)


def packing(config: Any, block_size: int, is_mla: bool) -> str:
    """The packing of a page's bytes beside its layout. An MLA token is a row on every processor, latent part first, then rotated. CUDA's
    backends keep a token's keys before its values; the CPU's keep all keys of a head, in an instruction set's order, then all values.
    """
    if is_mla:
        return "rows"
    if current_platform.is_cuda():
        return "cuda"
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    model = config.model_config
    return f"cpu {_get_attn_isa(model.dtype, block_size, model.get_head_size())}"


def write_tokens(keys: torch.Tensor, values: torch.Tensor, page: torch.Tensor) -> None:
    """Fills a page of the CPU's, ``[1, heads, tokens, keys and values]``, as its kernels do; ``keys`` are ``[token, head, feature]``."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    _, heads, tokens, both = page.shape
    key_page, value_page = page.view(1, heads, tokens * 2, both // 2).chunk(2, dim=2)
    isa = _get_attn_isa(page.dtype, tokens, both // 2)
    ops.cpu_attn_reshape_and_cache(keys, values, key_page, value_page, torch.arange(tokens), isa)


def set_apart(request: Any) -> None:
    """Gives the request's blocks random hashes, so that vLLM's own cache finds its pages for no other request, nor for this one when it was
    preempted. The hashes of further tokens depend on the last one, or, with a prompt shorter than a page, on the salt.
    """
    request.cache_salt = f"{request.cache_salt} {secrets.token_hex(16)}"
    request.block_hashes[:] = [secrets.token_bytes(len(each)) for each in request.block_hashes]


def preempted_of(output: Any) -> Iterable[str]:
    """Requests that have lost their pages since the last step. Up to 0.31 not said everywhere."""
    return getattr(output, "preempted_req_ids", None) or ()


def current_stream() -> Any:
    """The stream on which the engine's thread enqueues its steps."""
    return torch.cuda.current_stream()


def timed_event() -> Any:
    """A timing event for the engine's stream."""
    return torch.cuda.Event(enable_timing=True)


def hash_tokens(config: Any, cache: Any) -> int:
    """Tokens per request hash. Up to 0.31 the cache lacks the field."""
    said = getattr(cache, "hash_block_size", None)
    if said is None and len(cache.kv_cache_groups) > 1:
        said = getattr(config.cache_config, "prefix_match_unit", None)
    return int(said or config.cache_config.block_size)


def hit_tokens(config: Any, cache: Any) -> int:
    """The engine's hits end at multiples of a page; or of a hash, where vLLM keeps states inside a page and gives them to connectors."""
    resolve = getattr(kv_cache_utils, "resolve_cache_hit_alignment_tokens", None)
    page = int(config.cache_config.block_size)
    if resolve is None or not hasattr(base.KVConnectorBase_V1, "register_finished_partial_tail"):
        return page
    return int(resolve(cache, config, page, hash_tokens(config, cache)))


def states_of(output: Any) -> dict[str, list[tuple[int, int, int]]]:
    """States that a step leaves at a block's end, as (group, page, tokens before) per request. Page tables lack this: few are kept."""
    told = output.kv_connector_block_state
    return {} if told is None else dict(told.boundary_state_offloads)


def draws_hashes(algorithm: str) -> bool:
    """Whether processes make different hashes of the same tokens."""
    return algorithm.startswith("xxhash") and os.environ.get("PYTHONHASHSEED") is None


# -- the worker, which vLLM does not pass to connectors

_IMPORTED = time.time()


def _callers() -> Iterator[Any]:
    """The objects whose methods are on the call stack, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if "self" in frame.f_locals:
            yield frame.f_locals["self"]
        frame = frame.f_back  # type: ignore[assignment]


def worker_here() -> Any:
    """vLLM's worker, which is calling its connector: the only way to the loaded model."""
    for each in _callers():
        if hasattr(each, "model_runner") and hasattr(each, "get_model"):
            return each
    raise Unsupported(f"{engine_name()}: a connector is not called by a worker, so that nobody knows what was loaded")


def is_heard(connector: Any) -> bool:
    """Whether this connector's first message reaches its other half: MultiConnector passes on one part's; others need theirs more."""
    for each in _callers():
        for part in getattr(each, "_connectors", ()):
            if part is not connector and _speaks(part):
                return False
    return True


def has_others_beside() -> bool:
    """Whether MultiConnector is calling this connector, and others too."""
    return any(len(getattr(each, "_connectors", ())) > 1 for each in _callers())


def _speaks(part: Any) -> bool:
    return type(part).get_handshake_metadata is not base.KVConnectorBase_V1.get_handshake_metadata


def draft_of(worker: Any) -> Any:
    """The worker's draft model, if any."""
    get = getattr(worker, "get_draft_model", None)
    return None if get is None else get()


def adapters_of(worker: Any) -> Any:
    """The worker's adapters in memory, by number, or None."""
    manager = getattr(getattr(worker.model_runner, "lora_manager", None), "_adapter_manager", None)
    return None if manager is None else manager.list_adapters()


def load_began() -> float:
    """Files unchanged since then are the loaded ones: a vLLM process's start; elsewhere, this import when an engine is configured."""
    return _IMPORTED if multiprocessing.parent_process() is None else psutil.Process().create_time()


def reads_files(load_config: Any) -> bool:
    """Whether the loaded weights are plain files."""
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    return type(get_model_loader(load_config)) is DefaultModelLoader


def files_of(load_config: Any, folder: str, source: Any) -> list[str]:
    """The files of a folder that vLLM loads for ``source``, a model or a part of one."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    found = DefaultModelLoader(load_config)._prepare_weights(
        folder,
        getattr(source, "subfolder", None),
        None,
        getattr(source, "fall_back_to_pt_during_load", getattr(source, "fall_back_to_pt", True)),
        getattr(source, "allow_patterns_overrides", None),
    )
    return list(found[1])
