"""Namespaces of blocks that stand alone: states, embeddings, an engine's own chunks. One call for many keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ._arrays import Buffer, Hashes, Numbers, Seconds
from ._kvstore import SetGetResult, SetMatchResult, SetPutResult
from ._reuse import Reuse, reuse_number
from .futures import Future
from .spaces import OpenedNamespace

if TYPE_CHECKING:
    from . import _kvstore

__all__ = ["SetGetResult", "SetMatchResult", "SetPutResult", "SetSpace"]


class SetSpace(OpenedNamespace):
    """A set, opened by a client. Each hash means one block, in any order, of any size up to the namespace's ``block_bytes_max``. A call is
    one round trip to each node. As in :class:`Space`, calls block, and each has a form ``submit_...`` that does not.

    Blocks that are useful only together (a state and its window, K and V stored apart) are named as a group: ``groups=[2, 3]`` makes the
    first two hashes one group, and the next three another. A group is held, got and put as a whole. It has up to 64 different hashes. All
    calls should give it the same way, with the same hash first, which is the one to drop it by: see docs/python.md.
    """

    __slots__ = ()

    @property
    def block_bytes_max(self) -> int:
        return self.namespace.block_bytes

    def _match(
        self,
        hashes: Hashes,
        groups: Numbers | None,
        deadline: Seconds | None,
        lease: bool,
        prefetch: bool,
        reuse: Reuse,
        at_once: bool,
    ) -> _kvstore.Call:
        time = self._client._deadline(deadline)
        return self._native.match_set(self._id, hashes, groups, time, lease, prefetch, reuse_number(reuse), at_once)

    def match(
        self,
        hashes: Hashes,
        *,
        groups: Numbers | None = None,
        deadline: Seconds | None = None,
        lease: bool = False,
        prefetch: bool = False,
        reuse: Reuse = None,
    ) -> SetMatchResult:
        """Which of the blocks are held, and how long each is. A lease covers only groups wholly in memory."""
        return cast(SetMatchResult, self._match(hashes, groups, deadline, lease, prefetch, reuse, False).result(-1))

    def submit_match(
        self,
        hashes: Hashes,
        *,
        groups: Numbers | None = None,
        deadline: Seconds | None = None,
        lease: bool = False,
        prefetch: bool = False,
        reuse: Reuse = None,
    ) -> Future[SetMatchResult]:
        """As :meth:`match`, without waiting."""
        return Future(self._match(hashes, groups, deadline, lease, prefetch, reuse, self._client._at_once))

    def _get(
        self,
        hashes: Hashes,
        groups: Numbers | None,
        blocks: Buffer | Sequence[Buffer],
        rows: Numbers | None,
        deadline: Seconds | None,
        lease: int,
        memory_only: bool,
        at_once: bool,
    ) -> _kvstore.Call:
        time = self._client._deadline(deadline)
        return self._native.get_set(self._id, hashes, groups, blocks, rows, time, lease, memory_only, at_once)

    def get(
        self,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        groups: Numbers | None = None,
        deadline: Seconds | None = None,
        lease: int = 0,
        memory_only: bool = False,
    ) -> SetGetResult:
        """Copies the held blocks, block i to ``blocks[i]``, which may be longer than the block.

        A group lands as a whole or counts as missing: ``why_of`` gives the reason for each block, unless it was a plain miss.
        """
        call = self._get(hashes, groups, blocks, rows, deadline, lease, memory_only, False)
        return cast(SetGetResult, call.result(-1))

    def submit_get(
        self,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        groups: Numbers | None = None,
        deadline: Seconds | None = None,
        lease: int = 0,
        memory_only: bool = False,
    ) -> Future[SetGetResult]:
        """As :meth:`get`, without waiting."""
        return Future(self._get(hashes, groups, blocks, rows, deadline, lease, memory_only, self._client._at_once))

    def _put(
        self,
        hashes: Hashes,
        groups: Numbers | None,
        blocks: Buffer | Sequence[Buffer],
        rows: Numbers | None,
        deadline: Seconds | None,
        reuse: Reuse,
        at_once: bool,
    ) -> _kvstore.Call:
        return self._native.put_set(
            self._id, hashes, groups, blocks, rows, self._client._deadline(deadline), reuse_number(reuse), at_once
        )

    def put(
        self,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        groups: Numbers | None = None,
        deadline: Seconds | None = None,
        reuse: Reuse = None,
    ) -> SetPutResult:
        """Stores each block whose name is not held yet, all of ``blocks[i]``; a group becomes visible at once."""
        return cast(SetPutResult, self._put(hashes, groups, blocks, rows, deadline, reuse, False).result(-1))

    def submit_put(
        self,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        groups: Numbers | None = None,
        deadline: Seconds | None = None,
        reuse: Reuse = None,
    ) -> Future[SetPutResult]:
        """As :meth:`put`, without waiting."""
        return Future(self._put(hashes, groups, blocks, rows, deadline, reuse, self._client._at_once))
