"""SGLang's encoder server with its embedding cache in the store: python -m kvstore.sglang.encoder_server, followed by the arguments of
``python -m sglang.launch_server``, with ``--encoder-only --enable-mm-global-cache``.

SGLang 0.5.23 has one name for such a store, "mooncake", loads no plugins in the encoder's processes, and passes a store no options: so the
name is taken over here, in each process that this one starts, since each imports this module.
"""

from __future__ import annotations

import os
import sys

from sglang.srt.mem_cache.embedding_store import EmbeddingStoreFactory


def register() -> None:
    """Makes SGLang's embedding factory in this process return the store."""
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
