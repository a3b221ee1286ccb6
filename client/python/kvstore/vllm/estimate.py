"""Decides whether to load a hit or compute it again, by the measured times of recent loads and steps."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

#: Limits on measurements: the number kept, the number needed, and their age.
_SAMPLES_MAX = 16
_SAMPLES_MIN = 3
_SECONDS_MAX = 60.0
#: A measurement applies to sizes up to this factor larger or smaller: each load has a part independent of its size.
_SIZE_FACTOR = 4
#: A smaller step is a decoding step, without information on prefill.
_PREFILL_TOKENS_MIN = 128
#: A hit is computed only if loading takes this many times as long. Loads leave the processors to other requests.
_LOAD_FACTOR = 1.5


def is_prefill(tokens: int) -> bool:
    """Whether a step of this size measures prefill."""
    return tokens >= _PREFILL_TOKENS_MIN


class HostClock:
    """Measures steps that are over when their calls have returned."""

    def __init__(self) -> None:
        self._began = 0.0

    def begin(self, tokens: int) -> None:
        self._began = time.monotonic()

    def so_far(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self._began

    def leave_out(self, seconds: float) -> None:
        """Excludes seconds that were not the model's."""
        self._began += seconds

    def end(self, tokens: int) -> tuple[float, list[tuple[int, float]]]:
        """Seconds in which this thread was busy with the step; and measured prefill steps."""
        seconds = self.so_far()
        return seconds, [(tokens, seconds)] if is_prefill(tokens) else []


class DeviceClock(HostClock):
    """Measures steps that a GPU computes after their calls have returned, by events on the engine's stream.

    ``make_event`` makes a timing event of PyTorch's. At most _WAITING_MAX steps wait for their end.
    """

    _WAITING_MAX = 8

    def __init__(self, make_event: Callable[[], Any]) -> None:
        super().__init__()
        self._make_event = make_event
        self._begin: Any = None
        self._waiting: deque[tuple[int, Any, Any]] = deque(maxlen=self._WAITING_MAX)

    def begin(self, tokens: int) -> None:
        super().begin(tokens)
        self._begin = None
        if is_prefill(tokens):
            self._begin = self._make_event()
            self._begin.record()

    def end(self, tokens: int) -> tuple[float, list[tuple[int, float]]]:
        if self._begin is not None:
            end = self._make_event()
            end.record()
            self._waiting.append((tokens, self._begin, end))
            self._begin = None
        measured = []
        while self._waiting and self._waiting[0][2].query():
            count, begin, end = self._waiting.popleft()
            measured.append((count, begin.elapsed_time(end) / 1e3))
        return self.so_far(), measured


class Pace:
    """Predicts the time for a number of tokens from recent measurements."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int, float]] = deque(maxlen=_SAMPLES_MAX)

    def add(self, tokens: int, seconds: float) -> None:
        self._samples.append((self._clock(), tokens, seconds))

    def seconds(self, tokens: int, *, of_any_size: bool = False) -> float | None:
        """None with too few measurements. ``of_any_size``: use measurements of every size."""
        since = self._clock() - _SECONDS_MAX
        paces = [
            seconds / count
            for when, count, seconds in self._samples
            if when >= since and (of_any_size or (count <= tokens * _SIZE_FACTOR and tokens <= count * _SIZE_FACTOR))
        ]
        return None if len(paces) < _SAMPLES_MIN else statistics.median(paces) * tokens


class Estimate:
    """Starts without measurements, and loses them a minute after the last: then hits are loaded, and so measured.

    1. Every answer of ``choose`` is one of the given hits, or 0.
    2. Without measurements of both loads and steps it is the largest.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._computed, self._memory, self._disk = Pace(clock), Pace(clock), Pace(clock)

    def computed(self, tokens: int, seconds: float) -> None:
        """Adds a step of the model."""
        if is_prefill(tokens):
            self._computed.add(tokens, seconds)

    def loaded(self, tokens: int, disk_tokens: int, seconds: float) -> None:
        """Adds a whole load of ``tokens``, ``disk_tokens`` of them from a node's disk."""
        if disk_tokens == 0:
            self._memory.add(tokens, seconds)
            return
        rest = tokens - disk_tokens
        memory = self._memory.seconds(rest) if rest > 0 else 0.0
        # In a load from both, the part from memory is known or short.
        self._disk.add(disk_tokens, max(seconds - (memory or 0.0), seconds / 8))

    def _load_seconds(self, tokens: int, disk_tokens: int) -> float | None:
        seconds = 0.0
        for pace, count in ((self._memory, tokens - disk_tokens), (self._disk, disk_tokens)):
            if count > 0:
                part = pace.seconds(count)
                if part is None:
                    return None
                seconds += part
        return seconds

    def choose(self, hits: list[tuple[int, int]]) -> int:
        """The cheapest hit. Each is (tokens, tokens on disk); the largest comes first, and the part a smaller one lacks is computed."""
        largest = max((tokens for tokens, _ in hits), default=0)
        to_compute = self._computed.seconds(largest, of_any_size=True)
        if largest == 0 or to_compute is None:
            return largest
        best, least = 0, to_compute
        for tokens, disk_tokens in hits:
            to_load = self._load_seconds(tokens, disk_tokens)
            if to_load is None:
                return tokens  # unknown: try it
            cost = to_load / _LOAD_FACTOR + to_compute * (largest - tokens) / largest
            if cost < least:
                best, least = tokens, cost
        return best
