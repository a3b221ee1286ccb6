"""A node's pages of changes, read over HTTP from its admin server."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..errors import BadRequest

#: Limit on one answer: the node's own bound is lower.
_ANSWER_BYTES_MAX = 64 << 20
_VERSION = 1
_SPACES_MAX = 16384


class NodeAway(Exception):
    """The node is unreachable, or gives an unexpected answer."""


@dataclass(frozen=True, eq=False)
class Space:
    """A namespace. Each has one object while its ``Source`` keeps it."""

    #: As its clients compute it. Tenants separated by a secret may have equal names.
    name: str
    fields: Mapping[str, str]

    @property
    def model(self) -> str:
        return self.fields.get("model", "")

    @property
    def block_size(self) -> int:
        """Tokens of a block; 0 if the record does not have them."""
        for key in ("block_size", "x.block_size", "x.page_size"):
            with contextlib.suppress(ValueError):
                if key in self.fields:
                    return int(self.fields[key])
        return 0


class Change(NamedTuple):
    """A block came into a tier, or left it; the other tier may hold it as well."""

    is_stored: bool
    #: "memory" or "disk".
    tier: str
    space: Space
    #: As in the store: 32 bytes. An engine's name of another length is stored as its SHA-256.
    name: bytes
    #: For a stored block, the block before it. None: a first block, or a block of a set.
    parent: bytes | None = None


@dataclass(frozen=True)
class Told:
    life: str
    #: Where to continue.
    next: int
    #: Some requested changes are gone.
    has_gap: bool
    changes: list[Change]


@dataclass(frozen=True)
class Part:
    life: str
    #: The number of the first change that may be missing in this part and later ones.
    next: int
    #: Where the next part begins; None: this is the last.
    at: str | None
    changes: list[Change]


class Source:
    """``url``: a node's admin server, http:// or https://. ``token``: identifies this program to the node's policy; sent to loopback and
    over TLS only. ``context``: with the certificate to show. ``model``: skip other models' namespaces. One thread.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        context: ssl.SSLContext | None = None,
        model: str = "",
        timeout: float = 10.0,
    ) -> None:
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname or place.path not in ("", "/"):
            raise BadRequest(f"node: {url!r} is neither http://HOST:PORT nor https://HOST:PORT")
        self.url = url
        self._host, self._port, self._timeout = place.hostname, place.port or 7401, timeout
        self._context = (context or ssl.create_default_context()) if place.scheme == "https" else None
        is_safe = self._context is not None or self._host in ("127.0.0.1", "::1", "localhost")
        if token and not is_safe:
            raise BadRequest("node: a token is not sent in plain text over a network: https://")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._model = model
        self._spaces: dict[str, Space] = {}
        self._connection: http.client.HTTPConnection | None = None

    def events(self, start: int, life: str = "") -> Told:
        """Changes from number ``start`` of that ``life`` on, perhaps only some. Raises NodeAway."""
        answer = self._ask(f"/events.json?from={start}" + (f"&life={life}" if life else ""))
        with self._reading():
            changes = self._changes(answer, answer["events"])
            return Told(answer["life"], int(answer["next"]), bool(answer["has_gap"]), changes)

    def blocks(self, at: str = "") -> Part:
        """Some of the node's blocks. Raises NodeAway."""
        answer = self._ask("/events/blocks.json" + (f"?at={at}" if at else ""))
        with self._reading():
            changes = self._changes(answer, [["stored", *row] for row in answer["blocks"]])
            return Part(answer["life"], int(answer["next"]), answer["at"], changes)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise NodeAway(f"{self.url}: an answer that makes no sense: {error!r}") from error

    def _changes(self, answer: Mapping[str, Any], rows: Iterable[Sequence[Any]]) -> list[Change]:
        """The wanted ones. A row: what happened, tier, number of the namespace, name, and perhaps the parent's name."""
        spaces = [self._space(each) for each in answer["spaces"]]
        changes = []
        for what, tier, space, name, *parents in rows:
            parent = bytes.fromhex(parents[0]) if parents and parents[0] is not None else None
            changes.append(Change(what == "stored", tier, spaces[space], bytes.fromhex(name), parent))
        return [each for each in changes if not self._model or each.space.model == self._model]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _space(self, told: Mapping[str, Any]) -> Space:
        key = json.dumps(told, sort_keys=True)
        if key not in self._spaces:
            if len(self._spaces) >= _SPACES_MAX:
                self._spaces.clear()
            self._spaces[key] = Space(str(told["name"]), dict(told["fields"]))
        return self._spaces[key]

    def _ask(self, path: str) -> dict[str, Any]:
        status, body = self._get(path)
        if status != 200:
            raise NodeAway(f"{self.url}: {status} {body[:200].decode('utf-8', 'replace').strip()}")
        try:
            answer = json.loads(body)
            if answer["version"] != _VERSION:
                raise NodeAway(f"{self.url}: answers of version {answer['version']}, and this knows {_VERSION}")
        except (ValueError, KeyError, TypeError) as error:
            raise NodeAway(f"{self.url}: no JSON of a node's") from error
        return dict(answer)

    def _get(self, path: str) -> tuple[int, bytes]:
        """Retries once if a kept connection has ended meanwhile."""
        is_kept = self._connection is not None
        try:
            if self._connection is None:
                self._connection = (
                    http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
                    if self._context is None
                    else http.client.HTTPSConnection(
                        self._host, self._port, timeout=self._timeout, context=self._context
                    )
                )
            self._connection.request("GET", path, headers=self._headers)
            answer = self._connection.getresponse()
            body = answer.read(_ANSWER_BYTES_MAX + 1)
            if len(body) > _ANSWER_BYTES_MAX:
                raise OSError("an answer without end")
            return answer.status, body
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if is_kept and not isinstance(error, TimeoutError):
                return self._get(path)
            raise NodeAway(f"{self.url}: {error}") from error
