"""An engine's pages on a GPU, real or simulated, and device memory for the store's blocks of the same things."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import namespace, tokens
from simulated import Device, DeviceArray

import kvstore
from kvstore import Layout, gather_with_checksums, scatter_verified
from kvstore.device import Stream

CHOSEN = [7, 0, 3, 5]
OTHERS = [1, 2, 4, 6, 8]
COUNT = len(CHOSEN)


def refuses(text, call, *arguments, **more):
    with pytest.raises(kvstore.BadRequest, match=text):
        call(*arguments, **more)


class Paged:
    """Blocks have two stripes each. ``rows`` are the memory that is lent."""

    def __init__(self, device: Device, client: kvstore.Client, seed: int = 5) -> None:
        rng = np.random.default_rng(seed)
        self.values = [rng.standard_normal((2, 9, 16, 16, 80)).astype(np.float16)]
        self.layout = Layout.of(self.values, "cbthf")
        self.device, self.client = device, client
        self.pages = [DeviceArray(device, each) for each in self.values]
        self.cache = self.layout.bind(self.pages)
        self.space = client.open(namespace(self.layout.store_block_bytes))
        self.hashes = self.space.hash_chain(tokens(16 * COUNT))
        self.seeds = self.space.checksum_seeds(self.hashes)
        self.rows = DeviceArray(device, np.full((COUNT, self.space.block_bytes), 0xEE, np.uint8))
        self.blocks = self.layout.store_block(COUNT).bind(self.rows)
        shape = (COUNT, self.space.stripe_count)
        memory = client.allocate(8 * COUNT * (self.space.stripe_count + 1), page_locked=True)
        self.sums = memory.array(shape, np.uint64)
        self.verdicts = memory.array(COUNT, np.uint32, offset=8 * COUNT * self.space.stripe_count)
        self.stream = Stream()

    def gather(self) -> None:
        event = gather_with_checksums(
            self.blocks, self.cache, blocks=CHOSEN, seeds=self.seeds, checksums=self.sums, stream=self.stream
        )
        assert event is not None and event.wait(30)

    def scatter(self, sums: np.ndarray) -> list[np.ndarray]:
        """Into new pages."""
        target = [DeviceArray(self.device, np.zeros_like(each)) for each in self.values]
        self.verdicts[:] = 7
        event = scatter_verified(
            self.layout.bind(target),
            self.blocks,
            blocks=CHOSEN,
            seeds=self.seeds,
            checksums=sums,
            verdicts=self.verdicts,
            stream=self.stream,
        )
        assert event is not None and event.wait(30)
        return [each.numpy() for each in target]

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Blocks and checksums as the host computes them."""
        rows, sums = np.zeros(self.rows.shape, np.uint8), np.zeros(self.sums.shape, np.uint64)
        to = self.layout.store_block(COUNT).bind(rows)
        gather_with_checksums(to, self.layout.bind(self.values), blocks=CHOSEN, seeds=self.seeds, checksums=sums)
        return rows, sums
