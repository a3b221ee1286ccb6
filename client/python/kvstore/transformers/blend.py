"""Blend: which tokens of modules are computed anew, because what is before them changes their keys most.

The first layers are computed for all tokens. In the next one the keys that this gives are compared with the stored ones, and the share of
tokens that differ most is computed anew in all layers (CacheBlend: Yao et al., 2024).
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from ..errors import BadRequest
from .placed_cache import PlacedCache
from .positioned import PositionedModel

__all__ = ["check_options", "choose"]


def check_options(share: float, layers: int, layer_count: int) -> None:
    if not 0 <= share <= 1:
        raise BadRequest(f"share: {share}, allowed are 0 to 1")
    if not 1 <= layers < layer_count:
        raise BadRequest(f"layers: {layers}, allowed are 1 to {layer_count - 1}")


def choose(
    run: PositionedModel,
    cache: PlacedCache,
    tokens: npt.NDArray[Any],
    positions: npt.NDArray[Any],
    loaded: npt.NDArray[np.int64],
    *,
    share: float,
    layers: int,
) -> npt.NDArray[np.int64]:
    """Chooses among the ``loaded`` rows of ``cache``. Keys and values of the first layers, computed in any case, replace the stored ones."""
    first = _FirstLayers(layers)
    with contextlib.suppress(_Reached):
        run(tokens, positions, first)
    rows = torch.from_numpy(loaded)
    keys = first.layers[layers].keys[:, :, rows].float()
    apart = (keys - cache.layers[layers].keys[:, :, rows].float()).square().sum(dim=(0, 1, 3))
    chosen = apart.topk(round(share * len(loaded))).indices.cpu().numpy()
    for own, computed in zip(cache.layers, first.layers, strict=False):
        own.keys.copy_(computed.keys)
        own.values.copy_(computed.values)
    return np.sort(loaded[chosen])


class _Reached(Exception):
    """The layer whose keys were wanted has them."""


class _FirstLayers(DynamicCache):  # type: ignore[misc]
    """Ends the forward pass as soon as layer ``last`` has given its keys and values: no matter how the model holds its layers."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        made = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx == self._last:
            raise _Reached
        return made  # type: ignore[no-any-return]
