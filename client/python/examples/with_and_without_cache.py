"""New tokens without a cache, with the model's own, and with kvstore in a first and in a second process: seconds and memory.

python with_and_without_cache.py                                # random weights, made on the spot
python with_and_without_cache.py --model PATH_OR_NAME --plot figure.png

Without a cache the model computes all tokens again for each new one. With its own, it computes a prompt once in each process. With kvstore
it computes the prompt once: the second process loads what the first has stored. Each way runs in a process of its own.

The node is the one of --endpoint or KVSTORE_ENDPOINTS; without these, KV_NODE's or the kvstore-node on PATH is started for the while.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from chat import made_on_the_spot

import kvstore
from kvstore.transformers import PrefixStore

WAYS = {
    "none": "no cache",
    "own": "the model's own cache",
    "first": "kvstore, first process",
    "second": "kvstore, second process",
}


class Watch(transformers.StoppingCriteria):  # type: ignore[misc]
    """Notes seconds and cache bytes after each new token. Stops nothing."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self.began = time.perf_counter()

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.seconds.append(time.perf_counter() - self.began)
        layers = self._cache.layers if self._cache is not None else []
        self.bytes.append(sum(layer.keys.nbytes + layer.values.nbytes for layer in layers))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def loaded(given: argparse.Namespace) -> tuple[Any, torch.Tensor]:
    """The model, and the prompt."""
    if given.model is None:
        generator = torch.Generator().manual_seed(11)
        return made_on_the_spot(), torch.randint(1, 4096, (1, given.prompt), generator=generator)
    model = transformers.AutoModelForCausalLM.from_pretrained(given.model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
    text = "The history of the city begins with a harbour, a market and a wall around both. " * given.prompt
    return model, tokenizer(text, return_tensors="pt").input_ids[:, : given.prompt]


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """One way, in this process."""
    torch.set_grad_enabled(False)
    model, prompt = loaded(given)
    options = {"max_new_tokens": given.new, "min_new_tokens": given.new, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(prompt)
    model.generate(
        prompt[:, :2], attention_mask=torch.ones_like(prompt[:, :2]), max_new_tokens=2
    )  # the first call is slow
    if given.way == "none":
        watch = Watch(None)
        out = model.generate(prompt, use_cache=False, stopping_criteria=[watch], **options)
        return told(watch, out, prompt, watch.seconds[-1])
    if given.way == "own":
        watch = Watch(cache := transformers.DynamicCache(config=model.config))
        out = model.generate(prompt, past_key_values=cache, stopping_criteria=[watch], **options)
        return told(watch, out, prompt, watch.seconds[-1])
    with kvstore.Client(given.endpoint, deadline=30.0) as client:
        began = time.perf_counter()
        store = PrefixStore(model, client, **{"x.run": given.run})
        once = time.perf_counter() - began
        began = time.perf_counter()
        watch = Watch(cache := store.cache(prompt))
        watch.began = began  # finding and loading count
        out = model.generate(prompt, past_key_values=cache, stopping_criteria=[watch], **options)
        cache.store(out)
        if cache.why is not None:
            raise SystemExit(f"{cache.why.status_name}: {cache.why}")
        result = told(watch, out, prompt, time.perf_counter() - began)
        result["bytes"] = [each + store.lent_bytes for each in result["bytes"]]
        return result | {"found": cache.cached_token_count, "once": once}


def told(watch: Watch, out: torch.Tensor, prompt: torch.Tensor, total: float) -> dict[str, Any]:
    tokens = out[0, prompt.shape[1] :].tolist()
    return {"seconds": watch.seconds, "bytes": watch.bytes, "tokens": tokens, "total": total, "found": 0, "once": 0.0}


@contextlib.contextmanager
def node(endpoint: str | None) -> Iterator[str]:
    """The endpoint of the named node, or of one that runs meanwhile."""
    named = endpoint or os.environ.get("KVSTORE_ENDPOINTS")
    if named:
        yield named
        return
    binary = os.environ.get("KV_NODE") or shutil.which("kvstore-node")
    if binary is None:
        raise SystemExit("no node: name one (--endpoint, KVSTORE_ENDPOINTS), or put kvstore-node on PATH")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node"
        arguments = [binary, "--listen", f"unix://{path}", "--capacity", "1GiB", "--admin", "none"]
        with open(Path(folder) / "log", "wb") as log, subprocess.Popen(arguments, stdout=log, stderr=log) as process:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    while probe.connect_ex(str(path)) != 0:
                        if process.poll() is not None:
                            raise SystemExit(f"{binary}: {(Path(folder) / 'log').read_text()}")
                        time.sleep(0.05)
                yield f"unix://{path}"
            finally:
                process.terminate()


def run(way: str, given: argparse.Namespace, endpoint: str, name: str) -> dict[str, Any]:
    """One way, in a new process."""
    arguments = ["--way", way, "--endpoint", endpoint, "--run", name]
    arguments += ["--prompt", str(given.prompt), "--new", str(given.new)]
    if given.model is not None:
        arguments += ["--model", given.model]
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{WAYS[way]}: failed")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def plot(results: dict[str, dict[str, Any]], given: argparse.Namespace) -> None:
    try:
        import matplotlib as mpl
    except ImportError:
        print(f"no plot in {given.plot}: matplotlib is not installed")
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for way, result in results.items():
        counts = range(1, len(result["seconds"]) + 1)
        left.plot(counts, result["seconds"], label=WAYS[way])
        right.plot(counts, [each / 2**20 for each in result["bytes"]], label=WAYS[way])
    left.set(xlabel="new tokens", ylabel="seconds", title=f"after a prompt of {given.prompt} tokens", ylim=0)
    right.set(xlabel="new tokens", ylabel="MiB of caches and lent memory", ylim=0)
    left.legend()
    figure.savefig(given.plot, dpi=120)
    print(f"plotted in {given.plot}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", help="of the node; KVSTORE_ENDPOINTS by default")
    parser.add_argument("--model", help="a real model: a folder or a name; by default random weights")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (512)")
    parser.add_argument("--new", type=int, default=32, help="new tokens (32)")
    parser.add_argument("--plot", metavar="FILE.png", help="draw seconds and memory over the new tokens")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--run", help=argparse.SUPPRESS)  # keeps the blocks of one comparison apart from earlier ones
    given = parser.parse_args()
    if given.prompt < 2 or given.new < 1:
        parser.error("--prompt: 2 or more, --new: 1 or more")
    if given.way is not None:
        print(json.dumps(measure(given)))
        return

    print(
        f"model: {given.model or 'a Llama of 24 million random weights, made on the spot (--model names a real one)'}"
    )
    print(f"prompt: {given.prompt} tokens; new: {given.new} tokens, greedy")
    name = uuid.uuid4().hex
    with node(given.endpoint) as endpoint:
        results = {way: run(way, given, endpoint, name) for way in WAYS}
    print(f"\n{'':24}  found  first token  all tokens  cache peak  same tokens")
    own = results["own"]["tokens"]
    for way, result in results.items():
        print(
            f"{WAYS[way]:24}  {result['found']:5}  {result['seconds'][0]:9.3f} s  {result['total']:8.3f} s"
            f"  {max(result['bytes']) / 2**20:6.1f} MiB  {'yes' if result['tokens'] == own else 'NO'}"
        )
    print(f"Once a process, not in these: {results['second']['once']:.3f} s for the digest of the weights.")
    if given.plot:
        plot(results, given)
    if not results["first"]["tokens"] == results["second"]["tokens"] == own:
        raise SystemExit("the tokens differ")


if __name__ == "__main__":
    main()
