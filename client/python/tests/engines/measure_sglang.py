"""First token of a stored prefix through SGLang's HiCache: from the store, SGLang's own file backend, Mooncake, and computed.

    PYTHONPATH=SITE KV_NODE=kvstore-node PYTHON measure_sglang.py [--rounds 7] [--tokens 1000,4000]

PYTHON has SGLang. Mooncake is measured if its package is installed: over TCP, with its memory in the engine's own process, as SGLang sets
it up. All in one run, rounds paired, in another order each: each engine computes the prompt, stores it, drops it (on the device and on the
host), and is asked for it again. Needs an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import sglang_cpu
import tiny
from conftest import Node
from measuring import drop_what_fails, first_token_parser, free_port, in_turn, mooncake_master, running, table
from test_sglang_engine import PAGE, Engine, hicache, prompt_of


def backend(name: str, **extra: Any) -> dict[str, Any]:
    """Another backend, configured like ours."""
    arguments = hicache("", "page_first_direct", 1, {})
    extra_config = json.dumps({"prefetch_threshold": PAGE} | extra)
    return arguments | {"hicache_storage_backend": name, "hicache_storage_backend_extra_config": extra_config}


def engines_of(options: argparse.Namespace, folder: Path, node: Node, end: contextlib.ExitStack) -> dict[str, Engine]:
    model = tiny.make("llama", folder)
    environment = sglang_cpu.environment(folder)
    tokens_max = max(options.tokens)
    common: dict[str, Any] = {
        "max_total_tokens": 4 * tokens_max,
        "context_length": min(8192, 2 * tokens_max),
        "chunked_prefill_size": (tokens_max // PAGE + 1) * PAGE,
        "sleep_on_idle": True,  # otherwise each engine takes a core, also while another one is asked
    }

    def start(name: str, more: dict[str, Any], **variables: str) -> Engine:
        log = folder / f"{name.split(maxsplit=1)[0]}.log"
        made = Engine(model, None, log, environment | variables, **common, **more)
        end.callback(made.close)
        return made

    engines = {
        "kvstore": start("kvstore", hicache(node.endpoint, "page_first_direct", 1, {})),
        "files (file)": start("files", backend("file"), SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=str(folder / "pages")),
        "computed": start("computed", {}),
    }
    master = mooncake_master() if options.mooncake else None
    if master:
        port = free_port()
        end.enter_context(running(master, f"--rpc_port={port}", f"--metrics_port={free_port()}", port=port))
        engines["Mooncake (mooncake)"] = start(
            "mooncake",
            backend("mooncake"),
            MOONCAKE_MASTER=f"127.0.0.1:{port}",
            MOONCAKE_PROTOCOL="tcp",
            MOONCAKE_TE_META_DATA_SERVER="P2PHANDSHAKE",
            MOONCAKE_GLOBAL_SEGMENT_SIZE=str(512 << 20),
            MOONCAKE_LOCAL_HOSTNAME="127.0.0.1",
        )
    drop_what_fails(engines, lambda name: engines[name].wait_ready())
    return engines


def stored(engine: Engine, prompt: list[int]) -> None:
    """Computes and stores it. Pages are stored some time after the answer, without a report."""
    engine.generate(prompt, max_tokens=1)
    for i in range(3):
        engine.generate([1, 2, 3, i], max_tokens=2)
        time.sleep(0.3)


def main() -> None:
    options = first_token_parser("1000,4000").parse_args()
    with contextlib.ExitStack() as end, tempfile.TemporaryDirectory() as folder:
        node = Node(capacity="2GiB")
        end.callback(node.close)
        engines = engines_of(options, Path(folder), node, end)
        for tokens in options.tokens:

            def measure(name: str, number: int, tokens: int = tokens) -> dict[str, float]:
                engine, prompt = engines[name], prompt_of(tokens, 1000 * tokens + number)
                expected = 0 if name == "computed" else (tokens - 1) // PAGE * PAGE
                for _ in range(3):  # on a busy machine pages may still wait to be stored, and a flush drops them
                    if name != "computed":
                        stored(engine, prompt)
                    engine.flush()
                    engine.generate([1, 2, 3], max_tokens=1)
                    answer = engine.generate(prompt, max_tokens=1)
                    if answer["stored"] == [expected]:
                        return {f"{tokens} tokens": answer["seconds"] * 1e3}
                raise RuntimeError(f"{name}: {answer['stored']} tokens came from the store, not {expected}")

            drop_what_fails(engines, lambda name, once=measure: once(name, -1))  # kernels warm up
            print(table(in_turn(list(engines), options.rounds, measure), list(engines), "kvstore"), flush=True)


if __name__ == "__main__":
    main()
