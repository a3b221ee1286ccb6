"""What routers ask of the store: how long a prefix is there, on which tiers and nodes (docs/engines.md).

python -m kvstore.router --endpoint unix:///run/kvstore/kvstore.sock

In reading order: names.py (what blocks are called), query.py (nodes are asked), service.py (requests and answers), http.py
(connections), __main__.py (the command line). Nothing of an engine is imported.
"""

from __future__ import annotations

from .http import Limits
from .names import HASH_SEED, Naming, sglang_hashes, vllm_hashes
from .query import Asked, Prefixes
from .service import Service

__all__ = ["HASH_SEED", "Asked", "Limits", "Naming", "Prefixes", "Service", "sglang_hashes", "vllm_hashes"]
