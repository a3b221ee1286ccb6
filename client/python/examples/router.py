"""A router before several vLLM servers: each request goes to the one that has the least to compute for it.

A prompt's leading blocks are in a server's own cache, which it reports by events, or in the store, from which any server loads them; the
rest is computed. So the best server has most of the prompt, or is idle where the store has it anyway.

    python -m kvstore.router --endpoint unix:///tmp/kvstore.sock &
    python router.py --worker http://127.0.0.1:8001,tcp://127.0.0.1:5557,tcp://127.0.0.1:5657 \
                     --worker http://127.0.0.1:8002,tcp://127.0.0.1:5558,tcp://127.0.0.1:5658

A worker is its address, where it publishes events, and where it repeats them: vLLM's
--kv-events-config '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}'.
Needs pyzmq and msgspec, which vLLM brings, and workers with --prefix-caching-hash-algo sha256_cbor.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from kvstore.router import HASH_SEED, Limits, vllm_hashes
from kvstore.router.http import Refused, Request, Response, Server, Take, json_response

#: Cost of a loaded token relative to a computed one.
LOAD_COST = 0.1
STORE_SECONDS = 0.05
AWAY_SECONDS = 2.0
#: Until an answer begins, and between its parts.
ANSWER_SECONDS = 600.0
REPLAY_SECONDS = 5.0
END = (1 << 64) - 1


class Blocks:
    """The blocks in a worker's own cache, by its events.

    1. Missed events are requested again; if they are gone, the worker counts as empty: too little rather than too much.
    2. Of several groups of layers the first counts: windows keep only the last blocks.
    """

    def __init__(self) -> None:
        self.held: set[bytes | int] = set()
        self.block_size = 0
        self.last = -1
        self.told_at = 0.0
        self.gaps = 0

    def take(self, number: int, payload: bytes) -> bool:
        """False if earlier batches are missing. A repeated batch changes nothing; a lower number at a later time is a restarted worker."""
        batch = msgspec.msgpack.decode(payload)
        told_at = float(batch["ts"] if isinstance(batch, dict) else batch[0])
        if number <= self.last:
            if told_at <= self.told_at:
                return True
            self.forget(-1)
        if number > self.last + 1:
            return False
        self.last, self.told_at = number, told_at
        for event in _events(batch):
            self._apply(event)
        return True

    def forget(self, last: int) -> None:
        """Forgets all blocks; the next batch is the one after ``last``."""
        self.held.clear()
        self.last = last

    def _apply(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "AllBlocksCleared":
            self.held.clear()
            return
        if event.get("medium") not in (None, "GPU") or event.get("group_idx") not in (None, 0):
            return
        if kind == "BlockStored":
            self.block_size = event["block_size"]
            self.held.update(event["block_hashes"])
        elif kind == "BlockRemoved":
            self.held.difference_update(event["block_hashes"])

    def prefix(self, hashes: Sequence[bytes]) -> int:
        """How many leading blocks it has. Events carry whole hashes, or the number of their last eight bytes."""
        for i, each in enumerate(hashes):
            if each not in self.held and int.from_bytes(each[-8:], "big") not in self.held:
                return i
        return len(hashes)


def _events(batch: Any) -> list[dict[str, Any]]:
    """The events of a batch. Batches and events are lists or, in other releases, mappings."""
    listed = batch.get("events", []) if isinstance(batch, dict) else batch[1]
    names = {
        "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        "BlockRemoved": ("block_hashes", "medium"),
    }
    return [
        each
        if isinstance(each, dict)
        else {"type": each[0]} | dict(zip(names.get(each[0], ()), each[1:], strict=False))
        for each in listed
    ]


@dataclass
class Worker:
    url: str
    events: str = ""
    replay: str = ""
    blocks: Blocks = field(default_factory=Blocks)
    #: Tokens given to it to compute and not yet answered.
    pending: float = 0.0
    away_until: float = 0.0

    async def follow(self) -> None:
        """Follows its events for ever."""
        context = zmq.asyncio.Context.instance()
        told = context.socket(zmq.SUB)
        told.connect(self.events)
        told.subscribe(b"")
        with contextlib.suppress(asyncio.TimeoutError):
            await self._catch_up()  # events from before this start
        while True:
            _, number, payload = await told.recv_multipart()
            sequence = int.from_bytes(number, "big")
            if self.blocks.take(sequence, payload):
                continue
            self.blocks.gaps += 1
            with contextlib.suppress(asyncio.TimeoutError):
                await self._catch_up()
            if self.blocks.last < sequence:
                self.blocks.forget(sequence - 1)
                self.blocks.take(sequence, payload)

    async def _catch_up(self) -> None:
        """Requests all batches after the last one. If the first of them is gone, forgets all blocks."""
        if not self.replay:
            return
        asking = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        try:
            asking.connect(self.replay)
            begin = self.blocks.last + 1
            await asking.send_multipart([b"", begin.to_bytes(8, "big")])
            while True:
                parts = await asyncio.wait_for(asking.recv_multipart(), REPLAY_SECONDS)
                number = int.from_bytes(parts[-2], "big")
                if number == END:
                    return
                if number > self.blocks.last + 1:
                    self.blocks.forget(number - 1)
                self.blocks.take(number, parts[-1])
        finally:
            asking.close(linger=0)


@dataclass
class Choice:
    worker: Worker
    own: int
    loaded: int
    computed: int

    @property
    def cost(self) -> float:
        return self.computed + LOAD_COST * self.loaded


class Router:
    """Picks workers and passes on their answers. One event loop."""

    def __init__(self, workers: list[Worker], store: str, store_model: str = "", seed: str = HASH_SEED) -> None:
        self.workers = workers
        self.server = Server(self._answer, Limits(request_seconds=30.0))
        self.chosen: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._store, self._store_model, self._seed = store, store_model, seed
        self._turn = 0

    # -- choosing a worker

    async def choose(self, path: str, asked: dict[str, Any]) -> list[Choice]:
        """All workers, the best first."""
        alive = [each for each in self.workers if time.monotonic() >= each.away_until] or self.workers
        tokens = await self._tokens(alive, path, asked)
        # The last token is always computed: it gives the first answer.
        usable = max(0, len(tokens) - 1)
        salt = asked.get("cache_salt") or ""
        hashes: dict[int, list[bytes]] = {}
        ids = np.array(tokens[:usable], np.uint32)
        for size in {each.blocks.block_size for each in alive if each.blocks.block_size}:
            hashes[size] = vllm_hashes(ids, size, seed=self._seed, cache_salt=salt)
        stored = await self._stored(asked, tokens[:usable], salt) if usable else 0
        choices = []
        for worker in alive:
            size = worker.blocks.block_size
            own = worker.blocks.prefix(hashes[size]) * size if size else 0
            loaded = max(0, stored - own)
            choices.append(Choice(worker, own, loaded, len(tokens) - own - loaded))
        self._turn += 1
        turns = {id(each): (i - self._turn) % len(alive) for i, each in enumerate(alive)}
        return sorted(choices, key=lambda each: (each.cost + each.worker.pending, turns[id(each.worker)]))

    async def _tokens(self, alive: list[Worker], path: str, asked: dict[str, Any]) -> list[int]:
        """The prompt's tokens as the workers make them. Empty for other requests, or if every worker fails."""
        prompt = asked.get("prompt")
        if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
            return list(prompt)
        if path == "/v1/chat/completions":
            names = ("model", "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt")
            body = {name: asked[name] for name in names if name in asked}
        elif isinstance(prompt, str):
            body = {name: asked[name] for name in ("model", "prompt", "add_special_tokens") if name in asked}
        else:
            return []
        for worker in alive:
            with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
                return list((await fetch(worker.url + "/tokenize", body, 5.0))["tokens"])
        return []

    async def _stored(self, asked: dict[str, Any], tokens: list[int], salt: str) -> int:
        if not self._store:
            return 0
        model = self._store_model or str(asked.get("model", "")).rstrip("/").rpartition("/")[2]
        query = {"model": model, "token_ids": tokens, "hash_seed": self._seed, "cache_salt": salt}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, asyncio.TimeoutError):
            return int((await fetch(self._store + "/v1/prefix", query, STORE_SECONDS))["found"]["tokens"])
        return 0

    # -- requests

    async def _answer(self, request: Request) -> Response | Take:
        if request.path == "/router" and request.method == "GET":
            return json_response(self.state())
        if request.method == "GET" and request.path in ("/health", "/v1/models"):
            return Take(lambda writer: self._pass_on(request, [Choice(each, 0, 0, 0) for each in self.workers], writer))
        if request.method != "POST" or request.path not in ("/v1/completions", "/v1/chat/completions"):
            raise Refused(404, "this router knows /v1/completions, /v1/chat/completions, /v1/models, /health, /router")
        try:
            asked = json.loads(request.body)
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            raise Refused(400, "the body is no JSON object")
        choices = await self.choose(request.path, asked)
        return Take(lambda writer: self._pass_on(request, choices, writer))

    async def _pass_on(self, request: Request, choices: list[Choice], writer: asyncio.StreamWriter) -> None:
        """To the best worker that answers. Once an answer has begun, no other worker is tried."""
        for choice in choices:
            begun = await self._begin(request, choice)
            if begun is None:
                continue
            status, reader, upstream = begun
            self._count(request, choice)
            try:
                said = f"{choice.worker.url} own={choice.own} stored={choice.loaded} computed={choice.computed}"
                writer.write(status + f"x-kvstore-router: {said}\r\n".encode())
                while data := await asyncio.wait_for(reader.read(1 << 16), ANSWER_SECONDS):
                    writer.write(data)
                    await writer.drain()  # raises when the client has gone; then the worker gives up too
            finally:
                upstream.close()
            return
        body = b'{"error": {"message": "no worker can be reached", "code": 503}}'
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    @staticmethod
    async def _begin(
        request: Request, choice: Choice
    ) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The first line of a worker's answer. None: it is unreachable, or ended before that."""
        worker, upstream = choice.worker, None
        worker.pending += choice.cost
        try:
            reader, upstream = await connect(worker.url, request.method, request.path, request.body)
            if status := await asyncio.wait_for(reader.readline(), ANSWER_SECONDS):
                return status, reader, upstream
        except (OSError, asyncio.TimeoutError):
            pass
        finally:
            worker.pending -= choice.cost
        if upstream is not None:
            upstream.close()
        worker.away_until = time.monotonic() + AWAY_SECONDS
        return None

    def _count(self, request: Request, choice: Choice) -> None:
        if request.method != "POST":
            return
        self.chosen[choice.worker.url] += 1
        self.tokens.update(own=choice.own, loaded=choice.loaded, computed=choice.computed)

    def state(self) -> dict[str, Any]:
        workers = [
            {
                "url": each.url,
                "blocks": len(each.blocks.held),
                "block_size": each.blocks.block_size,
                "last_event": each.blocks.last,
                "gaps": each.blocks.gaps,
                "pending_tokens": round(each.pending, 1),
                "requests": self.chosen[each.url],
            }
            for each in self.workers
        ]
        return {"workers": workers, "tokens": dict(self.tokens)}


async def connect(url: str, method: str, path: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = urlsplit(url)
    reader, writer = await asyncio.wait_for(asyncio.open_connection(place.hostname, place.port or 80), 5.0)
    head = f"{method} {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def fetch(url: str, body: Any, seconds: float) -> Any:
    """An answer in JSON. Raises ValueError for an error."""

    async def ask() -> bytes:
        place = urlsplit(url)
        reader, writer = await connect(url, "POST", place.path, json.dumps(body).encode())
        try:
            return await reader.read()
        finally:
            writer.close()

    head, _, text = (await asyncio.wait_for(ask(), seconds)).partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise ValueError(head[:80])
    return json.loads(text)


async def serve(router: Router, listen: str) -> None:
    place = urlsplit(listen)
    port = await router.server.listen(place.hostname or "127.0.0.1", place.port or 0)
    following = [asyncio.create_task(each.follow()) for each in router.workers if each.events]
    print(f"router: listens on http://{place.hostname}:{port}", flush=True)
    done, _ = await asyncio.wait(
        [*following, asyncio.create_task(asyncio.Event().wait())], return_when="FIRST_COMPLETED"
    )
    for each in done:
        each.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="append", required=True, metavar="URL[,EVENTS[,REPLAY]]")
    parser.add_argument("--store", default="http://127.0.0.1:8700", help="of kvstore.router; empty: there is none")
    parser.add_argument("--store-model", default="", help="the model's name in the store; else its path's last part")
    parser.add_argument("--hash-seed", default=HASH_SEED, help="the workers' PYTHONHASHSEED, if it is set")
    parser.add_argument("--listen", default="http://127.0.0.1:8080")
    given = parser.parse_args()
    workers = [Worker(*each.split(",")) for each in given.worker]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Router(workers, given.store, given.store_model, given.hash_seed), given.listen))


if __name__ == "__main__":
    main()
