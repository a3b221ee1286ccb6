"""``size``: a model's cache size, and the bandwidth from which fetching beats computing. Asks no node."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .. import _kvstore
from ..errors import BadRequest, Unsupported
from ..models import CacheGroup, cache_groups, load_config
from .text import bytes_text, parse_bytes, seconds_text, table


def add_command(commands: Any) -> None:
    parser = commands.add_parser("size", help="how large a model's cache is, and when fetching beats computing")
    parser.add_argument(
        "--config", required=True, metavar="FILE", help="the model's config.json, or the folder that holds it"
    )
    parser.add_argument("--dtype", help="of the cache, such as bfloat16 or float8_e4m3; the model's own by default")
    parser.add_argument("--tokens", type=int, default=8192, metavar="N", help="to fetch or to compute (8192)")
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
    parser.add_argument("--full", action="store_true", help="count layers with windows as full ones")
    parser.add_argument("--json", action="store_true", help="one JSON document, for scripts")
    parser.set_defaults(run=run)


def _entry(group: CacheGroup, tokens: int, block_size: int) -> dict[str, Any]:
    kept = min(tokens, group.window_tokens) if group.kind == "window" else tokens
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
    if given.tokens < 1 or given.block_size < 1:
        raise BadRequest("tokens and block-size: 1 or more")
    config = load_config(given.config)
    groups = cache_groups(config, dtype=given.dtype, windows=not given.full)
    parameters, attention = given.parameters, 0.0
    try:
        shape = _kvstore.ModelShape.from_config(json.dumps(config))
        parameters = parameters or shape.parameter_count()
        attention = shape.attention_flops(given.tokens)
    except Unsupported:
        pass  # a hybrid: --parameters gives the cost of computing
    flops = 2 * parameters * given.tokens + attention if parameters else 0.0
    entries = [_entry(group, given.tokens, given.block_size) for group in groups]
    total = sum(entry["bytes"] for entry in entries)
    fetch = total / given.bandwidth
    compute = flops / given.flops if flops else None
    if given.json:
        result = {
            "groups": entries,
            "tokens": given.tokens,
            "bytes": total,
            "fetch_seconds": fetch,
            "compute_seconds": compute,
            "break_even_bandwidth": total / compute if compute else None,
        }
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
    return 0
