"""LMCache's L2 on kvstore, by its ``native_plugin``: no Python on the data path.

lmcache server ... --l2-adapter '{"type": "native_plugin", "module_path": "kvstore.lmcache", "class_name": "Connector",
    "adapter_params": {"endpoint": "unix:///run/kvstore/kvstore.sock", "model": "llama-8b"}}'

``adapter_params``: ``endpoint`` (one or a list), ``model`` (what must not be shared has different names), ``deadline`` of
a batch in seconds, ``object_bytes_max``, ``connections``. No node need be there: lookups then find nothing.

``close()`` ends batches that are on their way: ``drain_completions()`` tells them as failed, and their memory is the
caller's again. All functions may be called at any time, twice, and from within callbacks of Python's, such as the end of
an object whose memory was lent to a batch.
"""

from ._kvstore import LmcacheConnector as Connector

__all__ = ["Connector"]
