"""Common base of opened namespaces: chains (:class:`kvstore.Space`) and sets (:class:`kvstore.SetSpace`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from . import _kvstore
from ._arrays import Hashes, Seconds
from ._kvstore import Caller, DropResult, Future, MatchResult, Op, Queue
from .errors import BadRequest
from .namespaces import Namespace

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="OpenedNamespace")


class Opener(Protocol):
    """A client, as the namespaces that it has opened see it."""

    _native: _kvstore.Client

    @property
    def _submits(self) -> Queue: ...

    @property
    def is_closed(self) -> bool: ...

    def _deadline(self, deadline: Seconds | None) -> float: ...


def forms(
    begin: Callable[Concatenate[S, Caller, P], Future[T]],
) -> tuple[Callable[Concatenate[S, P], T], Callable[Concatenate[S, P], Future[T]]]:
    """The two forms of a call: ``submit_name`` begins it on the queue, which gives a Future; ``name`` on the client, which waits and gives
    its result: without a queue between, this thread does the I/O.
    """

    def run(self: S, /, *args: P.args, **more: P.kwargs) -> T:
        return cast(T, begin(self, self._client._native, *args, **more))

    def submit(self: S, /, *args: P.args, **more: P.kwargs) -> Future[T]:
        return begin(self, self._client._submits, *args, **more)

    name, owner = begin.__name__.removeprefix("_"), begin.__qualname__.rpartition(".")[0]
    signature = inspect.signature(begin)
    parameters = [each for each in signature.parameters.values() if each.name != "on"]
    result = str(signature.return_annotation).removeprefix("Future[").removesuffix("]")
    documented = f"As :meth:`{name}`, without waiting. Its memory belongs to the call until the future is done, even if it is dropped."
    forms_of: list[tuple[Any, str, str, str | None]] = [
        (run, name, result, begin.__doc__),
        (submit, f"submit_{name}", f"Future[{result}]", documented),
    ]
    for form, form_name, returned, doc in forms_of:
        form.__doc__ = doc
        form.__module__, form.__name__, form.__qualname__ = begin.__module__, form_name, f"{owner}.{form_name}"
        form.__signature__ = inspect.Signature(parameters, return_annotation=returned)
    return run, submit


def lease_number(lease: Lease | int) -> int:
    return lease if isinstance(lease, int) else lease.id


class OpenedNamespace:
    """A namespace, opened by a client. Stays valid while nodes come and go.

    Calls block, without the GIL, until their deadline at the latest; Ctrl-C ends them. Each has a form ``submit_...`` that returns a
    :class:`Future` at once: its ``result()`` blocks, ``await`` does not.
    """

    __slots__ = ("_client", "_id", "namespace")

    def __init__(self, client: Opener, number: int, namespace: Namespace) -> None:
        self._client = client
        self._id = number
        self.namespace = namespace

    @property
    def client(self) -> Any:
        """The :class:`kvstore.Client`, whose module imports this one."""
        return self._client

    def wait_open(self, *, deadline: Seconds | None = None) -> None:
        """Waits until one node has opened it. Raises Unavailable or TimedOut otherwise."""
        self._client._native.wait_open(self._id, self._client._deadline(deadline))

    def _touch(self, on: Caller, hashes: Hashes, *, deadline: Seconds | None = None) -> Future[int]:
        """Marks the blocks as used: a chain's prefix, or each block of a set. Returns how many, over all nodes."""
        return on.call(Op.TOUCH, self._id, hashes, self._client._deadline(deadline))

    def _retain(self, on: Caller, hashes: Hashes, *, deadline: Seconds | None = None) -> Future[int]:
        """Keeps the blocks from being evicted until :meth:`unretain`. Returns how many."""
        return on.call(Op.RETAIN, self._id, hashes, self._client._deadline(deadline))

    def _unretain(self, on: Caller, hashes: Hashes, *, deadline: Seconds | None = None) -> Future[int]:
        """Ends :meth:`retain`. Returns how many."""
        return on.call(Op.UNRETAIN, self._id, hashes, self._client._deadline(deadline))

    def _drop(
        self, on: Caller, hashes: Hashes | None = None, *, everything: bool = False, deadline: Seconds | None = None
    ) -> Future[DropResult]:
        """Drops a chain's last block and all below it, or each of a set's blocks; with ``everything`` and no hashes the whole namespace."""
        given: Hashes = [] if hashes is None else hashes
        # An empty list means the whole namespace; that must not happen because a prompt was short.
        if (len(given) == 0) != everything:
            raise BadRequest("hashes: name some, or everything=True for the whole namespace")
        return on.call(Op.DROP, self._id, given, self._client._deadline(deadline))

    touch, submit_touch = forms(_touch)
    retain, submit_retain = forms(_retain)
    unretain, submit_unretain = forms(_unretain)
    drop, submit_drop = forms(_drop)

    def release(self, lease: Lease | int) -> None:
        """Ends a match's lease early. Returns at once."""
        self._client._submits.release(lease_number(lease))

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
