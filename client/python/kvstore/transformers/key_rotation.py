"""How a model's keys turn with their positions: found by trying, since a wrong rotation gives wrong answers without an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from ..errors import Unsupported
from ..layouts import Rotation
from .positioned import PositionedModel

__all__ = ["find_rotation", "turned"]

#: Places of the tokens tried, with gaps, and how far they are moved. 4,096 turns slow pairs too; a model's own angles are in float32.
_PLACES = np.array([0, 1, 2, 5, 6, 9, 14, 15])
_DELTAS = (5, 4096)
#: Largest difference of a feature, by the mean size of a key's features. A wrong guess has about 1.
_FAR = {torch.float32: 5e-3, torch.float64: 5e-3}
_FAR_IN_HALF = 0.2


def find_rotation(run: PositionedModel) -> Rotation:
    """The rotation, with a delta of 0. Raises Unsupported if none of those known moves this model's keys from one place to another."""
    name = type(run.model).__name__
    _check_sections(name, run.model.config)
    here = _encode(run, 0)
    places_max = getattr(run.model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 1 << 20
    deltas = sorted({min(delta, places_max - int(_PLACES[-1]) - 1) for delta in _DELTAS} - {0})
    if not deltas or deltas[0] < 1:
        raise Unsupported(f"{name}: max_position_embeddings is {places_max}, too few to find its rotation")
    there = {delta: _encode(run, delta) for delta in deltas}
    for moved in there.values():
        for layer, ((_, values), (_, moved_values)) in enumerate(zip(here, moved, strict=True)):
            if _distance(values, moved_values) > _far(values):
                raise Unsupported(
                    f"{name}: values of layer {layer} change with positions (learned positions, or MLA), which no rotation of keys does"
                )
    if all(_fits(here, moved, None, 0) for moved in there.values()):
        raise Unsupported(f"{name}: its keys do not turn with positions (ALiBi, or no positions at all)")
    for guess in _guesses(run.model, here[0][0].shape[-1]):
        if all(_fits(here, moved, guess, delta) for delta, moved in there.items()):
            return guess
    raise Unsupported(f"{name}: no known rotation, the same in all layers, moves its keys from one position to another")


def turned(keys: torch.Tensor, rotation: Rotation, delta: int) -> torch.Tensor:
    """The keys ``[..., features]`` moved by ``delta`` positions, in float64: what a scatter with this rotation does."""
    half = rotation.size // 2
    angles = delta * torch.tensor(np.asarray(rotation.frequencies, dtype=np.float64))
    cosines, sines = torch.cos(angles), torch.sin(angles)
    made = keys.double().clone()
    pairs = (
        (slice(0, half), slice(half, 2 * half))
        if rotation.style == "neox"
        else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    first, second = (keys.double()[..., each] for each in pairs)
    made[..., pairs[0]] = first * cosines - second * sines
    made[..., pairs[1]] = second * cosines + first * sines
    return made


def _guesses(model: Any, key_size: int) -> Iterator[Rotation]:
    """The model's own tables first; those that keep cosines alone (GPT-J) have theirs from 10,000."""
    tables: list[npt.NDArray[np.float64]] = []
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and buffer.ndim == 1:
            tables.append(buffer.detach().cpu().double().numpy())
    size = getattr(model.config, "rotary_dim", None)
    if size:
        tables.append(10000.0 ** (-np.arange(0, size, 2) / size))
    for table in tables:
        if 0 < 2 * len(table) <= key_size:
            for style in ("neox", "gptj"):
                yield Rotation(2 * len(table), frequencies=table, style=style)


def _check_sections(name: str, config: Any) -> None:
    given = getattr(config.get_text_config(decoder=True), "rope_parameters", None)
    given = given or getattr(config.get_text_config(decoder=True), "rope_scaling", None)
    if isinstance(given, Mapping) and "mrope_section" in given:
        raise Unsupported(f"{name}: its tokens have several positions each (mrope_section)")


_Layers = list[tuple[torch.Tensor, torch.Tensor]]


def _encode(run: PositionedModel, delta: int) -> _Layers:
    tokens = np.arange(1, len(_PLACES) + 1) % run.model.get_input_embeddings().weight.shape[0]
    cache = DynamicCache()
    run(tokens, _PLACES + delta, cache)
    return [(layer.keys.cpu(), layer.values.cpu()) for layer in cache.layers]


def _fits(here: _Layers, there: _Layers, guess: Rotation | None, delta: int) -> bool:
    return all(
        _distance(turned(keys, guess, delta) if guess else keys, moved) <= _far(keys)
        for (keys, _), (moved, _) in zip(here, there, strict=True)
    )


def _far(tensor: torch.Tensor) -> float:
    return _FAR.get(tensor.dtype, _FAR_IN_HALF)


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Of the feature that differs most, over all heads and tokens."""
    dims = tuple(range(left.ndim - 1))
    apart = (left.double() - right.double()).square().mean(dims).sqrt().max()
    return float(apart / left.double().square().mean().sqrt().clamp_min(1e-30))
