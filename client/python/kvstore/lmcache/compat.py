"""The used parts of LMCache, and the releases that were tried. All checks of the release are here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..errors import Unsupported

#: LMCache's classes that other modules import from here.
__all__ = ["Bitmap", "KeyEntry", "KeyListPage", "L2AdapterInterface", "L2StoreResult"]

TRIED_VERSIONS = ("0.5.6",)

try:
    VERSION = version("lmcache")
except PackageNotFoundError:
    VERSION = "(not installed)"

try:
    from lmcache.lmcache_native import Bitmap
    from lmcache.v1.distributed.api import KeyEntry, KeyListPage
    from lmcache.v1.distributed.internal_api import L2StoreResult
    from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
except ImportError as _error:
    raise Unsupported(
        f"LMCache {VERSION} is not served: it has no {_error.name or _error}. Tried were {', '.join(TRIED_VERSIONS)}"
    ) from _error


def key_text(key: Any) -> str:
    """The name LMCache's adapter for native connectors gives an object, so that both adapters use one name."""
    text = f"{key.model_name}@{key.kv_rank:08x}@{key.object_group_id:x}@{key.chunk_hash.hex()}"
    return f"{text}@{key.cache_salt}" if key.cache_salt else text
