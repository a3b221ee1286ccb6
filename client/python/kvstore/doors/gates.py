"""Keeps a silent store from costing every request its deadline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import Cancelled, NotAdmitted
from ..futures import Future
from ..sets import SetGetResult, SetMatchResult, SetPutResult
from .results import stored

T = TypeVar("T")
R = TypeVar("R", SetGetResult, SetMatchResult, SetPutResult)

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
    """A breaker for one kind of call, which counts failures and logs each pause once. Any thread may use it.

    1. A store that answers is no failure: one that does not admit a block, or that took part of a put. Nor is a call given up here.
    2. Nothing here raises, whatever the call or its result raises.
    3. Once it is closed, failures are neither counted nor logged: the engine goes, and calls are cut off.
    """

    def __init__(self, what: str, logger: logging.Logger) -> None:
        self._what, self._logger = what, logger
        self._breaker = Breaker()
        self._lock = threading.Lock()
        self._is_closed = False
        self.failures = 0

    def close(self) -> None:
        self._is_closed = True

    def allows(self) -> bool:
        with self._lock:
            return self._breaker.allows()

    def succeeded(self) -> None:
        with self._lock:
            self._breaker.succeeded()

    def failed(self, why: object) -> None:
        with self._lock:
            if self._is_closed:
                return
            self.failures += 1
            pauses = self._breaker.failed()
        if pauses:
            self._logger.warning("kvstore: %s fail: %s. The engine does without meanwhile.", self._what, why)

    def ended(self, why: object) -> None:
        """``why`` is the reason for a missing part of the result; None: nothing is missing."""
        if why is None or isinstance(why, (Cancelled, NotAdmitted)):
            self.succeeded()
        else:
            self.failed(why)

    def begin(self, submit: Callable[[], T]) -> T | None:
        """What ``submit`` returns: a call's future. None: it could not be made."""
        try:
            return submit()
        except Exception as error:
            self.ended(error)
            return None

    def ask(self, call: Callable[[], R]) -> R | None:
        """The result of a blocking call, which is made if the gate allows it. None: there is none."""
        return self._taken(self.begin(call)) if self.allows() else None

    def result(self, future: Future[R]) -> R | None:
        """The result of a call, waiting for its end. None: there is none."""
        return self._taken(self.begin(future.result))

    def _taken(self, result: R | None) -> R | None:
        if result is not None:
            self.ended(None if isinstance(result, SetPutResult) and stored(result).any() else result.why)
        return result
