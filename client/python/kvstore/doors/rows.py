"""Lent memory between nodes and an engine's pages."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..client import Client

#: How often quarantined memory is checked.
QUARANTINE_SECONDS = 0.05


class RowPool:
    """``count`` rows of ``nbytes`` each. For one thread at a time.

    1. A row is free, used by a call, or in quarantine: a node may still write it after a get that timed out.
    """

    def __init__(self, client: Client, count: int, nbytes: int, *, page_locked: bool = False) -> None:
        self._client = client
        self.memory = client.allocate(count * nbytes, page_locked=page_locked)
        self.rows: npt.NDArray[np.uint8] = self.memory.array((count, nbytes))
        self._free = list(range(count - 1, -1, -1))
        self._quarantined: list[int] = []
        self._looked = 0.0

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def free_count(self) -> int:
        now = time.monotonic()
        if self._quarantined and now - self._looked > QUARANTINE_SECONDS:
            self._looked = now
            if not self._client.is_quarantined(self.memory):
                self._free += self._quarantined
                self._quarantined = []
        return len(self._free)

    def take(self, count: int) -> list[int]:
        assert 0 < count <= len(self._free), (count, len(self._free))
        taken, self._free = self._free[-count:], self._free[:-count]
        return taken

    def give(self, rows: Sequence[int], *, is_doubtful: bool = False) -> None:
        (self._quarantined if is_doubtful else self._free).extend(rows)
        assert len(self._free) + len(self._quarantined) <= self.count
