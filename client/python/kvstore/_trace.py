"""Whose requests these are: a W3C traceparent, for the nodes' slow logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Read by each call as it begins, in its caller's context: so threads and tasks do not take each other's.
current: ContextVar[str | None] = ContextVar("kvstore_traceparent", default=None)


@contextmanager
def traced(traceparent: str | None) -> Iterator[None]:
    """Calls that begin within the ``with`` block carry this ``traceparent`` (as the HTTP header of that name has it),
    and nodes show it with requests that were slow. What is no traceparent is ignored.
    """
    token = current.set(traceparent)
    try:
        yield
    finally:
        current.reset(token)
