"""Lets SGLang's engine and its HiCache run on a machine without a GPU. SGLang finds it as a plugin, in each of its processes.

Two parts need a GPU: its kernel library requires a loaded driver without calling it, and host pools require pinned memory and compiled
copies to the pages. A driver without devices is compiled on the spot; torch makes the copies.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def environment(folder: Path) -> dict[str, str]:
    """Further environment of an engine. ``folder`` gets the driver and the plugin's description."""
    described = folder / "kvstore_sglang_cpu-0.dist-info"
    described.mkdir(parents=True, exist_ok=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: kvstore-sglang-cpu\nVersion: 0\n")
    (described / "entry_points.txt").write_text("[sglang.srt.plugins]\nkvstore_cpu = sglang_cpu:install\n")
    driver = folder / "driver"
    driver.mkdir(exist_ok=True)
    if not (driver / "libcuda.so.1").exists():
        _compile_driver(driver)
    paths = [str(folder), str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    libraries = [str(driver), *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        # A small extension for page hashes is compiled at first use, and ninja may be the environment's own.
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(each for each in paths if each),
        "LD_LIBRARY_PATH": os.pathsep.join(each for each in libraries if each),
        "SGLANG_NCCL_SO_PATH": "/none",  # ranks use gloo
        "HF_HUB_OFFLINE": "1",
    }


def _compile_driver(folder: Path) -> None:
    """Each driver function that the kernel library names reports that there is no device."""
    found = importlib.util.find_spec("sgl_kernel")
    assert found is not None and found.origin is not None
    names: set[str] = set()
    for library in Path(found.origin).parent.rglob("*.so"):
        listed = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            name = line.split()[-1].split("@")[0]
            # The runtime's and the math libraries' functions begin alike.
            others = ("cuda", "cublas", "cudnn", "cufft", "curand", "cusolver", "cusparse")
            if name.startswith("cu") and name[2:3].isupper() and not name.startswith(others):
                names.add(name)
    source = folder / "driver.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(names)))
    target = folder / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", target, source], check=True)


def shared_files(process: int) -> set[str]:
    """Files in shared memory that a process has open or mapped; excludes other processes' files."""
    found = set()
    with open(f"/proc/{process}/maps", encoding="utf-8") as file:
        found |= {line.split(None, 5)[-1].strip() for line in file if "/dev/shm/" in line}
    for each in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{process}/fd/{each}"))
    return {name.removeprefix("/dev/shm/") for name in found if name.startswith("/dev/shm/")}


def _pages(indices: torch.Tensor, page_size: int) -> torch.Tensor:
    return indices.view(-1, page_size)[:, 0] // page_size


def _copy_tokens(
    src_layers: Any, dst_layers: Any, src_indices: torch.Tensor, dst_indices: torch.Tensor, page_size: int
) -> None:
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _load_layer(
    src_ptrs: Any, dst_ptrs: Any, src_indices: torch.Tensor, dst_indices: torch.Tensor, layer_id: int, page_size: int
) -> None:
    """From a host pool [page, layer, token, ...] to a layer's [token, ...]."""
    pages = _pages(src_indices, page_size)
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].reshape(len(src_indices), *target.shape[1:])


def _save_layers(
    src_ptrs: Any, dst_ptrs: Any, src_indices: torch.Tensor, dst_indices: torch.Tensor, page_size: int
) -> None:
    """From all layers' keys, then all layers' values, to a host pool."""
    pages = _pages(dst_indices, page_size)
    layers = len(src_ptrs) // len(dst_ptrs)
    for i, target in enumerate(dst_ptrs):
        for layer in range(layers):
            target[pages, layer] = src_ptrs[i * layers + layer][src_indices].reshape(len(pages), *target.shape[2:])


def allow_little_memory() -> None:
    """Otherwise host pools of any size are refused on a machine with less than 10 GiB free."""
    from sglang.srt.mem_cache.pool_host import base

    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 1 << 30


def install() -> None:
    from sglang.srt.mem_cache.pool_host import base, mha, mla

    inner = base.HostKVCache.__init__

    @functools.wraps(inner)
    def init(self: Any, **arguments: Any) -> None:
        inner(self, **(arguments | {"pin_memory": False}))

    base.HostKVCache.__init__ = init
    allow_little_memory()
    for module in (mha, mla):
        module.transfer_kv_direct = _copy_tokens
        module.transfer_kv_per_layer_direct_pf_lf = _load_layer
        module.transfer_kv_all_layer_direct_lf_pf = _save_layers
