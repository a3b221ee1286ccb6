"""Pruned caches: every head keeps tokens of its own (docs/kernels.md, "Keeping less").

>>> cache = Layout.named("head_folded", block_count=64, block_tokens=16, key_size=128).bind([keys, values, log_counts])
>>> rows = plan_keep_rows("last", head_count=8, seq_lens=[300], windows=[100] * 8, first_slots=range(0, 8 * 112, 112))
>>> scatter_kept(cache, rows, new_tokens)

A *head-folded* cache has no head axis: each slot belongs to one head of one sequence, whose kept tokens lie in consecutive slots.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _kvstore
from ._arrays import Numbers
from .device import Event, StreamLike
from .errors import BadRequest
from .layouts import Cache, _event, _where

__all__ = ["KeepMode", "KeptRows", "plan_keep_rows", "scatter_kept"]

#: Each mode has two names: this package's, and that of Ascend's ReshapeAndCache operator.
KeepMode = Literal["last", "mean", "drop", "KVHEAD", "KVHEAD_ROPE", "OMNI"]


class KeptRows:
    """The rows to write, one for each kept token or mean. Row r is the mean of ``token_counts[r]`` tokens (mostly one) of head
    ``heads[r]`` from token ``tokens[r]`` of the packed source on, and goes to slot ``slots[r]``. Immutable; the arrays are views.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _kvstore.KeptRows) -> None:
        self._native = native

    @classmethod
    def of(cls, slots: Numbers, tokens: Numbers, heads: Numbers, token_counts: Numbers | None = None) -> KeptRows:
        """Rows that a policy of the caller's own has chosen: a head's heaviest tokens, say. All arrays have one element a row;
        ``token_counts`` None: single tokens. Raises BadRequest for unequal lengths; :func:`scatter_kept` checks the numbers.
        """
        return cls(_kvstore.KeptRows.of(slots, tokens, heads, token_counts))

    def __len__(self) -> int:
        return len(self._native)

    @property
    def slots(self) -> npt.NDArray[np.int64]:
        return self._native.slots

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        return self._native.tokens

    @property
    def heads(self) -> npt.NDArray[np.int32]:
        return self._native.heads

    @property
    def token_counts(self) -> npt.NDArray[np.int32]:
        return self._native.token_counts

    def __repr__(self) -> str:
        return f"<kvstore.KeptRows of {len(self)} rows>"


def _by_row(name: str, given: Numbers, seq_lens: Numbers, heads: int) -> Numbers:
    """``[batch, heads]`` as ``[batch * heads]``."""
    shape = tuple(getattr(given, "shape", ()))
    if len(shape) != 2:
        return given
    if shape != (len(seq_lens), heads):
        raise BadRequest(f"{name}: of shape {list(shape)}, not [{len(seq_lens)}, {heads}] as sequences and heads")
    flat: Any = given
    return flat.reshape(-1)


def plan_keep_rows(
    mode: KeepMode,
    *,
    head_count: int,
    seq_lens: Numbers,
    windows: Numbers,
    first_slots: Numbers,
    offsets: Numbers | None = None,
) -> KeptRows:
    """Which tokens each head of each new sequence keeps, and in which slots.

    ==================  =============  =================================================================================
    ``mode``            of Ascend      keeps of a sequence of n tokens, with window w and offset p
    ==================  =============  =================================================================================
    ``"last"``          KVHEAD         the last w tokens; takes no offsets
    ``"mean"``          KVHEAD_ROPE    all, but tokens p to p + w - 1 become one, their mean (RazorAttention's)
    ``"drop"``          OMNI           all but tokens p to p + w - 1
    ==================  =============  =================================================================================

    ``seq_lens`` [batch]: new tokens of each sequence, packed end to end in the source. ``windows``, ``offsets``, ``first_slots``
    [batch * head_count], or [batch, head_count]: of each sequence and head, in tokens; the kept tokens go to ``first_slots[i]`` and
    the slots behind it. A negative first slot keeps nothing. A window of 0 keeps nothing in "last" and everything in the other modes,
    as does an offset of -1, whatever the window. Windows are what Ascend calls ``wins``.

    Raises BadRequest that names the argument and its element: a window longer than its sequence, a window that ends beyond it.
    """
    return KeptRows(
        _kvstore.plan_keep_rows(
            mode,
            head_count,
            seq_lens,
            _by_row("windows", windows, seq_lens, head_count),
            _by_row("first_slots", first_slots, seq_lens, head_count),
            None if offsets is None else _by_row("offsets", offsets, seq_lens, head_count),
        )
    )


def scatter_kept(
    cache: Cache, rows: KeptRows, source: Cache, *, stream: StreamLike | None = None, grid_max: int = 0
) -> Event | None:
    """Writes the rows of ``source`` ([tokens, heads, size], as in ``Layout.named("ragged", ...)`` or any other layout) to the head-folded
    ``cache``, in every layer: K, V, and the log counts if it has them. The log count of a mean of w tokens is ln(w), of others 0:
    attention adds it to q.k *after* scaling, so that the mean weighs as much as w tokens. Means are summed in fp32 in token order and
    rounded once. Of two rows with one slot, either may win.

    Raises BadRequest for a slot, token, head or count out of range, before anything is written, and Mismatch that names the component if
    the layouts differ, or for means of int8. ``stream`` and the result are as in :func:`kvstore.scatter`.
    """
    return _event(_kvstore.scatter_kept(cache._native, rows._native, source._native, _where(stream, grid_max)))
