"""kvstore: a client of the KV-cache store for LLM serving.

>>> space = client.open(Namespace(model="example", block_size=16, block_bytes=65536))
>>> hashes = space.hash_chain(tokens)
>>> cached = space.get(hashes, blocks).block_count      # compute the rest, then
>>> space.put(hashes, blocks)                           # every node takes what it lacks

docs/python.md is the full guide, with examples.
"""

from __future__ import annotations

import sys as _sys
import sysconfig as _sysconfig

if _sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise ImportError("kvstore does not support free-threaded builds of Python yet; use the ordinary build")

if _sys.version_info < (3, 12):  # later ones refuse by themselves
    try:
        import _xxsubinterpreters as _interpreters  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        pass
    else:
        if int(_interpreters.get_current()) != int(_interpreters.get_main()):
            raise ImportError("kvstore does not support sub-interpreters")

try:
    from . import _kvstore as _kvstore
except ImportError as _error:
    from pathlib import Path as _Path

    if any(_Path(__file__).parent.glob("_kvstore*.so")):
        raise  # it exists: the error tells the reason
    raise ImportError(
        f"kvstore: {_Path(__file__).parent} has no extension module: these are the sources. Install the package "
        "(pip install client/python), and start Python in another folder"
    ) from _error

from . import _results as _results  # results have a repr from here on
from . import device, errors, layouts, models, paging, pruning
from ._kvstore import (
    ArchivedContext,
    ContextList,
    DeviceMemory,
    DropResult,
    GetResult,
    LoadResult,
    MatchResult,
    Memory,
    MissReport,
    NamedContext,
    PutResult,
    __version__,
)
from ._trace import traced
from .client import Client, Lease, Node, Space
from .errors import *  # noqa: F403
from .errors import Error
from .futures import Future, wait
from .layouts import (
    Cache,
    Layout,
    Move,
    Part,
    Rotation,
    append_positions,
    copy_blocks,
    gather,
    gather_with_checksums,
    relayout,
    scatter,
    scatter_verified,
    slots_of_csr,
    table_slots,
)
from .namespaces import Namespace, extra_digest, hashes
from .paging import PagedCache, PagePool, pack_masks, plan_cascade, plan_chunks, plan_shared_prefixes
from .pruning import KeptRows, plan_keep_rows, scatter_kept
from .sets import SetGetResult, SetMatchResult, SetPutResult, SetSpace

__all__ = [
    "ArchivedContext",
    "Cache",
    "Client",
    "ContextList",
    "DeviceMemory",
    "DropResult",
    "Error",
    "Future",
    "GetResult",
    "KeptRows",
    "Layout",
    "Lease",
    "LoadResult",
    "MatchResult",
    "Memory",
    "MissReport",
    "Move",
    "NamedContext",
    "Namespace",
    "Node",
    "PagePool",
    "PagedCache",
    "Part",
    "PutResult",
    "Rotation",
    "SetGetResult",
    "SetMatchResult",
    "SetPutResult",
    "SetSpace",
    "Space",
    "__version__",
    "append_positions",
    "copy_blocks",
    "device",
    "errors",
    "extra_digest",
    "gather",
    "gather_with_checksums",
    "hashes",
    "layouts",
    "models",
    "pack_masks",
    "paging",
    "plan_cascade",
    "plan_chunks",
    "plan_keep_rows",
    "plan_shared_prefixes",
    "pruning",
    "relayout",
    "scatter",
    "scatter_kept",
    "scatter_verified",
    "slots_of_csr",
    "table_slots",
    "traced",
    "wait",
]
__all__ += errors.__all__
