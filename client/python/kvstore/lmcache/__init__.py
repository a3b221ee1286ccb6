"""LMCache's L2 on kvstore (docs/engines/lmcache.md).

lmcache server ... --l2-adapter '{"type": "native_plugin", "module_path": "kvstore.lmcache", "class_name": "Connector",
    "adapter_params": {"endpoints": "unix:///run/kvstore/kvstore.sock", "model": "llama-8b", "weights_epoch": 1}}'

``Connector`` is the C++ class driven by LMCache's own adapter for native plugins. ``Adapter`` (type ``plugin``, same parameters) is a
separate adapter: looked up objects stay until loaded, keys can be listed, without a Python thread. Objects have the same names in both.

``adapter_params``: ``endpoints`` (one or a list; default as for a Client), the client's identity (``tenant``, ``token_file``, ``tls_cert``
and so on), ``model`` (a different name for each set of objects that must not be shared: LMCache's keys have neither an object's layout nor
its serde), ``weights_epoch`` (a number to change whenever weights or adapters change: LMCache's keys have only the model's name, so the
store cannot detect this), ``deadline`` of a batch in seconds, ``object_bytes_max``, ``connections``, ``staging_bytes`` (lent to nodes on
this host, which cannot be lent L1; 0: none). The nodes may be away: lookups then miss.

``close()`` of the connector ends batches under way: ``drain_completions()`` reports them as failed, and their memory is the caller's again.
Functions may be called at any time, twice, and within Python callbacks, such as the end of an object lent to a batch.

In reading order: connector.py (options, the C++ class), adapter.py (LMCache's server), compat.py (the used parts of LMCache, and the tried
releases), remote.py (``Remote``, the older interface of LMCache inside an engine, and ``EncoderRemote``).
"""

from typing import TYPE_CHECKING, Any

from .connector import Connector

if TYPE_CHECKING:
    from .adapter import Adapter
    from .remote import EncoderRemote, Remote

__all__ = ["Adapter", "Connector", "EncoderRemote", "Remote"]


def __getattr__(name: str) -> Any:
    """Imports LMCache only for these names: the connector does without."""
    if name == "Adapter":
        from .adapter import Adapter

        return Adapter
    if name in ("Remote", "EncoderRemote"):
        from . import remote

        return getattr(remote, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
