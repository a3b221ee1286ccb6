"""Namespaces of blocks that stand alone: states, embeddings, an engine's own chunks. One call for many keys."""

from __future__ import annotations

from collections.abc import Sequence

from ._arrays import Buffer, Hashes, Numbers, Seconds
from ._kvstore import Caller, Future, Op, SetGetResult, SetMatchResult, SetPutResult
from ._reuse import Reuse, reuse_number
from .spaces import OpenedNamespace, forms

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
        on: Caller,
        hashes: Hashes,
        *,
        groups: Numbers | None = None,
        deadline: Seconds | None = None,
        lease: bool = False,
        prefetch: bool = False,
        reuse: Reuse = None,
    ) -> Future[SetMatchResult]:
        """Which of the blocks are held, and how long each is. A lease covers only groups wholly in memory."""
        time, hint = self._client._deadline(deadline), reuse_number(reuse)
        return on.call(
            Op.MATCH_SET, self._id, hashes, time, groups=groups, wants_lease=lease, prefetch=prefetch, reuse=hint
        )

    def _get(
        self,
        on: Caller,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        groups: Numbers | None = None,
        deadline: Seconds | None = None,
        lease: int = 0,
        memory_only: bool = False,
    ) -> Future[SetGetResult]:
        """Copies the held blocks, block i to ``blocks[i]``, which may be longer than the block.

        A group lands as a whole or counts as missing: ``why_of`` gives the reason for each block, unless it was a plain miss.
        """
        return on.call(
            Op.GET_SET,
            self._id,
            hashes,
            self._client._deadline(deadline),
            blocks=blocks,
            rows=rows,
            groups=groups,
            lease=lease,
            memory_only=memory_only,
        )

    def _put(
        self,
        on: Caller,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        groups: Numbers | None = None,
        deadline: Seconds | None = None,
        reuse: Reuse = None,
    ) -> Future[SetPutResult]:
        """Stores each block whose name is not held yet, all of ``blocks[i]``; a group becomes visible at once."""
        time, hint = self._client._deadline(deadline), reuse_number(reuse)
        return on.call(Op.PUT_SET, self._id, hashes, time, blocks=blocks, rows=rows, groups=groups, reuse=hint)

    match, submit_match = forms(_match)
    get, submit_get = forms(_get)
    put, submit_put = forms(_put)
