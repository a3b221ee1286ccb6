"""Which blocks before a token an engine's groups of layers need, and so where a hit may end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class LayerGroup:
    """Layers that keep the same kind of data: every token, the last so many, or a state after the last one."""

    #: 0: every token is needed. Otherwise the last so many.
    window_tokens: int
    #: A block is the state after its last token, and only the last one is needed.
    is_state: bool

    def first_needed(self, block_count: int, block_size: int) -> int:
        """The first block that the next token needs, after so many whole blocks."""
        if self.is_state:
            return max(0, block_count - 1)
        if self.window_tokens == 0:
            return 0
        return max(0, block_count * block_size - self.window_tokens + 1) // block_size


def usable(groups: Sequence[LayerGroup], block_size: int, held: npt.NDArray[np.bool_]) -> int:
    """The most leading blocks after which every group has the blocks the next token needs. ``held``: [group, block]."""
    count = held.shape[1]
    behind: list[tuple[LayerGroup, npt.NDArray[np.int64]]] = []
    for group, of_group in zip(groups, held, strict=True):
        gaps = np.flatnonzero(~of_group)
        if group.window_tokens == 0 and not group.is_state:
            count = min(count, int(gaps[0]) if len(gaps) else count)
            continue
        # After n blocks: one past the last missing one.
        marks = np.where(of_group, 0, np.arange(1, len(of_group) + 1))
        behind.append((group, np.concatenate(([0], np.maximum.accumulate(marks)))))
    for n in range(count, 0, -1):
        if all(last[n] <= group.first_needed(n, block_size) for group, last in behind):
            return n
    return 0
