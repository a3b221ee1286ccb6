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
from typing import Any, NamedTuple

import numpy.typing as npt

from ._arrays import Buffer, Numbers
from ._kvstore import (
    Cache,
    Layout,
    append_positions,
    copy_blocks,
    gather,
    gather_with_checksums,
    relayout,
    scatter,
    scatter_verified,
    slots_of_csr,
    table_slots,
)

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
