"""Chains of block hashes that share their beginnings as prompts do. The hashes are random numbers: nobody here has tokens."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from processes import Client

#: Share of all blocks, and what a namespace is called.
MODELS: list[tuple[float, dict[str, object]]] = [
    (0.46, {"model": "meta-llama/Llama-3.1-70B-Instruct", "tenant": "acme", "dtype": "bfloat16"}),
    (0.27, {"model": "Qwen/Qwen3-32B", "tenant": "globex", "dtype": "fp8_e4m3"}),
    (
        0.17,
        {"model": "meta-llama/Llama-3.1-70B-Instruct", "tenant": "initech", "dtype": "bfloat16", "lora": "support-v7"},
    ),
    (0.10, {"model": "deepseek-ai/DeepSeek-V3", "tenant": "acme", "dtype": "bfloat16"}),
]


class Forest:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chain(self, blocks: int) -> bytes:
        """So many new blocks."""
        return self._random.randbytes(32 * blocks)

    def fill(self, client: Client, blocks: int) -> int:
        """Stores so many blocks, and looks some of them up, few often and most never."""
        stored = 0
        for share, fields in MODELS:
            space = client.open(block_bytes=64, block_size=16, **fields)
            wanted = round(blocks * share) if fields is not MODELS[-1][1] else blocks - stored
            stored += self._fill_space(client, space, wanted)
        return stored

    def _fill_space(self, client: Client, space: int, blocks: int) -> int:
        """System prompts; below each some applications; below each conversations, whose turns grow and sometimes part."""
        draw = self._random
        prompts = [self.chain(draw.choice([32, 64, 128])) for _ in range(4)]
        starts = [
            prompt + self.chain(draw.choice([16, 32, 96])) for prompt in prompts for _ in range(draw.randint(2, 9))
        ]
        popular = [1 / (1 + rank) for rank in range(len(starts))]
        stored, talks = 0, list(starts)
        while stored < blocks:
            begin = draw.choices(starts, popular)[0]
            if draw.random() < 0.5:  # a conversation that goes on from somewhere in another
                begin = draw.choice(talks[-60:])
                begin = begin[: 32 * draw.randint(len(begin) // 64, len(begin) // 32)]
            talk = begin + self.chain(min(draw.choice([32, 128, 256, 1024, 2048, 3072]), blocks - stored))
            if len(talk) // 32 > 8000:
                continue
            stored += self._put_up_to(client, space, talk, blocks - stored)
            talks.append(talk)
            if draw.random() < 0.3:
                for _ in range(draw.choice([1, 1, 2, 4, 12, 60])):
                    client.match(space, draw.choice(talks[-40:]))
        return stored

    def _put_up_to(self, client: Client, space: int, talk: bytes, most: int) -> int:
        """Beginnings are new at first, so a chain may have more new blocks than were asked for."""
        known = client.match(space, talk)
        return client.put(space, talk[: 32 * (known + most)])

    def load(self, client: Client, is_over: Callable[[], bool]) -> None:
        """Lookups of what is there and of what is not, and a few puts, until it is over."""
        talks = []
        for share, fields in MODELS:
            space = client.open(block_bytes=64, block_size=16, **fields)
            talks.append((share, space, self.chain(32) + self.chain(16)))
        while not is_over():
            _, space, talk = self._random.choices(talks, [share for share, _, _ in talks])[0]
            wanted = talk + self.chain(self._random.choice([0, 0, 8, 24]))
            found = client.match(space, wanted)
            if found > 0:
                client.get(space, wanted[: 32 * found])
            if found < len(wanted) // 32 and self._random.random() < 0.5:
                client.put(space, wanted)
            time.sleep(self._random.uniform(0.001, 0.01))
