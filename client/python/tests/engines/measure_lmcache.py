"""Stores, lookups and loads through LMCache's own adapters: both of the store's, with and without staging memory, Redis, files.

    PYTHONPATH=SITE KV_NODE=kvstore-node PYTHON measure_lmcache.py [--rounds 12] [--objects 32] [--object-bytes 524288]

PYTHON has LMCache. Redis is measured if `redis-server` is on PATH, Mooncake if its package is installed: LMCache's adapter for it lacks its
compiled part, so that is Mooncake's own client, over TCP, with its memory in another process. All in one process and one run, rounds
paired, each batch one task as LMCache's controllers submit it; bytes are compared. Needs an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["LMCACHE_TRACK_USAGE"] = "false"

import torch
from conftest import Node
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from measuring import free_port, in_turn, mooncake_master, running, table
from test_lmcache_adapter import key_of, load, look, made, spec, store


def objects_of(count: int, nbytes: int) -> list[TensorMemoryObj]:
    """In one arena, as LMCache's are."""
    arena = torch.zeros(count * nbytes, dtype=torch.uint8)
    objects = []
    for data in arena.view(count, nbytes):
        metadata = MemoryObjMetadata(
            shape=torch.Size([nbytes]),
            dtype=torch.uint8,
            address=data.data_ptr(),
            phy_size=nbytes,
            fmt=MemoryFormat.KV_2LTD,
            ref_count=1,
        )
        objects.append(TensorMemoryObj(data, metadata, parent_allocator=None))
    return objects


class Adapters:
    """One of LMCache's."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._adapter = made(config)

    def store(self, keys: list[Any], objects: list[Any]) -> bool:
        return bool(store(self._adapter, keys, objects).is_successful())

    def look(self, keys: list[Any]) -> list[bool]:
        found = look(self._adapter, keys)
        self._adapter.submit_unlock([key for key, is_found in zip(keys, found, strict=True) if is_found])
        return found

    def load(self, keys: list[Any], objects: list[Any]) -> list[bool]:
        return load(self._adapter, keys, objects)

    def close(self) -> None:
        self._adapter.close()


class Mooncake:
    def __init__(self, master: str, arena: list[TensorMemoryObj]) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._store = MooncakeDistributedStore()
        if self._store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", master) != 0:
            raise RuntimeError("Mooncake's client has no master")
        for each in arena:
            self._store.register_buffer(each.data_ptr, each.get_size())

    @staticmethod
    def _of(keys: list[Any], objects: list[Any]) -> tuple[list[str], list[int], list[int]]:
        return [str(key) for key in keys], [each.data_ptr for each in objects], [each.get_size() for each in objects]

    def store(self, keys: list[Any], objects: list[Any]) -> bool:
        return all(each == 0 for each in self._store.batch_put_from(*self._of(keys, objects)))

    def look(self, keys: list[Any]) -> list[bool]:
        return [each == 1 for each in self._store.batch_is_exist([str(key) for key in keys])]

    def load(self, keys: list[Any], objects: list[Any]) -> list[bool]:
        return [each > 0 for each in self._store.batch_get_into(*self._of(keys, objects))]

    def close(self) -> None:
        self._store.close()


#: Holds Mooncake's memory: memory of a client's own process moves by memcpy.
MOONCAKE_HOLDER = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[1]) == 0
print("ready", flush=True)
sys.stdin.read()
"""


def ways(node: Node, options: argparse.Namespace, folder: Path, end: contextlib.ExitStack) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for door, name in (("native_plugin", "Connector"), ("plugin", "Adapter")):
        found[name] = Adapters(spec(node.endpoint, door))
        found[f"{name}, by the socket"] = Adapters(spec(node.endpoint, door, staging_bytes=0))
    if shutil.which("redis-server"):
        port = free_port()
        command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
        end.enter_context(running(*command, port=port))
        found["Redis (resp)"] = Adapters({"type": "resp", "host": "127.0.0.1", "port": port, "num_workers": 2})
    found["files (fs)"] = Adapters({"type": "fs", "base_path": str(folder)})
    master = mooncake_master()
    if master and options.mooncake:
        port = free_port()
        end.enter_context(running(master, f"--rpc_port={port}", f"--metrics_port={free_port()}", port=port))
        command = [sys.executable, "-c", MOONCAKE_HOLDER, f"127.0.0.1:{port}", str(2 << 30)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        end.callback(holder.wait)
        end.callback(holder.terminate)
        assert holder.stdout is not None
        while (line := holder.stdout.readline()) and line.strip() != b"ready":
            pass
        found["Mooncake (TCP)"] = Mooncake(f"127.0.0.1:{port}", options.arena)
    for each in found.values():
        end.callback(each.close)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--objects", type=int, default=32)
    parser.add_argument("--object-bytes", type=int, default=512 << 10)
    parser.add_argument("--mooncake", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    count, nbytes = options.objects, options.object_bytes
    node = Node(capacity="2GiB")
    stored, loaded = objects_of(count, nbytes), objects_of(count, nbytes)
    options.arena = [*stored, *loaded]
    with contextlib.ExitStack() as end, tempfile.TemporaryDirectory() as folder:
        end.callback(node.close)
        doors = ways(node, options, Path(folder), end)

        def measure(name: str, number: int) -> dict[str, float]:
            door = doors[name]
            keys = [key_of(f"{name} {number} {i}") for i in range(count)]
            for i, each in enumerate(stored):  # other bytes each time, partly compared
                ctypes.memmove(each.data_ptr, os.urandom(64), 64)
                ctypes.memmove(each.data_ptr + nbytes - 64, os.urandom(64), 64)
                ctypes.memset(loaded[i].data_ptr, 0, nbytes)
            times = [time.perf_counter()]
            assert door.store(keys, stored), name
            times.append(time.perf_counter())
            assert all(door.look(keys)), name
            times.append(time.perf_counter())
            assert all(door.load(keys, loaded)), name
            times.append(time.perf_counter())
            assert all(torch.equal(a.raw_data, b.raw_data) for a, b in zip(stored, loaded, strict=True)), name
            spans = [(b - a) * 1e3 for a, b in itertools.pairwise(times)]
            return dict(zip(("store", "lookup", "load"), spans, strict=True))

        for name in doors:
            for i in range(2):
                measure(name, -1 - i)
        found = in_turn(list(doors), options.rounds, measure)
        print(f"{count} objects of {nbytes} bytes, {options.rounds} rounds")
        print(table(found, list(doors), "Redis (resp)" if "Redis (resp)" in doors else "files (fs)"))


if __name__ == "__main__":
    main()
