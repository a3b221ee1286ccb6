"""Whether a hit is loaded or computed again: what loads and steps have taken lately, compared."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Estimate", "Pace"]

#: So many measurements count, of the last so many seconds; fewer than the least say nothing.
_SAMPLES_MAX = 16
_SAMPLES_MIN = 3
_SECONDS_MAX = 60.0
#: A measurement speaks for what is at most so many times larger or smaller: each load has a part that no size changes.
_SIZE_FACTOR = 4
#: A step of fewer tokens is one of decoding, which says nothing of prefill.
_PREFILL_TOKENS_MIN = 128
#: A hit is computed only if to load it would take so many times as long. Loads leave the processors to other requests.
_LOAD_FACTOR = 1.5


class Pace:
    """How long so many tokens take, by what was measured lately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int, float]] = deque(maxlen=_SAMPLES_MAX)

    def add(self, tokens: int, seconds: float) -> None:
        self._samples.append((self._clock(), tokens, seconds))

    def seconds(self, tokens: int, *, of_any_size: bool = False) -> float | None:
        """None if too little was measured. ``of_any_size``: measurements of every size speak for this one."""
        since = self._clock() - _SECONDS_MAX
        paces = [
            seconds / count
            for when, count, seconds in self._samples
            if when >= since and (of_any_size or (count <= tokens * _SIZE_FACTOR and tokens <= count * _SIZE_FACTOR))
        ]
        return None if len(paces) < _SAMPLES_MIN else statistics.median(paces) * tokens


class Estimate:
    """Nothing is known at first, and again a minute after the last measurement: then hits are loaded, and so measured.

    1. Every answer of ``choose`` is one of the hits that it was given, or 0.
    2. Without measurements of both loads and steps it is the largest.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._computed, self._memory, self._disk = Pace(clock), Pace(clock), Pace(clock)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step of the model."""
        if tokens >= _PREFILL_TOKENS_MIN:
            self._computed.add(tokens, seconds)

    def loaded(self, tokens: int, disk_tokens: int, seconds: float) -> None:
        """A whole load of ``tokens``, so many of them from a node's disk."""
        if disk_tokens == 0:
            self._memory.add(tokens, seconds)
            return
        rest = tokens - disk_tokens
        memory = self._memory.seconds(rest) if rest > 0 else 0.0
        # Of a load from both, the part in memory is known or short.
        self._disk.add(disk_tokens, max(seconds - (memory or 0.0), seconds / 8))

    def choose(self, hits: list[tuple[int, int]]) -> int:
        """Which hit costs least. Each is (tokens, tokens of these that lie on disk); the largest comes first, and what a
        smaller one lacks of it is computed.
        """
        largest = max((tokens for tokens, _ in hits), default=0)
        best, least = 0, self._computed.seconds(largest, of_any_size=True)
        if largest == 0 or least is None:
            return largest
        for tokens, disk_tokens in hits:
            loads = [
                pace.seconds(count)
                for pace, count in ((self._memory, tokens - disk_tokens), (self._disk, disk_tokens))
                if count > 0
            ]
            rest = self._computed.seconds(largest - tokens, of_any_size=True)
            if None in loads or rest is None:
                return tokens  # not known: try it
            cost = sum(each for each in loads if each is not None) / _LOAD_FACTOR + rest
            if cost < least:
                best, least = tokens, cost
        return best
