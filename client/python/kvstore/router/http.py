"""HTTP/1.1 for a few trusted clients: sizes of heads and bodies are bounded, and so is the time for each.

The standard library's server has a thread for each connection and no limit on slow clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

logger = logging.getLogger(__name__)

_HEAD_BYTES_MAX = 16 << 10


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 8 << 20
    connections: int = 128
    #: Seconds until a head has come; then for the body, for making the answer, and for sending it.
    idle_seconds: float = 60.0
    request_seconds: float = 10.0


@dataclass(frozen=True)
class Request:
    method: str
    #: Without the query string.
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    #: By plain TCP from this machine, where a browser may run.
    is_loopback: bool = False


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes
    kind: str = "application/json"


@dataclass(frozen=True)
class Take:
    """An answer that writes to the connection itself, for as long as it needs. The connection is closed afterwards."""

    write: Callable[[asyncio.StreamWriter], Awaitable[None]]


class Refused(Exception):
    """Raised by a handler: becomes an answer with that status and the reason."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def json_response(value: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(value).encode() + b"\n")


class Server:
    """Calls ``answer`` for each request. One event loop. At the connection limit a new one ends an idle one: from the address with most
    connections, the one idle longest. If all are busy, the new one gets an error and is closed.

    1. A connection costs at most a head, a body and its answer in memory, and a bounded time for each.
    2. Any exception of ``answer`` becomes an answer, and the server goes on.
    3. Web pages of other origins cannot act or read here.
    """

    def __init__(self, answer: Callable[[Request], Awaitable[Response | Take]], limits: Limits | None = None) -> None:
        self._answer = answer
        self._limits = limits or Limits()
        self._server: asyncio.Server | None = None
        #: Since when each connection is idle; None: busy.
        self._open: dict[asyncio.StreamWriter, float | None] = {}

    @property
    def connection_count(self) -> int:
        return len(self._open)

    async def listen(
        self, host: str = "", port: int = 0, *, path: str = "", context: ssl.SSLContext | None = None
    ) -> int:
        """Listens on a Unix socket, or on the returned port."""
        if path:
            self._server = await asyncio.start_unix_server(self._serve, path, limit=_HEAD_BYTES_MAX)
            return 0
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES_MAX, ssl=context)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for each in list(self._open):
                each.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._open) >= self._limits.connections and not self._end_idle():
                await self._send(writer, _said(503, "too many connections"), keep=False)
                return
            self._open[writer] = time.monotonic()
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            pass  # the client left, or is too slow
        finally:
            self._open.pop(writer, None)
            with contextlib.suppress(Exception):
                writer.close()

    def _end_idle(self) -> bool:
        idle = {each: since for each, since in self._open.items() if since is not None}
        counts = Counter(_address(each) for each in self._open)
        victim = min(idle, key=lambda each: (-counts[_address(each)], idle[each]), default=None)
        if victim is None:
            return False
        del self._open[victim]
        victim.close()
        return True

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether another request may follow."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._limits.idle_seconds)
        except asyncio.LimitOverrunError:
            await self._send(writer, _said(431, f"more than {_HEAD_BYTES_MAX} bytes of header"), keep=False)
            return False
        if writer in self._open:
            self._open[writer] = None
        keep = False
        try:
            request, length, keep = _parsed(head, self._limits.body_bytes)
            if request.headers.get("expect", "").lower() == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await asyncio.wait_for(reader.readexactly(length), self._limits.request_seconds)
            request = Request(request.method, request.path, request.headers, body, _is_loopback(writer))
            _refuse_web_pages(request)
            answer = await asyncio.wait_for(self._answer(request), self._limits.request_seconds)
        except Refused as refused:
            # The unread rest of a request cannot be told from the next one.
            answer, keep = _said(refused.status, str(refused)), keep and refused.status < 500
        except asyncio.TimeoutError:
            answer, keep = _said(504, "no answer in time"), False
        except (OSError, asyncio.IncompleteReadError):
            raise
        except Exception:
            logger.exception("kvstore: a request could not be answered")
            answer, keep = _said(500, "a bug: the log has more"), False
        if isinstance(answer, Take):
            await answer.write(writer)
            return False
        await self._send(writer, answer, keep=keep)
        if writer in self._open:
            self._open[writer] = time.monotonic()
        return keep

    async def _send(self, writer: asyncio.StreamWriter, answer: Response, *, keep: bool) -> None:
        head = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\nContent-Type: {answer.kind}\r\n"
        head += f"Content-Length: {len(answer.body)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        writer.write(head.encode() + answer.body)
        await asyncio.wait_for(writer.drain(), self._limits.request_seconds)


def _address(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


def _is_loopback(writer: asyncio.StreamWriter) -> bool:
    peer = writer.get_extra_info("peername")
    if not isinstance(peer, tuple) or writer.get_extra_info("sslcontext") is not None:
        return False  # a Unix socket, or TLS where both sides show certificates
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_address(host: str) -> bool:
    """Whether a Host header names an address, or this machine. A web page can point other names here and pass as this origin."""
    try:
        name = urlsplit("//" + host).hostname or ""
    except ValueError:
        return False
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return host == "" or name == "localhost"


def _refuse_web_pages(request: Request) -> None:
    """A browser sends text and forms to any address unasked, but JSON only with permission. Raises Refused."""
    host = request.headers.get("host", "")
    if request.is_loopback and not _is_address(host):
        raise Refused(403, "by this name anybody's web page might ask: use the address, or localhost")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise Refused(403, f"a web page of {origin[:80]!r} asks, which is not from here")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        raise Refused(415, "say Content-Type: application/json")


def _said(status: int, text: str) -> Response:
    return json_response({"error": text}, status)


def _parsed(head: bytes, body_bytes_max: int) -> tuple[Request, int, bool]:
    """A request without its body, the body's length, and whether the connection stays. Raises Refused."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise Refused(400, "no request of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name in headers and name in _ONCE):
            raise Refused(400, f"a header that makes no sense: {line[:80]!r}")
        headers[name] = value.strip()
    if "transfer-encoding" in headers:
        raise Refused(411, "say Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Refused(400, "Content-Length is no number")
    if len(length) > 12 or int(length) > body_bytes_max:
        raise Refused(413, f"more than {body_bytes_max} bytes")
    keep = words[2] == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return Request(words[0], words[1].partition("?")[0], headers), int(length), keep


#: Ambiguous if repeated.
_ONCE = ("content-length", "content-type", "host", "origin", "expect", "connection")
