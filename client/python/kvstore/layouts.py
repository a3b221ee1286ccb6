"""Memory layouts of caches, and moves of blocks between any two layouts, on the host or on a GPU (docs/kernels.md).

>>> layout = Layout.of(pages, "cbthf", roles=("key", "value"))    # [2, blocks, tokens, heads, head size]
>>> store = layout.store_block(block_count=8)                     # the store's own blocks of the same things
>>> gather(store.bind(blocks), layout.bind(pages), blocks=[3, 1, 4])

If one side is a CUDA device's memory, a call takes a ``stream``, is enqueued there, and returns an Event at once. The other side is in the
same device's memory or page-locked (``Client.allocate(nbytes, page_locked=True)``). Ids in host memory are checked and copied before the
call returns; an array of ids on the device is read when the stream reaches it, and ids beyond a cache are then skipped. The memory of both
caches is kept until the event has passed; before that it must not be written, nor read where the call writes. ``grid_max`` bounds the CUDA
blocks of a launch, to leave processors to others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from . import _kvstore
from ._arrays import Buffer, Numbers
from .device import Event, StreamLike, stream_handle
from .errors import BadRequest

__all__ = [
    "Cache",
    "Layout",
    "Move",
    "Part",
    "Rotation",
    "append_positions",
    "copy_blocks",
    "gather",
    "gather_with_checksums",
    "relayout",
    "scatter",
    "scatter_verified",
    "slots_of_csr",
    "table_slots",
]


class Part(NamedTuple):
    """A tensor of a cache. ``tensors`` is one, or one for each layer. ``axes`` has a letter for each axis of its shape: b block, l layer, c
    component (as many as roles), t T token, h H head, f F feature; upper case is the high digit of an axis that is split in two.
    ``element`` names the number type if the array's type does not: bf16 in uint16, say.
    """

    tensors: Buffer | Sequence[Buffer]
    axes: str
    roles: Sequence[str] = ("key", "value")
    element: str = ""


class Layout:
    """The place of each element of a cache, without its memory."""

    __slots__ = ("_native",)

    def __init__(self, native: _kvstore.Layout) -> None:
        self._native = native

    @classmethod
    def of(
        cls,
        tensors: Buffer | Sequence[Buffer],
        axes: str,
        *,
        roles: Sequence[str] = ("key", "value"),
        element: str = "",
        name: str = "tensor",
    ) -> Layout:
        """From the shape and strides of a tensor, or of one for each layer. Raises BadRequest that names the axis."""
        return cls.of_parts([Part(tensors, axes, roles, element)], name=name)

    @classmethod
    def of_parts(cls, parts: Sequence[Part], *, name: str = "tensors") -> Layout:
        """The same for several tensors per layer: K and V apart, scales beside codes."""
        given = [(_as_list(part.tensors), part.axes, list(part.roles), part.element) for part in parts]
        return cls(_kvstore.Layout.of(name, given))

    @classmethod
    def named(
        cls,
        name: str,
        *,
        block_count: int,
        block_tokens: int = 16,
        heads: int = 1,
        key_size: int = 128,
        value_size: int = 0,
        layer_count: int = 1,
        element: str = "bf16",
    ) -> Layout:
        """An engine's layout by its name: nhd, hnd, joint_nhd, packed_hnd, mla, ... (docs/kernels.md draws them)."""
        return cls(
            _kvstore.Layout.named(
                name,
                block_count=block_count,
                block_tokens=block_tokens,
                heads=heads,
                key_size=key_size,
                value_size=value_size,
                layer_count=layer_count,
                element=element,
            )
        )

    def store_block(self, block_count: int, *, head_groups: int = 1, block_tokens: int | None = None) -> Layout:
        """The store's own blocks of all of this cache's content. ``head_groups`` lets tensor-parallel ranks read contiguous parts."""
        return Layout(self._native.store_block(block_count, head_groups, block_tokens or 0))

    @property
    def store_block_bytes(self) -> int:
        """Bytes of one block of :meth:`store_block`: the namespace's block_bytes."""
        return self._native.store_block_bytes

    def slice_heads(self, first: int, count: int) -> Layout:
        """Only these heads: one rank's part."""
        return Layout(self._native.slice_heads(first, count))

    def tensor_bytes(self, tensor: int = 0) -> int:
        """One past the last byte of that allocation that the layout uses."""
        return self._native.tensor_bytes(tensor)

    def bind(self, tensors: Buffer | Sequence[Buffer]) -> Cache:
        """The layout with its memory: one tensor, or all, layer by layer. All are in host memory, or all on one CUDA device (by DLPack or
        ``__cuda_array_interface__``; Unavailable without the CUDA module).
        """
        return Cache(self._native.bind(_as_list(tensors)))

    @property
    def name(self) -> str:
        return self._native.name

    @property
    def block_tokens(self) -> int:
        return self._native.block_tokens

    @property
    def block_count(self) -> int:
        return self._native.block_count

    @property
    def layer_count(self) -> int:
        return self._native.layer_count

    @property
    def components(self) -> list[dict[str, Any]]:
        """For each component: role, element, heads, features, tensor."""
        return self._native.components

    def __str__(self) -> str:
        return str(self._native)

    def __repr__(self) -> str:
        return repr(self._native)


class Cache:
    """A layout bound to memory, which it keeps alive."""

    __slots__ = ("_native",)

    def __init__(self, native: _kvstore.Cache) -> None:
        self._native = native

    @property
    def layout(self) -> Layout:
        return Layout(self._native.layout)

    @property
    def device(self) -> int | None:
        """The CUDA device that has the memory; None: the host."""
        return self._native.device

    def slice_layers(self, first: int, count: int) -> Cache:
        """Only these layers, renumbered from 0."""
        return Cache(self._native.slice_layers(first, count))

    def slice_heads(self, first: int, count: int) -> Cache:
        """Only these heads, renumbered from 0."""
        return Cache(self._native.slice_heads(first, count))


@dataclass(frozen=True)
class Rotation:
    """Rotates keys from the positions they were computed at to others: by ``delta``, or by one of ``deltas`` for each row. ``size``: only
    the first so many features rotate. ``frequencies`` are the model's own inv_freq, else from ``base``.
    """

    size: int
    delta: int = 0
    deltas: Numbers | None = None
    base: float = 10000.0
    frequencies: Sequence[float] | npt.NDArray[Any] | None = None
    style: str = "neox"


@dataclass(frozen=True)
class Move:
    """The operation on rows as they move. ``kind``: copy, cast, quantise or dequantise; a rotation casts too. ``roles``: only these
    components. ``from_scale``, ``to_scale``: static scales by role.
    """

    kind: str = "copy"
    roles: Sequence[str] = ()
    from_scale: Mapping[str, float] = field(default_factory=dict)
    to_scale: Mapping[str, float] = field(default_factory=dict)
    rotation: Rotation | None = None

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "kind": self.kind,
            "roles": list(self.roles),
            "from_scale": dict(self.from_scale),
            "to_scale": dict(self.to_scale),
        }
        if self.rotation is not None:
            turn = self.rotation
            if self.kind not in ("copy", "cast"):
                raise BadRequest(f"rotation: not together with kind {self.kind!r}")
            options |= {
                "kind": "rotate",
                "rotary_size": turn.size,
                "delta": turn.delta,
                "deltas": turn.deltas,
                "base": turn.base,
                "frequencies": None if turn.frequencies is None else [float(f) for f in turn.frequencies],
                "style": turn.style,
            }
        return options


_COPY = Move()
How: TypeAlias = "Move | Rotation"


def _options(move: How) -> dict[str, Any]:
    return (Move(rotation=move) if isinstance(move, Rotation) else move)._options()


def _as_list(tensors: Buffer | Sequence[Buffer]) -> list[Buffer]:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def _where(stream: StreamLike | None, grid_max: int) -> _kvstore.Where:
    return _kvstore.Where(None if stream is None else stream_handle(stream), grid_max)


def _event(native: _kvstore.Event | None) -> Event | None:
    return None if native is None else Event(native)


def scatter(
    cache: Cache,
    source: Cache,
    *,
    slots: Numbers | None = None,
    blocks: Numbers | None = None,
    count: int | None = None,
    move: How = _COPY,
    stream: StreamLike | None = None,
    grid_max: int = 0,
) -> Event | None:
    """Row r of ``source`` to slot ``slots[r]`` of ``cache``, or block i to block ``blocks[i]``; negative: skip. Loads a prefix into an
    engine's pages. Returns None when done; on a device, the event that passes when it is.
    """
    where = _where(stream, grid_max)
    return _event(_kvstore.scatter(cache._native, source._native, slots, blocks, count, _options(move), where))


def gather(
    target: Cache,
    cache: Cache,
    *,
    slots: Numbers | None = None,
    blocks: Numbers | None = None,
    count: int | None = None,
    move: How = _COPY,
    stream: StreamLike | None = None,
    grid_max: int = 0,
) -> Event | None:
    """Slot ``slots[r]`` of ``cache`` to row r of ``target``, or block ``blocks[i]`` to block i. Stores a prefix. As :func:`scatter`."""
    where = _where(stream, grid_max)
    return _event(_kvstore.gather(target._native, cache._native, slots, blocks, count, _options(move), where))


def gather_with_checksums(
    target: Cache,
    cache: Cache,
    *,
    seeds: Numbers,
    checksums: Buffer,
    slots: Numbers | None = None,
    blocks: Numbers | None = None,
    count: int | None = None,
    move: How = _COPY,
    stream: StreamLike | None = None,
    grid_max: int = 0,
) -> Event | None:
    """As :func:`gather`, into blocks of the store (:meth:`Layout.store_block`), whose checksums are computed in the same pass: for a put
    of a GPU's memory, which must bring them. ``seeds``: :meth:`kvstore.Space.checksum_seeds` of the blocks. ``checksums``: receives uint64
    ``[blocks, space.stripe_count]``; with a stream it is page-locked host memory, complete once the event has passed.
    """
    where, options = _where(stream, grid_max), _options(move)
    args = (target._native, cache._native, slots, blocks, count, seeds, checksums, options, where)
    return _event(_kvstore.gather_with_checksums(*args))


def scatter_verified(
    cache: Cache,
    source: Cache,
    *,
    seeds: Numbers,
    checksums: Buffer,
    verdicts: Buffer,
    slots: Numbers | None = None,
    blocks: Numbers | None = None,
    count: int | None = None,
    move: How = _COPY,
    stream: StreamLike | None = None,
    grid_max: int = 0,
) -> Event | None:
    """As :func:`scatter`, from blocks of the store, of which only those that match their checksums are scattered: for what a get brought to
    a GPU's memory, where nobody has verified it. ``seeds`` as in :func:`gather_with_checksums`; ``checksums`` from the get, read before
    this returns. ``verdicts``: receives uint32 ``[blocks]``, 0 for a sound block, else 1; with a stream it is page-locked host memory,
    complete once the event has passed. On the host, blocks behind the first bad one count as bad too.
    """
    where, options = _where(stream, grid_max), _options(move)
    args = (cache._native, source._native, slots, blocks, count, seeds, checksums, verdicts, options, where)
    return _event(_kvstore.scatter_verified(*args))


def relayout(
    to: Cache,
    to_blocks: Numbers,
    source: Cache,
    from_blocks: Numbers,
    *,
    move: How = _COPY,
    stream: StreamLike | None = None,
    grid_max: int = 0,
) -> Event | None:
    """Block ``from_blocks[i]`` of ``source`` to block ``to_blocks[i]`` of ``to``; also a swap between two memories. As :func:`scatter`."""
    where = _where(stream, grid_max)
    return _event(_kvstore.relayout(to._native, to_blocks, source._native, from_blocks, _options(move), where))


def copy_blocks(
    cache: Cache, sources: Numbers, targets: Numbers, *, stream: StreamLike | None = None, grid_max: int = 0
) -> Event | None:
    """Copy on write: block ``sources[i]`` to ``targets[i]``, in every layer. The two lists are disjoint. As :func:`scatter`."""
    return _event(_kvstore.copy_blocks(cache._native, sources, targets, _where(stream, grid_max)))


def table_slots(
    table: npt.NDArray[np.int32],
    lengths: Numbers,
    *,
    block_tokens: int,
    starts: Numbers | None = None,
    drop_missing: bool = False,
) -> npt.NDArray[np.int64]:
    """Slots of tokens ``[starts[s], starts[s] + lengths[s])`` of each sequence s of a padded block table, end to end."""
    ids = np.ascontiguousarray(table, dtype=np.int32)
    if ids.ndim != 2:
        raise BadRequest(f"table: has {ids.ndim} axes, not 2")
    return _kvstore.table_slots(ids.reshape(-1), ids.shape[1], block_tokens, starts, lengths, drop_missing)


def append_positions(
    append_indptr: Numbers, seq_lens: Numbers, row_count: int | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Request and position of each appended token, int32 [row_count] each (FlashInfer's ``get_batch_indices_positions``).

    Request b appends rows ``append_indptr[b]`` to ``append_indptr[b + 1] - 1``; the last is its last token, at position
    ``seq_lens[b] - 1``: lengths count the appended tokens. ``row_count`` None: the last of ``append_indptr``. Rows beyond that, as a CUDA
    graph of fixed size has them, get request -1 and position 0. Raises BadRequest that names the argument and its element: an indptr that
    falls, a request that appends more than its length.
    """
    return _kvstore.append_positions(append_indptr, seq_lens, row_count)


def slots_of_csr(
    indptr: Numbers, indices: Numbers, page_tokens: int, batch_indices: Numbers, positions: Numbers
) -> npt.NDArray[np.int64]:
    """Slot of each token, int64 [n], from a page table in compressed rows (FlashInfer's): token ``positions[e]`` of request
    ``batch_indices[e]`` lies in page ``indices[indptr[b] + position // page_tokens]``. A negative request, or a negative page, gives a
    negative slot, which :func:`scatter` and :func:`gather` skip.

    Raises BadRequest that names the argument and its element: a request that ``indptr`` lacks, a position beyond its request's pages.
    """
    return _kvstore.slots_of_csr(indptr, indices, page_tokens, batch_indices, positions)
