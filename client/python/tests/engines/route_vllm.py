"""The example router before two real vLLM servers, over HTTP: conversations by the router, and others by each server in turn. Prints the
computed tokens and the answer times. Then one server is killed, and the conversations go on with the other.

PYTHONPATH=FOLDER KV_NODE=build/release/store/node/kvstore-node PYTHON client/python/tests/engines/route_vllm.py

PYTHON has vLLM and pytest; FOLDER has the package, or the environment has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny
from conftest import ROOT, Node
from serve_vllm import BLOCK, Server, readme_command, write_tokenizer
from test_vllm_engine import free_port

TALKS, TURNS, ANSWER = 6, 4, 64


def post(url: str, body: Any) -> tuple[dict[str, Any], str, float]:
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    began = time.perf_counter()
    with urllib.request.urlopen(asked, timeout=300) as answer:
        return json.loads(answer.read()), answer.headers.get("x-kvstore-router", ""), time.perf_counter() - began


class Program:
    """A program that prints ``listens on http://HOST:PORT`` once it does."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


class Talks:
    """Conversations in turns, each turn with all that was said before."""

    def __init__(self, model: Path, seed: int) -> None:
        self.model = model
        self.dice = random.Random(seed)
        self.said: list[list[dict[str, str]]] = [[] for _ in range(TALKS)]
        self.known = [0] * TALKS
        self.asked, self.computed, self.new = 0, 0, 0
        self.seconds: list[float] = []

    def turn(self, number: int, url_of: Callable[[int], str]) -> None:
        order = list(range(TALKS))
        self.dice.shuffle(order)
        for i in order:
            words = " ".join(f"w{self.dice.randrange(2, 1024)}" for _ in range(900 if number == 0 else 60))
            self.said[i].append({"role": "user", "content": words})
            body = {"model": str(self.model), "messages": self.said[i], "max_tokens": ANSWER, "temperature": 0}
            body |= {"ignore_eos": True, "skip_special_tokens": False}
            answer, _, seconds = post(url_of(i) + "/v1/chat/completions", body)
            usage = answer["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            self.said[i].append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            self.asked += usage["prompt_tokens"]
            self.computed += usage["prompt_tokens"] - cached
            self.new += usage["prompt_tokens"] - self.known[i]
            self.known[i] = usage["prompt_tokens"] + ANSWER
            if number > 0:
                self.seconds.append(seconds)

    def tell(self, what: str, loaded: float) -> None:
        print(
            f"{what}: {self.asked} tokens asked, {self.new} of them new, {self.computed} computed, {loaded:.0f} loaded of the "
            f"store; {statistics.median(self.seconds):.3f} s an answer in the middle, from the second turn on",
            flush=True,
        )


def go_on_with_one(routed: Talks, server: Server, router: Program) -> None:
    last, was = server.metric("vllm:kvstore_loaded_tokens_total"), (routed.computed, routed.new)
    routed.turn(TURNS, lambda _: router.url)
    computed, new = routed.computed - was[0], routed.new - was[1]
    loaded = server.metric("vllm:kvstore_loaded_tokens_total") - last
    print(
        f"after the first server's end: {computed} tokens computed, {new} of them new, {loaded:.0f} loaded of the store"
    )
    if computed > new + TALKS * BLOCK:
        raise SystemExit("the second server has computed what the first one had stored")


def main() -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as leave:
        folder = Path(name)
        model = tiny.make("llama", folder)
        write_tokenizer(model)
        node = Node()
        leave.callback(node.close)
        servers, places = [], []
        for each in ("first", "second"):
            ports = free_port(), free_port()
            events = {"enable_kv_cache_events": True, "endpoint": f"tcp://*:{ports[0]}"}
            events["replay_endpoint"] = f"tcp://*:{ports[1]}"
            command = [*readme_command(model, node.endpoint), "--kv-events-config", json.dumps(events)]
            # With servers, node and all else on two cores the store answers later than the default timeout.
            endpoint = f'"endpoints": "{node.endpoint}"'
            command = [each.replace(endpoint, endpoint + ', "lookup_timeout": 0.5') for each in command]
            servers.append(Server(command, folder / f"{each}.log"))
            leave.callback(servers[-1].close)
            places.append(f"{servers[-1].url},tcp://127.0.0.1:{ports[0]},tcp://127.0.0.1:{ports[1]}")
            servers[-1].wait_ready()  # one after the other: it costs less memory
        options = ["--endpoint", node.endpoint, "--listen", "http://127.0.0.1:0"]
        store = Program(["-m", "kvstore.router", *options])
        leave.callback(store.close)
        command = [
            str(ROOT / "client/python/examples/router.py"),
            "--store",
            store.url,
            "--listen",
            "http://127.0.0.1:0",
        ]
        for place in places:
            command += ["--worker", place]
        router = Program(command)
        leave.callback(router.close)

        def loaded() -> float:
            return sum(each.metric("vllm:kvstore_loaded_tokens_total") for each in servers)

        for each in servers:  # compiles, and connects
            post(each.url + "/v1/completions", {"model": str(model), "prompt": [5] * 200, "max_tokens": 4})
        in_turn = Talks(model, 1)
        before = loaded()
        for turn in range(TURNS):
            in_turn.turn(turn, lambda i, turn=turn: servers[(i + turn) % 2].url)  # type: ignore[misc]
            time.sleep(1)  # the last generated block is stored after the answer
        in_turn.tell("each server in turn", loaded() - before)
        routed = Talks(model, 2)
        before = loaded()
        for turn in range(TURNS):
            routed.turn(turn, lambda _: router.url)
            time.sleep(1)
        routed.tell("by the router", loaded() - before)
        with urllib.request.urlopen(router.url + "/router", timeout=10) as answer:
            state = json.loads(answer.read())
        print(f"the router has seen {state}", flush=True)
        if sum(each["gaps"] for each in state["workers"]) or min(each["requests"] for each in state["workers"]) == 0:
            raise SystemExit("events were missed, or one server was never chosen")
        if routed.computed > routed.new + TALKS * TURNS * BLOCK:
            raise SystemExit("more was computed than is new")

        servers[0].close()
        go_on_with_one(routed, servers[1], router)


if __name__ == "__main__":
    main()
