"""A node's changes, as the KV events that routers read from engines (docs/engines/routers.md).

python -m kvstore.events --node http://127.0.0.1:7401 --publish tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5657

In reading order: source.py (a node over HTTP), held.py (all its blocks, while they change), encoding.py (events as vLLM and SGLang write
them), publisher.py (ZeroMQ), __main__.py (the command line). Imports no engine; only the publisher needs pyzmq and msgspec.
"""

from __future__ import annotations

from .encoding import ENCODINGS, Encoding
from .held import Held, Look, look
from .source import Change, NodeAway, Source, Space

__all__ = ["ENCODINGS", "Change", "Encoding", "Held", "Look", "NodeAway", "Source", "Space", "look"]
