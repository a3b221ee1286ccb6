"""The figures of docs/engines.md: time to first token without a cache, with vLLM's own and with the store's, and how long
the connector's hooks take. With a real engine on the CPU, one node for each transport, medians of rounds in turn.

PYTHONPATH=build/engines/site KV_NODE=build/release/store/node/kvstore-node \\
    PYTHON client/python/tests/engines/measure_vllm.py [--tokens 1000,4000,16000] [--rounds 7] [--threads 2]

PYTHON is one that has vLLM, as for deploy/test.sh --engines, which also builds what PYTHONPATH names. Nothing else may run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import transformers
from conftest import Node
from test_vllm_engine import BLOCK, Engine, free_port

import kvstore

MIB = 1 << 20


def make_model(folder: Path, tokens_max: int, layers: int) -> Path:
    """Of 16 KiB a token at 8 layers, as wide as small models are, so that computing costs something."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=1024,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=64,
        initializer_range=0.2,
        max_position_embeddings=tokens_max,
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "model")
    return folder / "model"


def push_to_disk(node: Node, nbytes: int) -> None:
    """Puts so many other bytes, after which what was there before is on disk only."""
    with kvstore.Client(node.endpoint, deadline=30) as client:
        space = client.open_set(kvstore.Namespace({"kind": "set", "model": "filler", "block_bytes_max": MIB}))
        blocks = np.random.default_rng().integers(0, 256, (64, MIB), np.uint8)
        for _ in range(nbytes // MIB // 64 + 1):
            blocks[:, 0] += 1
            put = space.put([random.randbytes(32) for _ in range(64)], blocks)
            # What is evicted before the disk has it is lost.
            time.sleep(0.2 if put.stored == 64 else 1.0)


def ask_first_token(engine: Engine, prompt: list[int]) -> tuple[float, int]:
    """Milliseconds to the first token, and how many of the prompt's were not computed."""
    answer = engine.generate(prompt, max_tokens=1)
    return answer["seconds"] * 1e3, answer["cached"][0]


def until_stored(engine: Engine, tokens: int, was: float) -> None:
    """Steps the engine, so that it sees its puts end, until all of the prompt's bytes are stored."""
    until = time.monotonic() + 60
    name = "vllm:kvstore_stored_bytes"
    while engine.metrics(name)[name] - was < tokens:
        if time.monotonic() > until:
            raise RuntimeError(f"not stored: {engine.metrics('vllm:kvstore')}")
        engine.generate([1, 2, 3], max_tokens=2)
        time.sleep(0.05)


def check(name: str, engine: Engine, cached: int, expected: int) -> None:
    if cached != expected:
        raise RuntimeError(f"{name}: {cached} tokens were cached, not {expected}: {engine.metrics('vllm:kvstore')}")


def table(rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for i, row in enumerate(rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if i == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        tokens_max = max(*options.tokens, 1000) + 64  # 1,000: for traffic()
        self.folder = folder
        self.rng = random.Random(1)
        self.token_bytes = options.layers * 2 * 8 * 64 * 2
        self.disk_memory = max(512, 2 * tokens_max * self.token_bytes // MIB) * MIB
        model = make_model(folder, tokens_max, options.layers)
        port = free_port()
        memory = Node("--listen", f"tcp://127.0.0.1:{port}", capacity=f"{options.capacity}MiB")
        disk = Node(
            "--spill-path",
            str(folder / "spill"),
            "--spill-capacity",
            "64GiB",
            capacity=f"{self.disk_memory // MIB}MiB",
        )
        self.nodes = {"shared memory": memory, "TCP": memory, "disk": disk}
        endpoints = {
            "no store": None,
            "shared memory": memory.endpoint,
            "TCP": f"tcp://127.0.0.1:{port}",
            "disk": disk.endpoint,
        }
        os.environ["KVSTORE_HOOK_TIMES"] = str(folder)
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, 3 * tokens_max * self.token_bytes // (1 << 30) + 1))
        os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
        self.engines = {}
        for name in ["no store", *options.stores]:
            endpoint = endpoints[name]
            arguments: dict[str, Any] = {"max_model_len": tokens_max, "max_num_batched_tokens": tokens_max}
            if endpoint is not None:
                arguments["kv_transfer_config"] = {
                    "kv_connector": "TimedConnector",
                    "kv_connector_module_path": "timed",
                    "kv_role": "kv_both",
                    "kv_load_failure_policy": "recompute",
                    # A late answer would make a miss of what is to be measured; an answer in time costs no more by this.
                    "kv_connector_extra_config": {"endpoints": endpoint, "lookup_timeout": 0.1, "load_timeout": 10.0}
                    # As much as the longest prompt: more than that in flight would be measured otherwise.
                    | {"staging_bytes": 2 * tokens_max * self.token_bytes},
                }
            self.engines[name] = Engine(
                model, None, folder / f"{name.replace(' ', '-')}.log", threads=options.threads, **arguments
            )
        for each in self.engines.values():
            each.wait_ready()

    def prompt(self, count: int) -> list[int]:
        return self.rng.choices(range(1024), k=count)

    def first_tokens(self, tokens: int, rounds: int) -> list[list[str]]:
        """Of prompts that were never seen, that the engine has itself, and that only the store has."""
        times: dict[str, dict[str, list[float]]] = {
            name: {"miss": [], "own": [], "store": [], "over own": []} for name in self.engines
        }
        hit = (tokens - 1) // BLOCK * BLOCK
        for i in range(-1, rounds):  # the first is not counted
            order = list(self.engines)
            self.rng.shuffle(order)
            for name in order:
                engine, taken = self.engines[name], times[name]
                prompt = self.prompt(tokens)
                stored = "vllm:kvstore_stored_bytes"
                was = engine.metrics(stored).get(stored, 0.0)
                miss, cached = ask_first_token(engine, prompt)
                check(name, engine, cached, 0)
                if name != "no store":
                    until_stored(engine, hit * self.token_bytes, was)
                own, cached = ask_first_token(engine, prompt)
                check(name, engine, cached, hit)
                engine.reset()
                if i >= 0:
                    taken["miss"].append(miss)
                    taken["own"].append(own)
                if name == "disk":
                    push_to_disk(self.nodes[name], 2 * self.disk_memory)
                if name != "no store":
                    loaded, cached = ask_first_token(engine, prompt)
                    engine.reset()
                    if name == "disk" and cached < hit:
                        print("a round without a time from the disk: it was behind, and blocks were lost")
                        continue
                    check(name, engine, cached, hit)
                    if i >= 0:
                        taken["store"].append(loaded)
                        taken["over own"].append(loaded / own)
        plain = times["no store"]
        rows = []
        for name, taken in times.items():
            over = [a / b for a, b in zip(taken["miss"], plain["miss"], strict=True)]
            rows.append(
                [
                    str(tokens),
                    name,
                    spread(taken["miss"]),
                    spread(taken["own"]),
                    "",
                    f"{statistics.median(over):.3f}",
                    "",
                ]
            )
            if taken["store"]:
                rows[-1][4] = spread(taken["store"])
                rows[-1][6] = f"{statistics.median(taken['over own']):.2f}"
        return rows

    def traffic(self, requests: int) -> None:
        """For the hooks: eight requests at a time, half of each prompt shared with another, and answers of 32 tokens."""
        roots = [self.prompt(500) for _ in range(8)]
        for name in set(self.engines) & {"shared memory", "TCP"}:
            for _ in range(requests // 8):
                prompts = [self.rng.choice(roots) + self.prompt(self.rng.randrange(10, 500)) for _ in range(8)]
                self.engines[name].generate(*prompts, max_tokens=32)
                if self.rng.random() < 0.3:
                    self.engines[name].reset()

    def close(self) -> None:
        for each in self.engines.values():
            each.begin_close()
        for each in self.engines.values():
            each.close()
        for node in set(self.nodes.values()):
            node.close()

    def hooks(self) -> list[list[str]]:
        """Of all engines together."""
        seconds: dict[str, list[float]] = {}
        for path in self.folder.glob("*.json"):
            for name, values in json.loads(path.read_text()).items():
                seconds.setdefault(name, []).extend(values)
        rows = []
        for name, values in seconds.items():
            if values:
                values.sort()
                at = [values[min(len(values) - 1, int(len(values) * share))] * 1e6 for share in (0.5, 0.99)]
                rows.append([name, str(len(values)), f"{at[0]:.1f}", f"{at[1]:.1f}", f"{values[-1] * 1e6:.0f}"])
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="1000,4000,16000", help="lengths of prompts")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2, help="of each engine's kernels")
    parser.add_argument("--layers", type=int, default=8, help="of the model: its work and its bytes")
    parser.add_argument("--capacity", type=int, default=4096, help="MiB of the node that keeps all in memory")
    parser.add_argument("--stores", default="shared memory,TCP,disk", help="which of these")
    parser.add_argument("--requests", type=int, default=200, help="for the hooks")
    options = parser.parse_args()
    options.stores = options.stores.split(",")
    for name in options.stores:
        if name not in ("shared memory", "TCP", "disk"):
            parser.error(f"--stores: {name!r} is none of 'shared memory', 'TCP', 'disk'")
    options.tokens = [int(each) for each in options.tokens.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        try:
            rows = []
            for tokens in options.tokens:
                rows += bench.first_tokens(tokens, options.rounds)
            bench.traffic(options.requests)
        finally:
            bench.close()
        print("Milliseconds to the first token: median (least-most)\n")
        table(
            [["tokens", "store", "never seen", "own cache", "from the store", "miss / no store", "store / own"], *rows]
        )
        print("\nMicroseconds of a hook\n")
        table([["hook", "calls", "p50", "p99", "most"], *bench.hooks()])


if __name__ == "__main__":
    main()
