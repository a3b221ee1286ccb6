"""A node's changes, read from real nodes and compared with their clients' view; and the events made from them."""

from __future__ import annotations

import hashlib
import random
import socket
import ssl
import time
from contextlib import closing
from typing import Protocol

import numpy as np
import pytest
from conftest import Node, namespace

import kvstore
from kvstore.errors import BadRequest
from kvstore.events import ENCODINGS, Change, Held, NodeAway, Source, Space, look
from kvstore.events.source import Part, Told

BLOCK_BYTES = 4096


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TellingNode(Node):
    """A node with a list of changes, and its admin server."""

    def __init__(self, *options: str, events: int = 100_000, capacity: str = "256MiB") -> None:
        self.admin = f"127.0.0.1:{free_port()}"
        super().__init__("--events-count", str(events), *options, capacity=capacity, admin=self.admin)

    def source(self, **more: object) -> Source:
        return Source(f"http://{self.admin}", **more)


@pytest.fixture
def tell():
    made = []

    def start(*options: str, **more: object) -> TellingNode:
        made.append(TellingNode(*options, **more))
        return made[-1]

    yield start
    for each in made:
        each.close()


def put(client: kvstore.Client, record: kvstore.Namespace, ids: np.ndarray) -> list[bytes]:
    space = client.open(record)
    hashes = space.hash_chain(ids)
    space.put(hashes, np.zeros((len(hashes), BLOCK_BYTES), np.uint8))
    return [bytes(each) for each in hashes]


_prompts = iter(range(1, 10**9))


def fresh(count: int) -> np.ndarray:
    """Tokens of a prompt with a unique beginning."""
    return np.arange(count, dtype=np.uint32) + 100_000 * next(_prompts)


def names(held: Held, tier: str = "memory") -> set[bytes]:
    return {each.name for each in held.changes() if each.tier == tier}


def test_a_list_kept_by_changes_is_what_clients_find(tell):
    node = tell(capacity="1MiB")  # 256 blocks
    random_ = random.Random(5)
    record = namespace(BLOCK_BYTES)
    with kvstore.Client(node.endpoint, deadline=10) as client, closing(node.source()) as source:
        seen = look(source)
        assert seen is not None
        held, start = seen.held, seen.next
        space = client.open(record)
        bases = [fresh(16 * 40) for _ in range(10)]
        prompts = [random_.choice(bases)[: 16 * random_.randint(1, 40)] for _ in range(30)]
        for _ in range(60):
            ids = prompts[random_.randrange(30)]
            if random_.random() < 0.15:
                space.drop(space.hash_chain(ids)[: random_.randint(1, 3)])
            else:
                put(client, record, ids)
            told = source.events(start, seen.life)
            assert not told.has_gap
            held.apply(told.changes)
            start = told.next
        for ids in prompts:
            hashes = [bytes(each) for each in space.hash_chain(ids)]
            known = names(held)
            count = next((i for i, each in enumerate(hashes) if each not in known), len(hashes))
            assert space.match(hashes).block_count == count
        again = look(source)
        assert again is not None
        assert names(again.held) == names(held)
        (space_told,) = {each.space for each in held.changes()}
        assert (space_told.model, space_told.block_size) == (record.fields["model"], 16)


def test_after_a_restart_or_too_many_changes_there_is_a_gap(tell):
    node = tell(events=50)
    record = namespace(BLOCK_BYTES)
    with closing(node.source()) as source:
        with kvstore.Client(node.endpoint, deadline=10) as client:
            put(client, record, fresh(16 * 40))
            seen = look(source)
            assert seen is not None
            assert len(seen.held) == 40
            put(client, record, fresh(16 * 60))
            assert source.events(seen.next, seen.life).has_gap
            later = look(source, seen.life, seen.next)
            assert later is None  # the changes since then are lost
            later = look(source)
            assert later is not None
            assert len(later.held) == 100
        node.kill()
        with pytest.raises(NodeAway):
            source.events(later.next, later.life)
        node.start()
        told = source.events(0, later.life)
        assert told.has_gap
        assert told.life != later.life


def test_what_lies_on_disk_is_told_as_such(tell, tmp_path):
    options = ("--disk-path", str(tmp_path / "disk"), "--disk-capacity", "64MiB", "--spill-chance-min", "0")
    node = tell(*options, capacity="4MiB")
    record = namespace(BLOCK_BYTES)
    with kvstore.Client(node.endpoint, deadline=10) as client, closing(node.source()) as source:
        stored: list[bytes] = []
        until = time.monotonic() + 60
        while True:  # blocks put before the disk is open, or too fast for it, are not written
            stored += put(client, record, fresh(16 * 100))
            seen = look(source)
            assert seen is not None
            on_disk, in_memory = names(seen.held, "disk"), names(seen.held)
            if on_disk - in_memory:
                break
            assert time.monotonic() < until
            time.sleep(0.02)
        assert len(in_memory) <= 1024
        assert in_memory | on_disk <= set(stored)


def test_a_node_without_a_list_says_so(node, tell):
    made = tell(events=0)
    with closing(made.source()) as source, pytest.raises(NodeAway, match="events-count"):
        source.events(0)


def test_a_peer_is_told_only_of_what_it_may_read(tell, tmp_path):
    def token(name: str) -> str:
        return name + "." * 40

    def section(name: str, more: str) -> str:
        return f'[{name}]\ntoken-sha256 = ["{hashlib.sha256(token(name).encode()).hexdigest()}"]\n{more}\n'

    (tmp_path / "secret").write_text(hashlib.sha256(b"a secret").hexdigest() + "\n")
    (tmp_path / "secret").chmod(0o400)
    both = 'roles = ["reader", "writer", "metrics"]\n'
    (tmp_path / "policy").write_text(
        section("blue", both + 'tenant = "blue"')
        + section("red", both + 'tenant = "red"')
        + section("peers", 'roles = ["node"]')
        + section("scrape", 'roles = ["metrics"]')
        + section("plain", 'roles = ["reader"]')
    )
    node = tell("--policy-file", str(tmp_path / "policy"), "--tenant-secret-file", str(tmp_path / "secret"))
    record = namespace(BLOCK_BYTES)
    stored = {}
    for name in ("blue", "red"):
        with kvstore.Client(node.endpoint, deadline=10, token=token(name)) as client:
            stored[name] = set(put(client, record, fresh(16 * 5)))
    for name, expected in (
        ("blue", stored["blue"]),
        ("red", stored["red"]),
        ("peers", stored["blue"] | stored["red"]),
        ("scrape", set()),
    ):
        with closing(node.source(token=token(name))) as source:
            seen = look(source)
            assert seen is not None
            assert names(seen.held) == expected, name
            told = source.events(0)
            assert {each.name for each in told.changes} == expected, name
            assert all(
                "node_salt" not in each.space.fields or each.space.fields["node_salt"] == "(set)"
                for each in told.changes
            )
    for source in (node.source(token=token("plain")), node.source()):
        with closing(source), pytest.raises(NodeAway, match="403"):
            source.events(0)


class Closeable(Protocol):
    def close(self) -> None: ...


class StillSource:
    """A node with some blocks and without changes."""

    url = "still"

    def __init__(self, count: int = 0) -> None:
        space = Space("s", {"model": "m", "block_size": "16"})
        self.held = [Change(True, "memory", space, i.to_bytes(32, "big")) for i in range(count)]

    def blocks(self, at: str = "") -> Part:
        return Part("life", 0, None, self.held)

    def events(self, start: int, life: str = "") -> Told:
        return Told("life", 0, False, [])

    def close(self) -> None:
        pass


@pytest.fixture
def publish(tmp_path):
    zmq = pytest.importorskip("zmq")
    pytest.importorskip("msgspec")
    from kvstore.events.publisher import Publisher

    opened: list[Closeable] = []

    def start(source, **more) -> tuple:
        places = [f"ipc://{tmp_path}/{name}{len(opened)}" for name in ("publish", "replay")]
        publisher = Publisher(source, ENCODINGS["vllm"], publish=places[0], replay=places[1], look_seconds=0, **more)
        context = zmq.Context()

        def ask(number: int, socket=None):
            if socket is None:
                socket = context.socket(zmq.DEALER)
                socket.setsockopt(zmq.RCVHWM, 1)
                socket.linger = 0
                socket.connect(publisher.replays_at)
                opened.append(socket)
            socket.send_multipart((b"", number.to_bytes(8, "big")))
            return socket

        def numbers(socket) -> list[int]:
            """Numbers of all batches to the end of the replay."""
            got: list[int] = []
            while not got or got[-1] != -1:
                publisher.answer(0.01)
                while socket.poll(0):
                    got.append(int.from_bytes(socket.recv_multipart()[2], "big", signed=True))
            return got

        opened.append(publisher)
        return publisher, ask, numbers

    yield start
    for each in reversed(opened):
        each.close()


def test_who_asks_for_replays_and_does_not_read_costs_a_few_batches(publish):
    publisher, ask, numbers = publish(StillSource())
    publisher.follow()  # publishes an empty list
    for _ in range(199):
        publisher._publish([{"type": "BlockStored", "text": "x" * 65536}])
    sent: dict[bytes, int] = {}
    send = publisher._send

    def counted(client: bytes, *more: bytes) -> None:
        send(client, *more)
        sent[client] = sent.get(client, 0) + sum(map(len, more))

    publisher._send = counted
    greedy = ask(0)
    for _ in range(20):
        ask(0, greedy)
        publisher.answer(0.01)
    honest = ask(0)
    assert numbers(honest) == [*range(200), -1]
    assert len(sent) == 2
    small, whole = sorted(sent.values())
    assert whole > 199 * 65536
    assert small < 4 << 20, "that, and what the kernel has on its way"
    assert numbers(greedy)[-1] == -1, "it may still read"


def test_who_does_not_read_for_long_has_no_replay_any_more(publish, monkeypatch, caplog):
    monkeypatch.setattr("kvstore.events.publisher._STALLED_SECONDS", 0.0)
    publisher, ask, _ = publish(StillSource())
    publisher.follow()
    for _ in range(199):
        publisher._publish([{"type": "BlockStored", "text": "x" * 65536}])
    ask(0)
    until = time.monotonic() + 60
    while "does not read it" not in caplog.text:
        publisher.answer(0.001)
        assert time.monotonic() < until
    assert not publisher._asked


def test_older_batches_than_are_kept_are_everything_under_the_last_numbers(publish):
    publisher, ask, numbers = publish(StillSource(count=2500), batches_max=4)
    publisher.follow()
    for _ in range(6):
        publisher._publish([])
    assert numbers(ask(0)) == [6, 7, 8, -1], "2,500 in three batches, the last under the last number"
    assert numbers(ask(7)) == [7, 8, -1]
    assert numbers(ask(9)) == [-1]


def test_only_one_model_is_told_if_asked_for(tell):
    node = tell()
    one, other = namespace(BLOCK_BYTES), namespace(BLOCK_BYTES)
    with kvstore.Client(node.endpoint, deadline=10) as client:
        wanted = put(client, one, fresh(16 * 3))
        put(client, other, fresh(16 * 3))
    with closing(node.source(model=one.fields["model"])) as source:
        seen = look(source)
        assert seen is not None
        assert names(seen.held) == set(wanted)
        assert {each.name for each in source.events(0).changes} == set(wanted)


def test_places_that_are_none_are_refused():
    for bad in ("127.0.0.1:7401", "ftp://127.0.0.1", "http://", "http://127.0.0.1/x"):
        with pytest.raises(BadRequest, match="node"):
            Source(bad)
    with pytest.raises(BadRequest, match="token"):
        Source("http://192.0.2.1:7401", token="x" * 40)
    Source("https://192.0.2.1:7401", token="x" * 40, context=ssl.create_default_context()).close()


# -- encodings

SPACE, OTHER = Space("a", {"model": "m", "block_size": "16"}), Space("b", {"model": "m", "x.block_size": "32"})


def name_of(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


def stored(number: int, parent: int | None = None, tier: str = "memory", space: Space = SPACE) -> Change:
    return Change(True, tier, space, name_of(number), None if parent is None else name_of(parent))


def removed(number: int, tier: str = "memory", space: Space = SPACE) -> Change:
    return Change(False, tier, space, name_of(number))


def test_chains_are_one_event_and_so_is_what_leaves_together():
    changes = [
        *(stored(1), stored(2, 1), stored(3, 2)),
        *(stored(5, 1), stored(6, 5, "disk")),
        *(removed(3), removed(2), removed(6, "disk")),
        *(stored(7, space=OTHER), stored(2, 1)),
    ]
    made = ENCODINGS["vllm"].events(changes)
    assert [
        (each["type"], [name_of(i) for i in count])
        for each, count in zip(made, ([1, 2, 3], [5], [6], [3, 2], [6], [7], [2]), strict=True)
    ] == [(each["type"], each["block_hashes"]) for each in made]
    assert [each.get("parent_block_hash") for each in made[:3]] == [None, name_of(1), name_of(5)]
    assert [each["medium"] for each in made] == ["CPU", "CPU", "STORAGE", "CPU", "STORAGE", "CPU", "CPU"]
    assert [each["block_size"] for each in made if each["type"] == "BlockStored"] == [16, 16, 16, 32, 16]
    assert made[0]["locality"] == "REMOTE"
    assert made[0]["token_ids"] == []


def test_names_are_numbers_where_engines_have_numbers():
    name = bytes(range(0xF0, 0x100)) + bytes(16)
    change = Change(True, "disk", SPACE, name)
    assert ENCODINGS["sglang"].events([change])[0]["block_hashes"] == [int.from_bytes(name[:8], "big") - (1 << 64)]
    assert ENCODINGS["sglang"].events([change])[0]["medium"] == "DISK"
    assert ENCODINGS["vllm-int"].events([change])[0]["block_hashes"] == [0]


def test_everything_is_told_with_what_is_above_first():
    random_ = random.Random(3)
    changes = [stored(0)]
    for i in range(1, 300):
        changes.append(stored(i, random_.randrange(i)))
    changes += [stored(i, i - 1, "disk") for i in range(1, 50)]  # parents missing: some blocks may be invisible
    order = list(changes)
    random_.shuffle(order)
    held = Held()
    held.apply(order)
    told = list(held.changes())
    assert len(told) == len(changes) == len(held)
    seen = set()
    for each in told:
        assert each.parent is None or (each.tier, each.parent) in seen or each.parent == name_of(0)
        seen.add((each.tier, each.name))
