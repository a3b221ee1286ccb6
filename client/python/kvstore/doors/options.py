"""Options of an engine's connection to the store, from the engine's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from .._access import nodes_of
from ..client import Client
from ..errors import BadRequest
from .identity import short

T = TypeVar("T", bound="AccessOptions")


@dataclass(frozen=True)
class AccessOptions:
    """Nodes and identity, named as in ``Client``. Omitted options come from the environment, as for a Client."""

    endpoints: str | list[str] | None = None
    #: The owner of the blocks: a field of the record. Nodes with a policy let only that tenant open the namespace.
    tenant: str = ""
    #: Prefer the file: engines write their configuration to their log.
    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    tls_crl: str = ""
    tls_server_name: str = ""
    #: Name of the engine's setting with these options, for error texts.
    place: ClassVar[str] = ""

    @classmethod
    def of(cls: type[T], given: Mapping[str, Any]) -> T:
        """Raises BadRequest for an unknown option or a wrong value."""
        check_options(cls, given, cls.place)
        return cls(**given)


@dataclass(frozen=True)
class StoreOptions(AccessOptions):
    """Options of every connection from an engine to the store. Times are in seconds, each for one call."""

    #: The model's name in the store; by default its path's last part, or its name in the hub.
    model: str = ""
    #: Grows when weights change under one name, as in training.
    weights_epoch: int | None = None
    #: Keeps engines apart that must not share blocks.
    salt: str = ""
    lookup_timeout: float = 0.25
    load_timeout: float = 1.0
    save_timeout: float = 5.0
    #: NUMA nodes for the lent memory and the client's threads. auto: the node of this engine's GPU.
    numa_nodes: str = "auto"

    def fields(self, model: str) -> dict[str, Any]:
        """Fields of the blocks' namespace. ``model``: its name unless these options have one."""
        return {
            "model": short(self.model or model),
            "tenant": self.tenant or None,
            "salt": self.salt or None,
            "weights_epoch": self.weights_epoch,
        }


def client_of(options: AccessOptions, **more: Any) -> Client:
    """A client with these options; the tenant is part of the namespaces."""
    names = (each.name for each in fields(AccessOptions) if each.name not in ("endpoints", "tenant"))
    given: dict[str, Any] = {name: getattr(options, name) or None for name in names}
    return Client(options.endpoints, **given, **more)


def check_options(options: type, given: Mapping[str, Any], place: str) -> None:
    """Raises BadRequest, which names ``place``, the option, its value and the allowed ones, unless all of ``given`` are options. The
    defaults of the dataclass ``options`` give the types; ``endpoints`` may be a list too, and a number that is 0 by default is no time.
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
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            right = is_number and (0 < value <= 3600 if default else value >= 0)
            allowed = "seconds, over 0 and at most 3600" if default else "a number from 0"
        else:
            right, allowed = isinstance(value, int) and not isinstance(value, bool) and value >= 0, "a whole number"
        if not right:
            said = repr(value) if known[name].repr else f"a {type(value).__name__}"
            raise BadRequest(f"{place}: {name} is {said}, allowed is {allowed}")
