"""The rotation of a model whose keys a cache turns to other positions, and the calls of its decoder."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..errors import Unsupported
from ..layouts import Rotation
from .key_rotation import find_rotation
from .model_identity import check_rotations
from .positioned import PositionedModel

__all__ = ["follow_cache", "rotation_of", "windows_of"]

_Tables = tuple[tuple[float, ...], ...]


#: By decoder, with the tables that it was found for: they may change.
_known: weakref.WeakKeyDictionary[torch.nn.Module, tuple[_Tables, Rotation]] = weakref.WeakKeyDictionary()
_followed: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def rotation_of(model: Any) -> tuple[torch.nn.Module, Rotation]:
    """The part of the model that takes ``position_ids``, and the rotation of all layers' keys. Raises Unsupported if the keys of all layers
    are not turned by one rotation that depends on nothing but the position.
    """
    check_rotations(model)
    name, config = type(model).__name__, _text_config(model)
    if getattr(config, "kv_lora_rank", None):
        raise Unsupported(f"{name}: its attention (MLA) turns only a part of a key, not the first features")
    if any(windows_of(model)):
        raise Unsupported(f"{name}: it has layers with a sliding window, which would hide the first tokens")
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    tables = _tables(model)
    known = _known.get(decoder)
    if known is None or known[0] != tables:
        known = _known[decoder] = tables, find_rotation(PositionedModel(model))
    return decoder, known[1]


def _tables(model: Any) -> _Tables:
    return tuple(
        tuple(buffer.detach().cpu().double().tolist())
        for name, buffer in model.named_buffers()
        if name.endswith("inv_freq")
    )


def follow_cache(decoder: torch.nn.Module, hook: Callable[..., Any]) -> None:
    """Calls `hook` before each call of the decoder, however often this is asked."""
    if decoder not in _followed:
        decoder.register_forward_pre_hook(hook, with_kwargs=True)
        _followed.add(decoder)


def windows_of(model: Any) -> list[int | None]:
    """The sliding window of each layer that has keys of its own; None: it reads everything. ``model``: the model, or its config."""
    config = _text_config(model)
    window, count = getattr(config, "sliding_window", None), int(config.num_hidden_layers)
    kinds = list(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * count)
    shared = getattr(config, "num_kv_shared_layers", None) or 0  # the last layers read keys of earlier ones
    other = set(kinds) - {"full_attention", "sliding_attention"}
    if other or getattr(config, "attention_chunk_size", None):
        raise Unsupported(
            f"{type(model).__name__}: layers of the kind {', '.join(sorted(other)) or 'chunked_attention'}"
        )
    return [window if kind == "sliding_attention" else None for kind in kinds[: len(kinds) - shared]]


def _text_config(model: Any) -> Any:
    config = getattr(model, "config", model)
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
