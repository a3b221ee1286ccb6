"""``size``: a model's cache size, and the bandwidth from which fetching beats computing. Asks no node."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from .. import _kvstore, models
from ..errors import BadRequest
from ..models import CacheGroup, Generation, Work
from .text import bytes_text, parse_bytes, seconds_text, table


def add_command(commands: Any) -> None:
    parser = commands.add_parser("size", help="how large a model's cache is, and when fetching beats computing")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--config", metavar="FILE", help="the model's config.json, or the folder that holds it")
    which.add_argument("--model", metavar="NAME", help="a common model by name, see --list-models")
    which.add_argument("--list-models", action="store_true", help="list those names, and the source of their facts")
    parser.add_argument("--dtype", help="of the cache, such as bfloat16 or float8_e4m3; the model's own by default")
    parser.add_argument("--tokens", type=int, default=8192, metavar="N", help="to fetch or to compute (8192)")
    parser.add_argument(
        "--new-tokens", type=int, default=0, metavar="N", help="then generate so many: work with a cache and without"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences of --new-tokens (1)")
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens of a block (16)")
    parser.add_argument(
        "--bandwidth", type=parse_bytes, default=50_000_000_000, metavar="SIZE", help="bytes a second of a fetch (50GB)"
    )
    parser.add_argument(
        "--flops", type=float, default=4e14, metavar="N", help="operations a second that prefill reaches (4e14)"
    )
    parser.add_argument(
        "--parameters", type=float, default=0, metavar="N", help="that a token meets, where the file does not tell"
    )
    parser.add_argument("--full", action="store_true", help="count layers with windows or chunks as full ones")
    parser.add_argument("--json", action="store_true", help="one JSON document, for scripts")
    parser.set_defaults(run=run)


def _entry(group: CacheGroup, tokens: int, block_size: int) -> dict[str, Any]:
    kept = min(tokens, group.window_tokens) if group.window_tokens else tokens
    is_state = group.kind == "state"
    return {
        "group": group.name,
        "layers": len(group.layers),
        "dtype": group.dtype,
        "bytes_per_token": group.bytes_per_token,
        "state_bytes": group.state_bytes,
        "block_bytes": group.state_bytes if is_state else group.bytes_per_token * block_size,
        "bytes": group.state_bytes if is_state else group.bytes_per_token * kept,
    }


def run(given: argparse.Namespace) -> int:
    if given.list_models:
        return _list_models(given.json)
    for name in ("tokens", "block_size", "batch"):
        if getattr(given, name) < 1:
            raise BadRequest(f"{name.replace('_', '-')}: {getattr(given, name)}; 1 or more")
    if given.new_tokens < 0 or given.parameters < 0:
        raise BadRequest("new-tokens and parameters: 0 or more")
    config = models.known_config(given.model) if given.model else models.load_config(given.config)
    windows = not given.full
    groups = models.cache_groups(config, dtype=given.dtype, windows=windows)
    cache = models.cache_of(config, windows=windows)
    parameters = given.parameters or cache.parameter_count()
    flops = _kvstore.GenerationWork(cache, parameters).masked_pass(given.tokens) if parameters else 0.0
    entries = [_entry(group, given.tokens, given.block_size) for group in groups]
    total = sum(entry["bytes"] for entry in entries)
    fetch = total / given.bandwidth
    compute = flops / given.flops if flops else None
    generation = None
    if given.new_tokens:
        generation = models.generation(
            config,
            batch=given.batch,
            prompt_tokens=given.tokens,
            new_tokens=given.new_tokens,
            dtype=given.dtype,
            windows=windows,
            parameters=given.parameters,
        )
    if given.json:
        result = {
            "groups": entries,
            "tokens": given.tokens,
            "bytes": total,
            "fetch_seconds": fetch,
            "compute_seconds": compute,
            "break_even_bandwidth": total / compute if compute else None,
        }
        if generation:
            result["generation"] = dataclasses.asdict(generation)
        print(json.dumps(result, indent=2))
        return 0
    rows = [
        [
            entry["group"],
            str(entry["layers"]),
            entry["dtype"],
            f"{entry['bytes_per_token']:,}" if entry["bytes_per_token"] else "-",
            bytes_text(entry["block_bytes"]),
            bytes_text(entry["bytes"]),
        ]
        for entry in entries
    ]
    columns = ["group", "layers", "dtype", "bytes/token", f"block of {given.block_size}", f"{given.tokens:,} tokens"]
    print(table(columns, rows))
    print(f"\n{bytes_text(total)} in all, fetched in {seconds_text(fetch)} at {given.bandwidth / 1e9:.3g} GB/s")
    if compute:
        print(
            f"computed in {seconds_text(compute)} at {given.flops / 1e12:.4g} TFLOP/s: fetching is {compute / fetch:.3g} times as"
            f" fast, and equal at {total / compute / 1e9:.3g} GB/s"
        )
    else:
        print("to compare with computing, give --parameters (those that one token meets)")
    if generation:
        _print_generation(generation, given)
    return 0


def _list_models(as_json: bool) -> int:
    known = models.known_models()
    if as_json:
        listed = [
            {"model": name, "source": source, "config": models.known_config(name)} for name, source in known.items()
        ]
        print(json.dumps({"models": listed}, indent=2))
    else:
        print(table(["model", "facts from"], [[name, source] for name, source in known.items()]))
    return 0


def _print_generation(generation: Generation, given: argparse.Namespace) -> None:
    print(
        f"\nbatch of {given.batch}, {given.tokens:,} tokens and then {given.new_tokens:,} new ones: "
        f"{bytes_text(generation.peak_bytes)} of cache at most"
    )
    works: list[tuple[str, Work | None]] = [
        ("prompt", generation.prompt),
        ("last step", generation.last_step),
        ("all steps", generation.steps),
        ("last step's logits", generation.last_step_logits),
        ("all logits", generation.logits),
        ("in all", generation.total),
    ]
    rows = [
        [name, _flops_text(work.with_cache), _flops_text(work.without_cache), f"{work.ratio:.1f}x"]
        for name, work in works
        if work is not None
    ]
    if rows:
        print("\n" + table(["operations", "with a cache", "without", "ratio"], rows))


def _flops_text(count: float) -> str:
    """233.64 GFLOP"""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"):
        if count < 1000:
            return f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} ZFLOP"
