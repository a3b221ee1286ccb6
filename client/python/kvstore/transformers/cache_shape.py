"""The shape of a model's cache, and its layouts: as ``generate()`` has it, and as the store's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from ..errors import Unsupported
from ..layouts import Cache, Layout, Part

__all__ = ["CacheShape"]


class CacheShape:
    """(Heads, head size) of keys and of values, the same for all layers."""

    def __init__(self, layer_count: int, sizes: Sequence[tuple[int, int]], dtype: torch.dtype) -> None:
        self.layer_count = layer_count
        self.sizes = tuple(sizes)
        self.dtype = dtype
        (self.heads, self.key_size), (_, value_size) = self.sizes
        self.text = f"{layer_count}x{self.heads}x{self.key_size}+{value_size}"

    @classmethod
    def of(cls, model: Any) -> CacheShape:
        """From a forward pass of one token instead of a formula."""
        device = next(model.parameters()).device
        with torch.no_grad():
            out = model(
                torch.zeros((1, 1), dtype=torch.long, device=device), past_key_values=DynamicCache(), use_cache=True
            )
        layers = getattr(getattr(out, "past_key_values", None), "layers", None)
        name = type(model).__name__
        if not layers:
            raise Unsupported(f"{name}: its cache has no layers of keys and values")
        shapes = set()
        for layer in layers:
            keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
            if not isinstance(keys, torch.Tensor) or not isinstance(values, torch.Tensor) or keys.ndim != 4:
                raise Unsupported(f"{name}: a layer keeps a {type(layer).__name__}, not keys and values of every token")
            shapes.add((tuple(keys.shape[1::2]), tuple(values.shape[1::2]), keys.dtype))
        if len(shapes) != 1:
            raise Unsupported(f"{name}: layers keep keys and values of different sizes: {sorted(map(str, shapes))}")
        keys_shape, values_shape, dtype = shapes.pop()
        return cls(len(layers), [keys_shape, values_shape], dtype)

    def empty(self, rows: int, tokens: int) -> list[list[torch.Tensor]]:
        """Host memory for keys and values of each layer."""
        return [
            [torch.empty((rows, heads, tokens, size), dtype=self.dtype) for heads, size in self.sizes]
            for _ in range(self.layer_count)
        ]

    def layout(self, tokens: int) -> Layout:
        """A layout with a batch of one, to derive the store's block."""
        one = [torch.empty((1, heads, tokens, size), dtype=self.dtype) for heads, size in self.sizes]
        return self.layout_of([one] * self.layer_count)

    def layout_of(self, layers: Sequence[Sequence[torch.Tensor]]) -> Layout:
        keys, values = [layer[0] for layer in layers], [layer[1] for layer in layers]
        return Layout.of_parts([Part(keys, "bhtf", ("key",)), Part(values, "bhtf", ("value",))], name="transformers")

    def bind(self, layers: Sequence[Sequence[torch.Tensor]]) -> Cache:
        """Keys and values of each layer, ``[rows, heads, tokens, head size]`` on the host: slot ``row * tokens + token``."""
        return self.layout_of(layers).bind(list(chain.from_iterable(layers)))

    def bind_blocks(self, blocks: npt.NDArray[np.uint8], block_size: int) -> Cache:
        """The store's blocks, one a row."""
        return self.layout(block_size).store_block(len(blocks), block_tokens=block_size).bind(blocks)
