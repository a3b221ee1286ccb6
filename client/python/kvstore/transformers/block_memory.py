"""Lent memory for a model's blocks, kept from one prompt to the next."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..client import Client

__all__ = ["BlockMemory"]


class BlockMemory:
    """Rows of ``block_bytes`` each. Grows, and keeps what it held: allocating takes 0.3 s per GiB."""

    def __init__(self, client: Client, block_bytes: int) -> None:
        self._client = client
        self._block_bytes = block_bytes
        self._rows: npt.NDArray[np.uint8] | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self._rows is None else self._rows.nbytes

    def rows(self, count: int) -> npt.NDArray[np.uint8]:
        """The first ``count`` rows."""
        if self._rows is None or len(self._rows) < count:
            kept = self._rows
            self._rows = self._client.empty((max(64, count * 3 // 2), self._block_bytes))
            if kept is not None:
                self._rows[: len(kept)] = kept
        return self._rows[:count]

    def forget(self) -> None:
        """After a get that missed its deadline, when a node may still write there."""
        self._rows = None
