"""A node's changes as SGLang's KV events, read with SGLang's own classes."""

from __future__ import annotations

import hashlib

import pytest

pytest.importorskip("sglang")
pytest.importorskip("msgspec")

import msgspec
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

from kvstore.events import ENCODINGS, Change, Space
from kvstore.events.encoding import CLEARED

SPACE = Space("a", {"model": "m", "x.page_size": "32"})
#: As SGLang makes them: 32 bytes, of which an event has the first eight.
PAGES = [hashlib.sha256(bytes([i])).digest() for i in range(4)]
NUMBERS = [int.from_bytes(each[:8], "big", signed=True) for each in PAGES]


def test_batches_are_sglangs() -> None:
    changes = [
        Change(True, "memory", SPACE, PAGES[0]),
        Change(True, "memory", SPACE, PAGES[1], PAGES[0]),
        Change(True, "disk", SPACE, PAGES[2], PAGES[1]),
        Change(False, "memory", SPACE, PAGES[0]),
        Change(False, "memory", SPACE, PAGES[3]),
    ]
    payload = msgspec.msgpack.encode([1.5, [dict(CLEARED), *ENCODINGS["sglang"].events(changes)], 0])
    batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
    assert (batch.ts, batch.attn_dp_rank) == (1.5, 0)
    assert batch.events == [
        AllBlocksCleared(),
        BlockStored(NUMBERS[:2], None, [], 32, None, medium="EXTERNAL"),
        BlockStored(NUMBERS[2:3], NUMBERS[1], [], 32, None, medium="DISK"),
        BlockRemoved([NUMBERS[0], NUMBERS[3]], medium="EXTERNAL"),
    ]
