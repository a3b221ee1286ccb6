"""``status``: the nodes' content, and whether they serve."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..client import Client
from .text import add_node_options, bytes_text, seconds_text, table


def add_command(commands: Any) -> None:
    parser = commands.add_parser("status", help="what the nodes hold, and whether they serve")
    add_node_options(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    with Client(given.endpoint, deadline=given.deadline, identity="kvstore status") as client:
        stats = client.stats()
        nodes = {node["name"]: node for node in client.nodes()}
    failed = any(node["error"] is not None for node in stats)
    if given.json:
        print(json.dumps({"nodes": [{**node, "node": nodes.get(node["name"])} for node in stats]}, indent=2))
        return int(failed)
    rows = []
    for node in stats:
        known = nodes.get(node["name"], {})
        if node["error"] is not None:
            rows.append([node["name"], f"down: {known.get('last_error') or node['error']}"])
            continue
        values = node["values"]
        used, capacity = values.get("allocated_bytes", 0), values.get("capacity_bytes", 0)
        rows.append(
            [
                node["name"],
                "draining" if values.get("draining") else "serving",
                str(known.get("transport", "")),
                seconds_text(values.get("uptime_seconds", 0)),
                f"{int(values.get('blocks', 0)):,}",
                bytes_text(used),
                bytes_text(capacity),
                "-" if node.get("hit_rate") is None else f"{100 * node['hit_rate']:.1f} %",
                f"{int(values.get('evicted_blocks', 0)):,}",
                f"{int(values.get('sessions', 0)):,}",
            ]
        )
    print(table(["node", "state", "over", "up", "blocks", "used", "of", "hit rate", "evicted", "sessions"], rows))
    return int(failed)
