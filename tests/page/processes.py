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


class _CallOptions(ctypes.Structure):
    """The beginning of kvs_put_options, kvs_match_options and kvs_get_options."""

    _fields_ = [("struct_size", ctypes.c_size_t), ("deadline_us", ctypes.c_uint64)]


class _PutResult(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("stored", ctypes.c_size_t),
        ("already_stored", ctypes.c_size_t),
        ("refused", ctypes.c_size_t),
        ("why", ctypes.c_int),
    ]


class _MatchResult(ctypes.Structure):
    """The beginning of kvs_match_result and kvs_get_result."""

    _fields_ = [("struct_size", ctypes.c_size_t), ("block_count", ctypes.c_size_t), ("why", ctypes.c_int)]


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

    def open(self, **fields: object) -> int:
        record = "".join(f"{key}={value}\n" for key, value in sorted(fields.items()))
        space = ctypes.c_uint32()
        self._check(
            self._library.kvs_open(self._client, record.encode(), ctypes.c_uint64(5 * SECOND_US), ctypes.byref(space))
        )
        return space.value

    def put(self, space: int, hashes: bytes) -> int:
        """A chain: 32 bytes for each block. How many were stored."""
        count = len(hashes) // 32
        pages = (ctypes.c_void_p * count)(*[ctypes.addressof(self._page)] * count)
        options = _CallOptions(ctypes.sizeof(_CallOptions), 20 * SECOND_US)
        result = _PutResult(ctypes.sizeof(_PutResult))
        self._check(
            self._library.kvs_put(
                self._client, space, hashes, ctypes.c_size_t(count), pages, ctypes.byref(options), ctypes.byref(result)
            )
        )
        assert result.refused == 0, f"{result.refused} blocks were refused: {result.why}"
        return int(result.stored)

    def get(self, space: int, hashes: bytes, block_bytes: int = 64) -> int:
        count = len(hashes) // 32
        memory = ctypes.create_string_buffer(count * block_bytes)
        pages = (ctypes.c_void_p * count)(*[ctypes.addressof(memory) + i * block_bytes for i in range(count)])
        options = _CallOptions(ctypes.sizeof(_CallOptions), 5 * SECOND_US)
        result = _MatchResult(ctypes.sizeof(_MatchResult))
        self._check(
            self._library.kvs_get(
                self._client, space, hashes, ctypes.c_size_t(count), pages, ctypes.byref(options), ctypes.byref(result)
            )
        )
        return int(result.block_count)

    def match(self, space: int, hashes: bytes) -> int:
        options = _CallOptions(ctypes.sizeof(_CallOptions), 5 * SECOND_US)
        result = _MatchResult(ctypes.sizeof(_MatchResult))
        self._check(
            self._library.kvs_match(
                self._client,
                space,
                hashes,
                ctypes.c_size_t(len(hashes) // 32),
                ctypes.byref(options),
                ctypes.byref(result),
            )
        )
        return int(result.block_count)


@contextlib.contextmanager
def client_of(node: Node) -> Iterator[Client]:
    client = Client(node.endpoint)
    try:
        yield client
    finally:
        client.close()
