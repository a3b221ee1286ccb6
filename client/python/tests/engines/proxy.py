"""A TCP proxy before a node that detects frame boundaries (transport/frames/frame.h) and runs a test's action at a given frame."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable

HEADER = struct.Struct("<IBBHQIIQ")
MAGIC = 0x3153564B
PIECE_BYTES = 1 << 16
FLAG_RESPONSE = 1
PUT_DATA, SET_MATCH, SET_GET, SET_PUT = 6, 18, 19, 20


class Proxy:
    """Passes frames on, in both directions, by a thread for each.

    ``delay`` holds up each of the node's frames by so many seconds; ``flips`` turns one bit in each payload. A trap runs once, on the
    thread of its direction: before a frame of its kind, or between the halves of the frame's payload.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.delay = 0.0
        self.flips = False
        self.flipped = 0
        self.seen: Counter[tuple[int, bool]] = Counter()
        self._target = target
        self._trap: tuple[int, bool, bool, Callable[[], None]] | None = None
        self._sprung = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def trap(
        self, kind: int, then: Callable[[], None], *, response: bool = False, middle: bool = False
    ) -> threading.Event:
        """The next frame of that kind runs ``then``. The event is set afterwards."""
        self._sprung = threading.Event()
        self._trap = (kind, response, middle, then)
        return self._sprung

    def reset(self) -> None:
        self.delay, self.flips, self._trap = 0.0, False, None

    def close(self) -> None:
        self._server.close()
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                try:
                    node = socket.create_connection(self._target, timeout=10)
                except OSError:
                    client.close()
                    continue
                for one in (client, node):
                    one.settimeout(None)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._sockets |= {client, node}
                for one, other in ((client, node), (node, client)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while header := self._read(source, HEADER.size):
                self._frame(header, source, sink)
        except OSError:
            pass
        finally:
            for each in (source, sink):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _frame(self, header: bytes, source: socket.socket, sink: socket.socket) -> None:
        magic, _, kind, flags, _, table_bytes, _, payload_bytes = HEADER.unpack(header)
        assert magic == MAGIC, hex(magic)
        is_response = bool(flags & FLAG_RESPONSE)
        if is_response and self.delay:
            time.sleep(self.delay)
        self.seen[kind, is_response] += 1
        table = self._read(source, table_bytes)
        self._spring(kind, is_response, middle=False)
        sink.sendall(header + table)
        flip_at = payload_bytes // 2 if self.flips and payload_bytes else -1
        passed = 0
        while passed < payload_bytes:
            piece = source.recv(min(PIECE_BYTES, payload_bytes - passed))
            if not piece:
                raise OSError("the frame was cut")
            if passed <= payload_bytes // 2 < passed + len(piece):
                self._spring(kind, is_response, middle=True)
            if passed <= flip_at < passed + len(piece):
                at = flip_at - passed
                piece = piece[:at] + bytes([piece[at] ^ 4]) + piece[at + 1 :]
                self.flipped += 1
            sink.sendall(piece)
            passed += len(piece)

    def _spring(self, kind: int, is_response: bool, *, middle: bool) -> None:
        with self._lock:
            trap = self._trap
            if trap is None or trap[:3] != (kind, is_response, middle):
                return
            self._trap = None
            sprung = self._sprung
        trap[3]()
        sprung.set()

    @staticmethod
    def _read(source: socket.socket, count: int) -> bytes:
        """Empty at the stream's end."""
        data = b""
        while len(data) < count:
            piece = source.recv(count - len(data))
            if not piece:
                return b""
            data += piece
        return data
