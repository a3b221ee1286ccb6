"""The router's HTTP queries: a real service and real nodes."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import shutil
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import Node, namespace, tokens

import kvstore
from kvstore.errors import Unsupported
from kvstore.router import Naming, sglang_hashes, vllm_hashes

_models = iter(range(10**9))
JSON = {"Content-Type": "application/json"}


class Service:
    """``python -m kvstore.router`` in a process of its own."""

    def __init__(self, *endpoints: str, listen: str = "http://127.0.0.1:0", options=(), env=None):
        command = [sys.executable, "-m", "kvstore.router", "--listen", listen, *options]
        for each in endpoints:
            command += ["--endpoint", each]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()
        assert self.said, self.process.stderr.read()
        self.port = int(self.said.rpartition(":")[2]) if "unix:" not in self.said else 0

    def ask(self, method: str, path: str, body=None) -> tuple[int, object]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            text = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, text, JSON if text is not None else {})
            answer = connection.getresponse()
            raw = answer.read()
            is_json = answer.headers["Content-Type"] == "application/json"
            return answer.status, json.loads(raw) if is_json else raw.decode()
        finally:
            connection.close()

    def prefix(self, **query) -> dict:
        status, answer = self.ask("POST", "/v1/prefix", query)
        assert status == 200, answer
        return answer

    def metric(self, name: str) -> float:
        _, text = self.ask("GET", "/metrics")
        (line,) = (each for each in text.splitlines() if each.startswith(name + " "))
        return float(line.split()[1])

    def close(self) -> None:
        self.process.terminate()
        try:
            assert self.process.wait(20) == 0
        finally:
            self.process.kill()
            for each in (self.process.stdout, self.process.stderr):
                each.close()


@pytest.fixture
def serve():
    made = []

    def start(*endpoints, **more):
        made.append(Service(*endpoints, **more))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def service(node):
    made = Service(node.endpoint, options=("--deadline", "5", "--deadline-max", "10"))
    yield made
    made.close()


def engine_record(groups: str = "full 2x2x8+8 torch.bfloat16 aa", **more: object) -> kvstore.Namespace:
    """As vLLM's connector makes it."""
    fields: dict[str, object] = {
        "kind": "set",
        "model": f"engine-{os.getpid()}-{next(_models)}",
        "block_bytes_max": 4096,
        "layout": "vllm-HNC",
        "hash": "vllm-sha256_cbor",
        "x.block_size": 16,
        "x.groups": groups,
    }
    return kvstore.Namespace(fields | more)


def put(client: kvstore.Client, record: kvstore.Namespace, names: list[bytes]) -> kvstore.SetSpace:
    space = client.open_set(record)
    assert space.put(names, np.ones((len(names), 4096), np.uint8)).refused == 0
    return space


def wait_for_model(service: Service, model: str) -> None:
    """The service caches the nodes' lists."""
    until = time.monotonic() + 60
    while service.ask("POST", "/v1/prefix", {"model": model, "hashes": []})[0] == 404:
        assert time.monotonic() < until
        time.sleep(0.05)


def of(blocks: int, size: int = 16) -> dict[str, int]:
    return {"blocks": blocks, "tokens": blocks * size}


# -- hashes


def test_hashes_are_those_of_the_engines():
    """Computed with an independent encoder, and vLLM's of later releases by vLLM (tests/engines/test_vllm_router.py)."""
    ids = np.arange(1, 49, dtype=np.uint32)
    assert [each.hex()[:16] for each in vllm_hashes(ids, 16)[:2]] == ["cd7c51bc5a8fc864", "2533ea50426b36e9"]
    assert vllm_hashes(ids, 16, seed="0")[0].hex().startswith("202da172482d928b")
    pages = [int.from_bytes(each[:8], "big", signed=True) for each in sglang_hashes(ids, 16)]
    assert pages == [8635429971592222890, 1256577331724852459, 5689809685380680247]
    assert vllm_hashes(ids[:15], 16) == [] == sglang_hashes(ids[:15], 16)


def test_numbers_of_every_length_are_hashed_as_cbor_has_them():
    rng = random.Random(3)
    edges = [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1]

    def one(number: int) -> bytes:
        for head, size, limit in ((None, 0, 24), (0x18, 1, 1 << 8), (0x19, 2, 1 << 16), (0x1A, 4, 1 << 32)):
            if number < limit:
                return bytes([number]) if head is None else bytes([head]) + number.to_bytes(size, "big")
        raise AssertionError(number)

    for size in (1, 7, 23, 24, 300):
        ids = edges + [rng.randrange(1 << rng.choice([4, 8, 16, 32])) for _ in range(3 * size)]
        last = hashlib.sha256(b"\x6e" + b"vllm-none-hash").digest()
        expected = []
        head = bytes([0x80 | size]) if size < 24 else b"\x98" + bytes([size]) if size < 256 else b"\x99\x01\x2c"
        for i in range(len(ids) // size):
            numbers = b"".join(map(one, ids[i * size : (i + 1) * size]))
            last = hashlib.sha256(b"\x83\x58\x20" + last + head + numbers + b"\xf6").digest()
            expected.append(last)
        assert vllm_hashes(np.array(ids, np.uint32), size) == expected


def test_records_tell_how_blocks_are_named():
    windows = Naming.of(engine_record("full 2x2; window80 4x2; state 3xaa bb", **{"x.parts": 2}))
    assert [(g.window_tokens, g.is_state) for g in windows.groups] == [(0, False), (80, False), (0, True)]
    assert windows.part_names([b"A", b"B"], b"w") == [
        block + group.to_bytes(4, "big") + b"w/" + part.to_bytes(4, "big")
        for group in range(3)
        for part in range(2)
        for block in (b"A", b"B")
    ]
    assert Naming.of(engine_record()).part_names([b"A", b"B"]) == [b"A", b"B"]
    assert Naming.of(engine_record()).part_names([b"A"], b"w1") == [b"A\0\0\0\0w1"]
    with pytest.raises(Unsupported, match="which groups"):
        Naming.of(engine_record("sha256 0123"))
    rows = engine_record(**{"x.block_size": None, "x.ranks": "2x1"})  # of the tier, as they are
    assert Naming.of(rows).block_size == 0


# -- hits


def test_a_chain_is_found_by_tokens_and_by_hashes(service, client):
    record = namespace()
    space = client.open(record)
    ids = tokens(16 * 12)
    hashes = space.hash_chain(ids)
    space.put(hashes[:7], np.zeros((7, 4096), np.uint8))
    for query in ({"token_ids": ids.tolist()}, {"hashes": [each.tobytes().hex() for each in hashes]}):
        for named in (record.text, record.fields, record.id.hex(), [record.text]):
            answer = service.prefix(namespace=named, **query)
            assert answer["found"] == of(7) == answer["tiers"]["memory"] == answer["in_memory"]
            assert (answer["asked"], answer["tiers"]["disk"], answer["held"]) == (of(12), of(0), [[0, 7]])
            assert (answer["why"], answer["namespace"]) == (None, [record.id.hex()])
    assert service.prefix(namespace=record.text, token_ids=ids[:15].tolist())["asked"] == of(0)


def test_an_engines_blocks_are_found_by_its_model(service, client):
    record = engine_record()
    ids = tokens(16 * 10 + 3)
    hashes = vllm_hashes(ids, 16)
    put(client, record, [*hashes[:4], *hashes[6:8]])
    model = record.fields["model"]
    wait_for_model(service, model)
    for named in ({"model": model}, {"namespace": record.fields}):
        for query in ({"token_ids": ids.tolist()}, {"hashes": [each.hex() for each in hashes]}):
            answer = service.prefix(**named, **query, by_node=True)
            assert (answer["found"], answer["held"], answer["block_size"]) == (of(4), [[0, 4], [6, 8]], 16)
            (of_node,) = answer["nodes"]
            assert (of_node["memory_names"], of_node["disk_names"], of_node["why"]) == (6, 0, None)
    assert service.prefix(model=model, token_ids=ids.tolist(), cache_salt="a")["found"] == of(0)
    assert service.prefix(model=model, token_ids=ids.tolist(), hash_seed="0")["found"] == of(0)
    assert service.prefix(model=model, token_ids=ids.tolist(), weights_epoch=1)["found"] == of(0)
    _, listed = service.ask("GET", "/v1/namespaces")
    (mine,) = (each for each in listed["namespaces"] if each["id"] == record.id.hex())
    assert mine["fields"] == record.fields
    assert mine["nodes"][0]["blocks"] == 6


def test_a_hit_ends_where_every_group_and_part_has_what_the_next_token_needs(service, client):
    record = engine_record("full 2x2; window40 4x2", **{"x.parts": 2})
    hashes = vllm_hashes(tokens(16 * 10), 16)
    names = np.array(Naming.of(record).part_names(hashes), object).reshape(2, 2, 10)
    space = put(client, record, [*names[0].ravel(), *names[1, :, 4:].ravel()])
    query = {"namespace": record.text, "hashes": [each.hex() for each in hashes]}
    assert service.prefix(**query)["found"] == of(10)
    assert service.prefix(**(query | {"hashes": query["hashes"][:7]}))["found"] == of(7)
    # Of a window of 40 tokens the last three blocks.
    assert service.prefix(**(query | {"hashes": query["hashes"][:6]}))["found"] == of(0)
    space.drop([names[1, 1, 8]])
    assert service.prefix(**query)["found"] == of(8)
    space.drop([names[0, 0, 7]])
    assert service.prefix(**query)["found"] == of(7)


def test_stages_of_a_pipeline_have_what_all_have(service, client):
    stages = [engine_record(model="staged", layer_range=each) for each in ("0-1", "2-3")]
    hashes = vllm_hashes(tokens(16 * 6), 16)
    put(client, stages[0], hashes)
    put(client, stages[1], hashes[:4])
    query = {"hashes": [each.hex() for each in hashes]}
    assert service.prefix(namespace=[each.text for each in stages], **query)["found"] == of(4)
    wait_for_model(service, "staged")
    assert service.prefix(model="staged", **query)["found"] == of(4)


def test_sglangs_pages_are_found_in_their_parts(service, client):
    record = kvstore.Namespace(
        {"kind": "set", "model": "sgl", "block_bytes_max": 4096, "hash": "sglang", "x.page_size": 32, "x.parts": 2}
    )
    ids = tokens(32 * 5)
    pages = sglang_hashes(ids, 32)
    put(client, record, [each + b"/" + part.to_bytes(4, "big") for each in pages[:3] for part in range(2)])
    assert service.prefix(namespace=record.text, token_ids=ids.tolist())["found"] == of(3, 32)


def test_blocks_on_disk_are_told_apart(serve, tmp_path):
    node = Node("--disk-path", str(tmp_path / "disk"), "--disk-capacity", "1GiB", capacity="4MiB")
    try:
        with kvstore.Client(node.endpoint, deadline=10) as client:
            record, other = engine_record(), engine_record()
            hashes = vllm_hashes(tokens(16 * 8), 16)
            space = client.open_set(record)
            until = time.monotonic() + 60
            while not (space.match(hashes).held == 2).all():
                # A node serves before its disk is open, and until then loses the blocks it evicts.
                put(client, record, hashes)
                for _ in range(4):
                    put(client, other, [random.randbytes(32) for _ in range(600)])
                assert time.monotonic() < until
            space.drop(hashes[:3])
            put(client, record, hashes[:3])
        made = serve(node.endpoint, options=("--deadline", "5"))
        answer = made.prefix(namespace=record.text, hashes=[each.hex() for each in hashes], by_node=True)
        assert (answer["found"], answer["in_memory"]) == (of(8), of(3))
        assert answer["tiers"] == {"memory": of(3), "disk": of(5)}
        assert (answer["nodes"][0]["memory_names"], answer["nodes"][0]["disk_names"]) == (3, 5)
    finally:
        node.close()


def test_of_several_nodes_each_is_told_with_what_it_has(serve, own_node, node):
    made = serve(own_node.endpoint, node.endpoint, options=("--deadline", "5"))
    with kvstore.Client([own_node.endpoint, node.endpoint], deadline=10) as client:
        record = engine_record()
        hashes = vllm_hashes(tokens(16 * 64), 16)
        put(client, record, hashes)
    query = {"namespace": record.text, "hashes": [each.hex() for each in hashes]}
    answer = made.prefix(**query, by_node=True)
    assert answer["found"] == of(64)
    counts = [each["memory_names"] for each in answer["nodes"]]
    assert sum(counts) == 64 and all(counts)
    assert {each["endpoint"] for each in answer["nodes"]} == {own_node.endpoint, node.endpoint}
    assert "nodes" not in made.prefix(**query)
    chain = namespace()
    assert made.prefix(namespace=chain.text, token_ids=list(range(64)), by_node=True)["nodes"] is None


@pytest.fixture
def etcd(tmp_path):
    if shutil.which("etcd") is None:
        pytest.skip("there is no etcd: deploy/install-dependencies.sh --cluster")
    url, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    listens = [f"--listen-client-urls={url}", f"--advertise-client-urls={url}", f"--listen-peer-urls={peer}"]
    name = ["--name=own", f"--initial-cluster=own={peer}", f"--initial-advertise-peer-urls={peer}"]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            ["etcd", *name, *listens, f"--data-dir={tmp_path}/etcd"], stdout=log, stderr=log, cwd=tmp_path
        )
    yield url
    process.kill()
    process.wait()


def free_ports(count):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def test_of_a_cluster_that_makes_its_own_map_each_node_is_told_as_they_come_and_leave(serve, etcd):
    """The service is given one node. It finds the cluster's others, and asks each separately."""
    nodes = []
    try:
        for i in range(3):
            nodes.append(Node("--node-id", f"n{i}", "--etcd", etcd, "--etcd-lease-seconds", "3"))
            if i == 0:
                made = serve(nodes[0].endpoint, options=("--deadline", "5", "--deadline-max", "10"))
                record = engine_record()
                hashes = vllm_hashes(tokens(16 * 64), 16)
                query = {"namespace": record.text, "hashes": [each.hex() for each in hashes], "by_node": True}
            told(made, query, nodes)
        with kvstore.Client(nodes[0].endpoint, deadline=10) as client:
            until = time.monotonic() + 60
            # Blocks of an unconnected node would go to another.
            while sum(each["connected"] for each in client.nodes()) < 3:
                client.ping()
                assert time.monotonic() < until
            put(client, record, hashes)
        until = time.monotonic() + 60
        while told(made, query, nodes, sum_of_names=None) != (
            own := {each.endpoint: blocks_of(each) for each in nodes}
        ):
            assert time.monotonic() < until, own  # blocks handed to the new node may be under way
        assert sum(own.values()) >= 64
        assert sum(count > 0 for count in own.values()) >= 2
        left = nodes.pop(1)
        left.close()  # it leaves the list, and may hand its blocks over
        counts = told(made, query, nodes, sum_of_names=None)
        assert 0 < sum(counts.values()) <= 64
    finally:
        for each in nodes:
            each.close()


def blocks_of(node):
    """The node's own count."""
    with kvstore.Client(node.endpoint, deadline=10, follow_cluster=False) as client:
        (stats,) = client.stats()
        return sum(each["block_count"] for each in stats["namespaces"])


def told(made, query, nodes, sum_of_names=0):
    """How many names each node has, once the answer covers exactly these nodes."""
    endpoints = {each.endpoint for each in nodes}
    until = time.monotonic() + 60
    while True:
        answer = made.prefix(**query)
        counts = {each["endpoint"]: each["memory_names"] for each in answer["nodes"] or [] if each["why"] is None}
        if counts.keys() == endpoints and sum_of_names in (None, sum(counts.values())):
            return counts
        assert time.monotonic() < until, answer


def test_what_the_other_nodes_have_is_told_while_one_is_dead(serve, own_node, node):
    made = serve(own_node.endpoint, node.endpoint, options=("--deadline", "1", "--deadline-max", "5"))
    with kvstore.Client([own_node.endpoint, node.endpoint], deadline=10) as client:
        record = engine_record()
        hashes = vllm_hashes(tokens(16 * 64), 16)
        put(client, record, hashes)
    query = {"namespace": record.text, "hashes": [each.hex() for each in hashes]}
    both = made.prefix(**query, by_node=True)
    (left,) = (each["memory_names"] for each in both["nodes"] if each["endpoint"] == node.endpoint)
    own_node.kill()
    for _ in range(8):
        answer = made.prefix(**query)
        assert sum(end - begin for begin, end in answer["held"]) == left
        assert answer["found"]["blocks"] < 64
    assert made.metric("kvstore_router_paused") == 0
    assert made.ask("GET", "/health")[0] == 200


# -- refusals


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{", 400, "no JSON"),
        (b"[" * 100000, 400, "no JSON"),
        ([], 400, "no JSON object"),
        ({"tokens": []}, 400, "'tokens' is none of"),
        ({"model": "m"}, 400, "give one of them"),
        ({"hashes": []}, 400, "name one of them"),
        ({"model": "m", "namespace": "x", "hashes": []}, 400, "name one of them"),
        ({"model": "m", "hashes": [], "token_ids": []}, 400, "give one of them"),
        ({"model": 3, "hashes": []}, 400, "model"),
        ({"model": "m", "hashes": ["zz"]}, 400, "hexadecimal"),
        ({"model": "m", "hashes": [""]}, 400, "1 to 64 bytes"),
        ({"model": "m", "hashes": ["00" * 65]}, 400, "1 to 64 bytes"),
        ({"model": "m", "hashes": ["00"] * 65537}, 400, "up to 65536"),
        ({"model": "m", "token_ids": [1.5]}, 400, "32 bits"),
        ({"model": "m", "token_ids": [True]}, 400, "32 bits"),
        ({"model": "m", "token_ids": [-1]}, 400, "32 bits"),
        ({"model": "m", "token_ids": [1 << 32]}, 400, "32 bits"),
        ({"model": "m", "token_ids": [], "deadline": 0}, 400, "deadline"),
        ({"model": "m", "token_ids": [], "weights_epoch": -1}, 400, "weights_epoch"),
        ({"model": "m", "token_ids": [], "adapter": "name"}, 400, "adapter"),
        ({"model": "m", "token_ids": [], "by_node": 1}, 400, "by_node"),
        ({"namespace": "model=x", "hashes": []}, 400, "namespace"),
        ({"namespace": {"model": []}, "hashes": []}, 400, "namespace"),
        ({"namespace": [], "hashes": []}, 400, "namespace"),
        ({"namespace": "ab" * 16, "hashes": []}, 404, "no node has"),
        ({"model": "nobody's", "hashes": []}, 404, "nobody's"),
        ({"namespace": engine_record("sha256 00").text, "hashes": []}, 422, "which groups"),
        ({"namespace": engine_record(hash="vllm-sha256").text, "token_ids": [1]}, 422, "only the engine itself"),
        ({"namespace": engine_record(hash="sglang").text, "token_ids": [1]}, 422, "ask with hashes"),
    ],
)
def test_queries_that_make_no_sense_are_refused_with_the_reason(service, body, status, text):
    said = service.ask("POST", "/v1/prefix", body)
    assert said[0] == status, said
    assert text in said[1]["error"]


def test_a_model_with_several_namespaces_has_to_be_named(serve, own_node):
    with kvstore.Client(own_node.endpoint, deadline=10) as client:
        records = [engine_record(model="twice", dtype=each) for each in ("float16", "bfloat16")]
        for each in records:
            put(client, each, [b"x" * 32])
    made = serve(own_node.endpoint, options=("--deadline-max", "10"))
    status, said = made.ask("POST", "/v1/prefix", {"model": "twice", "hashes": []})
    assert status == 400
    assert all(each.id.hex() in said["error"] for each in records)
    assert made.prefix(namespace=records[0].id.hex(), hashes=[(b"x" * 32).hex()])["found"]["blocks"] == 1


def test_made_up_namespaces_leave_room_for_real_ones_and_are_not_kept(serve, own_node):
    record = engine_record()
    query = {"namespace": record.text, "hashes": [(b"x" * 32).hex()]}
    with kvstore.Client(own_node.endpoint, deadline=10) as client:
        put(client, record, [b"x" * 32])
    made = serve(own_node.endpoint, options=("--deadline", "5", "--deadline-max", "10"))

    def ask(i: int) -> int:
        return made.ask("POST", "/v1/prefix", {"namespace": engine_record(salt=i).text, "hashes": ["00"]})[0]

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(ask, range(3 * 256))) == {200}
    assert made.prefix(**query)["found"]["blocks"] == 1
    # One client is left, with a few connections: replaced ones are closed.
    until = time.monotonic() + 60
    while len(os.listdir(f"/proc/{made.process.pid}/task")) > (most := 2 * 16 + 16):
        assert time.monotonic() < until, most
        time.sleep(0.05)


# -- HTTP


def talk(port: int, data: bytes, seconds: float = 15) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(data)
        said = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65536):
                said += piece
        return said


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\n", b"404"),
        (b"GET /v1/prefix HTTP/1.1\r\nConnection: close\r\n\r\n", b"405"),
        (b"POST /v1/prefix HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", b"413"),
        (b"POST /v1/prefix HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", b"413"),
        (b"POST /v1/prefix HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /v1/prefix HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"POST /v1/prefix HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 20000 + b"\r\n\r\n", b"431"),
        (b"GET /health HTTP/2\r\n\r\n", b"400"),
        (b"\x16\x03\x01 nonsense\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nno header\r\n\r\n", b"400"),
    ],
)
def test_requests_that_are_none_are_answered_and_the_service_goes_on(service, head, status):
    assert talk(service.port, head).split(b" ")[1] == status
    assert service.ask("GET", "/health")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Host": "localhost:8700"}, 200),
        ({"Host": "[::1]:8700", "Origin": "http://[::1]:8700"}, 200),
        ({"Host": "evil.example:8700"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": ""}, 415),
    ],
)
def test_a_web_page_of_another_origin_asks_nothing(service, headers, status):
    given = {"Host": f"127.0.0.1:{service.port}", "Content-Type": "application/json"} | headers
    body = json.dumps({"namespace": engine_record(salt="web").text, "hashes": []}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    connection.request("POST", "/v1/prefix", body, given)
    assert connection.getresponse().status == status
    connection.close()
    head = f"GET /v1/namespaces HTTP/1.1\r\nHost: {given['Host']}\r\nConnection: close\r\n\r\n"
    is_by_name = "evil" in given["Host"] or given["Host"] == "[::1"
    assert talk(service.port, head.encode()).split(b" ")[1] == (b"403" if is_by_name else b"200")


def test_a_connection_takes_many_requests(service):
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    connection.connect()
    used = connection.sock
    for i in range(20):
        connection.request("POST", "/v1/prefix", b"{" if i % 2 else b'{"model": "m", "hashes": [1]}', JSON)
        answer = connection.getresponse()
        assert (answer.status, b"error" in answer.read()) == (400, True)
        assert connection.sock is used
    connection.close()


def test_connections_that_ask_nothing_make_room_for_those_that_do(serve, node):
    made = serve(node.endpoint, options=("--connections-max", "4"))
    silent = [socket.create_connection(("127.0.0.1", made.port)) for _ in range(20)]
    for _ in range(10):
        assert made.ask("GET", "/health")[0] == 200
        silent.append(socket.create_connection(("127.0.0.1", made.port)))
    assert made.metric("kvstore_router_connections") <= 4
    for each in silent:
        each.close()


def test_connections_over_the_limit_are_told_so(serve, node):
    made = serve(node.endpoint, options=("--connections-max", "4"))
    held, until = [], time.monotonic() + 60
    while b"503" not in (said := talk(made.port, b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")):
        assert time.monotonic() < until, said
        held.append(socket.create_connection(("127.0.0.1", made.port)))
        held[-1].sendall(b"POST /v1/prefix HTTP/1.1\r\nContent-Length: 5\r\n\r\n")  # without a body
    for each in held:
        each.close()
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(AssertionError, OSError, http.client.HTTPException):
            if made.ask("GET", "/health")[0] == 200:
                break
        assert time.monotonic() < until


def test_it_listens_to_this_machine_alone_unless_certificates_are_asked_for(node, tmp_path, serve):
    for listen, text in (
        ("http://0.0.0.0:0", "tls://HOST:PORT"),
        ("tls://127.0.0.1:0", "KVSTORE_TLS_CERT"),
        ("ftp://x", "none of"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "kvstore.router", "--listen", listen, "--endpoint", node.endpoint],
            capture_output=True,
            text=True,
            timeout=60,
            env={k: v for k, v in os.environ.items() if not k.startswith("KVSTORE_TLS")}
            | {"PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
        assert (done.returncode, text in done.stderr) == (1, True), done.stderr
    path = tmp_path / "router"
    serve(node.endpoint, listen=f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_beyond_this_machine_both_sides_show_certificates(node, tmp_path, serve):
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=tmp_path)

    for authority in ("ca", "other"):
        openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={authority}"),
            *("-keyout", f"{authority}.key", "-out", f"{authority}.crt"),
        )
    (tmp_path / "san").write_text("subjectAltName=IP:127.0.0.1")
    for name, authority in (("router", "ca"), ("asker", "ca"), ("stranger", "other")):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "r")
        openssl(
            *("x509", "-req", "-in", "r", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", "san", "-out", f"{name}.crt"),
        )
    files = {"CERT": "router.crt", "KEY": "router.key", "CA": "ca.crt"}
    made = serve(
        node.endpoint,
        listen="tls://127.0.0.1:0",
        env={f"KVSTORE_TLS_{name}": str(tmp_path / file) for name, file in files.items()},
    )

    def health(name: str) -> int:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        if name:
            context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        connection = http.client.HTTPSConnection("127.0.0.1", made.port, context=context, timeout=20)
        connection.request("GET", "/health")
        return connection.getresponse().status

    assert health("asker") == 200
    for each in ("", "stranger"):
        with pytest.raises((OSError, http.client.HTTPException)):
            health(each)
    assert health("asker") == 200


# -- nodes that are away


def test_a_dead_node_is_said_and_soon_not_asked_and_a_new_one_is(serve, own_node):
    record = engine_record()
    query = {"namespace": record.text, "hashes": [(b"x" * 32).hex()]}
    own_node.kill()
    made = serve(own_node.endpoint, options=("--deadline", "0.2"))
    assert made.ask("GET", "/health")[0] == 503
    assert made.ask("POST", "/v1/prefix", {"model": "m", "hashes": []})[0] == 503
    for _ in range(3):
        answer = made.prefix(**query)
        assert (answer["found"]["blocks"], answer["why"]["status"]) == (0, "KVS_UNAVAILABLE")
    assert made.metric("kvstore_router_paused") == 1
    assert "not asked for a while" in made.prefix(**query)["why"]["text"]
    own_node.start()
    with kvstore.Client(own_node.endpoint, deadline=10) as client:
        put(client, record, [b"x" * 32])
    until = time.monotonic() + 60
    while made.prefix(**query)["found"]["blocks"] != 1:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert made.ask("GET", "/health")[0] == 200
    assert made.metric("kvstore_router_paused") == 0


def test_a_node_that_stands_still_costs_the_deadline(serve, own_node):
    record = engine_record()
    with kvstore.Client(own_node.endpoint, deadline=10) as client:
        put(client, record, [b"x" * 32])
    made = serve(own_node.endpoint, options=("--deadline", "0.2"))
    query = {"namespace": record.text, "hashes": [(b"x" * 32).hex()]}
    assert made.prefix(**query, deadline=1.0)["found"]["blocks"] == 1
    own_node.pause()
    began = time.monotonic()
    answers = [made.prefix(**query) for _ in range(30)]
    assert time.monotonic() - began < 5
    assert {each["why"]["status"] for each in answers} <= {"KVS_TIMED_OUT", "KVS_UNAVAILABLE"}
    assert answers[0]["why"]["status"] == "KVS_TIMED_OUT"
    assert made.prefix(**query, deadline=1.0)["found"]["blocks"] == 0
    own_node.resume()
    until = time.monotonic() + 60
    while made.prefix(**query)["found"]["blocks"] != 1:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_what_was_asked_is_counted(serve, node, client):
    made = serve(node.endpoint, options=("--deadline", "5"))
    record = engine_record()
    hashes = vllm_hashes(tokens(16 * 10), 16)
    put(client, record, hashes[:4])
    for each in (hashes, hashes[4:], hashes[:2]):
        made.prefix(namespace=record.text, hashes=[one.hex() for one in each])
    made.ask("POST", "/v1/prefix", {})
    names = ('queries_total{outcome="found"}', 'queries_total{outcome="missed"}', 'queries_total{outcome="refused"}')
    assert [made.metric(f"kvstore_router_{name}") for name in names] == [2, 1, 1]
    assert made.metric("kvstore_router_asked_blocks_total") == 18
    assert made.metric('kvstore_router_found_blocks_total{tier="memory"}') == 6
    assert made.metric("kvstore_router_query_seconds_count") == 3


def resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_stays_flat_over_many_queries(service, client):
    record = engine_record()
    hashes = vllm_hashes(tokens(16 * 46), 16)
    put(client, record, hashes)
    body = json.dumps({"namespace": record.text, "hashes": [each.hex() for each in hashes]}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)

    def ask(count: int) -> None:
        for _ in range(count):
            connection.request("POST", "/v1/prefix", body, JSON)
            assert connection.getresponse().read()

    ask(500)
    was = resident_bytes(service.process.pid)
    ask(int(os.environ.get("KV_ROUTER_ROUNDS", "2000")))
    assert resident_bytes(service.process.pid) - was < 4 << 20
    connection.close()
