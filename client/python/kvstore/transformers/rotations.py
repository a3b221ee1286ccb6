"""How a model turns its keys by their positions, found in the loaded model and tried with a few tokens."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from ..errors import Unsupported
from .prefix_store import _check_rotations

__all__ = ["KeyRotation", "follow_cache", "rotation_of", "windows_of"]

#: Tokens, and their second position, of the trial.
_TRIED_TOKENS = 8
_TRIED_POSITION = 777


@dataclass(frozen=True)
class KeyRotation:
    """The rotation of all layers' keys. ``decoder``: the part of the model that takes ``position_ids``."""

    decoder: torch.nn.Module
    frequencies: tuple[float, ...]
    interleaved: bool


#: By decoder. The trial is repeated if the frequencies have changed.
_known: weakref.WeakKeyDictionary[torch.nn.Module, tuple[tuple[float, ...], bool]] = weakref.WeakKeyDictionary()
_followed: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def rotation_of(model: Any) -> KeyRotation:
    """Raises Unsupported if the keys of all layers are not turned by one rotation that depends on nothing but the position."""
    _check_rotations(model)
    name, config = type(model).__name__, _text_config(model)
    if getattr(config, "kv_lora_rank", None):
        raise Unsupported(f"{name}: its attention (MLA) turns only a part of a key, not the first features")
    if _has_sections(config):
        raise Unsupported(f"{name}: its rotation (M-RoPE) has several positions a token")
    if any(windows_of(model)):
        raise Unsupported(f"{name}: it has layers with a sliding window, which would hide the first tokens")
    frequencies = _frequencies(model, name)
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    known = _known.get(decoder)
    if known is None or known[0] != frequencies:
        known = (frequencies, _is_interleaved(model, name, frequencies))
        _known[decoder] = known
    return KeyRotation(decoder, frequencies, known[1])


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


def _has_sections(config: Any) -> bool:
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in given.values() if isinstance(value, Mapping)]
    return any("mrope_section" in each for each in (given, *nested))


def _frequencies(model: Any, name: str) -> tuple[float, ...]:
    tables = [
        tuple(buffer.detach().cpu().double().tolist())
        for each, buffer in model.named_buffers()
        if each.endswith("inv_freq") and not each.endswith("original_inv_freq")
    ]
    if not tables:
        raise Unsupported(f"{name}: its keys are not rotated by position (no module has an inv_freq)")
    if len(set(tables)) > 1:
        raise Unsupported(f"{name}: its layers have different rotations")
    return tables[0]


def _is_interleaved(model: Any, name: str, frequencies: tuple[float, ...]) -> bool:
    """How features are paired, by the keys of tokens that are each alone, so that nothing but their rotation depends on the position."""
    before, after = _keys_at(model, name, 0), _keys_at(model, name, _TRIED_POSITION)
    tolerance = 0.002 if before[0].dtype == torch.float32 else 0.06  # 16-bit models round their cosines
    for interleaved in (False, True):
        if all(
            torch.allclose(
                turned(old.double(), frequencies, _TRIED_POSITION, interleaved),
                new.double(),
                rtol=0,
                atol=tolerance * float(old.abs().max()),
            )
            for old, new in zip(before, after, strict=True)
        ):
            return interleaved
    raise Unsupported(f"{name}: its keys do not turn by their positions as its inv_freq says, in all layers alike")


def _keys_at(model: Any, name: str, position: int) -> list[torch.Tensor]:
    device = next(model.parameters()).device
    vocabulary = int(_text_config(model).vocab_size)
    tokens = torch.arange(1, 1 + _TRIED_TOKENS, device=device).remainder(vocabulary).unsqueeze(1)
    cache = DynamicCache()
    with torch.no_grad():
        model(tokens, position_ids=torch.full_like(tokens, position), past_key_values=cache, use_cache=True)
    keys = [getattr(layer, "keys", None) for layer in cache.layers]
    if not keys or not all(isinstance(each, torch.Tensor) and each.ndim == 4 and bool(each.any()) for each in keys):
        raise Unsupported(f"{name}: a layer keeps no keys of every token")
    return [each.cpu() for each in keys if each is not None]


def turned(keys: torch.Tensor, frequencies: tuple[float, ...], delta: int, interleaved: bool) -> torch.Tensor:
    """Keys, moved by so many positions."""
    angles = delta * torch.tensor(frequencies, dtype=torch.float64)
    cos, sin, size = angles.cos(), angles.sin(), 2 * len(frequencies)
    if interleaved:
        first, second = keys[..., 0:size:2], keys[..., 1:size:2]
    else:
        first, second = keys[..., : size // 2], keys[..., size // 2 : size]
    moved = (first * cos - second * sin, second * cos + first * sin)
    head = torch.stack(moved, -1).flatten(-2) if interleaved else torch.cat(moved, -1)
    return torch.cat([head, keys[..., size:]], -1)
