"""Queries for routers: how much of a prefix the store holds, on which tiers and nodes (docs/engines/routers.md).

python -m kvstore.router --endpoint unix:///run/kvstore/kvstore.sock

In reading order: asked.py (a query, checked), names.py (block names), query.py (queries to nodes), service.py (requests and answers),
http.py (connections), __main__.py (the command line). Imports no engine.
"""

from __future__ import annotations

from .asked import Asked
from .http import Limits
from .names import HASH_SEED, Naming, sglang_hashes, vllm_hashes
from .query import Prefixes
from .service import Service

__all__ = ["HASH_SEED", "Asked", "Limits", "Naming", "Prefixes", "Service", "sglang_hashes", "vllm_hashes"]
