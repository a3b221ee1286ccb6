"""Options of an engine's door to the store, from what the engine's configuration has for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from ._access import nodes_of
from .client import Client
from .errors import BadRequest

__all__ = ["AccessOptions", "StoreOptions", "access_options", "check_options", "client_of"]


@dataclass(frozen=True)
class AccessOptions:
    """Which nodes, and as whom: named as ``Client`` names them. What is left out, the environment says, as of a Client."""

    endpoints: str | list[str] | None = None
    #: Whose blocks they are: the record's field. Nodes with a policy let only that tenant open the namespace.
    tenant: str = ""
    #: Engines write their configuration to their log: a file keeps the token out of that.
    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    tls_crl: str = ""
    tls_server_name: str = ""


@dataclass(frozen=True)
class StoreOptions(AccessOptions):
    """What each way from an engine to the store can be told. Times are in seconds, each of one call."""

    #: The model's name in the store; by default its path's last part, or its name in the hub.
    model: str = ""
    #: Grows when weights change under one name, as in training.
    weights_epoch: int | None = None
    #: Keeps engines apart that must not share blocks.
    salt: str = ""
    lookup_timeout: float = 0.25
    load_timeout: float = 1.0
    save_timeout: float = 5.0
    #: NUMA nodes for the memory that is lent to nodes, and for the client's threads. auto: where this engine's GPU is.
    numa_nodes: str = "auto"


def access_options(options: AccessOptions) -> dict[str, Any]:
    """What of them a client is told besides its nodes; the tenant stands in the namespaces."""
    names = (each.name for each in fields(AccessOptions) if each.name not in ("endpoints", "tenant"))
    return {name: getattr(options, name) or None for name in names}


def client_of(options: AccessOptions, **more: Any) -> Client:
    """A client as the options have it."""
    return Client(options.endpoints, **access_options(options), **more)


def check_options(options: type, given: Mapping[str, Any], place: str) -> None:
    """Raises BadRequest, which names ``place``, the option, its value and what is allowed, unless all of ``given`` are
    options. Of what type each is, the defaults of the dataclass ``options`` say; ``endpoints`` may be a list too.
    """
    known: dict[str, Field[Any]] = {each.name: each for each in fields(options)}
    for name, value in given.items():
        if name not in known:
            raise BadRequest(f"{place}: {name!r} is none of {', '.join(known)}")
        default = known[name].default
        if name == "endpoints":
            nodes_of(value, f"{place}: endpoints")
            continue
        if isinstance(default, bool):
            right, allowed = isinstance(value, bool), "true or false"
        elif isinstance(default, str):
            right, allowed = isinstance(value, str), "a string"
        elif isinstance(default, float):
            right = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 3600
            allowed = "seconds, over 0 and at most 3600"
        else:
            right, allowed = isinstance(value, int) and not isinstance(value, bool) and value >= 0, "a whole number"
        if not right:
            said = repr(value) if known[name].repr else f"a {type(value).__name__}"
            raise BadRequest(f"{place}: {name} is {said}, allowed is {allowed}")
