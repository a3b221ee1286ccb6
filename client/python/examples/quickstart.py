"""A prefix stored by one process and loaded by another: run it twice against a node.

kvstore-node --capacity 256MiB --listen unix:///tmp/kvstore.sock --admin none &
python quickstart.py unix:///tmp/kvstore.sock
"""

from __future__ import annotations

import sys

import numpy as np

import kvstore

# All that affects a block's bytes besides its tokens. Equal records share blocks, others never do.
NAMESPACE = kvstore.Namespace(model="quickstart", dtype="float16", block_size=16, block_bytes=65536)


def compute(tokens: np.ndarray) -> np.ndarray:
    """Stands for prefill: the state of these tokens, as blocks."""
    blocks = tokens.reshape(-1, NAMESPACE.block_size)
    return np.tile((blocks.sum(axis=1) % 251).astype(np.uint8)[:, None], (1, NAMESPACE.block_bytes))


def main(endpoint: str) -> None:
    prompt = np.arange(16 * 40, dtype=np.uint32)
    with kvstore.Client(endpoint, deadline=1.0) as client:
        space = client.open(NAMESPACE)
        hashes = space.hash_chain(prompt)
        blocks = client.empty((len(hashes), NAMESPACE.block_bytes))  # lent: a node on this host copies straight into it

        cached = space.get(hashes, blocks).block_count  # a prefix; a dead or slow node costs the deadline at most
        blocks[cached:] = compute(prompt[cached * NAMESPACE.block_size :])
        stored = space.put(hashes, blocks).stored  # the node takes the blocks it lacks
        print(f"{cached} of {len(hashes)} blocks were cached, {stored} stored")
        assert (blocks == compute(prompt)).all()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "unix:///tmp/kvstore.sock")
