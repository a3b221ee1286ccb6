"""Calls in flight: wait for them in a thread, or in an event loop."""

from __future__ import annotations

import asyncio
import math
import select
import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ._kvstore import Future, Queue
from .errors import BadRequest

__all__ = ["Future", "wait"]

T = TypeVar("T")


#: The queues that each loop watches by their descriptors: whatever its tasks wait for, there is no thread.
_watched: WeakKeyDictionary[asyncio.AbstractEventLoop, set[Queue]] = WeakKeyDictionary()


def _watch(loop: asyncio.AbstractEventLoop, queue: Queue) -> None:
    watched = _watched.setdefault(loop, set())
    if queue not in watched:
        loop.add_reader(queue.fileno(), queue.reap)
        watched.add(queue)


def forget(queue: Queue) -> None:
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


def _next_event(future: Future[Any]) -> asyncio.Future[None] | None:
    """Done at the call's next segment or its end; None if it has ended."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()
    if not future._tell(partial(_wake, loop, waiter)):
        return None
    _watch(loop, future._queue)
    return waiter


def _await(future: Future[T]) -> Generator[Any, None, T]:
    while (waiter := _next_event(future)) is not None:
        try:
            yield from waiter
        except asyncio.CancelledError:
            future.cancel()
            raise
    return future.result()


async def _landed(future: Future[Any], count: int) -> int:
    while len(future.segments) < count:
        waiter = _next_event(future)
        if waiter is None:
            break
        await waiter
    return len(future.segments)


Future.__await__ = _await  # type: ignore[method-assign,assignment]
Future.landed = _landed  # type: ignore[method-assign,assignment]


#: Between looks at calls of several queues: a completion that another thread has taken makes no descriptor readable.
_LOOK_AGAIN_SECONDS = 0.001


def wait(
    futures: Iterable[Future[Any]], *, count: int | None = None, timeout: float | None = None
) -> list[Future[Any]]:
    """Waits until ``count`` of the futures have ended (default all), or for ``timeout`` seconds. Returns the ended ones."""
    given = list(futures)
    wanted = len(given) if count is None else min(count, len(given))
    queues = {future._queue for future in given}
    if len(queues) == 1:
        queues.pop().wait(given, wanted, timeout)
        return [future for future in given if future.done()]
    if timeout is not None and math.isnan(timeout):
        raise BadRequest("a time in seconds is not a number")
    until = math.inf if timeout is None else time.monotonic() + timeout
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
