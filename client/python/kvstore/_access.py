"""A client's nodes and identity, parsed in one place for Client and every engine's options."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import BadRequest

_UNIX = "/run/kvstore/kvstore.sock"
_TCP = "tcp://127.0.0.1:7400"
_ALLOWED = (
    "an endpoint (tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH), several of them separated by commas or blanks, or a "
    "list of them"
)


class Node(NamedTuple):
    """A node: ``endpoint`` is ``tcp://HOST:PORT`` or ``unix://PATH``; ``name`` and ``weight`` decide which blocks it has."""

    endpoint: str
    name: str | None = None
    weight: float = 1.0


def default_nodes() -> list[str]:
    """``KVSTORE_ENDPOINTS`` (separated by commas or blanks), else the installed node's Unix socket if it exists, else TCP."""
    named = _split(os.environ.get("KVSTORE_ENDPOINTS", ""))
    if named:
        return named
    try:
        has_socket = stat.S_ISSOCK(os.stat(_UNIX).st_mode)
    except OSError:
        has_socket = False
    return ["unix://" + _UNIX if has_socket else _TCP]


def nodes_of(given: Any, name: str) -> list[str | Node]:
    """The nodes in ``given``. Raises BadRequest, which begins with ``name``. C++ checks each endpoint."""
    if given is None:
        return [*default_nodes()]
    parts = [given] if isinstance(given, (str, Node)) else given
    if not isinstance(parts, (list, tuple)) or not all(isinstance(each, (str, Node)) for each in parts):
        raise BadRequest(f"{name} is {given!r}; allowed is {_ALLOWED}")
    nodes: list[str | Node] = []
    for each in parts:
        nodes += _split(each) if isinstance(each, str) else [each]
    if not nodes:
        raise BadRequest(f"{name} is {given!r}, which names no node; allowed is {_ALLOWED}")
    return nodes


def access_of(
    nodes: Any,
    name: str = "nodes",
    *,
    tls_cert: str | os.PathLike[str] | None,
    tls_key: str | os.PathLike[str] | None,
    tls_ca: str | os.PathLike[str] | None,
    tls_crl: str | os.PathLike[str] | None,
    tls_server_name: str | None,
    token: str | None,
    token_file: str | os.PathLike[str] | None,
    tls_names: str | Sequence[str] | None = None,
) -> dict[str, Any]:
    """As the extension takes it. Missing values come from the environment, where a token's file comes first."""

    def of(given: str | os.PathLike[str] | None, variable: str) -> str:
        return os.environ.get(variable, "") if given is None else os.fspath(given)

    if token is None and token_file is None:
        token_file = os.environ.get("KVSTORE_TOKEN_FILE", "")
        token = "" if token_file else os.environ.get("KVSTORE_TOKEN", "")
    return {
        "nodes": nodes_of(nodes, name),
        "tls": {
            "cert": of(tls_cert, "KVSTORE_TLS_CERT"),
            "key": of(tls_key, "KVSTORE_TLS_KEY"),
            "ca": of(tls_ca, "KVSTORE_TLS_CA"),
            "crl": of(tls_crl, "KVSTORE_TLS_CRL"),
            "server_name": of(tls_server_name, "KVSTORE_TLS_SERVER_NAME"),
            "names": of(
                tls_names if tls_names is None or isinstance(tls_names, str) else ",".join(tls_names),
                "KVSTORE_TLS_NAMES",
            ),
        },
        "token": token or "",
        "token_file": os.fspath(token_file or ""),
    }


def _split(text: str) -> list[str]:
    """Splits only before the start of an endpoint: a path may contain blanks and commas."""
    parts = (each.strip() for each in re.split(r"[,\s]+(?=[a-z]+://)", text.strip(", \t\r\n")))
    return [each for each in parts if each]
