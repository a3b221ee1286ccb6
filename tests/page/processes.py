"""A node, and a client that fills it through the C library."""

from __future__ import annotations

import contextlib
import ctypes
import json
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from programs import BUILD, Process, free_port

NODE, LIBRARY = BUILD / "store/node/kvstore-node", BUILD / "client/libkvstore.so"
SECOND_US = 1_000_000


class Node(Process):
    """A node on a Unix socket."""

    def __init__(self, folder: Path, name: str, *options: str, capacity: str = "16MiB") -> None:
        self.admin = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.admin}"
        self.endpoint = f"unix://{folder}/{name}.sock"
        arguments = [
            str(NODE),
            f"--node-id={name}",
            f"--listen={self.endpoint}",
            f"--admin={self.admin}",
            "--threads=2",
        ]
        arguments += [f"--capacity={capacity}", "--rdma=off", *options]
        super().__init__(folder / f"{name}.log", arguments, f"{self.url}/readyz")

    def json(self, page: str, token: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.url}/status/{page}", headers=headers), timeout=30
        ) as answer:
            return json.load(answer)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.split()[1])
        raise AssertionError(f"no metric {name}")


class Certificates:
    """A CA, and one certificate of it that the node and its visitors share."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.certificate, self.key = (folder / name for name in ("ca.pem", "node.pem", "node.key"))
        ca_key, request, names = folder / "ca.key", folder / "node.csr", folder / "names"
        names.write_text("subjectAltName=IP:127.0.0.1\n")
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=kvstore"]
        ca = [
            "-x509",
            "-days",
            "2",
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign",
        ]
        self._openssl("req", *key, *ca, "-keyout", ca_key, "-out", self.ca)
        self._openssl("req", *key, "-keyout", self.key, "-out", request)
        signer = ["-CA", self.ca, "-CAkey", ca_key, "-CAcreateserial", "-extfile", names, "-days", "2"]
        self._openssl("x509", "-req", "-in", request, *signer, "-out", self.certificate)

    @staticmethod
    def _openssl(*arguments: object) -> None:
        done = subprocess.run(
            ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr

    def visitor(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.certificate, self.key)
        return context


class _Node(ctypes.Structure):
    _fields_ = [("endpoint", ctypes.c_char_p), ("name", ctypes.c_char_p), ("weight", ctypes.c_double)]


class _Options(ctypes.Structure):
    """The beginning of kvs_options; the rest has its defaults."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("nodes", ctypes.POINTER(_Node)),
        ("node_count", ctypes.c_size_t),
        ("identity", ctypes.c_char_p),
        ("connections_per_node", ctypes.c_uint32),
        ("calls_max", ctypes.c_uint32),
    ]


class _Request(ctypes.Structure):
    """The beginning of kvs_request, as in a caller with an older header."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("op", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("space", ctypes.c_uint32),
        ("reuse", ctypes.c_uint32),
        ("deadline_us", ctypes.c_uint64),
        ("tag", ctypes.c_uint64),
        ("lease", ctypes.c_uint64),
        ("hashes", ctypes.c_char_p),
        ("count", ctypes.c_size_t),
        ("blocks", ctypes.c_void_p),
        ("between", ctypes.c_uint64 * 16),
        ("record", ctypes.c_char_p),
    ]


class _Completion(ctypes.Structure):
    _fields_ = [
        ("call", ctypes.c_uint64),
        ("tag", ctypes.c_uint64),
        ("event", ctypes.c_int),
        ("op", ctypes.c_int),
        ("status", ctypes.c_int),
        ("why", ctypes.c_int),
        ("block_count", ctypes.c_size_t),
        ("between", ctypes.c_uint64 * 12),
        ("refused", ctypes.c_size_t),
        ("conflicts", ctypes.c_size_t),
        ("until_restart", ctypes.c_int),
        ("space", ctypes.c_uint32),
    ]


_OPEN, _MATCH, _GET, _PUT = 1, 3, 4, 6  # KVS_OP_...


class Client:
    """Puts blocks and looks them up. A block's content is of no interest here: all of them are the same 64 KiB of memory."""

    def __init__(self, endpoint: str) -> None:
        self._library = ctypes.CDLL(str(LIBRARY))
        self._library.kvs_last_error.restype = ctypes.c_char_p
        self._page = ctypes.create_string_buffer(64 * 1024)
        node = _Node(endpoint.encode(), None, 0)
        options = _Options(ctypes.sizeof(_Options), ctypes.pointer(node), 1, b"page test", 0, 0)
        self._client = ctypes.c_void_p()
        self._check(self._library.kvs_client_open(ctypes.byref(options), ctypes.byref(self._client)))

    def _check(self, status: int) -> None:
        assert status == 0, self._library.kvs_last_error().decode()

    def close(self) -> None:
        self._library.kvs_client_close(self._client)

    def _run(self, op: int, seconds: int, **fields: object) -> _Completion:
        request = _Request(struct_size=ctypes.sizeof(_Request), op=op, deadline_us=seconds * SECOND_US, **fields)
        done = _Completion()
        size = ctypes.c_size_t(ctypes.sizeof(done))
        self._check(self._library.kvs_run(self._client, ctypes.byref(request), ctypes.byref(done), size))
        return done

    def open(self, **fields: object) -> int:
        record = "".join(f"{key}={value}\n" for key, value in sorted(fields.items()))
        return int(self._run(_OPEN, 5, record=record.encode()).space)

    def put(self, space: int, hashes: bytes) -> int:
        """A chain: 32 bytes for each block. How many were stored."""
        count = len(hashes) // 32
        pages = (ctypes.c_void_p * count)(*[ctypes.addressof(self._page)] * count)
        done = self._run(_PUT, 20, space=space, hashes=hashes, count=count, blocks=ctypes.addressof(pages))
        assert done.refused == 0, f"{done.refused} blocks were refused: {done.why}"
        return int(done.block_count)

    def get(self, space: int, hashes: bytes, block_bytes: int = 64) -> int:
        count = len(hashes) // 32
        memory = ctypes.create_string_buffer(count * block_bytes)
        pages = (ctypes.c_void_p * count)(*[ctypes.addressof(memory) + i * block_bytes for i in range(count)])
        done = self._run(_GET, 5, space=space, hashes=hashes, count=count, blocks=ctypes.addressof(pages))
        return int(done.block_count)

    def match(self, space: int, hashes: bytes) -> int:
        return int(self._run(_MATCH, 5, space=space, hashes=hashes, count=len(hashes) // 32).block_count)


@contextlib.contextmanager
def client_of(node: Node) -> Iterator[Client]:
    client = Client(node.endpoint)
    try:
        yield client
    finally:
        client.close()
