"""Publishes a node's changes over ZeroMQ in an engine's format, and replays batches that a subscriber has missed.

Frames as in vLLM: topic, number (8 bytes, big endian), batch in msgpack. A request to the replay socket is a number; all batches from there
on are sent again, then one of number -1.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
import zmq

from .encoding import CLEARED, Encoding
from .held import look
from .source import Change, NodeAway, Source

logger = logging.getLogger(__name__)

END = (-1).to_bytes(8, "big", signed=True)
_LOOKS_MAX = 5
#: Clients whose replays wait for their turn. Further requests are dropped; the client asks again.
_ASKED_MAX = 1024
#: Of these, the replays sent in turns.
_REPLAYS_MAX = 16
#: Batches that wait in ZeroMQ for one client to read them. The kernel holds some more.
_UNREAD_MAX = 8
#: How long a client may leave its replay unread. Then it has a gap, and may ask again.
_STALLED_SECONDS = 5.0
_STALLED_POLL_SECONDS = 0.002


@dataclass
class _Replay:
    """The unsent part of one client's replay."""

    start: int
    #: If older batches are requested than are kept: everything, in batches, encoded as the client takes them.
    rest: Iterator[tuple[int, bytes]] | None = None
    pending: tuple[int, bytes] | None = None
    moved_at: float = field(default_factory=time.monotonic)


class Publisher:
    """One thread.

    1. A client that has applied all batches has the node's blocks as of the last batch. After a gap of the node's, or its restart, an
       AllBlocksCleared comes first, then everything.
    2. A replay from before the kept batches gets an AllBlocksCleared and everything, under the numbers of the last batches.
    3. The blocks of a silent node are cleared after ``away_seconds``, once.
    4. A client that requests replays and does not read them costs a few batches of memory; other clients are unaffected.
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
        #: The node's change to request next; None: everything is to be read.
        self._start: int | None = None
        self._heard_at = time.monotonic()
        self._looked_at = float("-inf")
        self._is_away = False
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
            # Unread batches are not queued: the send fails and is tried again.
            self._replay.setsockopt(zmq.SNDHWM, _UNREAD_MAX)
            self._replay.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._replay.setsockopt(zmq.RCVHWM, _REPLAYS_MAX)
            self._replay.bind(replay)
        self._asked: OrderedDict[bytes, _Replay] = OrderedDict()
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

    # -- the node's changes

    def follow(self) -> None:
        """Publishes new changes."""
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
        """Publishes everything, if possible: a node that changes faster than it can be read is tried again later."""
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
        self._told_at = max(time.time(), self._told_at)  # not before the last batch's, even if the clock goes back
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
        """Answers requests that come within that time, and earlier ones."""
        if self._replay is None:
            time.sleep(seconds)
            return
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            has_moved = self._send_some()
            wait = 0.0 if has_moved else min(left, _STALLED_POLL_SECONDS) if self._asked else left
            if self._replay.poll(wait * 1000):
                self._hear()

    def _hear(self) -> None:
        """A new request replaces the client's replay under way, and gets no more time."""
        assert self._replay is not None
        for _ in range(_REPLAYS_MAX):
            if not self._replay.poll(0):
                return
            frames = self._replay.recv_multipart()
            before = self._asked.get(frames[0])
            if len(frames) == 3 and len(frames[2]) == 8 and (before or len(self._asked) < _ASKED_MAX):
                replay = self._asked[frames[0]] = _Replay(int.from_bytes(frames[2], "big"))
                if before is not None:
                    replay.moved_at = before.moved_at

    def _send_some(self) -> bool:
        """Sends a batch to each of the first waiting clients. False if none could take one."""
        turns = list(islice(self._asked.items(), _REPLAYS_MAX))
        if all(replay.rest is None for replay in self._asked.values()):  # one full listing at a time
            self._begin_everything([replay for _, replay in turns if replay.start < self._first])
        has_moved = False
        for client, replay in turns:
            if replay.rest is None and replay.start < self._first:
                self._asked.move_to_end(client)  # until the others have theirs
            elif self._send_next(client, replay):
                has_moved, replay.moved_at = True, time.monotonic()
            elif time.monotonic() - replay.moved_at > _STALLED_SECONDS:
                logger.warning("kvstore.events: a client that asked for a replay does not read it")
                del self._asked[client]
            else:
                self._asked.move_to_end(client)
        return has_moved

    @property
    def _first(self) -> int:
        """The number of the first kept batch."""
        return self._kept[0][0] if self._kept else self._number

    def _send_next(self, client: bytes, replay: _Replay) -> bool:
        if replay.pending is None:
            replay.pending = self._next(replay)
        try:
            if replay.pending is None:
                self._send(client, b"", END, b"")
                del self._asked[client]
            else:
                number, payload = replay.pending
                self._send(client, self._topic, number.to_bytes(8, "big"), payload)
                replay.start, replay.pending = number + 1, None
        except zmq.Again:
            return False
        except zmq.ZMQError:  # the client is gone
            del self._asked[client]
        return True

    def _next(self, replay: _Replay) -> tuple[int, bytes] | None:
        if replay.rest is not None:
            return next(replay.rest, None)
        return self._kept[replay.start - self._first] if replay.start < self._number else None

    def _begin_everything(self, replays: list[_Replay]) -> None:
        """Starts full listings for clients that miss more than is kept."""
        if not replays or time.monotonic() < self._looked_at + self._look_seconds:
            return
        try:
            seen = look(self._source, self._life, self._start) if self._start is not None else None
        except NodeAway:
            seen = None
        self._looked_at = time.monotonic()
        if seen is None:  # follow() publishes to all with the next batches; until then they have a gap
            for each in replays:
                each.start = self._first
            return
        # Changes found by this read go to all clients first.
        self._tell(seen.since)
        self._start = seen.next
        changes = list(seen.held.changes())
        for each in replays:
            each.rest = self._everything(changes, each.start)
            each.moved_at = time.monotonic()

    def _everything(self, changes: list[Change], start: int) -> Iterator[tuple[int, bytes]]:
        """Everything, in batches under numbers the client has not seen, ending with the last batch's."""
        end = self._number
        count = max(1, min(-(-len(changes) // self._changes_per_batch), end - start))
        size = max(1, -(-len(changes) // count))
        count = max(1, -(-len(changes) // size))
        batches = self._batches(changes, size) if changes else iter([[]])
        for number, events in enumerate(batches, end - count):
            first = [dict(CLEARED)] if number == end - count else []
            yield number, self._encode([*first, *events])

    def _send(self, client: bytes, topic: bytes, number: bytes, payload: bytes) -> None:
        assert self._replay is not None
        self._replay.send_multipart((client, b"", topic, number, payload), flags=zmq.DONTWAIT)
