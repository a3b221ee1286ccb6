"""The origin of requests: a W3C traceparent, for the nodes' slow logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Read at the start of each call, in its caller's context, so threads and tasks stay separate.
current: ContextVar[str | None] = ContextVar("kvstore_traceparent", default=None)


@contextmanager
def traced(traceparent: str | None) -> Iterator[None]:
    """Calls begun within the ``with`` block carry this W3C ``traceparent``, shown by nodes with slow requests. Invalid ones are ignored."""
    token = current.set(traceparent)
    try:
        yield
    finally:
        current.reset(token)
