"""One engine connector ("door"), as a test sees it; door_vllm.py, door_sglang.py and door_lmcache.py have one for each that there is.

An item is a door's content under one name; its bytes follow from its number, so that every result can be checked.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

#: The engine of this environment. LMCache's has vLLM too.
HERE = next((each for each in ("lmcache", "sglang", "vllm") if importlib.util.find_spec(each)), "")
#: Calls repeated while a task is under way.
POLLS = ("query_", "pop_", "get_finished")
#: Of jobs and requests, each once.
numbers = iter(range(10**9))


class Door:
    """A test's view of a door. Methods do not raise, in any state of the store."""

    #: Whether the engine calls one door from several threads.
    is_shared = False
    #: The door's client if visible, to wait for a connection.
    client: Any = None
    #: So many items do not fit in 4 MiB.
    many = 400
    more: dict[str, Any] = {}  # noqa: RUF012  # a test sets it

    def __init__(self) -> None:
        #: The objects that the engine calls.
        self.called: list[Any] = []
        self.call_count = 0

    def store(self, items: Sequence[int]) -> None:
        """Hands the items over; returns when their store has ended or was given up."""
        raise NotImplementedError

    def load(self, items: Sequence[int]) -> list[bool]:
        """Which of them have come. Checks that these are right, and that missing ones do not count as loaded."""
        raise NotImplementedError

    def one_round(self, items: Sequence[int]) -> None:
        """Lookups, loads and stores of few bytes, which all have to succeed."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def options(self, seconds: float, salt: str) -> dict[str, Any]:
        timeouts = {"lookup_timeout": seconds, "load_timeout": seconds, "save_timeout": seconds}
        return timeouts | {"salt": salt} | self.more

    def count_calls(self) -> None:
        """From now on ``call_count`` grows with each call of an engine-facing method."""

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(call)
            def calling(*arguments: Any, **named: Any) -> Any:
                self.call_count += 1
                return call(*arguments, **named)

            return calling

        for each in self.called:
            for name, _ in inspect.getmembers(type(each), inspect.isfunction):
                if not name.startswith(("_", *POLLS)):
                    setattr(each, name, counted(getattr(each, name)))

    def warm(self) -> None:
        """Waits for a connection, if one is possible."""
        until = time.monotonic() + 10
        while self.client is not None and self.client.ping(deadline=0.2) == [None] and time.monotonic() < until:
            pass


def check(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


_known_bytes: dict[tuple[int, int], torch.Tensor] = {}


def bytes_of(item: int, count: int) -> torch.Tensor:
    """An item's bytes. Few sizes and numbers, so that a test's time is the door's."""
    key = item, count
    if key not in _known_bytes:
        generator = torch.Generator().manual_seed(item)
        _known_bytes[key] = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    return _known_bytes[key]
