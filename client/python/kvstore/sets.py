"""Namespaces of blocks that stand alone: states, embeddings, an engine's own chunks. One call for many keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ._arrays import Buffer, Hashes, Numbers
from ._kvstore import DropResult, SetGetResult, SetMatchResult, SetPutResult
from .errors import BadRequest
from .futures import Future
from .namespaces import Namespace

if TYPE_CHECKING:
    from . import _kvstore
    from .client import Client, Seconds

__all__ = ["SetGetResult", "SetMatchResult", "SetPutResult", "SetSpace"]


class SetSpace:
    """A set, opened by a client. Each hash means one block; they come in any order and have any size up to the
    namespace's ``block_bytes_max``. A call is one round trip to each node. As in :class:`Space`, calls block, and have a
    form ``submit_...`` that does not.
    """

    __slots__ = ("_client", "_id", "_native", "namespace")

    def __init__(self, client: Client, number: int, namespace: Namespace) -> None:
        self._client = client
        self._native = client._native
        self._id = number
        self.namespace = namespace

    @property
    def client(self) -> Client:
        return self._client

    @property
    def block_bytes_max(self) -> int:
        return self.namespace.block_bytes

    def wait_open(self, *, deadline: Seconds | None = None) -> None:
        """Until one node has opened it. Raises Unavailable or TimedOut if none did."""
        self._native.wait_open(self._id, self._client._deadline(deadline)).result(-1)

    def _match(self, hashes: Hashes, deadline: Seconds | None, lease: bool, prefetch: bool) -> _kvstore.Call:
        return self._native.match_set(self._id, hashes, self._client._deadline(deadline), lease, prefetch)

    def match(
        self, hashes: Hashes, *, deadline: Seconds | None = None, lease: bool = False, prefetch: bool = False
    ) -> SetMatchResult:
        """Which of the blocks are held, and how long each is."""
        return cast(SetMatchResult, self._match(hashes, deadline, lease, prefetch).result(-1))

    def submit_match(
        self, hashes: Hashes, *, deadline: Seconds | None = None, lease: bool = False, prefetch: bool = False
    ) -> Future[SetMatchResult]:
        """As :meth:`match`, without waiting."""
        return Future(self._match(hashes, deadline, lease, prefetch))

    def get(
        self,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        deadline: Seconds | None = None,
        lease: int = 0,
        memory_only: bool = False,
    ) -> SetGetResult:
        """Copies those of the blocks that are held, block i to ``blocks[i]``, which may be longer than the block."""
        future = self.submit_get(hashes, blocks, rows=rows, deadline=deadline, lease=lease, memory_only=memory_only)
        return future.result()

    def submit_get(
        self,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        deadline: Seconds | None = None,
        lease: int = 0,
        memory_only: bool = False,
    ) -> Future[SetGetResult]:
        """As :meth:`get`, without waiting."""
        time = self._client._deadline(deadline)
        return Future(self._native.get_set(self._id, hashes, blocks, rows, time, lease, memory_only))

    def put(
        self,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        deadline: Seconds | None = None,
    ) -> SetPutResult:
        """Stores each block whose name is not held yet, all of ``blocks[i]``."""
        return self.submit_put(hashes, blocks, rows=rows, deadline=deadline).result()

    def submit_put(
        self,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        deadline: Seconds | None = None,
    ) -> Future[SetPutResult]:
        """As :meth:`put`, without waiting."""
        return Future(self._native.put_set(self._id, hashes, blocks, rows, self._client._deadline(deadline)))

    def touch(self, hashes: Hashes, *, deadline: Seconds | None = None) -> int:
        """Marks the blocks as used. How many, over all nodes."""
        return cast(int, self._native.touch(self._id, hashes, self._client._deadline(deadline), False).result(-1))

    def pin(self, hashes: Hashes, *, deadline: Seconds | None = None) -> int:
        """Keeps the blocks from being evicted until :meth:`unpin`. How many."""
        return cast(int, self._native.pin(self._id, hashes, self._client._deadline(deadline), False).result(-1))

    def unpin(self, hashes: Hashes, *, deadline: Seconds | None = None) -> int:
        """Ends :meth:`pin`. How many."""
        return cast(int, self._native.unpin(self._id, hashes, self._client._deadline(deadline), False).result(-1))

    def drop(
        self, hashes: Hashes | None = None, *, everything: bool = False, deadline: Seconds | None = None
    ) -> DropResult:
        """Drops the blocks; with ``everything`` and no hashes the whole namespace."""
        given: Hashes = [] if hashes is None else hashes
        if (len(given) == 0) != everything:
            raise BadRequest("hashes: name some, or everything=True for the whole namespace")
        call = self._native.drop(self._id, given, self._client._deadline(deadline), False)
        return cast(DropResult, call.result(-1))

    def release(self, lease: int) -> None:
        """Ends a match's lease early. Waits for nobody."""
        self._native.release(lease)
