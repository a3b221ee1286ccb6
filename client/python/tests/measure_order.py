"""What the order of requests is worth: hits of a full cache in the order of arrival, in random order, and as plan_shared_prefixes() sorts them.

python client/python/tests/measure_order.py [--seed 1] [--questions 8] [--running 4] [--queue 32]

Agents with a system prompt each, documents that their users ask about, and questions. A document's questions come in turn, while other
documents' come in between. Requests run in pages of 16 tokens, a few at a time; whatever does not fit evicts what was used longest ago.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable, Sequence

import numpy as np

import kvstore

BLOCK = 16
AGENTS, DOCUMENTS = 8, 4  # documents of an agent
ANSWER = 128  # tokens
SPACE = kvstore.Namespace(model="order", block_size=BLOCK, block_bytes=4096)


def batch_of(rng: np.random.Generator, questions: int) -> list[np.ndarray]:
    """Prompts in the order of their arrival."""

    def text(least: int, most: int) -> np.ndarray:
        return rng.integers(0, 1 << 17, int(rng.integers(least, most)), dtype=np.uint32)

    arrivals = []
    for _ in range(AGENTS):
        system = text(500, 2000)
        for _ in range(DOCUMENTS):
            document = np.concatenate([system, text(1000, 6000)])
            times = rng.random() * 10 + np.cumsum(rng.exponential(1.0, questions))
            arrivals += [(float(time), np.concatenate([document, text(20, 200)])) for time in times]
    return [prompt for _, prompt in sorted(arrivals, key=lambda each: each[0])]


def hit_tokens(
    prompts: Sequence[np.ndarray], chains: Sequence[np.ndarray], order: Iterable[int], page_count: int, running: int
) -> int:
    """Prompt tokens found in the cache, with up to ``running`` requests open at a time."""
    cache, hits = kvstore.PagedCache(kvstore.PagePool(page_count + 1), BLOCK), 0
    opened: collections.deque[int] = collections.deque()
    for i in order:
        while True:
            try:
                if len(opened) < running:
                    sequence, cached = cache.open(chains[i], len(prompts[i]))
                    cache.name_blocks(sequence, chains[i])
                    break
            except kvstore.OutOfMemory:
                pass  # waits for the oldest to end
            cache.close(opened.popleft())
        opened.append(sequence)
        hits += cached
        try:
            cache.append(sequence, ANSWER)
        except kvstore.OutOfMemory:
            cache.close(opened.popleft())  # its answer is cut short
    return hits


def planned(chains: Sequence[np.ndarray], indices: Sequence[int]) -> list[int]:
    order = kvstore.plan_shared_prefixes([chains[i] for i in indices], block_size=BLOCK).order
    return [indices[k] for k in order]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--questions", type=int, default=8, help="for each document")
    parser.add_argument("--running", type=int, default=4, help="requests at a time")
    parser.add_argument("--queue", type=int, default=32, help="requests that wait together and are sorted")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    prompts = batch_of(rng, given.questions)
    chains = [SPACE.hash_chain(prompt) for prompt in prompts]
    everything, total = list(range(len(prompts))), sum(map(len, prompts))
    distinct = len({row.tobytes() for chain in chains for row in chain})
    longest = max(-(-(len(prompt) + ANSWER) // BLOCK) for prompt in prompts)
    queues = [everything[i : i + given.queue] for i in range(0, len(everything), given.queue)]
    orders = {
        "arrival": everything,
        f"planned, {given.queue} at a time": [i for queue in queues for i in planned(chains, queue)],
        "random": rng.permutation(len(prompts)).tolist(),
        "planned, all at once": planned(chains, everything),
    }
    shares = [share for share in (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2) if share * distinct >= longest]
    print(
        f"seed {given.seed}: {len(prompts)} prompts of {total:,} tokens, {distinct * BLOCK:,} of them distinct (whole "
        f"blocks); {given.running} requests at a time\n"
    )
    print("| order \\ cache holds | " + " | ".join(f"1/{round(1 / share)}" for share in shares) + " | everything |")
    print("| --- |" + " ---: |" * (len(shares) + 1))
    for name, order in orders.items():
        sizes = [*(int(share * distinct) for share in shares), 4 * distinct]
        hits = [hit_tokens(prompts, chains, order, size, given.running) for size in sizes]
        print(f"| {name} | " + " | ".join(f"{each:,} ({100 * each / total:.0f} %)" for each in hits) + " |")


if __name__ == "__main__":
    main()
