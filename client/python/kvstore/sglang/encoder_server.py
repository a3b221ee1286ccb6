"""SGLang's encoder server with its cache of embeddings in the store: python -m kvstore.sglang.encoder_server, and then what
``python -m sglang.launch_server`` takes, ``--encoder-only --enable-mm-global-cache`` among it.

SGLang 0.5.23 names one such store only, "mooncake", loads no plugins in the encoder's processes, and hands a store no options: so
the name is taken over here, in each of the processes that this one starts, which begin with this module too.
"""

from __future__ import annotations

import os
import sys

from sglang.srt.mem_cache.embedding_store import EmbeddingStoreFactory

__all__ = ["register"]


def register() -> None:
    """In this process, whatever asks SGLang for a store of embeddings gets the store."""
    for name in ("kvstore", "mooncake"):
        EmbeddingStoreFactory.register_backend(name, "kvstore.sglang.encoder", "KVStoreEmbeddings")


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ in ("__main__", "__mp_main__"):
    register()
if __name__ == "__main__":
    main()
