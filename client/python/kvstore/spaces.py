"""Common base of opened namespaces: chains (:class:`kvstore.Space`) and sets (:class:`kvstore.SetSpace`)."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from . import _kvstore
from ._arrays import Hashes, Seconds
from ._kvstore import DropResult, MatchResult
from .errors import BadRequest
from .futures import Future
from .namespaces import Namespace


class Opener(Protocol):
    """A client, as the namespaces that it has opened see it."""

    _native: _kvstore.Client
    _at_once: bool

    @property
    def is_closed(self) -> bool: ...

    def _deadline(self, deadline: Seconds | None) -> float: ...


def lease_number(lease: Lease | int) -> int:
    return lease if isinstance(lease, int) else lease.id


class OpenedNamespace:
    """A namespace, opened by a client. Stays valid while nodes come and go.

    Calls block, without the GIL, until their deadline at the latest; Ctrl-C ends them. Each has a form ``submit_...`` that returns a
    :class:`Future` at once: its ``result()`` blocks, ``await`` does not.
    """

    __slots__ = ("_client", "_id", "_native", "namespace")

    def __init__(self, client: Opener, number: int, namespace: Namespace) -> None:
        self._client = client
        self._native = client._native
        self._id = number
        self.namespace = namespace

    @property
    def client(self) -> Any:
        """The :class:`kvstore.Client`, whose module imports this one."""
        return self._client

    def wait_open(self, *, deadline: Seconds | None = None) -> None:
        """Waits until one node has opened it. Raises Unavailable or TimedOut otherwise."""
        self._native.wait_open(self._id, self._client._deadline(deadline)).result(-1)

    def touch(self, hashes: Hashes, *, deadline: Seconds | None = None) -> int:
        """Marks the blocks as used: a chain's prefix, or each block of a set. Returns how many, over all nodes."""
        return self._native.touch(self._id, hashes, self._client._deadline(deadline), False).result(-1)

    def submit_touch(self, hashes: Hashes, *, deadline: Seconds | None = None) -> Future[int]:
        """As :meth:`touch`, without waiting."""
        return Future(self._native.touch(self._id, hashes, self._client._deadline(deadline), self._client._at_once))

    def pin(self, hashes: Hashes, *, deadline: Seconds | None = None) -> int:
        """Keeps the blocks from being evicted until :meth:`unpin`. Returns how many."""
        return self._native.pin(self._id, hashes, self._client._deadline(deadline), False).result(-1)

    def submit_pin(self, hashes: Hashes, *, deadline: Seconds | None = None) -> Future[int]:
        """As :meth:`pin`, without waiting."""
        return Future(self._native.pin(self._id, hashes, self._client._deadline(deadline), self._client._at_once))

    def unpin(self, hashes: Hashes, *, deadline: Seconds | None = None) -> int:
        """Ends :meth:`pin`. Returns how many."""
        return self._native.unpin(self._id, hashes, self._client._deadline(deadline), False).result(-1)

    def submit_unpin(self, hashes: Hashes, *, deadline: Seconds | None = None) -> Future[int]:
        """As :meth:`unpin`, without waiting."""
        return Future(self._native.unpin(self._id, hashes, self._client._deadline(deadline), self._client._at_once))

    def drop(
        self, hashes: Hashes | None = None, *, everything: bool = False, deadline: Seconds | None = None
    ) -> DropResult:
        """Drops a chain's last block and all below it, or each of a set's blocks; with ``everything`` and no hashes the whole namespace."""
        return self._drop(hashes, everything, deadline, False).result(-1)

    def submit_drop(
        self, hashes: Hashes | None = None, *, everything: bool = False, deadline: Seconds | None = None
    ) -> Future[DropResult]:
        """As :meth:`drop`, without waiting."""
        return Future(self._drop(hashes, everything, deadline, self._client._at_once))

    def _drop(
        self, hashes: Hashes | None, everything: bool, deadline: Seconds | None, at_once: bool
    ) -> _kvstore.Call[DropResult]:
        given: Hashes = [] if hashes is None else hashes
        # An empty list means the whole namespace; that must not happen because a prompt was short.
        if (len(given) == 0) != everything:
            raise BadRequest("hashes: name some, or everything=True for the whole namespace")
        return self._native.drop(self._id, given, self._client._deadline(deadline), at_once)

    def release(self, lease: Lease | int) -> None:
        """Ends a match's lease early. Returns at once."""
        self._native.release(lease_number(lease))

    def __repr__(self) -> str:
        return f"<kvstore.{type(self).__name__} {self.namespace!r}>"


class Lease:
    """A match protected from eviction until the ``with`` block ends, a get names it, or the node's own time is over."""

    __slots__ = ("_space", "match")

    def __init__(self, space: OpenedNamespace, match: MatchResult) -> None:
        self._space = space
        self.match = match

    @property
    def id(self) -> int:
        return self.match.lease

    @property
    def block_count(self) -> int:
        """Leading blocks found."""
        return self.match.block_count

    def __repr__(self) -> str:
        return f"<kvstore.Lease {self.id} of {self.block_count} blocks>"

    def release(self) -> None:
        if self.match.lease and not self._space._client.is_closed:
            self._space.release(self.match.lease)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
