"""Keeps a silent store from costing every request its deadline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_FAILURES_MAX = 3
_PAUSE_MIN = 1.0
_PAUSE_MAX = 30.0


class Breaker:
    """After three failures in a row the store is skipped for one second, then for two, and so on up to thirty.

    1. Any success ends the pause and resets the failures.
    2. After a pause, calls are let through again; the next failure begins a pause of twice the length.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause = 0.0
        self._until = 0.0

    def allows(self) -> bool:
        return self._clock() >= self._until

    def succeeded(self) -> None:
        self._failures = 0
        self._pause = 0.0
        self._until = 0.0

    def failed(self) -> bool:
        """Whether a pause begins with this failure."""
        if not self.allows():
            return False  # from a call that was under way when the pause began
        self._failures += 1
        if self._failures < _FAILURES_MAX:
            return False
        self._pause = min(max(_PAUSE_MIN, self._pause * 2), _PAUSE_MAX)
        self._until = self._clock() + self._pause
        return True


class Gate:
    """A breaker for one kind of call, which counts failures and logs pauses. Any thread may use it."""

    def __init__(self, what: str, logger: logging.Logger) -> None:
        self._what, self._logger = what, logger
        self._breaker = Breaker()
        self._lock = threading.Lock()
        self.failures = 0

    def allows(self) -> bool:
        with self._lock:
            return self._breaker.allows()

    def succeeded(self) -> None:
        with self._lock:
            self._breaker.succeeded()

    def failed(self, why: object) -> None:
        with self._lock:
            self.failures += 1
            pauses = self._breaker.failed()
        if pauses:
            self._logger.warning("kvstore: %s fail: %s", self._what, why)

    def ended(self, why: object) -> None:
        """``why`` is the reason for a missing part of the result; None: success."""
        if why is None:
            self.succeeded()
        else:
            self.failed(why)


def gates(logger: logging.Logger, of: str = "") -> dict[str, Gate]:
    """For lookups, loads and saves."""
    return {kind: Gate(kind + of, logger) for kind in ("lookups", "loads", "saves")}
