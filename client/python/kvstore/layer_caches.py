"""Caches that a model on the host calls layer by layer (docs/paged-cache.md). NumPy arrays or torch tensors in, views out without a copy.

>>> layers = [GrowingCache() for _ in range(layer_count)]
>>> keys, values = layers[i].update(keys, values)      # [batch, heads, tokens, features]: what the new tokens read, themselves last

A cache takes its shape and element (float32, float16, bfloat16; in NumPy bfloat16 is uint16) from the first tokens. The caches of
``kvstore.transformers`` are made of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _kvstore
from ._arrays import Numbers
from .errors import BadRequest

__all__ = ["GrowingCache", "LayerCache", "QuantisedCache", "SinkCache", "SlidingCache", "StaticCache"]


class LayerCache:
    """Keys and values of one layer, for a batch whose sequences grow in step. Not for several threads at once."""

    def __init__(self, native: _kvstore.LayerCache) -> None:
        self._native = native

    def update(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Adds tokens, and returns all that they read: views, to be used before the next call, when their content may change."""
        is_torch = _is_torch(keys)
        if is_torch != _is_torch(values):
            raise BadRequest(f"values: {type(values).__name__} beside keys of {type(keys).__name__}")
        for name, each in (("keys", keys), ("values", values)) if is_torch else ():
            if each.requires_grad:
                raise BadRequest(f"{name}: require gradients, which a cache cannot pass on; use torch.no_grad()")
            if each.device.type != "cpu":
                raise BadRequest(f"{name}: on the device {each.device}, not in the host's memory")
        return self._native.update(keys, values, is_torch)

    @property
    def token_count(self) -> int:
        """Tokens added and not cropped, those included that have left a window."""
        return self._native.token_count

    @property
    def memory_bytes(self) -> int:
        """Of the tokens kept, with the spare memory of growing and fixed caches."""
        return self._native.memory_bytes

    def next_position(self, added_count: int) -> int:
        """The position at which the first of so many tokens has to be computed if they are added next. Bounded for a sink cache."""
        return self._native.next_position(added_count)

    def crop(self, token_count: int) -> None:
        """Keeps the first tokens; a negative number removes so many. Raises Unsupported if tokens would be read that are gone."""
        self._native.crop(token_count)

    def select(self, sequences: Numbers) -> None:
        """Replaces the batch by these of its sequences, in this order (beams, forks)."""
        self._native.select(sequences)


class GrowingCache(LayerCache):
    """Keeps all tokens."""

    def __init__(self) -> None:
        super().__init__(_kvstore.LayerCache.growing())


class StaticCache(LayerCache):
    """Keeps up to ``capacity`` tokens, in memory of fixed size and place. Raises TooLarge beyond it, unchanged."""

    def __init__(self, capacity: int) -> None:
        super().__init__(_kvstore.LayerCache.fixed(capacity))


class SlidingCache(LayerCache):
    """Keeps the last ``window_tokens`` tokens. Tokens that come together read what the first of them reads: mask the rest."""

    def __init__(self, window_tokens: int) -> None:
        super().__init__(_kvstore.LayerCache.sliding(window_tokens))


class SinkCache(LayerCache):
    """Keeps the first ``sink_tokens`` tokens and the last ones, ``window_tokens`` in all, at positions 0, 1, 2, ... (StreamingLLM).

    ``frequencies``: radians per position of each pair of features, the model's ``inv_freq``. Pairs are (i, i + R/2), or, with
    ``interleaved``, (2i, 2i + 1). Added keys are rotated for the positions from :meth:`next_position`.
    """

    def __init__(
        self, window_tokens: int, sink_tokens: int = 4, *, frequencies: Sequence[float], interleaved: bool = False
    ) -> None:
        super().__init__(
            _kvstore.LayerCache.sink(window_tokens, sink_tokens, [float(each) for each in frequencies], interleaved)
        )


class QuantisedCache(LayerCache):
    """Keeps old tokens in ``bits`` (2, 4 or 8) a number, rounded once, and the last ``residual_tokens`` as they came (KIVI). ``group_size``
    numbers share a scale and a zero point: keys of one feature over tokens, values of one token over features.
    """

    def __init__(self, bits: int = 4, *, group_size: int = 64, residual_tokens: int = 128) -> None:
        super().__init__(_kvstore.LayerCache.quantised(bits, group_size, residual_tokens))


def _is_torch(array: Any) -> bool:
    return hasattr(array, "requires_grad")
