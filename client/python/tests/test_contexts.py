"""Named contexts with a real node: created, listed, extended, warmed, deleted; across a restart; and errors."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from conftest import Node, namespace, pattern, tokens

import kvstore
from kvstore.errors import BadRequest, CorruptBlock, NotFound, PermissionDenied, System


def eventually(condition) -> bool:
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_one_is_made_listed_extended_and_deleted(client, space):
    hashes = space.hash_chain(tokens(16 * 8))
    space.put(hashes[:6], pattern(6))
    made = space.create_context("prompt", hashes, ttl=3600, sliding=True, tags=["team=x", "a b"])
    assert (made.name, made.tags, made.wanted_blocks, made.kept_blocks) == ("prompt", ["team=x", "a b"], 8, 6)
    assert isinstance(made.why, NotFound)
    assert (made.block_size, made.kept_bytes, made.written_tokens) == (16, 6 * 4096, 96)
    assert made.is_sliding and made.ttl == 3600 and made.used is None
    assert abs(made.created - time.time()) < 60 and made.expires == pytest.approx(made.created + 3600)
    assert made.namespace_id == space.namespace.id.hex()
    got = np.zeros((6, 4096), dtype="uint8")
    assert space.get(hashes[:6], got).block_count == 6
    listed = client.contexts()
    assert listed.silent == {}
    assert [(each.name, each.read_tokens, each.memory_blocks) for each in listed.contexts] == [("prompt", 96, None)]
    assert listed.contexts[0].used is not None
    (one,) = client.contexts("prompt").contexts
    assert (one.memory_blocks, one.disk_blocks, one.is_warming) == (6, 0, False)
    longer = client.extend_context("prompt", until=datetime.now(timezone.utc) + timedelta(hours=2))
    assert not longer.is_sliding and longer.expires == pytest.approx(time.time() + 7200, abs=60)
    assert client.delete_context("prompt").kept_blocks == 6
    assert client.contexts().contexts == []
    for call in (client.delete_context, client.warm_context, client.stop_warming_context):
        with pytest.raises(NotFound):
            call("prompt")


@pytest.mark.parametrize(
    "time_of_it",
    [
        {},
        {"ttl": 1, "until": 2e9},
        {"until": 2e9, "sliding": True},
        {"until": datetime(2200, 1, 1)},
        {"ttl": 0},
        {"ttl": float("nan")},
        {"until": 1.0},
        {"ttl": timedelta(days=36500)},
    ],
)
def test_a_time_that_is_none_is_refused(client, space, time_of_it):
    hashes = space.hash_chain(tokens(32))
    with pytest.raises(BadRequest):
        space.create_context("x", hashes, **time_of_it)
    with pytest.raises((BadRequest, NotFound)):
        client.extend_context("x", **time_of_it)


def test_what_else_is_a_mistake(client, space):
    hashes = space.hash_chain(tokens(32))
    for name in ("", "a b", "x" * 129, "\n"):
        with pytest.raises(BadRequest):
            space.create_context(name, hashes, ttl=1)
    with pytest.raises(BadRequest):
        space.create_context("x", [], ttl=1)
    with pytest.raises(BadRequest):
        space.create_context("x", hashes, ttl=1, tags=["t"] * 17)
    with pytest.raises(TypeError):
        space.create_context("x", hashes, ttl=1, tags=[1])
    assert client.contexts().contexts == []


def test_a_priority_is_kept_until_another_is_given(client, space):
    hashes = space.hash_chain(tokens(32))
    assert space.create_context("x", hashes, ttl=60).priority == 5
    assert space.create_context("x", hashes, ttl=60, priority=0).priority == 0
    assert client.extend_context("x", ttl=60).priority == 0
    assert client.extend_context("x", ttl=60, priority=9).priority == 9
    assert client.contexts("x").contexts[0].yielded_blocks == 0
    for priority in (-1, 10):
        with pytest.raises(BadRequest):
            space.create_context("y", hashes, ttl=60, priority=priority)
        with pytest.raises(BadRequest):
            client.extend_context("x", ttl=60, priority=priority)


def test_one_goes_as_a_file_to_another_node(client, space, tmp_path):
    hashes, blocks, file = space.hash_chain(tokens(16 * 8)), pattern(8), tmp_path / "prompt.kvctx"
    space.put(hashes[:6], blocks[:6])
    space.create_context("prompt", hashes, ttl=3600, tags=["team=x"])
    with pytest.raises(NotFound, match="6 of its 8 blocks are there"):
        client.export_context("prompt", file)
    assert list(tmp_path.iterdir()) == []
    part = client.export_context("prompt", file, partial=True)
    assert (part.blocks, part.wanted_blocks, part.bytes) == (6, 8, file.stat().st_size)
    space.put(hashes, blocks)
    with pytest.raises(System, match="it is there already"):
        client.export_context("prompt", file)
    assert client.export_context("prompt", file, replace=True).blocks == 8
    other = Node()
    try:
        with kvstore.Client(other.endpoint, deadline=10) as elsewhere:
            damaged = tmp_path / "damaged"
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            damaged.write_bytes(data)
            with pytest.raises(CorruptBlock, match="SHA-256 at its end"):
                elsewhere.import_context(damaged)
            with pytest.raises(BadRequest):
                elsewhere.import_context(file, sliding=True)
            done = elsewhere.import_context(file, name="second", ttl=60, priority=2)
            assert (done.blocks, done.stored_blocks, done.context.kept_blocks) == (8, 8, 8)
            assert (done.context.name, done.context.tags, done.context.ttl) == ("second", ["team=x"], 60)
            assert done.context.priority == 2
            got = np.zeros_like(blocks)
            assert elsewhere.open(space.namespace).get(hashes, got).block_count == 8
            assert (got == blocks).all()
            # With a key only archives that it signed are accepted.
            key = tmp_path / "archive.key"
            key.write_text("a" * 64)
            key.chmod(0o400)
            assert not done.is_signed
            with pytest.raises(PermissionDenied, match="not signed"):
                elsewhere.import_context(file, key_file=key)
            assert client.export_context("prompt", file, replace=True, key_file=key).is_signed
            assert elsewhere.import_context(file, key_file=key).is_signed
    finally:
        other.close()


def test_over_a_restart_it_is_there_and_warm(tmp_path):
    node = Node("--disk-path", str(tmp_path / "disk"), "--disk-capacity", "256MiB", capacity="64MiB")
    try:
        name = namespace()
        blocks = pattern(8)
        with kvstore.Client(node.endpoint, deadline=10) as client:
            space = client.open(name)
            hashes = space.hash_chain(tokens(16 * 8))
            assert space.put(hashes, blocks).stored == 8
            space.create_context("prompt", hashes, ttl=3600)
        assert node.process is not None
        node.process.terminate()
        node.process.wait(30)
        node.socket.unlink(missing_ok=True)
        node.start()
        with kvstore.Client(node.endpoint, deadline=10) as client:
            assert [each.name for each in client.contexts().contexts] == ["prompt"]
            assert eventually(lambda: client.contexts("prompt").contexts[0].kept_blocks == 8)
            now = client.warm_context("prompt", wait=30)
            assert (now.memory_blocks, now.disk_blocks, now.is_warming) == (8, 0, False)
            assert now.written_tokens == 128
            got = np.zeros_like(blocks)
            assert client.open(name).get(hashes, got).block_count == 8
            assert (got == blocks).all()
    finally:
        node.close()
