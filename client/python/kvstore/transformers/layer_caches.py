"""Caches for ``past_key_values=`` of a transformers model, with keys and values in the host's memory.

>>> cache = SinkCache(model, window_tokens=1024)
>>> model.generate(input_ids, past_key_values=cache, max_new_tokens=100_000)      # positions stay below 1024
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from .. import layer_caches
from ..errors import BadRequest, Unsupported
from .rotations import follow_cache, rotation_of, windows_of

__all__ = ["GrowingCache", "QuantisedCache", "SinkCache", "SlidingCache", "StaticCache"]


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer: a cache of the core in the form that models call. Subclasses tell masks what a query reads."""

    is_compileable = False  # a compiled graph cannot contain the calls into C++
    is_croppable = True
    is_sliding = False
    max_length = -1

    def __init__(self, make: Callable[[], layer_caches.LayerCache]) -> None:
        super().__init__()
        self.is_initialized = False  # by name: transformers 4.56 has no such attribute
        self._make = make
        self.cache = make()

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.batch_size = int(key_states.shape[0])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.cache.update(key_states.cpu(), value_states.cpu())
        return keys.to(self.device), values.to(self.device)

    def get_mask_sizes(self, query_length: int | torch.Tensor) -> tuple[int, int]:
        """How many tokens the next queries read, and the index of the first. Before transformers 5: their positions, instead of a number."""
        count = query_length if isinstance(query_length, int) else int(query_length.shape[0])
        read = self._read_count(count)
        return read, self.cache.token_count + count - read

    def _read_count(self, query_count: int) -> int:
        return self.cache.token_count + query_count

    def get_seq_length(self) -> int:
        return self.cache.token_count

    def get_max_length(self) -> int:
        return self.max_length

    def get_max_cache_shape(self) -> int:
        return self.max_length

    def offload(self) -> None:
        """They are in the host's memory already."""

    def prefetch(self) -> None:
        """They are copied to the model's device when it asks."""

    def reset(self) -> None:
        self.cache = self._make()
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        """A negative number removes so many tokens; a positive one is the length to keep, as transformers has it; 0 does nothing."""
        if tokens_to_remove and tokens_to_remove < self.cache.token_count:
            self.cache.crop(tokens_to_remove)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx.cpu().numpy())

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.cache.token_count:
            self._select(np.arange(self.batch_size).repeat(repeats))

    def batch_select_indices(self, indices: Any) -> None:
        if self.cache.token_count:
            chosen = indices.cpu() if isinstance(indices, torch.Tensor) else indices
            self._select(torch.arange(self.batch_size)[chosen].numpy())  # a mask, or indices from the end, too

    def _select(self, sequences: Any) -> None:
        if self.cache.token_count:
            self.cache.select(sequences)
            self.batch_size = len(sequences)


class _StaticLayer(_Layer):
    def __init__(self, max_cache_len: int) -> None:
        super().__init__(lambda: layer_caches.StaticCache(max_cache_len))
        self.max_length = self.max_cache_len = max_cache_len


class _SlidingLayer(_Layer):
    is_croppable = False  # only until the window is full
    is_sliding = True

    def __init__(self, window_tokens: int) -> None:
        super().__init__(lambda: layer_caches.SlidingCache(window_tokens))
        self.max_length = self.sliding_window = window_tokens

    def _read_count(self, query_count: int) -> int:
        kept = min(self.cache.token_count, self.sliding_window)
        return kept + query_count if kept < self.sliding_window else kept - 1 + query_count


class _SinkLayer(_Layer):
    is_croppable = False

    def _read_count(self, query_count: int) -> int:
        """Without gaps between them, for the mask: the tokens that a window has dropped are those before all others."""
        return self.cache.next_position(query_count) + query_count


class _QuantisedLayer(_Layer):
    is_croppable = False  # not within a quantised block


class _HostCache(Cache):  # type: ignore[misc]
    """Any of these caches. Its memory is the host's; a model on a GPU gets a copy for each call."""

    def __init__(self, make: Callable[[], _Layer] | None = None, layers: list[_Layer] | None = None) -> None:
        super().__init__(layers=layers, layer_class_to_replicate=make)

    @property
    def memory_bytes(self) -> int:
        """Of the keys and values that all layers keep."""
        return sum(layer.cache.memory_bytes for layer in self.layers)


class GrowingCache(_HostCache):
    """Keeps everything, of layers with windows too, which mask it. Adding a token copies no other, as ``DynamicCache`` does."""

    def __init__(self) -> None:
        super().__init__(lambda: _Layer(layer_caches.GrowingCache))


class StaticCache(_HostCache):
    """Keeps up to ``max_cache_len`` tokens, in memory of fixed size and place. Raises TooLarge beyond."""

    def __init__(self, max_cache_len: int) -> None:
        layer_caches.StaticCache(max_cache_len)  # refuses a bad length now, instead of in the middle of a model
        super().__init__(lambda: _StaticLayer(max_cache_len))


class SlidingCache(_HostCache):
    """Keeps the last tokens of layers with a sliding window, and everything of the others. ``model``: the model, or its config."""

    def __init__(self, model: Any) -> None:
        windows = windows_of(model)
        if not any(windows):
            raise Unsupported(
                f"{type(model).__name__}: no layer has a sliding window; use a GrowingCache, or a SinkCache, which keeps a window of any model"
            )
        super().__init__(
            layers=[_SlidingLayer(each) if each else _Layer(layer_caches.GrowingCache) for each in windows]
        )


class SinkCache(_HostCache):
    """Keeps the first ``sink_tokens`` tokens and the last ones, ``window_tokens`` in all (StreamingLLM): for text without an end.

    From here on, calls of ``model`` with such a cache compute new tokens at the cache's positions, whatever positions they are given:
    ``generate()`` counts on without end. All prompts of a batch have one length. Tokens that come at once, and do not fit the window
    together with the sinks, are computed with their whole context, at positions beyond the window; ``prefill_chunk_size=`` of ``generate()``
    avoids that.

    Raises Unsupported, by name, for a model whose keys cannot be turned to other positions: no rotation, one by the length of the sequence,
    M-RoPE, MLA, layers with sliding windows. Tries the rotation with a few tokens at the first cache of a model.
    """

    def __init__(self, model: Any, window_tokens: int, sink_tokens: int = 4) -> None:
        decoder, rotation = rotation_of(model)
        frequencies = tuple(np.asarray(rotation.frequencies, np.float64).tolist())

        def make() -> layer_caches.LayerCache:
            return layer_caches.SinkCache(
                window_tokens, sink_tokens, frequencies=frequencies, interleaved=rotation.style == "gptj"
            )

        make()  # refuses bad sizes
        super().__init__(lambda: _SinkLayer(make))
        follow_cache(decoder, _place)

    def next_position(self, added_count: int) -> int:
        """Where the first of so many new tokens is computed."""
        return self.layers[0].cache.next_position(added_count) if self.layers else 0


def _place(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Before a call of a decoder: the cache's positions for its tokens. Calls without a SinkCache are left alone."""
    cache = next((each for each in (*kwargs.values(), *args) if isinstance(each, SinkCache)), None)
    if cache is None:
        return None
    given = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) | kwargs
    mask = given.get("attention_mask")
    if isinstance(mask, torch.Tensor) and mask.ndim == 2 and not bool(mask.all()):
        raise BadRequest("attention_mask: hides tokens; with a SinkCache the prompts of a batch have one length")
    tokens = given["input_ids"] if given.get("input_ids") is not None else given["inputs_embeds"]
    first, count = cache.next_position(tokens.shape[1]), tokens.shape[1]
    given["position_ids"] = torch.arange(first, first + count, device=tokens.device).unsqueeze(0)
    return (), given


class QuantisedCache(_HostCache):
    """Keeps old tokens in 2, 4 or 8 bits a number and the last ``residual_tokens`` as they came: less memory, for slower steps. A group of
    ``group_size`` numbers has two of 16 bits beside it. Numbers are rounded once; a prompt's own attention reads them as they came.
    """

    def __init__(self, bits: int = 4, *, group_size: int = 64, residual_tokens: int = 128) -> None:
        def make() -> layer_caches.LayerCache:
            return layer_caches.QuantisedCache(bits, group_size=group_size, residual_tokens=residual_tokens)

        make()  # refuses bad sizes
        super().__init__(lambda: _QuantisedLayer(make))
