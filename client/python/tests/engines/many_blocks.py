"""10,000 stored blocks of each model, of which a small node has evicted some and keeps others on disk: cold, loaded by
another process, and without a store. Tokens and log-probabilities are equal to the last bit, or the script fails.

PYTHONPATH=build/engines/site KV_NODE=build/release/store/node/kvstore-node \\
    PYTHON client/python/tests/engines/many_blocks.py [--blocks 10000] [--models llama,gemma3,deepseek]

PYTHON is one that has vLLM, as for deploy/test.sh --engines, which also builds what PYTHONPATH names. Three engines run at
once: 8 GiB of memory and 1 GiB of disk are enough.
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

#: Tokens of a page.
BLOCK_SIZES = {"llama": 32, "gemma3": 32, "deepseek": 16}
#: A group's share of a page; gemma3 has six groups.
BLOCK_BYTES = {"llama": 65536, "gemma3": 16384, "deepseek": 16 * 576 * 2 * 3}
#: Of all bytes that are stored, memory and the disk keep so many.
MEMORY_SHARE, DISK_SHARE = 0.2, 0.4
PROMPT_TOKENS = (900, 1900)
#: Nothing is said of a model unless so many hits came from the store.
HITS_MIN = 4


class Seen:
    """What the store's part of one model's run was."""

    def __init__(self) -> None:
        self.prompts = self.whole = self.partial = self.missed = self.loaded_tokens = 0

    def count(self, tokens: int, whole: int) -> None:
        self.prompts += 1
        self.loaded_tokens += tokens
        if tokens == 0:
            self.missed += 1
        elif tokens == whole:
            self.whole += 1
        else:
            self.partial += 1


def values(client: kvstore.Client) -> dict[str, float]:
    (node,) = client.stats()
    assert node["error"] is None, node
    return dict(node["values"])


def wait_for_disk(client: kvstore.Client) -> None:
    until = time.monotonic() + 60
    while values(client)["disk_is_on"] == 0 or values(client)["disk_is_loading"] != 0:
        assert time.monotonic() < until, "the disk does not open"
        time.sleep(0.05)


def with_own_hit(plain: Engine, prompt: list[int], tokens: int) -> Any:
    """What an engine without a store says that has computed so many leading tokens before, and so computes the same rest."""
    plain.reset()
    plain.generate(prompt[: tokens + 1], max_tokens=1)  # one more, so that its last page is one that a window keeps
    answer = plain.generate(prompt, max_tokens=8)
    assert answer["cached"] == [tokens], (answer["cached"], tokens)
    return answer


def run(kind: str, blocks: int, folder: Path) -> None:
    began = time.monotonic()
    size = BLOCK_SIZES[kind]
    model = tiny.make(kind, folder)
    stored_bytes = blocks * BLOCK_BYTES[kind]
    node = Node(
        *("--spill-path", str(folder / f"spill-{kind}"), "--spill-capacity", str(int(stored_bytes * DISK_SHARE))),
        capacity=str(int(stored_bytes * MEMORY_SHARE)),
    )
    # MLA: where vLLM's kernels are wrong after a hit, they are after each engine's own as well, and in the same way.
    arguments: dict[str, Any] = {"block_size": size, "force_prefix_caching": kind == "deepseek"}
    names = ("plain", "first", "second")
    engines = [
        Engine(model, None if name == "plain" else node.endpoint, folder / f"{kind}-{name}.log", **arguments)
        for name in names
    ]
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
            # The newest first: what was stored last is in memory, what was before it on disk, the rest is gone.
            seen = Seen()
            wrong = []
            for i in reversed(range(len(prompts))):
                prompt = prompts[i]
                loaded = second.generate(prompt, max_tokens=8)
                tokens = loaded["cached"][0]
                seen.count(tokens, (len(prompt) - 1) // size * size)
                plain.reset()
                without = plain.generate(prompt, max_tokens=8)
                if not same(cold[i], without):
                    wrong.append(f"prompt {i}: an engine that stores differs from one that does not")
                expected = without if tokens == 0 else with_own_hit(plain, prompt, tokens)
                if not same(loaded, expected):
                    wrong.append(f"prompt {i}: {tokens} loaded tokens give something else")
            now = values(client)
            failed = second.metrics("vllm:kvstore_loads_failed").get("vllm:kvstore_loads_failed", 0)
    except BaseException:
        for name in names:
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
        f"{now['disk_evicted_blocks']:.0f} gone from it. {seen.prompts} prompts: {seen.whole} loaded whole, {seen.partial} in "
        f"part, {seen.missed} not; {seen.loaded_tokens} tokens; {failed:.0f} loads short; {len(wrong)} wrong answers; "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    if wrong:
        raise SystemExit("\n".join(wrong))
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
