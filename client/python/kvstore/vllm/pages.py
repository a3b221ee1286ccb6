"""The engine's pages as the package's kernels see them, and memory that is lent to nodes, between the two."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..client import Client
from ..errors import Unsupported
from ..layouts import Cache, Layout, relayout
from .model import Group, Model

__all__ = ["Staging", "bind_pages"]

#: How often memory in quarantine is looked at.
_QUARANTINE_SECONDS = 0.05


def page_view(name: str, tensor: torch.Tensor, page_count: int, page_bytes: int) -> torch.Tensor:
    """The tensor's pages as bytes, ``[page, 1, bytes]``. Sizes and strides are the tensor's own: heads may come before
    tokens, layers may lie between pages, a page may be padded. Only what is inside a page has to be without gaps.
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
    parts = tensor.shape[0] // page_count  # a kernel's blocks may be parts of the manager's
    if parts > 1 and tensor.stride(0) != size:
        raise Unsupported(f"{name}: a page's {parts} parts do not follow each other")
    size *= parts
    if size * item != page_bytes:
        raise Unsupported(f"{name}: pages of {size * item} bytes, the engine says {page_bytes}")
    flat = torch.as_strided(tensor, (page_count, 1, size), (tensor.stride(0) * parts, size, 1), tensor.storage_offset())
    return flat.view(torch.uint8)


def inner_order(tensor: torch.Tensor) -> str:
    """In which order heads (H), states (N) and their content (C) follow each other in a page ``[H, N, C]``."""
    if tensor.ndim != 4:
        return ""
    axes = [(tensor.stride(i), letter) for i, letter in zip((1, 2, 3), "HNC", strict=True) if tensor.shape[i] > 1]
    return "".join(letter for _, letter in sorted(axes, reverse=True))


def _parts(model: Model, group: Group, tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each layer's tensors: one, or keys and values where these lie apart."""
    for layer in group.layers:
        tensor = tensors[layer]
        if model.page_parts == 1:
            yield layer, tensor
        elif tensor.ndim == 5 and tensor.shape[0] == model.page_parts:
            yield from ((layer, part) for part in tensor)
        else:
            raise Unsupported(f"{layer}: shape {tuple(tensor.shape)} does not begin with {model.page_parts}")


def bind_pages(model: Model, tensors: dict[str, torch.Tensor]) -> list[Cache]:
    """The pages of each group. Refuses what the namespace does not say."""
    caches = []
    for group in model.groups:
        views = []
        for layer, tensor in _parts(model, group, tensors):
            order = inner_order(tensor)
            said = "".join(letter for letter in model.layout[-3:] if letter in order)
            if order != said:
                raise Unsupported(
                    f"{layer}: order {order or tuple(tensor.shape)} in a page, the engine says {model.layout}"
                )
            views.append(page_view(layer, tensor, model.page_count, group.page_bytes // model.page_parts))
        caches.append(Layout.of(views, "btf", roles=("key",), name="vllm").bind(views))
    return caches


class Staging:
    """Rows of a block each, in memory that is lent to nodes. A row holds a block of any group, layer after layer.

    1. A row is free, or some call's, or in quarantine: a node may still write it after a get that timed out.
    """

    def __init__(self, client: Client, model: Model, nbytes: int) -> None:
        self._client = client
        self._page_parts = model.page_parts
        row_bytes = model.block_bytes_max
        self.row_count = max(8, nbytes // row_bytes)
        self._memory = client.allocate(self.row_count * row_bytes)
        self.rows: npt.NDArray[np.uint8] = self._memory.array((self.row_count, row_bytes))
        self._free = list(range(self.row_count - 1, -1, -1))
        self._quarantined: list[int] = []
        self._looked = 0.0
        self._caches = [self._bind(group) for group in model.groups]

    def _bind(self, group: Group) -> Cache:
        size = group.page_bytes // self._page_parts
        count = len(group.layers) * self._page_parts
        layers = [self.rows[:, None, i * size : (i + 1) * size] for i in range(count)]
        return Layout.of(layers, "btf", roles=("key",), name="staging").bind(layers)

    def lend(self, deadline: float) -> None:
        self._client.lend(self._memory, deadline=deadline)

    @property
    def free_count(self) -> int:
        now = time.monotonic()
        if self._quarantined and now - self._looked > _QUARANTINE_SECONDS:
            self._looked = now
            if not self._client.is_quarantined(self._memory):
                self._free += self._quarantined
                self._quarantined = []
        return len(self._free)

    def take(self, count: int) -> list[int]:
        assert 0 < count <= len(self._free), (count, len(self._free))
        taken, self._free = self._free[-count:], self._free[:-count]
        return taken

    def give(self, rows: list[int], *, is_doubtful: bool = False) -> None:
        (self._quarantined if is_doubtful else self._free).extend(rows)
        assert len(self._free) + len(self._quarantined) <= self.row_count

    def gather(self, group: int, pages: Cache, page_ids: Sequence[int], rows: Sequence[int]) -> None:
        relayout(self._caches[group], rows, pages, page_ids)

    def scatter(self, group: int, pages: Cache, page_ids: Sequence[int], rows: Sequence[int]) -> None:
        relayout(pages, page_ids, self._caches[group], rows)

    def views(self, rows: Sequence[int], sizes: Sequence[int]) -> list[Any]:
        return [self.rows[row, :size] for row, size in zip(rows, sizes, strict=True)]
