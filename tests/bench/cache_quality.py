#!/usr/bin/env python3
"""Does the policy `yield` keep its promises on made-up loads, or on a trace? The tables of docs/cache-quality.md.

Promised is, from 3,000 blocks of 512 tokens up: never fewer hits than LRU by more than 0.2 %; and where LRU has between
half and two thirds of the hits that are possible without a bound, at least 5 % more than LRU. Each line that breaks a
promise says so, and the exit status is then 1. Needs kvstore-bench and kvstore-policies; no node, no network. Takes about 20 minutes.

  tests/bench/cache_quality.py                                    all kinds, rates 1, 5 and 25, seeds 1 to 3
  tests/bench/cache_quality.py --kinds documents --rates 25 --seeds 7
  tests/bench/cache_quality.py --trace conversation_trace.jsonl.gz --split 32 --full-blocks
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

KINDS = "chat agent documents one-shot chat-one-shot agent-chat documents-one-shot mixed phases".split()
LOSS_MAX, GAIN_MIN = 0.002, 0.05


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/release/client/tools/kvstore-bench")
    parser.add_argument("--policies", default="build/release/store/replay/kvstore-policies")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS)
    parser.add_argument("--rates", type=numbers, default=[1, 5, 25])
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--capacities", type=numbers, default=[3_000, 10_000, 30_000, 100_000], help="of 512 tokens")
    parser.add_argument("--trace", help="instead of made-up loads")
    parser.add_argument("--split", type=int, default=1, help="as of kvstore-policies; capacities grow with it")
    parser.add_argument("--full-blocks", action="store_true")
    return parser.parse_args()


def compare(given: argparse.Namespace, name: str, trace: str) -> int:
    """Prints a line for each capacity. Returns how many promises were broken."""
    command = [given.policies, "--trace", trace, "--policy", "lru,yield", "--json"]
    command += ["--capacity", ",".join(str(capacity * given.split) for capacity in given.capacities)]
    command += ["--split", str(given.split)] + (["--full-blocks"] if given.full_blocks else [])
    document = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    cells = {(cell["policy"], cell["capacity"]): cell for cell in document["results"]}
    broken = 0
    for capacity in sorted(capacity * given.split for capacity in given.capacities):
        lru, ours = cells["lru", capacity], cells["yield", capacity]
        share = lru["hits"] / max(1, document["infinite_hit_rate"] * document["references"])
        gain = ours["hits"] / max(1, lru["hits"]) - 1
        verdict = ""
        if gain < -LOSS_MAX:
            verdict = "BELOW LRU"
        elif 1 / 2 <= share <= 2 / 3 and gain < GAIN_MIN:
            verdict = "GAINS TOO LITTLE"
        broken += verdict != ""
        print(
            f"| {name} | {capacity:,} | {lru['hit_rate']:.4f} | {share:.2f} | {ours['hit_rate']:.4f} | {gain:+.2%} "
            f"| {lru['stored_per_request']:.1f} | {ours['stored_per_request']:.1f} | {verdict} |",
            flush=True,
        )
    return broken


def main() -> int:
    given = options()
    print("| load | blocks | LRU | of possible | yield | more than LRU | LRU stores | yield stores | |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    if given.trace:
        return min(1, compare(given, Path(given.trace).name, given.trace))
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        trace = f"{folder}/load.jsonl"
        for kind in given.kinds:
            for rate in given.rates:
                for seed in given.seeds:
                    make = [given.bench, "generate", "--kind", kind, "--rate", str(rate), "--seed", str(seed)]
                    subprocess.run([*make, "--requests", str(given.requests), "--out", trace], check=True)
                    broken += compare(given, f"{kind}, rate {rate}, seed {seed}", trace)
    print(f"\n{broken} promises broken")
    return min(1, broken)


if __name__ == "__main__":
    sys.exit(main())
