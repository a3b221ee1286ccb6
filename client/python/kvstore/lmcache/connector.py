"""LMCache's native plugin: the C++ class driven by its own adapter for such plugins, and the options of all its adapters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _kvstore
from .._access import access_of
from ..doors.door import Door
from ..doors.options import AccessOptions, access_options
from ..errors import BadRequest
from ..namespaces import Namespace


def _logger() -> logging.Logger:
    """Made as LMCache makes its own: other handlers do not show its loggers."""
    try:
        from lmcache.logging import init_logger
    except ImportError:  # the connector does without LMCache
        return logging.getLogger("lmcache.kvstore")
    return init_logger("lmcache.kvstore")  # type: ignore[no-any-return]


logger = _logger()


@dataclass(frozen=True)
class Options(AccessOptions):
    """``adapter_params``."""

    place = "adapter_params"
    #: Choose different names for objects that must not be shared.
    model: str = "lmcache"
    #: Version of weights and adapters. Required: LMCache passes only their names, so changes cannot be detected here.
    weights_epoch: int | None = None
    #: Seconds per batch.
    deadline: float = 5.0
    object_bytes_max: int = 256 << 20
    connections: int = 4
    #: Memory lent to nodes on this host instead of L1.
    staging_bytes: int = 64 << 20
    #: For LMCache's own eviction. 0: off, and the store evicts by itself.
    max_capacity_gb: float = 0.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        made = super().of(given)
        if made.weights_epoch is None:
            raise BadRequest(
                "adapter_params: weights_epoch is missing: LMCache tells a model's name, and neither its weights nor its adapters. "
                "Set a number, and another one whenever they change"
            )
        return made


def namespace_of(options: Options, engine: str, **more: object) -> Namespace:
    """The namespace of the objects; written to LMCache's log."""
    fields: dict[str, object] = {
        "kind": "set",
        "x.engine": engine,
        "model": options.model,
        "tenant": options.tenant or None,
        "weights_epoch": options.weights_epoch,
        "block_bytes_max": options.object_bytes_max,
    }
    made = Namespace(fields | more)
    logger.info("kvstore: objects of up to %d bytes, namespace %s", made.block_bytes, made)
    return made


def door_of(options: Options, identity: str) -> Door:
    return Door(
        options,
        identity,
        logger,
        connections_per_node=options.connections,
        staging_bytes=options.staging_bytes,
    )


class Connector(_kvstore.LmcacheConnector):
    """``adapter_params`` as keywords."""

    def __init__(self, **given: Any) -> None:
        options = Options.of(given)
        super().__init__(
            namespace_of(options, "lmcache")._record,
            options.deadline,
            options.connections,
            options.staging_bytes,
            **access_of(options.endpoints, "adapter_params: endpoints", **access_options(options)),
        )
