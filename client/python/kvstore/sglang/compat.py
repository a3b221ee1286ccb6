"""Differences between releases of SGLang, and the releases that were tried. All checks of the release are here."""

from __future__ import annotations

import os
from typing import Any

import sglang.version
import torch

from ..doors.identity import digest
from ..errors import Unsupported

try:
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache import utils as _utils
    from sglang.srt.mem_cache.hicache_storage import (
        HiCacheStorage,
        PoolHitPolicy,
        PoolName,
        PoolTransferResult,
    )
    from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
    from sglang.srt.observability.metrics_collector import StorageMetrics
    from sglang.srt.runtime_context import get_server_args
    from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter as MemorySaver
except ImportError as _error:
    raise Unsupported(
        f"sglang {sglang.version.__version__} is not served: it has no {_error.name or _error}. Tried was 0.5.23"
    ) from _error

#: SGLang's classes that other modules import from here.
__all__ = [
    "AsymmetricMHATokenToKVPoolHost",
    "HiCacheController",
    "HiCacheStorage",
    "MHATokenToKVPoolHost",
    "MLATokenToKVPoolHost",
    "PoolHitPolicy",
    "PoolName",
    "PoolTransferResult",
    "StorageMetrics",
]

TRIED_VERSIONS = ("0.5.23",)

VERSION: str = sglang.version.__version__


def engine_name() -> str:
    """As in the namespace: releases may compute the content of pages differently."""
    return f"sglang {VERSION}"


def arguments() -> Any:
    """The engine's start arguments, or None if they were not published."""
    try:
        return get_server_args()
    except (ValueError, RuntimeError, AttributeError):
        return None


def is_engine() -> bool:
    """Whether this process loaded real weights, by its published arguments."""
    given = arguments()
    return given is not None and text(given.load_format) != "dummy"


def text(value: Any) -> str:
    """Text of a value that is a string in one release and an enumeration in another."""
    return str(getattr(value, "value", value))


#: Rotations that depend on the length of the sequence.
ROTATIONS_BY_LENGTH = ("Phi3LongRoPEScaledRotaryEmbedding",)


def changes_of_weights() -> list[tuple[Any, str]]:
    """SGLang's methods that change weights, or free their memory."""
    names = (
        *("update_weights_from_disk", "load_weights_from_distributed", "update_weights_from_tensor"),
        *("update_weights_from_ipc", "begin_weight_update", "end_weight_update"),
    )
    savers = [each for each in MemorySaver.__subclasses__() if "pause" in vars(each)]
    return [(WeightUpdater, name) for name in names] + [(each, "pause") for each in savers]


def changes(name: str, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    return name != "pause" or "weights" in (*given, *named.values())


def multimodal() -> str | None:
    """Digest of an encoder server's arguments that affect its encoder's input or computation."""
    given = arguments()
    if given is None:
        return None
    names = (
        *("dtype", "mm_process_config", "image_processor_backend"),
        *("disable_fast_image_processor", "mm_attention_backend"),
    )
    return digest([[name, str(getattr(given, name, None))] for name in names])


def engine_seed() -> str:
    """Equal on all ranks of one engine on one host, and unique to it: the process that started the ranks."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", encoding="ascii", errors="replace") as file:
            began = file.read().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        began = ""
    return f"{parent} {began}"


def why_unsupported(config: Any) -> str:
    """Why such an engine cannot be served, or ""."""
    if getattr(config, "dcp_size", 1) != 1:
        return f"decode-context parallel size (dcp_size) is {config.dcp_size}, only 1 is supported"
    given = arguments()
    if given is not None and getattr(given, "enable_lora", False) and not hasattr(_utils, "storage_namespace_seed"):
        return "enable_lora: this release names pages by their tokens alone, so that adapters would share them"
    return ""


def page_bytes(page: torch.Tensor) -> int:
    return int(page.numel() * page.element_size())
