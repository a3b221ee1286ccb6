"""A prompt's cache with places for all its tokens, some of which a forward pass fills in."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from .first_layers import FirstLayers
from .positioned import PositionedModel

__all__ = ["PlacedCache"]

#: Tokens of one forward pass. A pass looks at keys up to its last token, so that smaller ones compute less attention.
_PASS_TOKENS = 160


class PlacedCache(DynamicCache):  # type: ignore[misc]
    """Keys and values of a whole prompt, in the order of positions.

    While :meth:`compute` runs, new keys and values replace those of their tokens; otherwise they are appended, as in any DynamicCache.
    """

    def __init__(self, layers: Sequence[Sequence[torch.Tensor]]) -> None:
        super().__init__()
        for i, (keys, values) in enumerate(layers):
            super().update(keys[:, :, :0], values[:, :, :0], i)  # an empty layer of this type and device
            self.layers[i].keys, self.layers[i].values = keys, values
        self._rows: torch.Tensor | None = None

    def compute(
        self,
        run: PositionedModel,
        tokens: npt.NDArray[Any],
        positions: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        first: FirstLayers | None = None,
    ) -> torch.Tensor:
        """Computes the tokens in these rows, in ascending order, each of which sees all before it; with ``first`` from behind those layers.
        Returns the last one's logits.
        """
        logits = None
        for start in range(0, len(rows), _PASS_TOKENS):
            own = rows[start : start + _PASS_TOKENS]
            self._rows = torch.from_numpy(own).to(run.device)
            dtype = self.layers[0].keys.dtype
            hidden = torch.arange(int(own[-1]) + 1) > torch.from_numpy(own).unsqueeze(1)
            mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
            try:
                with first.passed_over(self._rows) if first else contextlib.nullcontext():
                    logits = run(tokens[own], positions[own], self, mask[None, None])
            finally:
                self._rows = None
        assert logits is not None
        return logits

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._rows is None:
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)  # type: ignore[no-any-return]
        layer = self.layers[layer_idx]
        rows = self._rows.to(layer.keys.device)
        layer.keys.index_copy_(2, rows, key_states)
        layer.values.index_copy_(2, rows, value_states)
        end = int(rows[-1]) + 1
        return layer.keys[:, :, :end], layer.values[:, :, :end]
