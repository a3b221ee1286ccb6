"""Caches that a model on the host calls layer by layer (docs/paged-cache.md). NumPy arrays or torch tensors in, views out without a copy.

>>> layers = [GrowingCache() for _ in range(layer_count)]
>>> keys, values = layers[i].update(keys, values)      # [batch, heads, tokens, features]: what the new tokens read, themselves last

A cache takes its shape and element (float32, float16, bfloat16; in NumPy bfloat16 is uint16) from the first tokens. The caches of
``kvstore.transformers`` are made of these.
"""

from __future__ import annotations

from ._kvstore import GrowingCache, LayerCache, QuantisedCache, SinkCache, SlidingCache, StaticCache

__all__ = ["GrowingCache", "LayerCache", "QuantisedCache", "SinkCache", "SlidingCache", "StaticCache"]
