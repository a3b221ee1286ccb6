"""Calls in flight: wait for them in a thread, or in an event loop."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar, cast

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


class _LoopQueue:
    """Wakes one event loop: an eventfd for all calls its tasks wait for, without a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = _kvstore.ReadyQueue()
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self._last = 0
        loop.add_reader(self._queue.fileno(), self._wake)

    def _wake(self) -> None:
        for number in self._queue.drain():
            for waiter in self._waiting.pop(number, ()):
                if not waiter.done():
                    waiter.set_result(None)

    def begin(self, call: _kvstore.Call[Any], number: int | None) -> int | None:
        """Has the call report its end here, under a number; None if it has ended."""
        if number is None:
            self._last += 1
            number = self._last
        return number if call.tell(self._queue, number) else None

    def waiter(self, number: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        made = loop.create_future()
        self._waiting.setdefault(number, []).append(made)
        return made


_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = weakref.WeakKeyDictionary()


def _queue_of(loop: asyncio.AbstractEventLoop) -> _LoopQueue:
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _LoopQueue(loop)
    return queue


class Future(Generic[T]):
    """A call in flight. ``result()`` blocks, ``await`` does not; use one event loop for one future.

    Every call ends by its deadline, or soon after :meth:`cancel`. Dropping a future drops only the answer: the call goes on, and keeps its
    buffers until it ends. Cancelling a task that awaits it cancels the call; then the buffers are the call's until ``done()``.
    """

    __slots__ = ("_call", "_number", "_then")

    def __init__(self, call: _kvstore.Call[Any], then: Callable[[Any], T] | None = None) -> None:
        self._call = call
        self._then = then
        self._number: int | None = None

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
        while not self._call.done() and len(self._call.segments) < count:
            waiter = self._waiter()
            if waiter is None:
                break
            # Segments that landed before the registration are not reported again.
            if len(self._call.segments) < count:
                await waiter
        return len(self._call.segments)

    # -- event loops

    def _waiter(self) -> asyncio.Future[None] | None:
        loop = asyncio.get_running_loop()
        queue = _queue_of(loop)
        number = queue.begin(self._call, self._number)
        if number is None:
            return None
        self._number = number
        return queue.waiter(number, loop)

    def __await__(self) -> Generator[Any, None, T]:
        while not self._call.done():
            waiter = self._waiter()
            if waiter is not None:
                try:
                    yield from waiter
                except asyncio.CancelledError:
                    self.cancel()
                    raise
        return self.result()


def wait(
    futures: Iterable[Future[Any]], *, count: int | None = None, timeout: float | None = None
) -> list[Future[Any]]:
    """Waits until ``count`` of the futures have ended (default all), or for ``timeout`` seconds. Returns the ended ones."""
    import select
    import time

    given = list(futures)
    wanted = len(given) if count is None else min(count, len(given))
    until = None if timeout is None else time.monotonic() + _limit(timeout)
    queue = _kvstore.ReadyQueue()
    try:
        for future in given:
            future._call.tell(queue, 1)
        poller = select.poll()
        poller.register(queue.fileno(), select.POLLIN)
        while True:
            ended = [future for future in given if future.done()]
            left = None if until is None else until - time.monotonic()
            if len(ended) >= wanted or (left is not None and left <= 0):
                return ended
            poller.poll(None if left is None else left * 1000)
            queue.drain()
    finally:
        for future in given:
            future._call.stop_telling(queue)
