"""``python -m kvstore.router``: answers routers' queries over HTTP until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from ..errors import BadRequest, Error
from . import Limits, Prefixes, Service


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _context() -> ssl.SSLContext:
    """Both sides show a certificate: the files are the ones the client shows to nodes."""
    cert, key, ca, crl = (os.environ.get(f"KVSTORE_TLS_{name}", "") for name in ("CERT", "KEY", "CA", "CRL"))
    if not (cert and key and ca):
        raise BadRequest("listen: tls:// wants KVSTORE_TLS_CERT, KVSTORE_TLS_KEY and KVSTORE_TLS_CA")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_cert_chain(cert, key)
    made.load_verify_locations(ca)
    if crl:
        made.load_verify_locations(crl)
        made.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    made.verify_mode = ssl.CERT_REQUIRED
    return made


async def serve(service: Service, listen: str) -> None:
    place = urlsplit(listen)
    if place.scheme == "unix" and place.path:
        await service.server.listen(path=place.path)
        print(f"kvstore.router: listens on {listen}", flush=True)
    elif place.scheme in ("http", "tls") and place.hostname:
        if place.scheme == "http" and not _is_loopback(place.hostname):
            raise BadRequest(f"listen: {place.hostname} is not this machine alone: that takes tls://HOST:PORT")
        context = _context() if place.scheme == "tls" else None
        port = await service.server.listen(place.hostname, place.port or 0, context=context)
        print(f"kvstore.router: listens on {place.scheme}://{place.hostname}:{port}", flush=True)
    else:
        raise BadRequest(f"listen: {listen!r} is none of http://127.0.0.1:PORT, tls://HOST:PORT, unix:///PATH")
    ended = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    await ended.wait()
    await service.server.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvstore.router", description=__doc__)
    parser.add_argument("-e", "--endpoint", action="append", metavar="URL", help="a node (KVSTORE_ENDPOINTS)")
    parser.add_argument(
        "--listen", default="http://127.0.0.1:8700", help="http://127.0.0.1:PORT (8700), unix:///PATH, tls://HOST:PORT"
    )
    parser.add_argument("--deadline", type=float, default=0.05, metavar="SECONDS", help="of a query (0.05)")
    parser.add_argument("--deadline-max", type=float, default=1.0, metavar="SECONDS", help="that a query may ask (1)")
    parser.add_argument("--extent-blocks", type=int, default=256, metavar="N", help="as the list's other clients (256)")
    parser.add_argument("--body-bytes-max", type=int, default=8 << 20, metavar="N", help="of a request (8388608)")
    parser.add_argument("--connections-max", type=int, default=128, metavar="N", help="at once (128)")
    given = parser.parse_args(arguments)

    async def run() -> None:
        prefixes = Prefixes(
            given.endpoint,
            deadline=given.deadline,
            deadline_max=given.deadline_max,
            extent_blocks=given.extent_blocks,
        )
        try:
            await prefixes.reachable()  # connects, so that the first query need not
            limits = Limits(body_bytes=given.body_bytes_max, connections=given.connections_max)
            await serve(Service(prefixes, limits), given.listen)
        finally:
            prefixes.close()

    try:
        asyncio.run(run())
    except (Error, OSError) as error:
        print(f"kvstore.router: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
