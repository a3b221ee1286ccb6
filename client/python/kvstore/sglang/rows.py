"""Memory that is lent to nodes, between them and a host pool's pages."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..client import Client
from ..layouts import Cache, Layout, relayout

__all__ = ["Rows"]

#: How often memory in quarantine is looked at.
_QUARANTINE_SECONDS = 0.05


class Rows:
    """Rows of one part of a page each, in the store's own layout. Any thread may call anything.

    Nodes write here and not in the host pool itself: one that stands still in the middle of a get may go on writing when it
    wakes up, long after SGLang has given the page to somebody else.

    1. A row is free, or some call's, or in quarantine: a node may still write it after a get that timed out.
    """

    def __init__(self, client: Client, part: Layout, count: int) -> None:
        self._client = client
        nbytes = part.store_block_bytes
        self._memory = client.allocate(count * nbytes)
        self.rows: npt.NDArray[np.uint8] = self._memory.array((count, nbytes))
        self._cache = part.store_block(count).bind(self.rows)
        self._free = list(range(count - 1, -1, -1))
        self._quarantined: list[int] = []
        self._looked = 0.0
        self._changed = threading.Condition()

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def free_count(self) -> int:
        with self._changed:
            self._look()
            return len(self._free)

    def _look(self) -> None:
        now = time.monotonic()
        if self._quarantined and now - self._looked > _QUARANTINE_SECONDS:
            self._looked = now
            if not self._client.is_quarantined(self._memory):
                self._free += self._quarantined
                self._quarantined = []

    def take(self, at_least: int, at_most: int, until: float) -> list[int]:
        """A multiple of ``at_least``; none if there are no such many until then."""
        with self._changed:
            while True:
                self._look()
                count = min(len(self._free), at_most) // at_least * at_least
                left = until - time.monotonic()
                if count > 0 or left <= 0:
                    break
                self._changed.wait(min(left, _QUARANTINE_SECONDS))
            if count == 0:
                return []
            taken, self._free = self._free[-count:], self._free[:-count]
            return taken

    def give(self, rows: Sequence[int], *, is_doubtful: bool = False) -> None:
        with self._changed:
            (self._quarantined if is_doubtful else self._free).extend(rows)
            assert len(self._free) + len(self._quarantined) <= self.count
            self._changed.notify_all()

    def gather(self, rows: Sequence[int], pages: Cache, page_ids: Sequence[int]) -> None:
        relayout(self._cache, rows, pages, page_ids)

    def scatter(self, pages: Cache, page_ids: Sequence[int], rows: Sequence[int]) -> None:
        relayout(pages, page_ids, self._cache, rows)
