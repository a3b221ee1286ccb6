"""Pruned caches: every head keeps tokens of its own (docs/kernels.md, "Keeping less").

>>> cache = Layout.named("head_folded", block_count=64, block_tokens=16, key_size=128).bind([keys, values, log_counts])
>>> rows = plan_keep_rows("last", head_count=8, seq_lens=[300], windows=[100] * 8, first_slots=range(0, 8 * 112, 112))
>>> scatter_kept(cache, rows, new_tokens)

A *head-folded* cache has no head axis: each slot belongs to one head of one sequence, whose kept tokens lie in consecutive slots.
"""

from __future__ import annotations

from typing import Literal

from ._kvstore import KeptRows, plan_keep_rows, scatter_kept

__all__ = ["KeepMode", "KeptRows", "plan_keep_rows", "scatter_kept"]

#: Each mode has two names: this package's, and that of Ascend's ReshapeAndCache operator.
KeepMode = Literal["last", "mean", "drop", "KVHEAD", "KVHEAD_ROPE", "OMNI"]
