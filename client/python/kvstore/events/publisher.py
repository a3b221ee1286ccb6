"""Publishes a node's changes over ZeroMQ as an engine publishes its own, and repeats what a subscriber has missed.

Frames as of vLLM: topic, number (8 bytes, big endian), batch in msgpack. A request to the replay socket is a number; all batches from it on
are sent again, then one of number -1.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
import zmq

from .encoding import CLEARED, Encoding
from .held import look
from .source import Change, NodeAway, Source

__all__ = ["Publisher"]

logger = logging.getLogger(__name__)

END = (-1).to_bytes(8, "big", signed=True)
_LOOKS_MAX = 5
#: Replays that are answered before changes are asked for again.
_REPLAYS_MAX = 16


class Publisher:
    """One thread.

    1. Who has applied all batches knows what the node holds, as of the last of them. After a gap of the node's, or where it began anew, there
       is first an AllBlocksCleared, then everything.
    2. Where a replay asks for more than is kept, it gets an AllBlocksCleared and everything, under the numbers of the last batches.
    3. What a node that does not answer had told is cleared after ``away_seconds``, once.
    """

    def __init__(
        self,
        source: Source,
        encoding: Encoding,
        *,
        publish: str,
        replay: str = "",
        topic: str = "",
        batches_max: int = 10_000,
        bytes_max: int = 256 << 20,
        changes_per_batch: int = 1024,
        away_seconds: float = 5.0,
        look_seconds: float = 1.0,
    ) -> None:
        self._source, self._encoding = source, encoding
        self._topic = topic.encode()
        self._batches_max, self._bytes_max, self._changes_per_batch = batches_max, bytes_max, changes_per_batch
        self._away_seconds, self._look_seconds = away_seconds, look_seconds
        self._life = ""
        #: Of the node's changes, the one to ask for; None: everything is to be looked at.
        self._start: int | None = None
        self._heard_at = time.monotonic()
        self._looked_at = float("-inf")
        self._is_away = False
        #: Of the next batch.
        self._number = 0
        self._told_at = 0.0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(100_000)
        self._pub.bind(publish)
        self._replay: zmq.Socket[bytes] | None = None
        if replay:
            self._replay = self._context.socket(zmq.ROUTER)
            # What does not fit is dropped in silence; what is kept has a bound of its own.
            self._replay.setsockopt(zmq.SNDHWM, 0)
            self._replay.bind(replay)
        self.publishes_at = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replays_at = self._replay.getsockopt_string(zmq.LAST_ENDPOINT) if self._replay is not None else ""

    def run(self, ended: threading.Event, poll_seconds: float = 0.1) -> None:
        while not ended.is_set():
            self.follow()
            self.answer(poll_seconds)

    def close(self) -> None:
        for each in (self._pub, self._replay):
            if each is not None:
                each.close(linger=0)
        self._context.term()
        self._source.close()

    # -- what the node tells

    def follow(self) -> None:
        """Publishes what has changed."""
        try:
            if self._start is None:
                self._begin()
            while self._start is not None:
                told = self._source.events(self._start, self._life)
                if told.has_gap:
                    logger.warning("kvstore.events: %s: changes were missed, everything is told anew", self._source.url)
                    self._start = None
                    self._begin()
                    continue
                self._tell(told.changes)
                is_all = told.next == self._start
                self._start = told.next
                if is_all:
                    break
            self._heard_at, self._is_away = time.monotonic(), False
        except NodeAway as away:
            if not self._is_away:
                logger.warning("kvstore.events: %s", away)
            self._is_away = True
            if self._life and time.monotonic() - self._heard_at > self._away_seconds:
                self._publish([dict(CLEARED)])
                self._life, self._start = "", None

    def _begin(self) -> None:
        """Tells everything, if it can be had: a node that changes faster than it can be looked at is tried again later."""
        for _ in range(_LOOKS_MAX):
            seen = look(self._source)
            if seen is None:
                continue
            self._life, self._start = seen.life, seen.next
            batches = self._batches(seen.held.changes(), self._changes_per_batch)
            self._publish([dict(CLEARED), *next(batches, [])])
            for each in batches:
                self._publish(each)
            return

    def _tell(self, changes: Iterable[Change]) -> None:
        for each in self._batches(changes, self._changes_per_batch):
            self._publish(each)

    def _batches(self, changes: Iterable[Change], size: int) -> Iterator[list[dict[str, Any]]]:
        rest = iter(changes)
        while some := list(islice(rest, size)):
            yield self._encoding.events(some)

    def _encode(self, events: list[dict[str, Any]]) -> bytes:
        self._told_at = max(time.time(), self._told_at)  # a later batch is not told earlier, whatever the clock does
        return bytes(msgspec.msgpack.encode([self._told_at, events, 0]))

    def _publish(self, events: list[dict[str, Any]]) -> None:
        payload = self._encode(events)
        self._pub.send_multipart((self._topic, self._number.to_bytes(8, "big"), payload))
        self._kept.append((self._number, payload))
        self._kept_bytes += len(payload)
        self._number += 1
        while len(self._kept) > self._batches_max or self._kept_bytes > self._bytes_max:
            self._kept_bytes -= len(self._kept.popleft()[1])

    # -- replays

    def answer(self, seconds: float) -> None:
        """Answers those who ask within that time."""
        if self._replay is None:
            time.sleep(seconds)
            return
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not self._replay.poll(max(1, int(left * 1000))):
                return
            asked: list[tuple[bytes, int]] = []
            while len(asked) < _REPLAYS_MAX and self._replay.poll(0):
                frames = self._replay.recv_multipart()
                if len(frames) == 3 and len(frames[2]) == 8:
                    asked.append((frames[0], int.from_bytes(frames[2], "big")))
            self._repeat(asked)

    def _repeat(self, asked: list[tuple[bytes, int]]) -> None:
        first = self._kept[0][0] if self._kept else self._number
        if too_old := [each for each in asked if each[1] < first]:
            self._repeat_all(too_old)
        for client, start in asked:
            if start >= first:
                self._send_kept(client, start)

    def _send_kept(self, client: bytes, start: int) -> None:
        for number, payload in self._kept:
            if number >= start:
                self._send(client, number, payload)
        self._send_end(client)

    def _repeat_all(self, asked: list[tuple[bytes, int]]) -> None:
        """To those who miss more than is kept."""
        time.sleep(max(0.0, self._looked_at + self._look_seconds - time.monotonic()))
        try:
            seen = look(self._source, self._life, self._start) if self._start is not None else None
        except NodeAway:
            seen = None
        self._looked_at = time.monotonic()
        if seen is None:  # follow() tells everybody, with the next batches; until then they have a gap
            for client, start in asked:
                self._send_kept(client, start)
            return
        # What this look has come across first is for all.
        self._tell(seen.since)
        self._start = seen.next
        changes = list(seen.held.changes())
        for client, start in asked:
            # Numbers that the client has not seen, the last one that of the last batch.
            count = max(1, min(-(-len(changes) // self._changes_per_batch), self._number - start))
            batches = list(self._batches(changes, max(1, -(-len(changes) // count)))) or [[]]
            batches[0].insert(0, dict(CLEARED))
            for number, events in enumerate(batches, self._number - len(batches)):
                self._send(client, number, self._encode(events))
            self._send_end(client)

    def _send(self, client: bytes, number: int, payload: bytes) -> None:
        assert self._replay is not None
        self._replay.send_multipart((client, b"", self._topic, number.to_bytes(8, "big"), payload))

    def _send_end(self, client: bytes) -> None:
        assert self._replay is not None
        self._replay.send_multipart((client, b"", b"", END, b""))
