"""A query as a caller gives it: checked, field by field."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..doors.names import adapter_suffix, weights_suffix
from ..errors import BadRequest, Error
from ..namespaces import Namespace
from .names import HASH_SEED

#: Hashes in one query. A prompt of 10^6 tokens has 62,500 blocks of 16.
_HASHES_MAX = 1 << 16
_TOKENS_MAX = 1 << 20
_HASH_BYTES_MAX = 64


@dataclass(frozen=True)
class Asked:
    """A checked query. Raises BadRequest that names the field."""

    #: Records (one per pipeline stage of an engine), or ids of namespaces that nodes have.
    namespaces: tuple[Namespace | bytes, ...] = ()
    #: Or the model name, as the engine's connector was given it.
    model: str = ""
    hashes: tuple[bytes, ...] | None = None
    tokens: npt.NDArray[np.uint32] | None = None
    seed: str = HASH_SEED
    cache_salt: str = ""
    #: Suffix of names: the request's weights_epoch, and its adapter.
    epoch: bytes = b""
    deadline: float | None = None
    by_node: bool = False

    @classmethod
    def of(cls, given: Any) -> Asked:
        if not isinstance(given, dict):
            raise BadRequest("the query is no JSON object")
        if unknown := sorted(given.keys() - _FIELDS):
            raise BadRequest(f"{unknown[0]!r} is none of {', '.join(sorted(_FIELDS))}")
        for name in ("model", "hash_seed", "cache_salt"):
            if not isinstance(given.get(name, ""), str):
                raise BadRequest(f"{name}: no text")
        if not isinstance(given.get("by_node", False), bool):
            raise BadRequest("by_node: neither true nor false")
        if ("namespace" in given) == ("model" in given):
            raise BadRequest("namespace, model: name one of them")
        if ("hashes" in given) == ("token_ids" in given):
            raise BadRequest("hashes, token_ids: give one of them")
        return cls(
            namespaces=_namespaces(given["namespace"]) if "namespace" in given else (),
            model=given.get("model", ""),
            hashes=_hashes(given["hashes"]) if "hashes" in given else None,
            tokens=_tokens(given["token_ids"]) if "token_ids" in given else None,
            seed=given.get("hash_seed", HASH_SEED),
            cache_salt=given.get("cache_salt", ""),
            epoch=weights_suffix(given.get("weights_epoch")) + _adapter(given.get("adapter")),
            deadline=_seconds(given.get("deadline")),
            by_node=given.get("by_node", False),
        )


_FIELDS = {
    *("namespace", "model", "hashes", "token_ids", "hash_seed", "cache_salt"),
    *("adapter", "weights_epoch", "deadline", "by_node"),
}


def _namespaces(given: Any) -> tuple[Namespace | bytes, ...]:
    listed = given if isinstance(given, list) else [given]
    if not 1 <= len(listed) <= 64:
        raise BadRequest("namespace: none, or more than 64")
    return tuple(_namespace(each) for each in listed)


def _namespace(given: Any) -> Namespace | bytes:
    try:
        if isinstance(given, dict) and all(isinstance(each, (str, int)) for each in given.values()):
            return Namespace(given)
        if isinstance(given, str) and "=" in given:
            return Namespace.from_text(given)
        if isinstance(given, str) and len(given) == 32:
            return bytes.fromhex(given)
    except (Error, ValueError) as error:
        raise BadRequest(f"namespace: {error}") from None
    raise BadRequest("namespace: neither a record's text, nor its fields, nor an id of 32 hexadecimal digits")


def _hashes(given: Any) -> tuple[bytes, ...]:
    if not isinstance(given, list) or len(given) > _HASHES_MAX:
        raise BadRequest(f"hashes: no list of up to {_HASHES_MAX}")
    try:
        made = tuple(bytes.fromhex(each) for each in given)
    except (TypeError, ValueError):
        raise BadRequest("hashes: one is not hexadecimal") from None
    if not all(1 <= len(each) <= _HASH_BYTES_MAX for each in made):
        raise BadRequest(f"hashes: one is not of 1 to {_HASH_BYTES_MAX} bytes")
    return made


def _tokens(given: Any) -> npt.NDArray[np.uint32]:
    if not isinstance(given, list) or len(given) > _TOKENS_MAX:
        raise BadRequest(f"token_ids: no list of up to {_TOKENS_MAX}")
    # NumPy would accept true as 1, and round.
    if not all(type(each) is int and 0 <= each < 1 << 32 for each in given):
        raise BadRequest("token_ids: one is no whole number of 32 bits")
    return np.array(given, np.uint32)


def _adapter(given: Any) -> bytes:
    """As in the connector's names and in its engine's log."""
    if given is None:
        return b""
    if not isinstance(given, str) or re.fullmatch("[0-9a-f]{32}", given) is None:
        raise BadRequest("adapter: no 32 hexadecimal digits, as the engine's log has them")
    return adapter_suffix(bytes.fromhex(given))


def _seconds(given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= 3600:
        raise BadRequest("deadline: no seconds over 0")
    return float(given)
