"""Pruned caches: every head keeps tokens of its own (docs/kernels.md, "Keeping less").

>>> cache = Layout.named("head_folded", block_count=64, block_tokens=16, key_size=128).bind([keys, values, log_counts])
>>> rows = plan_keep_rows("last", head_count=8, seq_lens=[300], windows=[100] * 8, first_slots=range(0, 8 * 112, 112))
>>> scatter_kept(cache, rows, new_tokens)

A *head-folded* cache has no head axis: each slot belongs to one head of one sequence, whose kept tokens lie in consecutive slots.
"""

from __future__ import annotations

from typing import Any, Literal

from . import _kvstore
from ._arrays import Numbers
from ._kvstore import KeptRows, scatter_kept
from .errors import BadRequest

__all__ = ["KeepMode", "KeptRows", "plan_keep_rows", "scatter_kept"]

#: Each mode has two names: this package's, and that of Ascend's ReshapeAndCache operator.
KeepMode = Literal["last", "mean", "drop", "KVHEAD", "KVHEAD_ROPE", "OMNI"]


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
    return _kvstore.plan_keep_rows(
        mode,
        head_count,
        seq_lens,
        _by_row("windows", windows, seq_lens, head_count),
        _by_row("first_slots", first_slots, seq_lens, head_count),
        None if offsets is None else _by_row("offsets", offsets, seq_lens, head_count),
    )
