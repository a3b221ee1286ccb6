"""SGLang's host pools as the package's kernels see them: the place of each element of a page, or at least its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import Unsupported
from ..layouts import Cache, Layout, Part
from .compat import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost, MLATokenToKVPoolHost

#: Axis order of keys or values in each host layout, without the axis that separates the two.
_AXES = {
    "layer_first": "lbthf",
    "page_first": "btlhf",
    "page_first_direct": "blthf",
    "page_head": "bhtlf",
}
#: Axes of a tensor with keys and values together.
_UNIFIED = "bHlcthf"


class View:
    """Pages of an attention pool of any layout: ``heads`` of all ``layers``, of keys and values or of latents.

    ``split`` finds this layout's tensors in a buffer of the pool's or a page of the copying interface; ``kinds``: their axes and roles.
    """

    def __init__(
        self,
        heads: int,
        layers: int,
        text: str,
        tensors: list[torch.Tensor],
        kinds: list[tuple[str, tuple[str, ...]]],
        split: Callable[[torch.Tensor], list[torch.Tensor]],
    ) -> None:
        self.heads = heads
        self.layers = layers
        self.text = text
        self._kinds = kinds
        self._split = split
        self.layout, self.cache = self._bind(tensors)
        self._page: Layout | None = None

    def _bind(self, tensors: list[torch.Tensor], layout: Layout | None = None) -> tuple[Layout, Cache]:
        """As one tensor for each layer."""
        of_layers = [
            list(tensor.unbind(axes.index("l"))) for tensor, (axes, _) in zip(tensors, self._kinds, strict=True)
        ]
        if layout is None:
            parts = [
                Part(each, axes.replace("l", ""), roles)
                for each, (axes, roles) in zip(of_layers, self._kinds, strict=True)
            ]
            layout = Layout.of_parts(parts, name="sglang")
        return layout, layout.bind([each[layer] for layer in range(self.layers) for each in of_layers])

    def page(self, flat: torch.Tensor) -> Cache:
        """A page of the copying interface, as one block."""
        self._page, cache = self._bind(self._split(bytes_of(flat)), self._page)
        return cache


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def _shape(layout: str, pages: int, tokens: int, layers: int, heads: int, nbytes: int) -> tuple[int, ...]:
    sizes = {"b": pages, "t": tokens, "l": layers, "h": heads, "f": nbytes}
    return tuple(sizes[axis] for axis in _AXES[layout])


def view_of(pool: Any) -> View | None:
    """None for pools whose bytes only SGLang can read. Raises Unsupported if a known pool has an unexpected form."""
    kind, layout = type(pool), getattr(pool, "layout", "")
    if kind is MHATokenToKVPoolHost:
        return _view_of_mha(pool, layout)
    if kind is AsymmetricMHATokenToKVPoolHost and layout in _AXES:
        return _view_of_two(pool, layout)
    if kind is MLATokenToKVPoolHost:
        return _view_of_mla(pool, layout)
    return None


def _kinds(layout: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(_AXES[layout], (role,)) for role in ("key", "value")]


def _check(pool: Any, tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise Unsupported(f"host pool on {tensor.device}: only host memory is supported")
        if not tensor.is_contiguous():
            raise Unsupported(f"host pool of shape {tuple(tensor.shape)}, strides {tensor.stride()}: it has gaps")
    if pool.size != pool.page_num * pool.page_size:
        raise Unsupported(f"host pool of {pool.size} tokens in {pool.page_num} pages of {pool.page_size}")


def _view_of_mha(pool: Any, layout: str) -> View | None:
    buffer = pool.kv_buffer
    if buffer is None:
        return None
    _check(pool, [buffer])
    nbytes = pool.head_dim * pool.dtype.itemsize
    text = f"{pool.layer_num}x{nbytes}+{nbytes}"
    if layout == "page_unified":
        shape = tuple(bytes_of(buffer).shape[1:])

        def unified(tensor: torch.Tensor) -> list[torch.Tensor]:
            return [tensor.view(-1, *shape)]

        tensors = unified(bytes_of(buffer))
        return View(pool.head_num, pool.layer_num, text, tensors, [(_UNIFIED, ("key", "value"))], unified)
    if layout not in _AXES:
        return None

    def split(tensor: torch.Tensor) -> list[torch.Tensor]:
        halves = tensor.view(2, -1)
        pages = halves.shape[1] // (pool.layer_num * pool.page_size * pool.head_num * nbytes)
        shape = _shape(layout, pages, pool.page_size, pool.layer_num, pool.head_num, nbytes)
        return [halves[0].view(shape), halves[1].view(shape)]

    tensors = split(bytes_of(buffer))
    return View(pool.head_num, pool.layer_num, text, tensors, _kinds(layout), split)


def _view_of_two(pool: Any, layout: str) -> View:
    """Keys and values of different sizes, in two buffers. SGLang does not pass such pages to the copying interface."""
    _check(pool, [pool.k_buffer, pool.v_buffer])
    sizes = [pool.head_dim * pool.dtype.itemsize, pool.v_head_dim * pool.dtype.itemsize]
    tensors = [
        bytes_of(buffer).view(_shape(layout, pool.page_num, pool.page_size, pool.layer_num, pool.head_num, nbytes))
        for buffer, nbytes in zip((pool.k_buffer, pool.v_buffer), sizes, strict=True)
    ]

    def refuse(tensor: torch.Tensor) -> list[torch.Tensor]:
        raise Unsupported("pages whose keys and values differ in size have no copying interface")

    text = f"{pool.layer_num}x{sizes[0]}+{sizes[1]}"
    return View(pool.head_num, pool.layer_num, text, tensors, _kinds(layout), refuse)


def _view_of_mla(pool: Any, layout: str) -> View | None:
    buffer = pool.kv_buffer
    if not isinstance(buffer, torch.Tensor):
        return None
    axes = "blthf" if layout == "page_unified" else _AXES.get(layout)
    if axes is None:
        return None
    if getattr(pool, "_layer_shard_enabled", False):
        raise Unsupported("a host pool of some layers of each rank's own is not supported")
    _check(pool, [buffer])
    nbytes = pool.kv_cache_dim * pool.dtype.itemsize
    known = "page_first_direct" if layout == "page_unified" else layout

    def split(tensor: torch.Tensor) -> list[torch.Tensor]:
        pages = tensor.numel() // (pool.layer_num * pool.page_size * nbytes)
        return [tensor.view(_shape(known, pages, pool.page_size, pool.layer_num, 1, nbytes))]

    tensors = split(bytes_of(buffer))
    text = f"{pool.layer_num}x{nbytes} latent {pool.kv_lora_rank}+{pool.qk_rope_head_dim}"
    return View(1, pool.layer_num, text, tensors, [(axes, ("latent",))], split)


def page_ids(pool: Any, host_indices: torch.Tensor, count: int) -> list[int]:
    """Page numbers of the tokens of ``count`` keys. Raises ValueError if they are not whole pages."""
    tokens = pool.page_size
    rows = host_indices.reshape(count, tokens)
    first = rows[:, 0]
    if bool((first % tokens != 0).any()) or bool((rows[:, -1] - first != tokens - 1).any()):
        raise ValueError("host indices that are not whole pages")
    return [int(each) for each in (first // tokens).tolist()]
