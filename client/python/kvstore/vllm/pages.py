"""The engine's pages as the package's kernels see them, and memory that is lent to nodes, between the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .._rows import RowPool
from ..client import Client
from ..errors import Unsupported
from ..layouts import Cache, Layout, relayout
from .compat import tensors_of
from .model import Group, Model

__all__ = ["Staging", "bind_pages"]


def page_view(name: str, tensor: torch.Tensor, page_count: int, page_bytes: int, part_count: int = 1) -> torch.Tensor:
    """The tensor's pages as bytes, ``[page, piece, part, bytes]``. Sizes and strides are the tensor's own: heads may come
    before tokens, layers may lie between pages, a page may be padded. Only what is inside a page has to be without gaps.

    A page is one piece, unless a kernel's blocks are smaller than the manager's. With several parts, heads come first in
    a piece, and each part has some of them.
    """
    if tensor.device.type != "cpu":
        raise Unsupported(f"{name}: its pages are on {tensor.device}, only host memory is supported today")
    if tensor.ndim < 2 or page_count < 1 or tensor.shape[0] % page_count != 0:
        raise Unsupported(f"{name}: shape {tuple(tensor.shape)} does not begin with {page_count} pages")
    item = tensor.element_size()
    size = 1
    for stride, extent in sorted(
        (tensor.stride(i), tensor.shape[i]) for i in range(1, tensor.ndim) if tensor.shape[i] > 1
    ):
        if stride != size:
            raise Unsupported(
                f"{name}: a page of shape {tuple(tensor.shape[1:])}, strides {tensor.stride()[1:]} has gaps"
            )
        size *= extent
    pieces = tensor.shape[0] // page_count  # a kernel's blocks may be parts of the manager's
    if pieces > 1 and tensor.stride(0) != size:
        raise Unsupported(f"{name}: a page's {pieces} parts do not follow each other")
    page_stride = tensor.stride(0) * pieces
    if size * pieces * item != page_bytes:
        raise Unsupported(f"{name}: pages of {size * pieces * item} bytes, the engine says {page_bytes}")
    if part_count == 1:
        pieces, size = 1, size * pieces
    elif tensor.ndim != 4 or tensor.shape[1] % part_count != 0 or tensor.stride(1) * tensor.shape[1] != size:
        raise Unsupported(
            f"{name}: a page of shape {tuple(tensor.shape[1:])}, strides {tensor.stride()[1:]} cannot be divided by its heads "
            f"into {part_count} parts"
        )
    part = size // part_count
    shape, strides = (page_count, pieces, part_count, part), (page_stride, size, part, 1)
    return torch.as_strided(tensor, shape, strides, tensor.storage_offset()).view(torch.uint8)


def inner_order(tensor: torch.Tensor) -> str:
    """In which order heads (H), states (N) and their content (C) follow each other in a page ``[H, N, C]``."""
    if tensor.ndim != 4:
        return ""
    axes = [(tensor.stride(i), letter) for i, letter in zip((1, 2, 3), "HNC", strict=True) if tensor.shape[i] > 1]
    return "".join(letter for _, letter in sorted(axes, reverse=True))


def bind_pages(model: Model, tensors: dict[str, torch.Tensor]) -> list[list[Cache]]:
    """Of each group, the pages' parts. Refuses what the namespace does not say."""
    caches = []
    for group in model.groups:
        views = []
        for layer in group.layers:
            pages = tensors_of(tensors[layer])
            for tensor in pages:
                order = inner_order(tensor)
                said = "".join(letter for letter in model.layout[-3:] if letter in order)
                if order != said:
                    raise Unsupported(
                        f"{layer}: order {order or tuple(tensor.shape)} in a page, the engine says {model.layout}"
                    )
                page_bytes = group.page_bytes // len(pages)
                views.append(page_view(layer, tensor, model.page_count, page_bytes, group.part_count))
        cache = Layout.of(views, "bthf", roles=("key",), name="vllm").bind(views)
        caches.append([cache.slice_heads(part, 1) for part in range(group.part_count)])
    return caches


class Staging(RowPool):
    """Rows of a block's part each, in memory that is lent to nodes. A row holds a part of any group, layer after layer."""

    def __init__(self, client: Client, model: Model, nbytes: int, pages: list[list[Cache]]) -> None:
        row_bytes = model.block_bytes_max
        super().__init__(client, max(8 * model.parts_per_rank, nbytes // row_bytes), row_bytes)
        self._caches = [self._bind(group, parts[0].layout) for group, parts in zip(model.groups, pages, strict=True)]

    def _bind(self, group: Group, pages: Layout) -> Cache:
        """As many tensors as the pages lie in, of as many pieces."""
        nbytes, pieces = group.block_bytes // pages.layer_count, pages.block_tokens
        layers = [
            self.rows[:, i * nbytes : (i + 1) * nbytes].reshape(self.count, pieces, 1, nbytes // pieces)
            for i in range(pages.layer_count)
        ]
        assert all(np.shares_memory(each[:1], self.rows[:1]) for each in layers)
        return Layout.of(layers, "bthf", roles=("key",), name="staging").bind(layers)

    def lend(self, deadline: float) -> None:
        self._client.lend(self.memory, deadline=deadline)

    def gather(self, group: int, pages: Cache, page_ids: Sequence[int], rows: Sequence[int]) -> None:
        relayout(self._caches[group], rows, pages, page_ids)

    def scatter(self, group: int, pages: Cache, page_ids: Sequence[int], rows: Sequence[int]) -> None:
        relayout(pages, page_ids, self._caches[group], rows)

    def views(self, rows: Sequence[int], sizes: Sequence[int]) -> list[Any]:
        return [self.rows[row, :size] for row, size in zip(rows, sizes, strict=True)]
