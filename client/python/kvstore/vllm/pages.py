"""The engine's pages as the package's kernels see them, and the lent memory they are copied through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..client import Client
from ..device import Event, Stream, record
from ..doors.rows import RowPool
from ..errors import Unsupported
from ..layouts import Cache, Layout, relayout
from . import compat
from .messages import Blocks, Piece
from .model import Group, Model

#: CUDA blocks of a gather or scatter: enough to keep the bus to the host busy, and few beside the model's kernels.
_GRID_MAX = 64


class DevicePages:
    """A view of a tensor on a GPU, for :meth:`Layout.bind`: of bytes, or of wider words. ``strides`` and ``offset`` are in bytes."""

    def __init__(
        self,
        tensor: torch.Tensor,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        words: str = "|u1",
        offset: int = 0,
    ) -> None:
        self._tensor = tensor  # keeps the memory
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": words,
            "data": (int(tensor.data_ptr()) + offset, False),
            "version": 3,
        }


def page_view(name: str, tensor: torch.Tensor, page_count: int, page_bytes: int, part_count: int = 1) -> Any:
    """The tensor's pages as bytes, ``[page, piece, part, bytes]``. Sizes and strides are the tensor's own: heads may come before tokens,
    layers may lie between pages, a page may be padded. Only a page's content has to be without gaps.

    A page is one piece, unless a kernel's blocks are smaller than the manager's. Several parts divide a piece by its leading heads.
    """
    if tensor.device.type not in ("cpu", "cuda"):
        raise Unsupported(
            f"{name}: its pages are on {tensor.device}, only those of the host and of CUDA devices are served"
        )
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
    if tensor.device.type == "cuda":
        return DevicePages(tensor, (*shape[:3], part * item), (*(each * item for each in strides[:3]), 1))
    return torch.as_strided(tensor, shape, strides, tensor.storage_offset()).view(torch.uint8)


def inner_order(tensor: torch.Tensor) -> str:
    """The order of heads (H), states (N) and their content (C) in a page ``[H, N, C]``."""
    if tensor.ndim != 4:
        return ""
    axes = [(tensor.stride(i), letter) for i, letter in zip((1, 2, 3), "HNC", strict=True) if tensor.shape[i] > 1]
    return "".join(letter for _, letter in sorted(axes, reverse=True))


def bind_pages(model: Model, tensors: dict[str, torch.Tensor]) -> list[list[Cache]]:
    """The pages' parts per group. Refuses layouts that differ from the namespace's."""
    caches = []
    for group in model.groups:
        views = []
        for layer in group.layers:
            order = inner_order(tensors[layer])
            said = "".join(letter for letter in model.layout[-3:] if letter in order)
            if order != said:
                raise Unsupported(
                    f"{layer}: order {order or tuple(tensors[layer].shape)} in a page, the engine says {model.layout}"
                )
            views.append(page_view(layer, tensors[layer], model.page_count, group.page_bytes, group.part_count))
        cache = Layout.of(views, "bthf", roles=("key",), name="vllm").bind(views)
        caches.append([cache.slice_heads(part, 1) for part in range(group.part_count)])
    return caches


def device_of(pages: list[list[Cache]]) -> int | None:
    """The device of the pages; None: the host."""
    devices = {cache.device for parts in pages for cache in parts}
    if len(devices) > 1:
        raise Unsupported(f"pages on several devices: {sorted(str(each) for each in devices)}")
    return devices.pop()


class Line:
    """The connector's own stream on the pages' device, with its ordering against the engine's stream. The order of calls in this process's
    thread does not order the two streams. Pages on the host have no stream: a call is over when it returns, and there are no events.

    1. The streams wait for each other only by an explicit event on the device; the host never waits here.
    """

    def __init__(self, device: int | None) -> None:
        self.stream = None if device is None else Stream(device)

    @property
    def options(self) -> dict[str, Any]:
        """Of a kernel's call."""
        return {} if self.stream is None else {"stream": self.stream, "grid_max": _GRID_MAX}

    def now(self) -> Event | None:
        """An event after all work the engine's stream has so far."""
        return None if self.stream is None else record(compat.current_stream(), self.stream.device)

    def record(self) -> Event | None:
        """An event after all work of the line."""
        return None if self.stream is None else self.stream.record()

    def wait(self, event: Event | None) -> None:
        """Orders the line's later work after the event."""
        if self.stream is not None and event is not None:
            self.stream.wait(event)

    def hold_engine(self, event: Event | None) -> None:
        """Orders the engine's later work after the event."""
        if event is not None:
            event.hold(compat.current_stream())


class PiecePages(Protocol):
    """Pages by token, for pieces. ``rows``: [part, piece]."""

    def gather(self, staging: Staging, pieces: Sequence[Piece], rows: Sequence[Sequence[int]]) -> Event | None: ...

    def scatter(self, staging: Staging, pieces: Sequence[Piece], rows: Sequence[Sequence[int]]) -> None: ...


class Staging(RowPool):
    """Rows of lent memory, for one rank's parts of blocks: a row holds a part of any group, layer after layer; a block has a row per part.

    On a GPU, calls return the event of the copy's end: until then the copy owns its rows and pages.
    """

    def __init__(
        self,
        client: Client,
        model: Model,
        rank: int,
        pages: list[list[Cache]],
        modules: PiecePages | None,
        line: Line,
    ) -> None:
        """``pages``: of each group, its parts; ``modules``: the same pages by token."""
        row_bytes = model.block_bytes_max
        self._part_count = count = model.parts_per_rank
        self._parts = range(rank // model.replicas * count, (rank // model.replicas + 1) * count)
        row_count = max(8 * count, model.options.staging_bytes // 2 // row_bytes)
        super().__init__(client, row_count, row_bytes, page_locked=line.stream is not None)
        self.line = line
        self._model, self._pages, self._modules = model, pages, modules
        self._caches = [self._bind(group, parts[0].layout) for group, parts in zip(model.groups, pages, strict=True)]

    def _bind(self, group: Group, pages: Layout) -> Cache:
        """As many tensors as the pages have, with as many pieces."""
        nbytes, pieces = group.block_bytes // pages.layer_count, pages.block_tokens
        layers = [
            self.rows[:, i * nbytes : (i + 1) * nbytes].reshape(self.count, pieces, 1, nbytes // pieces)
            for i in range(pages.layer_count)
        ]
        assert all(np.shares_memory(each[:1], self.rows[:1]) for each in layers)
        return Layout.of(layers, "bthf", roles=("key",), name="staging").bind(layers)

    def lend(self, deadline: float) -> None:
        self._client.lend(self.memory, deadline=deadline)

    @property
    def free_blocks(self) -> int:
        return self.free_count // self._part_count

    def take_for(self, blocks: Blocks) -> list[int]:
        """Rows for the blocks' parts, as [block, part], as are the following."""
        return self.take(len(blocks) * self._part_count)

    def names(self, blocks: Blocks) -> list[bytes]:
        return [self._model.part_name(block.name, part) for block in blocks for part in self._parts]

    def sizes(self, blocks: Blocks) -> npt.NDArray[np.int64]:
        of_blocks = [self._model.groups[block.group].block_bytes for block in blocks]
        sizes: npt.NDArray[np.int64] = np.repeat(np.asarray(of_blocks, np.int64), self._part_count)
        return sizes

    def whole(self, parts: npt.NDArray[np.bool_]) -> list[bool]:
        """For each block, whether all its parts are set."""
        return [all(of_block) for of_block in parts.reshape(-1, self._part_count).tolist()]

    def gather(self, blocks: Blocks, rows: Sequence[int]) -> Event | None:
        """Blocks from their pages into rows. The event of the last copy."""
        event = None
        if pieces := [each for each in blocks if isinstance(each, Piece)]:
            assert self._modules is not None
            return self._modules.gather(
                self, pieces, [rows[part :: self._part_count] for part in range(self._part_count)]
            )
        for cache, own_rows, pages, page_ids in self._copies(blocks, rows):
            event = self._copy(cache, own_rows, pages, page_ids)
        return event

    def scatter(self, blocks: Blocks, rows: Sequence[int]) -> None:
        """Blocks from rows into their pages."""
        if pieces := [each for each in blocks if isinstance(each, Piece)]:
            assert self._modules is not None
            self._modules.scatter(self, pieces, [rows[part :: self._part_count] for part in range(self._part_count)])
            return
        for cache, own_rows, pages, page_ids in self._copies(blocks, rows):
            self._copy(pages, page_ids, cache, own_rows)

    def _copies(self, blocks: Blocks, rows: Sequence[int]) -> Iterator[tuple[Cache, list[int], Cache, list[int]]]:
        """Of each group's parts: rows and pages."""
        for group, of_parts in enumerate(self._pages):
            mine = [i for i, block in enumerate(blocks) if block.group == group]
            for part, pages in enumerate(of_parts if mine else ()):
                own_rows = [rows[i * self._part_count + part] for i in mine]
                yield self._caches[group], own_rows, pages, [blocks[i].page for i in mine]

    def _copy(self, to: Cache, to_ids: Sequence[int], source: Cache, from_ids: Sequence[int]) -> Event | None:
        return relayout(to, to_ids, source, from_ids, **self.line.options)
