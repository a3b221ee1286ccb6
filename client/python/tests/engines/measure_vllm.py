"""The figures of docs/engines/vllm.md: time to first token without a cache, with vLLM's own, with the store's and with other connectors';
the throughput of conversations; and the duration of the connector's hooks. With real engines on the CPU, in rounds: each asks all engines
for one prompt, in random order. Prints medians of rounds.

PYTHONPATH=build/engines/site KV_NODE=build/release/store/node/kvstore-node \\
    PYTHON client/python/tests/engines/measure_vllm.py [--minutes 9]

PYTHON has vLLM, as for deploy/test.sh --engines, which also builds the PYTHONPATH folder. With lmcache 0.5.6 and
mooncake-transfer-engine-non-cuda 0.3.13.post1 beside it, these are measured too. With them it takes 16 GiB of memory and 6 GiB of disk.
Needs an otherwise idle machine. `--layers 1 --tokens 200,400 --minutes 2` only shows that it works.
"""

from __future__ import annotations

import argparse
import contextlib
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
import peers
import torch
import transformers
from conftest import Node
from test_vllm_engine import BLOCK, Engine, free_port

import kvstore

MIB = 1 << 20
#: The longest prompt of conversations and of traffic.
TALK_TOKENS = 2000
COLUMNS = {
    "miss": "never seen",
    "own": "own cache",
    "loaded": "from the store",
    "over none": "never seen / no store",
    "over own": "from the store / own",
}


def make_model(folder: Path, tokens_max: int, layers: int) -> Path:
    """8 KiB per token at 4 layers, as wide as small models are, so that computing 4,000 tokens takes seconds."""
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
    """Puts so many other bytes, after which earlier blocks are on disk only."""
    with kvstore.Client(node.endpoint, deadline=30) as client:
        space = client.open_set(kvstore.Namespace({"kind": "set", "model": "filler", "block_bytes_max": MIB}))
        blocks = np.random.default_rng().integers(0, 256, (64, MIB), np.uint8)
        for _ in range(nbytes // MIB // 64 + 1):
            blocks[:, 0] += 1
            put = space.put([random.randbytes(32) for _ in range(64)], blocks)
            # Blocks evicted before they are on disk are lost.
            time.sleep(0.2 if put.stored == 64 else 1.0)


def until_idle(node: Node) -> None:
    """Waits until the node has finished its disk writes, which take a core that kernels need."""
    assert node.process is not None
    stat = Path(f"/proc/{node.process.pid}/stat")
    until = time.monotonic() + 60
    ticks, was = 0, -1000
    while ticks - was > 2 and time.monotonic() < until:
        was = ticks
        time.sleep(0.5)
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        ticks = int(user) + int(system)


def ask_first_token(engine: Engine, prompt: list[int]) -> tuple[float, int]:
    """Milliseconds to the first token, and how many of the prompt's tokens were cached."""
    time.sleep(0.3)  # the previous engine's kernel threads spin for a while
    engine.generate([1, 2, 3], max_tokens=1)  # after a second without work, an engine sleeps
    answer = engine.generate(prompt, max_tokens=1)
    return answer["seconds"] * 1e3, answer["cached"][0]


def until_stored(engine: Engine, tokens: int, was: float) -> None:
    """Steps the engine, so that its puts end, until all of the prompt's bytes are stored."""
    until = time.monotonic() + 60
    name = "vllm:kvstore_stored_bytes"
    while engine.metrics(name)[name] - was < tokens:
        if time.monotonic() > until:
            raise RuntimeError(f"not stored: {engine.metrics('vllm:kvstore')}")
        engine.generate([1, 2, 3], max_tokens=2)
        time.sleep(0.05)


def check(name: str, engine: Engine, cached: int, expected: int) -> None:
    # OffloadingConnector also counts the last block, whose last token vLLM computes again.
    if not expected <= cached <= (expected + BLOCK if expected and name in peers.PEERS else expected):
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
    """``stores``: an engine beside the node, also reading its disk, and one by TCP, sharing blocks. Each peer has an engine."""

    def __init__(self, options: argparse.Namespace, folder: Path, leave: contextlib.ExitStack) -> None:
        tokens_max = max(*options.tokens, TALK_TOKENS) + 64
        self.rng = random.Random(1)
        self.until = time.monotonic() + options.minutes * 60
        self.token_bytes = options.layers * 2 * 8 * 64 * 2
        prompt_bytes = tokens_max * self.token_bytes
        self.node_memory = max(512, 2 * prompt_bytes // MIB) * MIB
        model = make_model(folder, tokens_max, options.layers)
        port = free_port()
        disk = ("--disk-path", str(folder / "disk"), "--disk-capacity", "64GiB") if "disk" in options.stores else ()
        self.node = Node("--listen", f"tcp://127.0.0.1:{port}", *disk, capacity=f"{self.node_memory // MIB}MiB")
        leave.callback(self.node.close)
        self.hook_times = folder / "hooks"
        self.hook_times.mkdir()
        os.environ["KVSTORE_HOOK_TIMES"] = str(self.hook_times)
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, 3 * prompt_bytes // (1 << 30) + 1))
        os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{folder}:{os.environ.get('PYTHONPATH', '')}"
        peers.write_plugin(folder)
        self.engines: dict[str, Engine] = {}

        def start(name: str, transfer: dict[str, Any] | None) -> None:
            arguments: dict[str, Any] = {"max_model_len": tokens_max, "max_num_batched_tokens": tokens_max}
            if transfer is not None:
                arguments["kv_transfer_config"] = transfer
            log = folder / f"{name.replace(' ', '-')}.log"
            self.engines[name] = Engine(model, None, log, threads=options.threads, **arguments)
            leave.callback(self.engines[name].close)

        start("no store", None)
        for name, endpoint in (("shared memory", self.node.endpoint), ("TCP", f"tcp://127.0.0.1:{port}")):
            if name not in options.stores:
                continue
            start(
                name,
                {
                    "kv_connector": "TimedConnector",
                    "kv_connector_module_path": "timed",
                    "kv_role": "kv_both",
                    "kv_load_failure_policy": "recompute",
                    # A late answer would turn the measured hit into a miss; a timely one costs no more.
                    "kv_connector_extra_config": {"endpoints": endpoint, "lookup_timeout": 0.1, "load_timeout": 10.0}
                    # Room for the longest prompt: more in flight would be measured otherwise. And hits are loaded.
                    | {"staging_bytes": 2 * prompt_bytes, "compute_cheap_hits": False},
                },
            )
        for name in options.peers:
            # Room for four of the longest prompts.
            nbytes = max(1 << 30, 4 * prompt_bytes)
            try:
                transfer = leave.enter_context(peers.running(name, folder, nbytes, [free_port(), free_port()]))
            except (RuntimeError, OSError) as error:
                print(f"{name} does not run: {error}")
                continue
            start(name, transfer)
        for name, each in list(self.engines.items()):
            try:
                each.wait_ready()
            except AssertionError as error:
                if name not in peers.PEERS:
                    raise
                print(f"{name} does not run: {error}")
                del self.engines[name]
        self.peers = [name for name in self.engines if name in peers.PEERS]
        #: Engines that compute a prompt in each round. The TCP one loads the first one's blocks.
        self.computing = [name for name in self.engines if name != "TCP"]

    def prompt(self, count: int) -> list[int]:
        return self.rng.choices(range(1024), k=count)

    def until_given(self, name: str, nbytes: float, was: float) -> None:
        """Waits until the engine's blocks are stored. Peers do not report this; for them, steps and a moment have to do."""
        if name == "shared memory":
            until_stored(self.engines[name], int(nbytes), was)
        else:
            self.settle(name)

    def first_tokens(self, tokens: int, rounds: int, warm_up: bool, until: float) -> list[list[str]]:
        """For new prompts, prompts in the engine's own cache, and prompts only in the store. Stops before a round would end too late."""
        ways = [*self.engines, *(["disk"] if self.node_has_disk else [])]
        times: dict[str, dict[str, list[float]]] = {name: {column: [] for column in COLUMNS} for name in ways}
        hit = (tokens - 1) // BLOCK * BLOCK
        least = dict.fromkeys(self.peers, (tokens - 1) // 256 * 256 if tokens > 256 else 0)  # LMCache's chunks
        first = 0 if warm_up else 1
        count = 0
        for i in range(first, rounds + 1):  # round 0 is not counted
            began = time.monotonic()
            prompt = self.prompt(tokens)
            missed: dict[str, float] = {}
            uncounted: dict[str, list[float]] = {name: [] for name in COLUMNS}
            for name in self.rng.sample(self.computing, len(self.computing)):
                engine = self.engines[name]
                stored = "vllm:kvstore_stored_bytes"
                was = engine.metrics(stored).get(stored, 0.0)
                missed[name], cached = ask_first_token(engine, prompt)
                check(name, engine, cached, 0)
                own, cached = ask_first_token(engine, prompt)
                check(name, engine, cached, hit)
                if name != "no store":
                    self.until_given(name, hit * self.token_bytes, was)
                engine.reset()
                if i > 0:
                    times[name]["miss"].append(missed[name])
                    times[name]["own"].append(own)
            if i > 0:
                for name in self.computing:
                    times[name]["over none"].append(missed[name] / missed["no store"])

            if self.node_has_disk:
                until_idle(self.node)
            loading = [name for name in self.engines if name != "no store"]
            for name in self.rng.sample(loading, len(loading)):
                self.load(name, name, prompt, least.get(name, hit), times[name] if i > 0 else uncounted)
            if self.node_has_disk:
                push_to_disk(self.node, 2 * self.node_memory)
                until_idle(self.node)
                self.load("disk", "shared memory", prompt, hit, times["disk"] if i > 0 else uncounted)
            count += i > 0
            now = time.monotonic()
            if count and now + (now - began) > until:
                break
        return [
            [str(tokens), name, str(count), *(self.cell(taken, column) for column in COLUMNS)]
            for name, taken in times.items()
        ]

    def load(self, way: str, of: str, prompt: list[int], least: int, taken: dict[str, list[float]]) -> None:
        """A prompt only in the store, and then again from the engine's own cache."""
        engine = self.engines[of]
        loaded, cached = ask_first_token(engine, prompt)
        own, _ = ask_first_token(engine, prompt)
        if of in self.peers:
            self.until_given(of, 0, 0)
        engine.reset()
        if cached < least:
            print(f"{way}, {len(prompt)} tokens: a round without a time: {cached} tokens came")
            return
        taken["loaded"].append(loaded)
        taken["over own"].append(loaded / own)
        if way not in self.computing:
            taken["own"].append(own)

    @property
    def node_has_disk(self) -> bool:
        return "--disk-path" in self.node.arguments

    @staticmethod
    def cell(taken: dict[str, list[float]], column: str) -> str:
        values = taken[column]
        if not values:
            return ""
        return f"{statistics.median(values):.3f}" if column.startswith("over") else spread(values)

    def conversations(self, rounds: int, until: float) -> list[list[str]]:
        """Four people talk to an engine for five turns. Its own cache is emptied between turns: as if others had needed the pages, or
        another engine had answered before. ``kept``: the engine without a store, with its cache kept.
        """
        rates: dict[str, list[float]] = {}
        cached: dict[str, list[float]] = {}
        ways = [("no store", "no store"), ("no store, cache kept", "no store")]
        ways += [(name, name) for name in self.engines if name != "no store"]
        for _ in range(rounds):
            began = time.monotonic()
            for name, of in self.rng.sample(ways, len(ways)):
                engine = self.engines[of]
                talks = [self.prompt(TALK_TOKENS // 2) for _ in range(4)]
                seconds, asked, had = 0.0, 0, 0
                for _turn in range(5):
                    answer = engine.generate(*talks, max_tokens=16)
                    seconds += answer["seconds"]
                    asked += sum(len(talk) + 16 for talk in talks)
                    had += sum(answer["cached"])
                    talks = [
                        talk + tokens + self.prompt(TALK_TOKENS // 10 - 16)
                        for talk, tokens in zip(talks, answer["tokens"], strict=True)
                    ]
                    if not name.endswith("kept"):
                        self.settle(of)
                        engine.reset()
                engine.reset()
                rates.setdefault(name, []).append(asked / seconds)
                cached.setdefault(name, []).append(100 * had / asked)
            now = time.monotonic()
            if now + (now - began) > until:
                break
        return [[name, spread(rates[name]), f"{statistics.median(cached[name]):.0f} %"] for name, _ in ways]

    def settle(self, name: str) -> None:
        """The same pause for each way, outside of the measured time."""
        for _ in range(3):
            self.engines[name].generate([1, 2, 3], max_tokens=2)
            time.sleep(0.1)

    def traffic(self, requests: int) -> None:
        """For the hooks: eight requests at a time, half of each prompt shared with another, and answers of 32 tokens."""
        roots = [self.prompt(TALK_TOKENS // 4) for _ in range(8)]
        for name in set(self.engines) & {"shared memory", "TCP"}:
            for _ in range(requests // 8):
                prompts = [
                    self.rng.choice(roots) + self.prompt(self.rng.randrange(10, TALK_TOKENS // 4)) for _ in range(8)
                ]
                self.engines[name].generate(*prompts, max_tokens=32)
                if self.rng.random() < 0.3:
                    self.engines[name].reset()
                if time.monotonic() > self.until:
                    break

    def hooks(self) -> list[list[str]]:
        """Table for all engines together."""
        seconds: dict[str, list[tuple[float, float]]] = {}
        for path in self.hook_times.glob("*.json"):
            for name, values in json.loads(path.read_text()).items():
                seconds.setdefault(name, []).extend(values)
        rows = []
        for name, values in seconds.items():
            if values:
                whole, own = (sorted(each) for each in zip(*values, strict=True))
                half, most = len(values) // 2, len(values) * 99 // 100
                figures = (whole[half], whole[most], whole[-1], own[half], own[most])
                rows.append([name, str(len(values)), *(f"{each * 1e6:.1f}" for each in figures)])
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9, help="for all: rounds end early")
    parser.add_argument("--tokens", default="1000,4000,16000", help="lengths of prompts")
    parser.add_argument("--rounds", type=int, default=7, help="at most, of each length and of conversations")
    parser.add_argument(
        "--threads", type=int, default=1, help="of each engine's kernels: as many as cores leave none to all the rest"
    )
    parser.add_argument("--layers", type=int, default=4, help="of the model: its work and its bytes")
    parser.add_argument("--stores", default="shared memory,TCP,disk", help="which of these")
    parser.add_argument("--peers", default=",".join(peers.PEERS), help="which of these")
    parser.add_argument("--requests", type=int, default=80, help="for the hooks")
    options = parser.parse_args()
    for given, known in (("stores", ("shared memory", "TCP", "disk")), ("peers", peers.PEERS)):
        names = [each for each in getattr(options, given).split(",") if each]
        for name in names:
            if name not in known:
                parser.error(f"--{given}: {name!r} is none of {', '.join(known)}")
        setattr(options, given, names)
    if options.stores and "shared memory" not in options.stores:
        parser.error("--stores: TCP and disk load what the engine on shared memory has stored")
    options.tokens = [int(each) for each in options.tokens.split(",")]
    for name in list(options.peers):
        if why := peers.missing(name):
            print(f"{name} does not run: {why}")
            options.peers.remove(name)
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.ExitStack() as leave:
            bench = Bench(options, Path(folder), leave)
            print(f"{len(bench.engines)} engines are ready")
            # Each length gets a share of the remaining time by its work, with a fifth for all that follows.
            began = time.monotonic()
            left = max(0.0, bench.until - began) * 0.8
            # Pushing to disk takes as long for a short prompt.
            work = [each * (1 + each / 8000) + 20_000 * bench.node_has_disk for each in options.tokens]
            rows = []
            for i, tokens in enumerate(options.tokens):
                until = began + left * sum(work[: i + 1]) / sum(work)
                rows += bench.first_tokens(tokens, options.rounds, i == 0, until)
            talks = bench.conversations(options.rounds, time.monotonic() + (bench.until - time.monotonic()) * 0.6)
            bench.traffic(options.requests)
        print("\nMilliseconds to the first token: median (least-most)\n")
        table([["tokens", "engine", "rounds", *COLUMNS.values()], *rows])
        print("\nConversations: tokens asked and answered, a second\n")
        table([["engine", "tokens a second", "of them cached"], *talks])
        print("\nMicroseconds of a hook\n")
        table([["hook", "calls", "p50", "p99", "most", "own p50", "own p99"], *bench.hooks()])


if __name__ == "__main__":
    main()
