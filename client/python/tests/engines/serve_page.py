"""Runs the commands of docs/engines/ for SGLang or LMCache, with additions for a CPU and a small model. A prompt is asked for over HTTP,
then everything but the node is restarted, and it is asked for again. Ends with an error if it was not found.

PYTHONPATH=FOLDER KV_NODE=build/release/store/node/kvstore-node PYTHON client/python/tests/engines/serve_page.py sglang|lmcache

PYTHON has the engine and pytest; FOLDER has the package, or the environment has it, installed as the page says.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.update(LMCACHE_TRACK_USAGE="false", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")

import peers
import tiny
from conftest import ROOT, Node

import kvstore

SOCKET = "unix:///tmp/kvstore.sock"
TOKENS = 1000
SECONDS = 600


def page_command(page: str, begin: str, end: str, model: Path, endpoint: str) -> list[str]:
    """The words of a command in an indented block of a page of docs/engines."""
    text = (ROOT / "docs/engines" / page).read_text()
    at = text.index("    " + begin) + 4
    command = text[at : text.index(end, at) + len(end)].replace("\\\n", " ")
    return shlex.split(command.replace(SOCKET, endpoint).replace("MODEL", str(model)))


def post(url: str, body: Any) -> Any:
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=300) as answer:
        return json.loads(answer.read())


def wait(url: str, log: Path) -> None:
    until = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url + "/health", timeout=20).close()
            return
        if time.monotonic() > until:
            raise SystemExit(f"it does not start: {log.read_text(errors='replace')[-4000:]}")
        time.sleep(1)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stored(node: Node) -> int:
    with kvstore.Client(node.endpoint, deadline=30) as client:
        return int(client.stats()[0]["values"]["stored_blocks"])


def ask_sglang(model: Path, node: Node, folder: Path, prompt: list[int], wanted: int, name: str) -> tuple[Any, int]:
    """The answer's tokens, and how many prompt tokens came from the store."""
    import sglang_cpu

    port = free_port()
    command = page_command("sglang.md", "python -m sglang.launch_server", "}'", model, node.endpoint)
    command[0] = sys.executable
    command += ["--port", str(port), "--device", "cpu", "--skip-tokenizer-init", "--dtype", "bfloat16"]
    command += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--mem-fraction-static", "0.2"]
    command += ["--max-total-tokens", "8192", "--context-length", "2048", "--disable-cuda-graph"]
    command += [
        "--disable-overlap-schedule",
        "--hicache-io-backend",
        "direct",
        "--hicache-mem-layout",
        "page_first_direct",
    ]
    environment = sglang_cpu.environment(folder / "plugin") | {"OMP_NUM_THREADS": "1"}
    with peers._server(command, folder / f"{name}.log", port, **environment):
        wait(f"http://127.0.0.1:{port}", folder / f"{name}.log")
        body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}}
        answer = post(f"http://127.0.0.1:{port}/generate", body)
        until = time.monotonic() + 60
        while stored(node) < wanted and time.monotonic() < until:
            time.sleep(0.2)
        details = answer["meta_info"].get("cached_tokens_details") or {}
        return answer["output_ids"], int(details.get("storage") or 0)


def ask_lmcache(model: Path, node: Node, folder: Path, prompt: list[int], wanted: int, name: str) -> tuple[Any, int]:
    cache, port, other = free_port(), free_port(), free_port()
    server = page_command("lmcache.md", "LMCACHE_TRACK_USAGE=false lmcache server", "}}'", model, node.endpoint)[1:]
    server[0] = str(Path(sys.executable).parent / "lmcache")
    server[server.index("5655")] = str(cache)
    server[server.index("4")] = "1"  # GB: a small machine
    server += ["--host", "127.0.0.1", "--http-port", str(other), "--supported-transfer-mode", "auto"]
    text = (ROOT / "docs/engines/lmcache.md").read_text()
    at = text.index("vllm serve MODEL", text.index("lmcache server --port 5655"))
    serve = shlex.split(text[at : text.index("}}'", at) + 3].replace("MODEL", str(model)).replace("5655", str(cache)))
    serve = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *serve[2:]]
    serve += ["--port", str(port), "--skip-tokenizer-init", "--block-size", "32", "--enable-prompt-tokens-details"]
    serve += ["--enforce-eager"]  # compiling takes minutes
    paths = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (
        peers._server(server, folder / f"{name}-server.log", cache),
        peers._server(serve, folder / f"{name}.log", port, **environment),
    ):
        wait(f"http://127.0.0.1:{port}", folder / f"{name}.log")
        body = {"model": str(model), "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answer = post(f"http://127.0.0.1:{port}/v1/completions", body | {"detokenize": False, "return_token_ids": True})
        until = time.monotonic() + 60
        while stored(node) < wanted and time.monotonic() < until:
            time.sleep(0.2)
        cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return answer["choices"][0].get("token_ids"), int(cached)


def main() -> None:
    peers.START_SECONDS = SECONDS
    asks = {"sglang": (ask_sglang, TOKENS // 32), "lmcache": (ask_lmcache, TOKENS // 256)}
    ask, wanted = asks[sys.argv[1]]
    prompt = random.Random(5).choices(range(2, 1000), k=TOKENS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = tiny.make("llama", folder)
        peers.write_plugin(folder)
        node = Node()
        try:
            answers = []
            for each in ("first", "second"):
                began = time.monotonic()
                answers.append(ask(model, node, folder, prompt, wanted, each))
                print(
                    f"{each}: {answers[-1][1]} of {TOKENS} tokens from the store, {stored(node)} blocks are stored; "
                    f"{time.monotonic() - began:.0f} s with its start",
                    flush=True,
                )
        finally:
            node.close()
    if answers[0][1] != 0 or answers[1][1] < TOKENS - 256 or answers[0][0] != answers[1][0]:
        raise SystemExit(f"not found, or not the same: {answers}")


if __name__ == "__main__":
    main()
