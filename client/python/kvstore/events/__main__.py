"""``python -m kvstore.events``: publishes a node's changes until it is stopped."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import logging
import os
import signal
import ssl
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import BadRequest, Error
from . import ENCODINGS, NodeAway, Source


def _check_place(name: str, place: str, allows_plain: bool) -> None:
    """ZeroMQ's sockets are plain text: all who reach them can read the events."""
    if not place or place.startswith("ipc://") or allows_plain:
        return
    host = urlsplit(place).hostname or ""
    if place.startswith("tcp://"):
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host).is_loopback:
                return
    raise BadRequest(
        f"{name}: {place!r} is neither tcp://127.0.0.1:PORT nor ipc://PATH; beyond this machine anybody could read along: "
        "--plaintext-on-trusted-network"
    )


def _context() -> ssl.SSLContext:
    cert, key, ca = (os.environ.get(f"KVSTORE_TLS_{name}", "") for name in ("CERT", "KEY", "CA"))
    if not (cert and key and ca):
        raise BadRequest("node: https:// wants KVSTORE_TLS_CERT, KVSTORE_TLS_KEY and KVSTORE_TLS_CA")
    made = ssl.create_default_context(cafile=ca)
    made.load_cert_chain(cert, key)
    return made


def _token() -> str:
    if named := os.environ.get("KVSTORE_TOKEN_FILE", ""):
        return Path(named).read_text().strip()
    return os.environ.get("KVSTORE_TOKEN", "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvstore.events", description=__doc__)
    parser.add_argument("--node", default="http://127.0.0.1:7401", metavar="URL", help="its admin server")
    parser.add_argument(
        "--publish", default="tcp://127.0.0.1:5557", metavar="PLACE", help="tcp://127.0.0.1:PORT, ipc://PATH"
    )
    parser.add_argument("--replay", default="", metavar="PLACE", help="where missed batches are asked for")
    parser.add_argument("--encoding", choices=sorted(ENCODINGS), default="vllm")
    parser.add_argument("--model", default="", help="only of namespaces of this model")
    parser.add_argument("--topic", default="")
    parser.add_argument("--poll", type=float, default=0.1, metavar="SECONDS", help="between two questions (0.1)")
    parser.add_argument("--away", type=float, default=5.0, metavar="SECONDS", help="until a node counts as empty (5)")
    parser.add_argument("--batches-max", type=int, default=10_000, metavar="N", help="kept for replay (10000)")
    parser.add_argument("--plaintext-on-trusted-network", action="store_true", help="publish beyond this machine")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    try:
        import zmq

        from .publisher import Publisher
    except ImportError as error:
        print(f"kvstore.events: {error}: pip install pyzmq msgspec", file=sys.stderr)
        return 1
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    try:
        for name, place in (("publish", given.publish), ("replay", given.replay)):
            _check_place(name, place, given.plaintext_on_trusted_network)
        source = Source(
            given.node,
            token=_token(),
            context=_context() if given.node.startswith("https://") else None,
            model=given.model,
        )
        source.events(0)  # a node without a list of changes is reported at once
        publisher = Publisher(
            source,
            ENCODINGS[given.encoding],
            publish=given.publish,
            replay=given.replay,
            topic=given.topic,
            batches_max=given.batches_max,
            away_seconds=given.away,
        )
    except (Error, NodeAway, OSError, zmq.ZMQError) as error:
        print(f"kvstore.events: {error}", file=sys.stderr)
        return 1
    print(f"kvstore.events: publishes at {publisher.publishes_at}", publisher.replays_at, flush=True)
    try:
        publisher.run(ended, given.poll)
    finally:
        publisher.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
