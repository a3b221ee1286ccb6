"""First token of a stored prefix: by the tier behind vLLM's pool, by vLLM's own file tier behind the same pool, and by the connector.

    PYTHONPATH=SITE KV_NODE=kvstore-node python measure_tier.py [ROUNDS] [TOKENS]

All in one run, rounds paired. Each engine has a pool for about one prompt: between storing and asking another prompt goes through it, so
that what is asked for comes from behind the pool. On a machine that does nothing else; engines spin on all of its cores.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tiny
from conftest import Node
from measuring import in_turn, table
from test_vllm_engine import BLOCK, Engine, prompt_of
from tier_cpu import transfer_config


def first_token(engine: Engine, prompt: list[int]) -> tuple[float, int]:
    engine.reset()
    answer = engine.generate(prompt, max_tokens=1)
    return answer["seconds"] * 1e3, answer["cached"][0]


def main() -> None:
    rounds, tokens = [int(each) for each in (*sys.argv[1:], "5", "4000")[:2]]
    folder = Path(tempfile.mkdtemp(prefix="measure-tier"))
    model = tiny.make("llama", folder)
    node = Node(capacity="2GiB")
    pool = (tokens // BLOCK + 20) * 4 * 2 * BLOCK * 4 * 32 * 2  # layers, K and V, heads, their size, bfloat16
    common: dict[str, Any] = {"num_gpu_blocks_override": 12 * tokens // BLOCK, "max_model_len": 2 * tokens}

    def tier(name: str, **options: Any) -> Engine:
        config = transfer_config(node.endpoint, pool)
        config["kv_connector_extra_config"]["secondary_tiers"] = [options]
        return Engine(model, None, folder / f"{name}.log", kv_transfer_config=config, **common)

    engines = {
        "tier": tier("tier", type="KVStoreTier", module_path="kvstore.vllm.tier", endpoints=node.endpoint),
        "files": tier("files", type="fs", root_dir=str(folder / "blocks")),
        "connector": Engine(model, node.endpoint, folder / "connector.log", options={"salt": "own"}, **common),
        "computed": Engine(model, None, folder / "plain.log", **common),
    }
    for each in engines.values():
        each.wait_ready()
        each.generate(prompt_of(tokens, 1), max_tokens=1)  # kernels warm up

    def measure(name: str, number: int) -> dict[str, float]:
        engine, prompt, other = engines[name], prompt_of(tokens, 100 + number), prompt_of(tokens, 200 + number)
        for each in (prompt, other) if name != "computed" else ():
            engine.generate(each, max_tokens=1)
            for i in range(3):  # vLLM hands chunks on in later steps
                engine.generate(prompt_of(20, 1000 + 10 * number + i), max_tokens=2)
            time.sleep(0.5)
        seconds, cached = first_token(engine, prompt)
        hits.setdefault(name, set()).add(cached)
        return {"first token": seconds}

    hits: dict[str, set[int]] = {}
    print(f"{tokens} tokens, {rounds} rounds")
    print(table(in_turn(list(engines), rounds, measure), list(engines), "tier"))
    print("tokens that were cached:", {name: sorted(each) for name, each in hits.items()})
    for each in engines.values():
        each.close()
    node.close()


if __name__ == "__main__":
    main()
