"""The query over HTTP, for routers: docs/engines/routers.md has its requests and answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

from ..errors import BadRequest, Busy, Error, NotFound, PermissionDenied, Unavailable, Unsupported
from .asked import Asked
from .http import Limits, Refused, Request, Response, Server, Take, json_response
from .query import Prefixes

#: Queries sent to nodes at once: the rest wait for their turn.
_QUERIES_MAX = 64
_STATUS = {BadRequest: 400, Unsupported: 422, NotFound: 404, Busy: 503, Unavailable: 503, PermissionDenied: 403}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class Service:
    """One event loop. ``server`` listens."""

    def __init__(self, prefixes: Prefixes, limits: Limits | None = None) -> None:
        self._prefixes = prefixes
        self.server = Server(self._answer, limits)
        self._turns = asyncio.Semaphore(_QUERIES_MAX)
        self._outcomes: Counter[str] = Counter({"found": 0, "missed": 0, "failed": 0, "refused": 0})
        self._blocks: Counter[str] = Counter({"asked": 0, "memory": 0, "disk": 0})
        self._times = [0] * len(_SECONDS)
        self._time_sum = 0.0
        self._time_count = 0

    async def _answer(self, request: Request) -> Response | Take:
        known = {"/v1/prefix": "POST", "/v1/namespaces": "GET", "/health": "GET", "/metrics": "GET"}
        if request.path not in known:
            raise Refused(404, f"{request.path[:80]} is none of {', '.join(known)}")
        if request.method != known[request.path]:
            raise Refused(405, f"{request.path} takes {known[request.path]}")
        try:
            if request.path == "/v1/prefix":
                return json_response(await self._prefix(request.body))
            if request.path == "/v1/namespaces":
                return json_response({"namespaces": await self._prefixes.namespaces()})
            if request.path == "/health":
                return await self._health()
            return Response(200, self._metrics().encode(), "text/plain; version=0.0.4")
        except Error as error:
            raise Refused(_STATUS.get(type(error), 502), str(error)) from None

    async def _prefix(self, body: bytes) -> dict[str, Any]:
        try:
            try:
                given = json.loads(body)
            except (ValueError, RecursionError):
                raise BadRequest("the body is no JSON") from None
            asked = Asked.of(given)
            async with self._turns:
                began = time.monotonic()
                answer = await self._prefixes.ask(asked)
        except Error:
            self._outcomes["refused"] += 1
            raise
        self._count(answer, time.monotonic() - began)
        return answer

    def _count(self, answer: dict[str, Any], seconds: float) -> None:
        self._outcomes["failed" if answer["why"] else "found" if answer["found"]["blocks"] else "missed"] += 1
        self._blocks["asked"] += answer["asked"]["blocks"]
        for tier in ("memory", "disk"):
            self._blocks[tier] += answer["tiers"][tier]["blocks"]
        self._time_sum += seconds
        self._time_count += 1
        for i, limit in enumerate(_SECONDS):
            self._times[i] += seconds <= limit

    async def _health(self) -> Response:
        nodes = await self._prefixes.reachable()
        is_well = any(each["seconds"] is not None for each in nodes)
        return json_response({"ok": is_well, "nodes": nodes}, 200 if is_well else 503)

    def _metrics(self) -> str:
        lines = ["# TYPE kvstore_router_queries_total counter"]
        lines += [f'kvstore_router_queries_total{{outcome="{k}"}} {v}' for k, v in self._outcomes.items()]
        lines += ["# TYPE kvstore_router_asked_blocks_total counter"]
        lines += [f"kvstore_router_asked_blocks_total {self._blocks['asked']}"]
        lines += ["# TYPE kvstore_router_found_blocks_total counter"]
        lines += [f'kvstore_router_found_blocks_total{{tier="{k}"}} {self._blocks[k]}' for k in ("memory", "disk")]
        lines += ["# TYPE kvstore_router_query_seconds histogram"]
        lines += [
            f'kvstore_router_query_seconds_bucket{{le="{limit:g}"}} {count}'
            for limit, count in zip(_SECONDS, self._times, strict=True)
        ]
        lines += [
            f'kvstore_router_query_seconds_bucket{{le="+Inf"}} {self._time_count}',
            f"kvstore_router_query_seconds_sum {self._time_sum:.6f}",
            f"kvstore_router_query_seconds_count {self._time_count}",
            "# TYPE kvstore_router_paused gauge",
            f"kvstore_router_paused {int(self._prefixes.is_paused)}",
            "# TYPE kvstore_router_connections gauge",
            f"kvstore_router_connections {self.server.connection_count}",
        ]
        return "\n".join(lines) + "\n"
