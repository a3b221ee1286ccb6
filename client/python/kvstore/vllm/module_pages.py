"""Prompt modules between the engine's pages and lent memory: by token, with keys turned to their new positions.

A row of lent memory has one part of a module's block in the store's own order, so it does not depend on the order that kernels have in
their pages. CPU kernels pack a page's keys, and some its values, in an order of the instruction set's: it is found by writing known numbers
with vLLM's own operation into a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..device import Event
from ..errors import BadRequest, Unsupported
from ..layouts import Cache, Layout, Move, Part, gather, scatter
from . import compat
from .messages import Piece
from .model import Model
from .pages import DevicePages, Staging
from .rotation import rotation_of

_ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


@dataclass(frozen=True)
class _Digits:
    """How an index of one axis becomes an offset, in elements: ``low`` of its values by ``step``, all of these by ``stride``."""

    low: int
    step: int
    stride: int

    @classmethod
    def of(cls, name: str, offsets: npt.NDArray[np.int64]) -> _Digits:
        count = len(offsets)
        step = int(offsets[1]) if count > 1 else 1
        straight = offsets == np.arange(count) * step
        low = count if straight.all() else int(np.argmin(straight))
        stride = int(offsets[low]) if low < count else 0
        index = np.arange(count)
        if count % low != 0 or not np.array_equal(index % low * step + index // low * stride, offsets):
            raise Unsupported(f"{name}: the kernels' order of a page is not known")
        return cls(low, step, stride)

    def axes(self, letter: str, count: int) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """Letters, extents and strides, as a layout takes them."""
        if self.low == count:
            return letter, (count,), (self.step,)
        return letter.upper() + letter, (count // self.low, self.low), (self.stride, self.step)


@dataclass(frozen=True)
class _Order:
    """The order of the keys, or of the values, of a head in a page: from the head's first element on."""

    first: int
    tokens: _Digits
    features: _Digits

    @classmethod
    def of(cls, name: str, offsets: npt.NDArray[np.int64]) -> _Order:
        """``offsets``: [token, feature]."""
        first = int(offsets[0, 0])
        tokens, features = offsets[:, 0] - first, offsets[0] - first
        if not np.array_equal(first + tokens[:, None] + features, offsets):
            raise Unsupported(f"{name}: the kernels' order of a page is not known")
        return cls(first, _Digits.of(name, tokens), _Digits.of(name, features))

    def view(self, pages: torch.Tensor) -> tuple[Any, str]:
        """The pages' keys, or values, and the letters of the view's axes."""
        of_tokens = self.tokens.axes("t", pages.shape[2])
        of_features = self.features.axes("f", pages.shape[3] // 2)
        letters = "bh" + of_tokens[0] + of_features[0]
        shape = (pages.shape[0], pages.shape[1], *of_tokens[1], *of_features[1])
        strides = (pages.stride(0), pages.stride(1), *of_tokens[2], *of_features[2])
        if pages.device.type == "cpu":
            return torch.as_strided(pages, shape, strides, pages.storage_offset() + self.first), letters
        item = pages.element_size()
        of_bytes = tuple(stride * item for stride in strides)
        return DevicePages(pages, shape, of_bytes, f"<u{item}", self.first * item), letters


def _packed_orders(name: str, pages: torch.Tensor) -> tuple[_Order, _Order]:
    """Keys' and values' orders in a page of the CPU's, read from a page that vLLM's own operation has filled."""
    token_count, size = pages.shape[2], pages.shape[3] // 2
    count = token_count * size
    numbers = torch.arange(count).reshape(token_count, 1, size)
    digits = []
    for digit in (numbers % 256, numbers // 256):  # every number type here has these exactly
        page = torch.zeros((1, 1, token_count, 2 * size), dtype=pages.dtype)
        compat.write_tokens(digit.to(pages.dtype), (digit + 1).to(pages.dtype), page)
        digits.append(page.reshape(2 * count).to(torch.int64).numpy())
    orders = []
    for i, name_of in enumerate(("keys", "values")):
        half = slice(i * count, (i + 1) * count)
        found = (digits[0][half] - i) + 256 * (digits[1][half] - i)
        if not np.array_equal(np.sort(found), np.arange(count)):
            raise Unsupported(f"{name}: the kernels' order of {name_of} in a page is not known")
        offsets = np.empty(count, np.int64)
        offsets[found] = np.arange(count) + i * count
        orders.append(_Order.of(name, offsets.reshape(token_count, size)))
    return orders[0], orders[1]


def _rows_orders(pages: torch.Tensor) -> tuple[_Order, _Order]:
    """On CUDA a token's keys lie before its values, in the order of the tensor's strides."""
    size = pages.shape[3] // 2
    tokens = _Digits(pages.shape[2], pages.stride(2), 0)
    features = _Digits(size, pages.stride(3), 0)
    return _Order(0, tokens, features), _Order(size * pages.stride(3), tokens, features)


def _bound(model: Model, tensors: dict[str, torch.Tensor]) -> Cache:
    """The pages of all layers, with keys and values apart. A kernel's blocks may be parts of the manager's: slots are the same."""
    (group,) = model.groups
    parts: list[Part] = [Part([], ""), Part([], "")]
    for layer in group.layers:
        pages = tensors[layer]
        shape = tuple(pages.shape)
        if pages.ndim != 4 or shape[0] * shape[2] != model.page_count * model.block_size or shape[3] % 2 != 0:
            raise Unsupported(f"{layer}: pages of shape {shape} are not [page, head, token, keys and values]")
        orders = _packed_orders(layer, pages) if pages.device.type == "cpu" else _rows_orders(pages)
        for i, role in enumerate(("key", "value")):
            view, axes = orders[i].view(pages)
            parts[i] = Part([*parts[i].tensors, view], axes, (role,), _ELEMENTS[pages.dtype])
    layout = Layout.of_parts(parts, name="vllm")
    nbytes = layout.store_block_bytes // layout.block_tokens * model.block_size
    if nbytes != group.block_bytes * group.part_count:
        raise Unsupported(f"{group.layers[0]}: blocks of {nbytes} bytes, the engine says {group.block_bytes}")
    return layout.bind([view for of_layer in zip(*(part.tensors for part in parts), strict=True) for view in of_layer])


def why_no_modules(model: Model, config: Any) -> str:
    """Why modules of this engine are refused, by its settings alone; empty: they are not."""
    if not compat.SERVES_MODULES:
        return f"{compat.engine_name()}: they are served from 0.32 on"
    if compat.has_others_beside():
        return "beside other connectors, some of which name a request's pages by its tokens alone, as those of whole prompts"
    if len(model.groups) != 1 or model.groups[0].is_state or model.groups[0].window_tokens > 0:
        return (
            "several cache groups, windows or states: such layers keep other things than each token's keys and values"
        )
    if model.is_mla:
        return "MLA is not supported"
    speculative = config.speculative_config
    if speculative is not None and speculative.method != "ngram":
        return f"speculative_config: beside method {speculative.method!r} they are not supported"
    if config.model_config.uses_mrope:
        return "M-RoPE: a token has several positions"
    return ""


class ModulePages:
    """The engine's pages by token. Raises Unsupported, by name, if the model's modules cannot be served."""

    def __init__(self, model: Model, tensors: dict[str, torch.Tensor], worker: Any, config: Any) -> None:
        if why := why_no_modules(model, config):
            raise Unsupported(why)
        (group,) = model.groups
        self._rotation = rotation_of(worker.get_model(), group.layers, config.compilation_config.static_forward_context)
        pages = _bound(model, tensors)
        heads = pages.layout.components[0]["heads"] // group.part_count
        self._parts = [pages.slice_heads(i * heads, heads) for i in range(group.part_count)]
        self._row = self._parts[0].layout.store_block(1, block_tokens=model.block_size)
        self._block_tokens = model.block_size

    def gather(self, staging: Staging, pieces: Sequence[Piece], rows: Sequence[Sequence[int]]) -> Event | None:
        """Pieces at their own positions into rows, [part, piece]."""
        event = None
        for pages, of_part in zip(self._parts, rows, strict=True):
            for piece, number in zip(pieces, of_part, strict=True):
                row = staging.rows[number]
                if piece.token_count < self._block_tokens:
                    row[:] = 0  # the row's former content is no part of the module
                event = gather(self._row.bind(row), pages, slots=self._slots(piece), **staging.line.options)
        return event

    def scatter(self, staging: Staging, pieces: Sequence[Piece], rows: Sequence[Sequence[int]]) -> None:
        """Rows, [part, piece], into pages, with the keys turned."""
        for pages, of_part in zip(self._parts, rows, strict=True):
            for piece, number in zip(pieces, of_part, strict=True):
                row = self._row.bind(staging.rows[number])
                turn = replace(self._rotation, delta=piece.delta) if piece.delta else Move()
                scatter(pages, row, slots=self._slots(piece), move=turn, **staging.line.options)

    def _slots(self, piece: Piece) -> npt.NDArray[np.int64]:
        """The slots of the piece's tokens."""
        size = self._block_tokens
        at = piece.first % size + np.arange(piece.token_count)
        slots: npt.NDArray[np.int64] = np.asarray(piece.pages, np.int64)[at // size] * size + at % size
        return slots


def pages_of_modules(
    model: Model, tensors: dict[str, torch.Tensor], worker: Any, config: Any
) -> tuple[ModulePages | None, str]:
    """The pages for prompt modules, or why there are none. No engine ends for it."""
    try:
        return ModulePages(model, tensors, worker, config), ""
    except (BadRequest, Unsupported) as error:
        return None, str(error)
    except Exception as error:  # from vLLM's inner parts, which another release may change
        return None, f"{compat.engine_name()}: {error!r}"
