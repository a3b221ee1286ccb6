"""What differs between releases of SGLang, and the releases that were tried. Whatever asks which release runs is here."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import sglang.version
import torch

from .._identity import computed, digest, weights_digest
from ..errors import Unsupported

try:
    from sglang.srt.mem_cache import utils as _utils
    from sglang.srt.mem_cache.hicache_storage import (
        HiCacheStorage,
        PoolHitPolicy,
        PoolName,
        PoolTransferResult,
    )
    from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.observability.metrics_collector import StorageMetrics
    from sglang.srt.runtime_context import get_server_args
except ImportError as _error:
    raise Unsupported(
        f"sglang {sglang.version.__version__} is not served: it has no {_error.name or _error}. Tried was 0.5.23"
    ) from _error

__all__ = [
    "TRIED_VERSIONS",
    "AsymmetricMHATokenToKVPoolHost",
    "Facts",
    "HiCacheStorage",
    "MHATokenToKVPoolHost",
    "MLATokenToKVPoolHost",
    "PoolHitPolicy",
    "PoolName",
    "PoolTransferResult",
    "StorageMetrics",
    "engine_name",
    "engine_seed",
    "facts",
    "multimodal",
    "why_unsupported",
]

#: Releases that the tests ran with.
TRIED_VERSIONS = ("0.5.23",)

VERSION: str = sglang.version.__version__


def engine_name() -> str:
    """As the namespace has it: releases may compute what a page holds differently."""
    return f"sglang {VERSION}"


@dataclass(frozen=True)
class Facts:
    """What an engine says of its model, as far as that shapes what pages hold. None: it says nothing."""

    model: str
    revision: str | None = None
    quantization: str | None = None
    kv_dtype: str | None = None
    config: str | None = None
    weights: str | None = None
    draft: str | None = None
    load_format: str | None = None


def _arguments() -> Any:
    """What the engine was started with, or None where nobody has published that."""
    try:
        return get_server_args()
    except (ValueError, RuntimeError, AttributeError):
        return None


def _folder(model: str, revision: str | None) -> str | None:
    """Where a model's files are, if they are here: its own folder, or the hub's cache."""
    if os.path.isdir(model):
        return model
    try:
        from huggingface_hub import snapshot_download  # type: ignore[import-not-found,unused-ignore]

        return str(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception:  # whatever it raises, it does not know
        return None


def _config(folder: str, override: object) -> str:
    """A digest of what the model computes."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = computed(json.load(file))
    except (OSError, ValueError):
        config = {}
    return digest([config, str(override)])


def _weights(folder: str | None) -> str | None:
    try:
        return None if folder is None else weights_digest(folder)
    except OSError:
        return None


def _model_name(model: str) -> str:
    return os.path.basename(os.path.normpath(model)) if os.path.isdir(model) else model


def facts(model_name: str | None) -> Facts:
    """``model_name`` is what SGLang tells its storage: the model's path, or the name it is served under."""
    given = _arguments()
    if given is None:
        model = model_name or "unknown"
        folder = _folder(model, None)
        return Facts(
            _model_name(model),
            config=None if folder is None else _config(folder, ""),
            weights=_weights(folder),
        )
    path = str(given.model_path)
    folder = _folder(path, given.revision)
    draft = None
    if given.speculative_algorithm is not None:
        draft_path = given.speculative_draft_model_path
        draft_folder = None if draft_path is None else _folder(draft_path, given.speculative_draft_model_revision)
        draft = digest(
            [
                given.speculative_algorithm,
                None if draft_path is None else _model_name(draft_path),
                given.speculative_draft_model_revision,
                _weights(draft_folder),
                str(getattr(given, "speculative_draft_kv_cache_dtype", None)),
            ]
        )
    load_format = str(given.load_format)
    return Facts(
        _model_name(path),
        revision=given.revision,
        quantization=given.quantization,
        # The type is not all: scales may be read from a file.
        kv_dtype=f"{given.dtype} {given.kv_cache_dtype} {given.quantization_param_path or ''}".strip(),
        config=None if folder is None else _config(folder, given.json_model_override_args),
        weights=_weights(folder),
        draft=draft,
        load_format=f"dummy-{given.random_seed}" if load_format == "dummy" else None,
    )


def multimodal() -> str | None:
    """A digest of what an encoder server was told that shapes what its encoder is given or computes."""
    given = _arguments()
    if given is None:
        return None
    names = (
        "dtype",
        "mm_process_config",
        "image_processor_backend",
        "disable_fast_image_processor",
        "mm_attention_backend",
    )
    return digest([[name, str(getattr(given, name, None))] for name in names])


def engine_seed() -> str:
    """Equal on all ranks of one engine on one host, and of no other engine: the process that started the ranks."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", encoding="ascii", errors="replace") as file:
            began = file.read().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        began = ""
    return f"{parent} {began}"


def why_unsupported(config: Any) -> str:
    """Why such an engine cannot be served, or nothing."""
    if getattr(config, "dcp_size", 1) != 1:
        return f"decode-context parallel size (dcp_size) is {config.dcp_size}, only 1 is supported"
    given = _arguments()
    if given is not None and getattr(given, "enable_lora", False) and not hasattr(_utils, "storage_namespace_seed"):
        return "enable_lora: this release names pages by their tokens alone, so that adapters would share them"
    return ""


def page_bytes(page: torch.Tensor) -> int:
    return int(page.numel() * page.element_size())
