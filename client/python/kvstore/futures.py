"""Calls in flight: wait for them in a thread, or in an event loop."""

from __future__ import annotations

import asyncio
import math
import select
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from . import _kvstore
from .errors import BadRequest

__all__ = ["Future", "wait"]

T = TypeVar("T")


def _limit(timeout: float | None) -> float:
    """The timeout as the extension takes it: negative means for ever, so an expired one becomes 0."""
    if timeout is None:
        return -1.0
    if math.isnan(timeout):
        raise BadRequest("a time in seconds is not a number")
    return max(float(timeout), 0.0)


#: The queues that each loop watches by their descriptors: whatever its tasks wait for, there is no thread.
_watched: WeakKeyDictionary[asyncio.AbstractEventLoop, set[_kvstore.Queue]] = WeakKeyDictionary()


def _watch(loop: asyncio.AbstractEventLoop, queue: _kvstore.Queue) -> None:
    watched = _watched.setdefault(loop, set())
    if queue not in watched:
        loop.add_reader(queue.fileno(), queue.reap)
        watched.add(queue)


def forget(queue: _kvstore.Queue) -> None:
    """For a client that has gone: no loop watches the queue any more."""

    def unwatch(loop: asyncio.AbstractEventLoop) -> None:
        if queue in _watched.get(loop, ()):
            loop.remove_reader(queue.fileno())
            _watched[loop].discard(queue)

    for reference in _watched.keyrefs():
        loop = reference()
        if loop is not None and queue in _watched.get(loop, ()):
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(unwatch, loop)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    """In whichever thread has taken the call's completion."""
    if asyncio._get_running_loop() is loop:
        _set(waiter)
    else:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_set, waiter)


class Future(Generic[T]):
    """A call in flight. ``result()`` blocks, ``await`` does not.

    Every call ends by its deadline, or soon after :meth:`cancel`. Dropping a future drops only the answer: the call goes on, and keeps its
    buffers until it ends. Cancelling a task that awaits it cancels the call; then the buffers are the call's until ``done()``.
    """

    __slots__ = ("_call", "_then")

    def __init__(self, call: _kvstore.Call[Any], then: Callable[[Any], T] | None = None) -> None:
        self._call = call
        self._then = then

    def __repr__(self) -> str:
        return f"<kvstore.Future {'done' if self.done() else 'in flight'}>"

    def done(self) -> bool:
        """Whether it has ended. A future in flight at a fork() has ended in the child: its result raises Forked."""
        return self._call.done()

    def result(self, timeout: float | None = None) -> T:
        """The result, or the call's exception. Raises TimedOut after ``timeout`` seconds, and the call goes on."""
        result = self._call.result(_limit(timeout))
        return cast(T, result) if self._then is None else self._then(result)

    def cancel(self) -> None:
        """Gives the call up: it ends soon, whatever the node does. A match, get or put reports this in its ``why``, and counts the work
        done by then; others raise Cancelled. Memory that a node may still write is quarantined.
        """
        self._call.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the call has ended within ``timeout`` seconds."""
        return self._call.wait(_limit(timeout))

    # -- segments of a get

    @property
    def segments(self) -> list[int]:
        """For each landed segment: how many leading blocks have it."""
        return self._call.segments

    def wait_segments(self, count: int, timeout: float | None = None) -> int:
        """Waits until ``count`` segments have landed or the call has ended. Returns how many have."""
        return self._call.wait_segments(count, _limit(timeout))

    async def landed(self, count: int) -> int:
        """As :meth:`wait_segments`, in an event loop."""
        while len(self._call.segments) < count:
            waiter = self._next_event()
            if waiter is None:
                break
            await waiter
        return len(self._call.segments)

    # -- event loops

    def _next_event(self) -> asyncio.Future[None] | None:
        """Done at the call's next segment or its end; None if it has ended."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        if not self._call.tell(partial(_wake, loop, waiter)):
            return None
        _watch(loop, self._call.queue)
        return waiter

    def __await__(self) -> Generator[Any, None, T]:
        while (waiter := self._next_event()) is not None:
            try:
                yield from waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()


#: Between looks at calls of several queues: a completion that another thread has taken makes no descriptor readable.
_LOOK_AGAIN_SECONDS = 0.001


def wait(
    futures: Iterable[Future[Any]], *, count: int | None = None, timeout: float | None = None
) -> list[Future[Any]]:
    """Waits until ``count`` of the futures have ended (default all), or for ``timeout`` seconds. Returns the ended ones."""
    given = list(futures)
    calls = [future._call for future in given]
    wanted = len(given) if count is None else min(count, len(given))
    limit = _limit(timeout)
    until = math.inf if limit < 0 else time.monotonic() + limit
    queues = {call.queue for call in calls}
    if len(queues) == 1:
        queues.pop().wait(calls, wanted, limit)
        return [future for future in given if future.done()]
    poller = select.poll()
    for queue in queues:
        if queue.fileno() >= 0:  # else this is a child of fork(), where all have ended
            poller.register(queue.fileno(), select.POLLIN)
    while True:
        for queue in queues:
            queue.reap()
        ended = [future for future in given if future.done()]
        left = until - time.monotonic()
        if len(ended) >= wanted or left <= 0:
            return ended
        poller.poll(1000 * min(left, _LOOK_AGAIN_SECONDS))
