"""``doctor``: checks the installation. Each finding has advice."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import resource
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import __version__
from ..client import Client
from ..errors import Error
from ..namespaces import Namespace
from .text import add_node_options, bytes_text, seconds_text, table


class Finding(NamedTuple):
    """``verdict``: ok, note, warning, or FAILED."""

    check: str
    verdict: str
    found: str
    advice: str = ""


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor", help="is everything all right? Checks this package, the nodes and the machine"
    )
    add_node_options(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    findings = [*check_package(), *check_machine()]
    with Client(given.endpoint, deadline=given.deadline, identity="kvstore doctor") as client:
        findings += check_nodes(client)
    failed = any(finding.verdict == "FAILED" for finding in findings)
    if given.json:
        print(json.dumps({"ok": not failed, "findings": [finding._asdict() for finding in findings]}, indent=2))
        return int(failed)
    rows = []
    for finding in findings:
        rows.append([finding.verdict, finding.check, finding.found])
        if finding.advice:
            rows.append(["", "", "-> " + finding.advice])
    print(table(["", "check", "found"], rows))
    return int(failed)


def check_package() -> list[Finding]:
    versions = f"kvstore {__version__}, Python {platform.python_version()}, {platform.libc_ver()[1]} glibc"
    findings = [Finding("package", "ok", versions)]
    folder = Path(__file__).resolve().parent.parent
    for what, variable, file in (
        ("CUDA module", "KV_CUDA_MODULE", "libkvstore_cuda.so"),
        ("RDMA module", "KV_VERBS_MODULE", "libkvstore_verbs.so"),
    ):
        named = os.environ.get(variable)
        path = named or (str(folder / file) if (folder / file).exists() else file)
        try:
            ctypes.CDLL(path)
            findings.append(Finding(what, "ok", path))
        except OSError as error:
            verdict = "warning" if named or (folder / file).exists() else "note"
            advice = f"put it beside the package, or name it in {variable}"
            findings.append(Finding(what, verdict, f"not loaded: {error}", advice))
    return findings


def check_machine() -> list[Finding]:
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_small = soft != resource.RLIM_INFINITY and soft < 1 << 30
    text = "unlimited" if soft == resource.RLIM_INFINITY else bytes_text(soft)
    advice = "RDMA and CUDA want it unlimited: ulimit -l" if is_small else ""
    locked = Finding("locked memory", "note" if is_small else "ok", text, advice)
    interval = f"{seconds_text(sys.getswitchinterval())}: what a Python thread waits for the GIL while another computes"
    return [locked, Finding("GIL switch interval", "ok", interval), *check_numa()]


def check_numa(sysfs: Path = Path("/sys")) -> list[Finding]:
    """Whether a client here should choose a NUMA node: all accelerators and RDMA devices are at one of several."""

    def line(path: Path) -> str:
        try:
            return path.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return ""

    memory = line(sysfs / "devices/system/node/has_memory")
    if not memory or memory.isdigit():
        return []
    places = [device / "device/numa_node" for device in (sysfs / "class/infiniband").glob("*")]
    for device in (sysfs / "bus/pci/devices").glob("*"):
        # Display and processing controllers of NVIDIA and AMD.
        kind, vendor = line(device / "class"), line(device / "vendor")
        if kind.startswith(("0x0300", "0x0302", "0x12")) and vendor in ("0x10de", "0x1002"):
            places.append(device / "numa_node")
    nodes = sorted({int(node) for node in map(line, places) if node.isdigit()})
    found = f"memory on nodes {memory}, accelerators and RDMA devices at {', '.join(map(str, nodes)) or 'none known'}"
    if len(nodes) != 1:
        return [Finding("NUMA", "ok", found)]
    there = f'Client(numa_nodes="{nodes[0]}") keeps its memory and threads there'
    return [Finding("NUMA", "note", found, f"{there}; engines' connectors do so by themselves")]


def check_nodes(client: Client) -> list[Finding]:
    findings = []
    times: list[list[float]] = []
    for turn in range(20):
        for i, seconds in enumerate(client.ping()):
            if len(times) <= i:
                times.append([])
            if seconds is not None and turn > 0:  # the first pays for connecting
                times[i].append(seconds)
        if not any(times) and turn == 1:
            break
    serving = False
    for i, node in enumerate(client.nodes()):
        if not times[i]:
            advice = "is the node running (systemctl status kvstore-node), and does its `listen` name this address?"
            findings.append(Finding(f"reach {node['name']}", "FAILED", node["last_error"] or "no answer", advice))
            continue
        serving = True
        middle = statistics.median(times[i])
        found = f"node {node['node_id']}, over {node['transport']}, {seconds_text(middle)} in the middle"
        slow = "slow even for a network: prefer a Unix socket on one host; busy_poll saves wake-ups"
        verdict, advice = ("ok", "") if middle < 1e-3 else ("warning", slow)
        findings.append(Finding(f"reach {node['name']}", verdict, found, advice))
    if serving:
        findings.append(check_round_trip(client))
    return findings


def check_round_trip(client: Client) -> Finding:
    """Stores, loads and compares a block, in lent memory."""
    try:
        block_bytes = 1 << 16
        space = client.open(
            Namespace(model="kvstore-doctor", block_size=16, block_bytes=block_bytes, x_process=os.getpid())
        )
        space.wait_open()
        hashes = space.hash_chain(np.arange(16 * 8, dtype=np.uint32))
        memory = client.allocate(2 * 8 * block_bytes)
        connections = client.lend(memory)
        blocks = memory.array((16, block_bytes))
        blocks[:8] = np.random.default_rng(1).integers(0, 256, (8, block_bytes), dtype=np.uint8)
        put = space.put(hashes, blocks[:8])
        got = space.get(hashes, blocks[8:])
        same = got.block_count == 8 and bool((blocks[:8] == blocks[8:]).all())
        space.drop(everything=True)
    except Error as error:
        return Finding("store and load", "FAILED", f"{error.status_name}: {error}")
    if not same:
        why = put.why or got.why
        return Finding("store and load", "FAILED", f"{put.stored} stored, {got.block_count} of 8 loaded: {why}")
    how = f"through memory lent to {connections} connections" if connections else "through the socket"
    return Finding("store and load", "ok", f"8 blocks of {bytes_text(block_bytes)}, {how}, equal")
