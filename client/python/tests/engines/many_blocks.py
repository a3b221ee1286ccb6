"""10,000 stored blocks of each model, some evicted by a small node and others on disk: cold, loaded by another process, and without a
store. Fails unless loaded pages, tokens and log-probabilities equal those of an engine without a store to the last bit.

PYTHONPATH=build/engines/site KV_NODE=build/release/store/node/kvstore-node \\
    PYTHON client/python/tests/engines/many_blocks.py [--blocks 10000] [--models llama,gemma3,deepseek]

PYTHON has vLLM, as for deploy/test.sh --engines, which also builds the PYTHONPATH folder. Takes 4 GiB of memory and 1 GiB of disk.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny
from conftest import Node
from test_vllm_engine import Engine, prompt_of, same

import kvstore

BLOCK_SIZES = {"llama": 32, "gemma3": 32, "deepseek": 16}
#: A group's share of a page; gemma3 has six groups.
BLOCK_BYTES = {"llama": 65536, "gemma3": 16384, "deepseek": 16 * 576 * 2 * 3}
#: Models whose pages depend on the number of later tokens in the prompt: torch's matrix products split their sums by size (traps in
#: docs/engines/vllm.md). Two prompts with a common beginning then differ in its last bits.
DEPENDS_ON_LENGTH = ("deepseek",)
#: Share of all stored bytes that fits in memory and on disk.
MEMORY_SHARE, DISK_SHARE = 0.2, 0.4
PROMPT_TOKENS = (900, 1900)
NAMES = ("plain", "first", "second")
#: Results count only with so many hits from the store.
HITS_MIN = 4


class Seen:
    """Results of one model's run."""

    def __init__(self) -> None:
        self.prompts = self.whole = self.partial = self.missed = self.loaded_tokens = self.pages = self.answers = 0

    def count(self, tokens: int, whole: int) -> None:
        self.prompts += 1
        self.loaded_tokens += tokens
        if tokens == 0:
            self.missed += 1
        elif tokens == whole:
            self.whole += 1
        else:
            self.partial += 1

    def other_pages(self, loaded: Any, right: Any) -> list[str]:
        """Loaded pages with other bytes. Window blocks that the hit does not need were not loaded."""
        pairs = [
            (f"block {i} of group {g} has other bytes", loaded[i][g], right[i][g])
            for i in range(len(loaded))
            for g in range(len(loaded[i]))
            if loaded[i][g] is not None and right[i][g] is not None
        ]
        self.pages += len(pairs)
        return [what for what, one, other in pairs if one != other]

    def __str__(self) -> str:
        return (
            f"{self.prompts} prompts: {self.whole} loaded whole, {self.partial} in part, {self.missed} not; "
            f"{self.loaded_tokens} tokens; {self.pages} loaded pages and {self.answers} answers compared"
        )


def values(client: kvstore.Client) -> dict[str, float]:
    (node,) = client.stats()
    assert node["error"] is None, node
    return dict(node["values"])


def wait_for_disk(client: kvstore.Client) -> None:
    until = time.monotonic() + 60
    while values(client)["disk_is_on"] == 0 or values(client)["disk_is_loading"] != 0:
        assert time.monotonic() < until, "the disk does not open"
        time.sleep(0.05)


def with_own_hit(plain: Engine, prompt: list[int], tokens: int, *, is_whole: bool) -> Any:
    """The answer of an engine without a store after a hit of its own of the same length. Its cache has the whole prompt from before."""
    if not is_whole:
        plain.reset()
        plain.generate(prompt[: tokens + 1], max_tokens=1)  # one more, so that a window keeps its last page
    answer = plain.generate(prompt, max_tokens=8)
    assert answer["cached"] == [tokens], (answer["cached"], tokens)
    return answer


def start(kind: str, model: Path, node: Node, folder: Path) -> list[Engine]:
    """One without a store, one that stores, and one that loads."""
    # MLA: vLLM's kernels are wrong after a hit, in the same way after each engine's own.
    arguments: dict[str, Any] = {"block_size": BLOCK_SIZES[kind], "force_prefix_caching": kind == "deepseek"}
    # Memory for a few prompts, since all of it is touched at the start.
    arguments |= {"num_gpu_blocks_override": 2000, "options": {"staging_bytes": 64 << 20}}
    return [
        Engine(
            model,
            None if name == "plain" else node.endpoint,
            folder / f"{kind}-{name}.log",
            in_process=True,
            **arguments,
        )
        for name in NAMES
    ]


def load(kind: str, seen: Seen, plain: Engine, second: Engine, prompt: list[int], cold: Any) -> list[str]:
    """Errors in the prompt's pages and answers in an engine that has to load them."""
    size = BLOCK_SIZES[kind]
    whole = (len(prompt) - 1) // size * size
    loaded = second.generate(prompt, max_tokens=8)
    tokens = loaded["cached"][0]
    seen.count(tokens, whole)
    pages = second.pages(prompt)[: tokens // size]
    plain.reset()
    without = plain.generate(prompt, max_tokens=8)
    wrong = seen.other_pages(pages, plain.pages(prompt))
    if not same(cold, without):
        wrong.append("an engine that stores differs from one that does not")
    if 0 < tokens < whole and kind in DEPENDS_ON_LENGTH:
        return wrong
    seen.answers += 1
    expected = without if tokens == 0 else with_own_hit(plain, prompt, tokens, is_whole=tokens == whole)
    if not same(loaded, expected):
        wrong.append(f"{tokens} loaded tokens give something else")
    return wrong


def run(kind: str, blocks: int, folder: Path) -> None:
    began = time.monotonic()
    model = tiny.make(kind, folder)
    stored_bytes = blocks * BLOCK_BYTES[kind]
    node = Node(
        *("--disk-path", str(folder / f"disk-{kind}"), "--disk-capacity", str(int(stored_bytes * DISK_SHARE))),
        capacity=str(int(stored_bytes * MEMORY_SHARE)),
    )
    engines = start(kind, model, node, folder)
    plain, first, second = engines
    rng = random.Random(1)
    try:
        with kvstore.Client(node.endpoint, deadline=30) as client:
            wait_for_disk(client)
            prompts: list[list[int]] = []
            cold = []
            while values(client)["stored_blocks"] < blocks:
                prompts.append(prompt_of(rng.randrange(*PROMPT_TOKENS), len(prompts)))
                cold.append(first.generate(prompts[-1], max_tokens=8))
                assert cold[-1]["cached"] == [0], cold[-1]["cached"]
            first_stored = values(client)["stored_blocks"]
            seen = Seen()
            wrong = []
            # Newest first: the last stored are in memory, earlier ones on disk, the rest is gone.
            for i in reversed(range(len(prompts))):
                wrong += [f"prompt {i}: {what}" for what in load(kind, seen, plain, second, prompts[i], cold[i])]
            now = values(client)
            failed = second.metrics("vllm:kvstore_loads_failed").get("vllm:kvstore_loads_failed", 0)
    except BaseException:
        for name in NAMES:
            print((folder / f"{kind}-{name}.log").read_text(errors="replace")[-2000:], file=sys.stderr)
        raise
    finally:
        for engine in engines:
            engine.begin_close()
        for engine in engines:
            engine.close()
        node.close()
    print(
        f"{kind}: {first_stored:.0f} blocks stored, {now['stored_blocks']:.0f} in the end, {now['put_conflict_blocks']:.0f} under "
        f"a name that had other bytes; {now['evicted_blocks']:.0f} left memory, {now['spilled_blocks']:.0f} written to disk, "
        f"{now['get_disk_blocks']:.0f} loaded from it, {now['get_hit_blocks']:.0f} from memory, "
        f"{now['disk_evicted_blocks']:.0f} gone from it. {seen}; {failed:.0f} loads short; {len(wrong)} wrong; "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    if wrong:
        raise SystemExit("\n".join(wrong))
    if seen.pages < seen.loaded_tokens // BLOCK_SIZES[kind]:
        raise SystemExit(f"{kind}: only {seen.pages} pages were compared, {seen.loaded_tokens} tokens were loaded")
    for name in ("evicted_blocks", "spilled_blocks", "get_disk_blocks"):
        if now[name] == 0:
            raise SystemExit(f"{kind}: {name} is 0: nothing was shown of it")
    if seen.whole + seen.partial < HITS_MIN:
        raise SystemExit(f"{kind}: only {seen.whole + seen.partial} hits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10_000, help="stored blocks of each model (default 10000)")
    parser.add_argument("--models", default=",".join(BLOCK_SIZES), help=f"of {', '.join(BLOCK_SIZES)}")
    given = parser.parse_args()
    for kind in given.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            run(kind, given.blocks, Path(folder))


if __name__ == "__main__":
    main()
