"""Blend: which tokens of modules are computed anew, because what is before them changes their keys most.

The first layers are computed for all tokens. In the next one the keys that this gives are compared with the stored ones, and the share of
tokens that differ most is computed anew in all layers (CacheBlend: Yao et al., EuroSys 2025).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..errors import BadRequest
from .first_layers import FirstLayers
from .placed_cache import PlacedCache

__all__ = ["check_options", "choose"]


def check_options(share: float, layers: int, layer_count: int) -> None:
    if not 0 <= share <= 1:
        raise BadRequest(f"share: {share}, allowed are 0 to 1")
    if not 1 <= layers < layer_count:
        raise BadRequest(f"layers: {layers}, allowed are 1 to {layer_count - 1}")


def choose(
    cache: PlacedCache, first: FirstLayers, loaded: npt.NDArray[np.int64], share: float
) -> npt.NDArray[np.int64]:
    """Chooses among the ``loaded`` rows of ``cache``. Keys and values of the first layers, computed in any case, replace the stored ones."""
    last = len(first.cache.layers) - 1
    apart = (first.cache.layers[last].keys.float() - cache.layers[last].keys.float()).square().sum(dim=(0, 1, 3))
    chosen = apart[torch.from_numpy(loaded).to(apart.device)].topk(round(share * len(loaded))).indices.cpu().numpy()
    for own, computed in zip(cache.layers, first.cache.layers, strict=False):
        own.keys, own.values = computed.keys, computed.values
    return np.sort(loaded[chosen])
