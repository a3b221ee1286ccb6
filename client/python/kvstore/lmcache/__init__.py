"""LMCache's L2 on kvstore (docs/engines.md).

lmcache server ... --l2-adapter '{"type": "native_plugin", "module_path": "kvstore.lmcache", "class_name": "Connector",
    "adapter_params": {"endpoints": "unix:///run/kvstore/kvstore.sock", "model": "llama-8b", "weights_epoch": 1}}'

``Connector`` is the class of C++ that LMCache's own adapter for such classes drives. ``Adapter`` (type ``plugin``, the same
parameters) is an adapter of its own: objects that were looked up stay until they are loaded, keys can be listed, and it has
no thread of Python. Both give objects the same names.

``adapter_params``: ``endpoints`` (one or a list; by default as of a Client), who one is (``tenant``, ``token_file``, ``tls_cert`` and
so on), ``model`` (what must not be shared has different names: LMCache's keys tell neither an object's layout nor its serde),
``weights_epoch`` (a number, and another one whenever weights or adapters change: LMCache's keys have the model's name alone, and no
door can know), ``deadline`` of a batch in seconds, ``object_bytes_max``, ``connections``,
``staging_bytes`` (lent to nodes on this host, which cannot be lent L1; 0: none). No node need be there: lookups then find
nothing.

Of the connector, ``close()`` ends batches that are on their way: ``drain_completions()`` tells them as failed, and their
memory is the caller's again. All functions may be called at any time, twice, and from within callbacks of Python's, such as
the end of an object whose memory was lent to a batch.

In reading order: connector.py (options, the class of C++), adapter.py (what LMCache's server calls), compat.py (what of LMCache is
used, and which releases were tried), remote.py (``Remote``, the older interface of LMCache inside an engine, and ``EncoderRemote``, for encoders' outputs).
"""

from typing import TYPE_CHECKING, Any

from .connector import Connector

if TYPE_CHECKING:
    from .adapter import Adapter
    from .remote import EncoderRemote, Remote

__all__ = ["Adapter", "Connector", "EncoderRemote", "Remote"]


def __getattr__(name: str) -> Any:
    """Only who asks for one of these needs LMCache: the connector does without."""
    if name == "Adapter":
        from .adapter import Adapter

        return Adapter
    if name in ("Remote", "EncoderRemote"):
        from . import remote

        return getattr(remote, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
