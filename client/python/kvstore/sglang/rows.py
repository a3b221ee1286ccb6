"""Lent memory between nodes and a host pool's pages."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ..client import Client
from ..doors.rows import QUARANTINE_SECONDS, RowPool
from ..layouts import Cache, Layout, relayout


class Rows(RowPool):
    """Rows of one part of a page each, in the store's own layout. Any thread may call any method.

    Nodes write here, since a node stalled during a get may write on when it resumes, long after SGLang has reused the host pool's page.
    """

    def __init__(self, client: Client, part: Layout, count: int) -> None:
        super().__init__(client, count, part.store_block_bytes)
        self._cache = part.store_block(count).bind(self.rows)
        self._changed = threading.Condition()

    @property
    def free_count(self) -> int:
        with self._changed:
            return super().free_count

    def take_until(self, until: float, at_least: int, at_most: int) -> list[int]:
        """A multiple of ``at_least``; empty if so few are free until then."""
        with self._changed:
            while (count := min(self.free_count, at_most) // at_least * at_least) == 0:
                left = until - time.monotonic()
                if left <= 0:
                    return []
                self._changed.wait(min(left, QUARANTINE_SECONDS))
            return self.take(count)

    def give(self, rows: Sequence[int], *, is_doubtful: bool = False) -> None:
        with self._changed:
            super().give(rows, is_doubtful=is_doubtful)
            self._changed.notify_all()

    def gather(self, rows: Sequence[int], pages: Cache, page_ids: Sequence[int]) -> None:
        relayout(self._cache, rows, pages, page_ids)

    def scatter(self, pages: Cache, page_ids: Sequence[int], rows: Sequence[int]) -> None:
        relayout(pages, page_ids, self._cache, rows)
