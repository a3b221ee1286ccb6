"""A door: the part of an engine's connector that is the same for every engine."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ..device import Event
from ..errors import Error, PermissionDenied
from ..futures import Future
from ..namespaces import Namespace
from ..sets import SetSpace
from .gates import Gate
from .options import AccessOptions, client_of
from .placement import numa_nodes_of, tell_numa

KINDS = ("lookups", "loads", "saves")
#: How long an engine's shutdown waits for blocks on their way to the store.
FLUSH_SECONDS = 1.0


class Door:
    """An engine's connection to the store: a client, a gate for each kind of call, counters, and an end.

    1. The store may be away, now or for ever: making a door and opening namespaces does not raise for it.
    2. Each kind of call is left out for a while after three failures in a row (gates.py).
    3. Blocks under way get one more second at the end. After it nothing is counted as an error or logged.
    Any thread may call any method; ``counters`` itself is for doors that are called from one thread.
    """

    def __init__(
        self,
        options: AccessOptions,
        identity: str,
        logger: logging.Logger,
        *,
        of: str = "",
        numa_nodes: str = "",
        device: int | None = None,
        **more: Any,
    ) -> None:
        """``of``: what is looked up, loaded and saved, for the log. ``numa_nodes``: the engine's option, "" for no placement."""
        self.logger = logger
        if numa_nodes:
            more["numa_nodes"] = numa_nodes_of(numa_nodes, device)
        self.client = client_of(options, identity=identity, **more)
        if numa_nodes:
            tell_numa(logger, self.client)
        self.gates = {kind: Gate(kind + of, logger) for kind in KINDS}
        self.lookups, self.loads, self.saves = self.gates.values()
        self.counters: Counter[str] = Counter()
        #: By ``changes``.
        self._told: Counter[str] = Counter()
        self.is_closed = False
        self._lock = threading.Lock()

    def open(self, namespace: Namespace, what: str = "", *, patience: float = 0.0) -> SetSpace:
        """Opens a set, and logs ``what`` its blocks are, if that is given. Waits ``patience`` seconds for a node, so that the first lookup can
        be a hit. A client that the nodes' policy refuses opens it all the same: its calls fail with the reason, and are misses to the engine.
        """
        if what:
            self.logger.info("kvstore: %s of up to %d bytes, namespace %s", what, namespace.block_bytes, namespace)
        if patience > 0:
            try:
                return self.client.open_set(namespace, deadline=patience)
            except PermissionDenied:
                pass
        return self.client.open_set(namespace, wait=False)

    # -- counters

    def count(self, name: str, count: int) -> None:
        with self._lock:
            self.counters[name] += count

    @property
    def totals(self) -> dict[str, int]:
        """The counters, and the failures of all kinds of calls."""
        with self._lock:
            counted = dict(self.counters)
        return counted | {"failures": sum(gate.failures for gate in self.gates.values())}

    def changes(self, names: Collection[str]) -> dict[str, int]:
        """For the engine's metrics: the growth of these totals since the last call, and ``paused_...`` of each kind of call: 1 in each call
        while failures keep the engine from making such calls, since unpaused ranks must not hide it, then 0 once.
        """
        data = {}
        for name, total in self.totals.items():
            if name in names and total != self._told[name]:
                data[name], self._told[name] = total - self._told[name], total
        for kind, gate in self.gates.items():
            name, is_paused = f"paused_{kind}", not gate.allows()
            if is_paused or self._told[name]:
                data[name] = self._told[name] = int(is_paused)
        return data

    # -- the engine's calls

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Keeps exceptions of a ``with`` block from the engine: they are counted and logged, and what follows the block is done."""
        try:
            yield
        except Exception as error:
            if not self.is_closed:
                self.count("errors", 1)
                # The store's own errors say all; others are bugs, here or in the engine.
                trace = None if isinstance(error, Error) else error
                self.logger.warning("kvstore: %s: %s", what, error, exc_info=trace)

    def close(self, saves: Iterable[Future[Any]] = ()) -> None:
        """Calls under way end: saves after one more second, others at once, as misses."""
        self.is_closed = True
        wait_for(saves, time.monotonic() + FLUSH_SECONDS)
        for gate in self.gates.values():
            gate.close()
        self.client.close()


class UnderWay(Protocol):
    """Something with a call that is under way."""

    @property
    def future(self) -> Future[Any] | None: ...


W = TypeVar("W", bound=UnderWay)


def take_ended(calls: list[W]) -> list[W]:
    """Takes those from the list whose call has ended."""
    ended: list[W] = []
    under_way: list[W] = []
    for each in calls:
        (ended if each.future is None or each.future.done() else under_way).append(each)
    calls[:] = under_way
    return ended


def wait_for(ends: Iterable[Future[Any] | Event], until: float) -> None:
    """Waits for all of them, but no longer."""
    for each in ends:
        each.wait(max(0.0, until - time.monotonic()))


def tell_untried(logger: logging.Logger, engine: str, version: str, tried: Sequence[str]) -> None:
    if version not in tried:
        logger.warning("kvstore: %s %s was not tried, only %s", engine, version, ", ".join(tried))
