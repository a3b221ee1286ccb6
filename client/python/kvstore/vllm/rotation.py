"""How the loaded model rotates its keys, if its keys at one position are those at any other position, rotated.

That is true of the kinds named here. A model of another kind may leave some layers' keys unrotated, or change keys after their rotation:
its prompt modules are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..errors import Unsupported
from ..layouts import Rotation

#: Attention of vLLM's own, whose last step before the cache is a rotation of all keys by their positions.
_MODELS = "vllm.model_executor.models."
_ATTENTIONS = (
    *("llama.LlamaAttention", "mistral.MistralAttention", "mixtral.MixtralAttention", "gemma.GemmaAttention"),
    *("qwen2.Qwen2Attention", "qwen2_moe.Qwen2MoeAttention", "qwen3.Qwen3Attention", "qwen3_moe.Qwen3MoeAttention"),
)
#: Angles proportional to the position. Others depend on the sequence's length (dynamic, longrope), or on several positions (M-RoPE).
_ROTATIONS = (
    *("RotaryEmbedding", "Llama3RotaryEmbedding"),
    *("LinearScalingRotaryEmbedding", "YaRNScalingRotaryEmbedding"),
)
#: At so many positions a table is compared with its frequencies.
_PROBES = 512
#: How far a table may be off, as shares of its largest value and of an angle: tables have the model's number type, angles were floats.
_TOLERANCE, _ANGLE_TOLERANCE = 0.01, 2.0**-22


def rotation_of(model: torch.nn.Module, layers: Sequence[str], attentions: dict[str, Any]) -> Rotation:
    """The rotation of all these layers; ``attentions`` are vLLM's, by layer. Raises Unsupported, which names the layer."""
    parents = {id(child): each for each in model.modules() for child in each.children()}
    rotations = {}
    for layer in layers:
        attention = attentions.get(layer)
        parent = parents.get(id(attention))
        if attention is None or parent is None:
            raise Unsupported(f"{layer}: the loaded model does not show it")
        kind = f"{type(parent).__module__}.{type(parent).__qualname__}".removeprefix(_MODELS)
        if kind not in _ATTENTIONS:
            raise Unsupported(f"{layer}: {kind} is not supported, only {', '.join(_ATTENTIONS)} are")
        if attention.sliding_window is not None:
            raise Unsupported(f"{layer}: a window of {attention.sliding_window} tokens")
        if getattr(attention, "kv_sharing_target_layer_name", None) is not None:
            raise Unsupported(f"{layer}: it reads the keys of {attention.kv_sharing_target_layer_name}")
        rotations[id(parent.rotary_emb)] = layer, parent.rotary_emb
    found = [_rotation(layer, rotary) for layer, rotary in rotations.values()]
    for (layer, _), each in zip(rotations.values(), found, strict=True):
        if each != found[0]:
            raise Unsupported(f"{layer}: another rotation than {next(iter(rotations.values()))[0]}")
    return found[0]


def _rotation(layer: str, rotary: Any) -> Rotation:
    kind = type(rotary).__name__
    if kind not in _ROTATIONS:
        raise Unsupported(f"{layer}: the rotation {kind} is not supported, only {', '.join(_ROTATIONS)} are")
    scale = 1.0
    if kind == "LinearScalingRotaryEmbedding":
        if len(rotary.scaling_factors) != 1:
            raise Unsupported(f"{layer}: {kind} with several factors, {rotary.scaling_factors}")
        scale = float(rotary.scaling_factors[0])
    is_yarn = kind == "YaRNScalingRotaryEmbedding"
    given = rotary._compute_inv_freq(rotary.scaling_factor if is_yarn else rotary.base)
    frequencies = given.double().cpu().numpy() / scale
    _check_table(layer, rotary.cos_sin_cache, frequencies)
    return Rotation(
        size=int(rotary.rotary_dim),
        frequencies=tuple(frequencies.tolist()),
        style="neox" if rotary.is_neox_style else "gptj",
    )


def _check_table(layer: str, table: torch.Tensor, frequencies: np.ndarray[Any, Any]) -> None:
    """Raises unless the model's table of cosines and sines has these frequencies at all positions."""
    positions = np.unique(np.linspace(0, table.shape[0] - 1, _PROBES, dtype=np.int64))
    said = table[torch.from_numpy(positions).to(table.device)].double().cpu().numpy()
    angles = positions[:, None] * frequencies
    factor = said[0, 0]  # YaRN multiplies its table; position 0 has a cosine of 1
    expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * factor
    allowed = abs(factor) * (_TOLERANCE + _ANGLE_TOLERANCE * np.concatenate([angles, angles], axis=1))
    if said.shape != expected.shape or not bool((np.abs(said - expected) <= allowed).all()):
        raise Unsupported(f"{layer}: its table of cosines and sines has other angles than its frequencies give")
