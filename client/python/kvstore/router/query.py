"""Queries how much of a prefix the store holds, on which tiers and nodes, by matches without a lease: no promise, no move of blocks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _kvstore
from ..client import Client, Node, Space
from ..doors.gates import Breaker
from ..errors import BadRequest, Busy, Error, NotFound, TimedOut, Unavailable
from ..futures import Future
from ..namespaces import Namespace
from ..sets import SetSpace
from .asked import Asked
from .names import Naming

#: Namespaces per client: it keeps each one it opened, so at this limit a new client replaces it.
_NAMESPACES_MAX = 256
#: Names in one call: nodes take at least twice as many.
_NAMES_MAX = 1 << 14
#: Maximum age of the nodes' namespace lists; and if the requested namespace is missing there.
_LIST_SECONDS = 2.0
_LIST_SECONDS_MIN = 0.1
_MEMORY, _DISK = 1, 2


@dataclass(frozen=True)
class _Held:
    """For each name 0, 1 or 2, as in SetMatchResult; and why not more."""

    states: npt.NDArray[np.uint8]
    why: Error | None = None


class _Opened:
    """A client with its open namespaces."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.spaces: dict[str, Space | SetSpace] = {}
        self.user_count = 0


class _Clients:
    """Opens namespaces on a succession of clients, since a client keeps all it has opened and callers may invent names.

    1. A client opens at most _NAMESPACES_MAX. It is closed once it has been replaced and its last user is done.
    """

    def __init__(self, make: Callable[[], Client], ping_seconds: float) -> None:
        self._make, self._ping_seconds = make, ping_seconds
        self._now = _Opened(make())
        self._before: set[_Opened] = set()
        self._renewing = asyncio.Lock()

    @property
    def client(self) -> Client:
        return self._now.client

    def close(self) -> None:
        for each in (*self._before, self._now):
            each.client.close()

    @contextlib.asynccontextmanager
    async def space(self, namespace: Namespace) -> AsyncIterator[Space | SetSpace]:
        async with self._renewing:
            if namespace.text not in self._now.spaces and len(self._now.spaces) >= _NAMESPACES_MAX:
                await self._renew()
        opened = self._now
        space = opened.spaces.get(namespace.text)
        if space is None:
            open_space = opened.client.open_set if namespace.is_set else opened.client.open
            space = opened.spaces[namespace.text] = open_space(namespace, wait=False)
        opened.user_count += 1
        try:
            yield space
        finally:
            opened.user_count -= 1
            await self._close_unused()

    async def _renew(self) -> None:
        client = self._make()
        await asyncio.to_thread(client.ping, deadline=self._ping_seconds)  # connects, so that queries need not
        self._before.add(self._now)
        self._now = _Opened(client)
        await self._close_unused()

    async def _close_unused(self) -> None:
        for each in [each for each in self._before if each.user_count == 0]:
            self._before.discard(each)
            await asyncio.to_thread(each.client.close)


class Prefixes:
    """Answers queries. One event loop.

    1. An answer comes within the deadline, or reports the timeout; a single node that stays away is skipped for a while. With several
       nodes, the answer covers the others meanwhile.
    2. Blocks counted as held were held when a node answered; they may be evicted at any time.
    3. The number of open namespaces has a limit, whatever callers ask.
    """

    def __init__(
        self,
        endpoints: Sequence[str | Node] | None = None,
        *,
        deadline: float = 0.05,
        deadline_max: float = 1.0,
        **options: Any,
    ) -> None:
        listed = list(endpoints) if endpoints else None
        self._clients = _Clients(lambda: Client(listed, deadline=deadline, identity="router", **options), deadline_max)
        self._options = options
        self._deadline, self._deadline_max = deadline, deadline_max
        #: For each node by its endpoint, if there are several: a client of one node shows which node has a block.
        self._each: dict[str, _Clients] = {}
        self._listed: list[dict[str, Any]] = []
        self._listed_at = -_LIST_SECONDS
        self._listing = asyncio.Lock()
        self._breaker = Breaker()

    @property
    def is_paused(self) -> bool:
        return not self._breaker.allows()

    def close(self) -> None:
        for each in (*self._each.values(), self._clients):
            each.close()

    @property
    def _client(self) -> Client:
        return self._clients.client

    # -- the nodes' own lists

    async def reachable(self) -> list[dict[str, Any]]:
        """Each node's name, endpoint, and round-trip seconds or None."""
        seconds = await asyncio.to_thread(self._client.ping, deadline=self._deadline_max)
        nodes = self._client.nodes()
        return [
            {"name": node["name"], "endpoint": node["endpoint"], "seconds": each, "error": node["last_error"] or None}
            for node, each in zip(nodes, seconds, strict=False)
        ]

    async def namespaces(self, age_max: float = _LIST_SECONDS) -> list[dict[str, Any]]:
        """The nodes' namespaces: id, record's fields, and how many blocks and bytes on each."""
        async with self._listing:
            if time.monotonic() - self._listed_at > age_max:
                stats = await asyncio.to_thread(self._client.stats, deadline=self._deadline_max)
                if all(node["error"] is not None for node in stats):
                    raise Unavailable(f"no node says which namespaces it has: {stats[0]['error'] if stats else ''}")
                self._listed = _by_namespace(stats)
                self._listed_at = time.monotonic()
        return self._listed

    async def _named(self, asked: Asked) -> list[Namespace]:
        if asked.namespaces and all(isinstance(each, Namespace) for each in asked.namespaces):
            return [each for each in asked.namespaces if isinstance(each, Namespace)]
        try:
            return self._among(await self.namespaces(), asked)
        except NotFound:  # it may be new
            return self._among(await self.namespaces(_LIST_SECONDS_MIN), asked)

    @staticmethod
    def _among(listed: list[dict[str, Any]], asked: Asked) -> list[Namespace]:
        known = {each["id"]: Namespace(each["fields"]) for each in listed}
        if asked.namespaces:
            named = [each if isinstance(each, Namespace) else known.get(each.hex()) for each in asked.namespaces]
            if None in named:
                raise NotFound("namespace: no node has one of that id")
            return [each for each in named if each is not None]
        found = [each for each in known.values() if each.fields.get("model") == asked.model and _is_prefixes(each)]
        if not found:
            raise NotFound(f"model: no node has a namespace of {asked.model!r}")
        if len({_without_stage(each) for each in found}) > 1:
            ids = [each.id.hex() for each in found]
            raise BadRequest(f"model: {asked.model!r} has several namespaces, name one: {', '.join(ids)}")
        return found

    # -- queries

    async def ask(self, asked: Asked) -> dict[str, Any]:
        """The answer, as in docs/engines/routers.md. Raises BadRequest, Unsupported, NotFound, Busy, Unavailable."""
        began = time.monotonic()
        deadline = min(asked.deadline or self._deadline, self._deadline_max)
        namespaces = await self._named(asked)
        namings = [Naming.of(each) for each in namespaces]
        naming = namings[0]
        if any((each.block_size, each.is_chain) != (naming.block_size, naming.is_chain) for each in namings):
            raise BadRequest(
                "namespace: they have blocks of different numbers of tokens, so they are no stages of one model"
            )
        hashes = await self._hashes(asked, namespaces[0], naming)
        if not self._breaker.allows():
            held = [_Held(np.zeros(each.name_count * len(hashes), np.uint8)) for each in namings]
            why: Error | None = Unavailable("the store does not answer, and is not asked for a while")
        else:
            names = [each.part_names(hashes, asked.epoch) for each in namings]
            held = await self._held(self._clients, namespaces, names, deadline)
            why = next((each.why for each in held if each.why is not None), None)
            if why is None:
                self._breaker.succeeded()
            elif len(self._client.nodes()) == 1:  # with several, the client skips failing nodes itself
                self._breaker.failed()
        answer = _answer(namespaces, namings, hashes, held, why)
        if asked.by_node:
            answer["nodes"] = None if why else await self._by_node(namespaces, namings, hashes, held, asked, deadline)
        answer["seconds"] = round(time.monotonic() - began, 6)
        return answer

    @staticmethod
    async def _hashes(asked: Asked, namespace: Namespace, naming: Naming) -> list[bytes]:
        if asked.hashes is not None:
            return list(asked.hashes)
        tokens = asked.tokens
        assert tokens is not None

        def make() -> list[bytes]:
            return naming.hashes(namespace, tokens, seed=asked.seed, cache_salt=asked.cache_salt)

        # Takes milliseconds for a long prompt; other queries go on meanwhile.
        return make() if len(tokens) < 1 << 13 else await asyncio.to_thread(make)

    @staticmethod
    async def _held(
        clients: _Clients, namespaces: list[Namespace], names: list[list[bytes]], deadline: float
    ) -> list[_Held]:
        """Of each namespace's names."""

        async def of_one(namespace: Namespace, its_names: list[bytes]) -> _Held:
            if not its_names:
                return _Held(np.zeros(0, np.uint8))
            async with clients.space(namespace) as space:
                return await Prefixes._held_in(space, its_names, deadline)

        return await asyncio.gather(*map(of_one, namespaces, names))

    @staticmethod
    async def _held_in(space: Space | SetSpace, names: list[bytes], deadline: float) -> _Held:
        states = np.zeros(len(names), np.uint8)
        try:
            if isinstance(space, Space):
                match = await space.submit_match(_kvstore.hashes(names), deadline=deadline)
                states[: match.block_count] = _MEMORY
                # The answer has only the number of blocks on disk, so the last ones are marked.
                states[match.block_count - match.disk_block_count : match.block_count] = _DISK
                return _Held(states, match.why)
            futures: list[tuple[int, Future[Any]]] = [
                (i, space.submit_match(names[i : i + _NAMES_MAX], deadline=deadline))
                for i in range(0, len(names), _NAMES_MAX)
            ]
            why = None
            for i, future in futures:
                found = await future
                states[i : i + len(found.held)] = found.held
                why = why or found.why
            return _Held(states, why)
        except (TimedOut, Unavailable) as error:
            return _Held(states, error)

    async def _by_node(
        self,
        namespaces: list[Namespace],
        namings: list[Naming],
        hashes: list[bytes],
        held: list[_Held],
        asked: Asked,
        deadline: float,
    ) -> list[dict[str, Any]] | None:
        """How many names each present node has. None for a chain on several nodes: each has only parts of it, and answers for prefixes."""
        nodes = self._client.nodes()
        if len(nodes) == 1:
            return [_of_node(nodes[0]["name"], nodes[0]["endpoint"], held)]
        if namings[0].is_chain:
            return None
        of_nodes = await self._clients_of([node["endpoint"] for node in nodes])
        names = [each.part_names(hashes, asked.epoch) for each in namings]

        async def of(node: Mapping[str, Any], clients: _Clients) -> dict[str, Any]:
            try:
                found = await self._held(clients, namespaces, names, deadline)
                answers_as = clients.client.nodes()[0]["node_id"]
                if node["node_id"] and answers_as not in ("", node["node_id"]):
                    # On this machine, the path is another node's.
                    raise Unavailable(f"another node answers there: {answers_as}")
            except Busy:
                raise
            except Error as error:  # it may have left meanwhile
                found = [_Held(np.zeros(len(each), np.uint8), error) for each in names]
            return _of_node(node["name"], node["endpoint"], found)

        return list(await asyncio.gather(*(of(node, clients) for node, clients in zip(nodes, of_nodes, strict=True))))

    async def _clients_of(self, endpoints: list[str]) -> list[_Clients]:
        """One client per present node, whatever map it has. Closes those of nodes that have left."""
        for endpoint in self._each.keys() - set(endpoints):
            self._each.pop(endpoint).close()

        def client_of(endpoint: str) -> Client:
            return Client(endpoint, deadline=self._deadline, identity="router", follow_cluster=False, **self._options)

        made = []
        for endpoint in endpoints:
            if endpoint not in self._each:
                clients = _Clients(functools.partial(client_of, endpoint), self._deadline_max)
                self._each[endpoint] = clients
                made.append(clients.client)
        each = [self._each[endpoint] for endpoint in endpoints]
        await asyncio.gather(*(asyncio.to_thread(client.ping, deadline=self._deadline_max) for client in made))
        return each


def _by_namespace(stats: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for node in stats:
        for each in node["namespaces"]:
            namespace = Namespace.from_text(each["record"])
            entry = found.setdefault(
                namespace.id.hex(), {"id": namespace.id.hex(), "fields": namespace.fields, "nodes": []}
            )
            entry["nodes"].append({"name": node["name"], "blocks": each["block_count"], "bytes": each["total_bytes"]})
    return list(found.values())


def _is_prefixes(namespace: Namespace) -> bool:
    """Whether it holds an engine's prompts; for SGLang, only the pool that all others depend on."""
    return Naming.of(namespace).block_size > 0 and namespace.fields.get("cache_group", "kv") == "kv"


def _without_stage(namespace: Namespace) -> str:
    """The namespace without its stage: stages of one engine differ by layers and the fields derived from them."""
    fields = namespace.fields
    if "layer_range" not in fields:
        return namespace.text
    return str(sorted((k, v) for k, v in fields.items() if k not in ("layer_range", "block_bytes_max", "x.groups")))


def _of_node(name: str, endpoint: str, held: list[_Held]) -> dict[str, Any]:
    states = np.concatenate([each.states for each in held])
    why = next((each.why for each in held if each.why is not None), None)
    return {
        "name": name,
        "endpoint": endpoint,
        "memory_names": int((states == _MEMORY).sum()),
        "disk_names": int((states == _DISK).sum()),
        "why": None if why is None else _why(why),
    }


def _why(error: Error) -> dict[str, str]:
    return {"status": error.status_name, "text": str(error)}


def _answer(
    namespaces: list[Namespace], namings: list[Naming], hashes: list[bytes], held: list[_Held], why: Error | None
) -> dict[str, Any]:
    naming, count = namings[0], len(hashes)
    hits, memory_hits = [], []
    is_whole, on_disk = np.ones(count, bool), np.zeros(count, bool)
    for each, of_space in zip(namings, held, strict=True):
        states = of_space.states.reshape(len(each.groups), each.part_count, count)
        has = (states != 0).all(axis=1)
        on_disk |= (states == _DISK).any(axis=(0, 1))
        is_whole &= has.all(axis=0)
        hits.append(each.usable(has))
        memory_hits.append(each.usable((states == _MEMORY).all(axis=1)))
    hit = min(hits)
    disk = int(on_disk[:hit].sum())
    size = naming.block_size
    return {
        "namespace": [each.id.hex() for each in namespaces],
        "block_size": size or None,
        "asked": _of(count, size),
        "found": _of(hit, size),
        "tiers": {"memory": _of(hit - disk, size), "disk": _of(disk, size)},
        "in_memory": _of(min(memory_hits), size),
        "held": _ranges(is_whole),
        "why": None if why is None else _why(why),
    }


def _of(count: int, size: int) -> dict[str, int | None]:
    return {"blocks": count, "tokens": count * size if size else None}


def _ranges(which: npt.NDArray[np.bool_]) -> list[list[int]]:
    """The ranges of consecutive blocks: the first, and one past the last."""
    steps = np.flatnonzero(np.diff(np.concatenate(([0], which.astype(np.int8), [0]))))
    return [[int(begin), int(end)] for begin, end in zip(steps[::2], steps[1::2], strict=True)]
