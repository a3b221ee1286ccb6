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
from . import client, device, errors, futures, layouts, models, namespaces, paging, pruning, sets
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
from .client import *  # noqa: F403
from .errors import *  # noqa: F403
from .futures import *  # noqa: F403
from .layouts import *  # noqa: F403
from .namespaces import *  # noqa: F403
from .paging import PagedCache, PagePool, pack_masks, plan_cascade, plan_chunks, plan_shared_prefixes
from .pruning import KeptRows, plan_keep_rows, scatter_kept
from .sets import *  # noqa: F403

__all__ = [
    "ArchivedContext",
    "ContextList",
    "DeviceMemory",
    "DropResult",
    "GetResult",
    "KeptRows",
    "LoadResult",
    "MatchResult",
    "Memory",
    "MissReport",
    "NamedContext",
    "PagePool",
    "PagedCache",
    "PutResult",
    "__version__",
    "device",
    "errors",
    "layouts",
    "models",
    "pack_masks",
    "paging",
    "plan_cascade",
    "plan_chunks",
    "plan_keep_rows",
    "plan_shared_prefixes",
    "pruning",
    "scatter_kept",
    "traced",
]
__all__ += client.__all__
__all__ += errors.__all__
__all__ += futures.__all__
__all__ += layouts.__all__
__all__ += namespaces.__all__
__all__ += sets.__all__
