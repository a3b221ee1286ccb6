"""Options of an engine's connector, from what the engine's configuration has for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from .errors import BadRequest

__all__ = ["StoreOptions", "check_options"]


@dataclass(frozen=True)
class StoreOptions:
    """What each way from an engine to the store can be told. Times are in seconds, each of one call."""

    endpoints: str | list[str] | None = None
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
            right = isinstance(value, str) or (
                isinstance(value, list) and value != [] and all(isinstance(each, str) for each in value)
            )
            allowed = "a string or a list of strings"
        elif isinstance(default, bool):
            right, allowed = isinstance(value, bool), "true or false"
        elif isinstance(default, str):
            right, allowed = isinstance(value, str), "a string"
        elif isinstance(default, float):
            right = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 3600
            allowed = "seconds, over 0 and at most 3600"
        else:
            right, allowed = isinstance(value, int) and not isinstance(value, bool) and value >= 0, "a whole number"
        if not right:
            raise BadRequest(f"{place}: {name} is {value!r}, allowed is {allowed}")
