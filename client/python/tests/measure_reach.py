"""What Python adds to the C functions for pruned caches and page tables. Medians, in us for each call.

python client/python/tests/measure_reach.py [--build build/release] [--rounds 9]

The C function is called by ctypes with arguments made once, in turn with the Python call; from its time goes that of an empty function that is
called by ctypes with the same arguments.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kvstore
from kvstore import KeptRows, Layout, Part

ROOT = Path(__file__).resolve().parents[3]
BATCH, HEADS, SIZE, PAGE = 64, 8, 128, 16
FP16 = 5  # KVS_FP16


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def per_call(call: Callable[[], object], seconds: float = 0.02) -> float:
    timer = timeit.Timer(call, timer=time.thread_time)  # not what others take of a busy machine
    once = max(timer.timeit(10) / 10, 1e-7)
    count = max(int(seconds / once), 5)
    return timer.timeit(count) / count * 1e6


def refused(status: int) -> None:
    if status != 0:
        raise SystemExit(f"the C function refuses its arguments: {status}")


class Rows:
    def __init__(self, library: ctypes.CDLL, rounds: int) -> None:
        self.library, self.rounds = library, rounds

    def show(self, what: str, c_function: Callable[..., int], arguments: list[Any], call: Callable[[], object]) -> None:
        empty = self.library.kvs_layout_free
        same = [ctypes.c_void_p(None), *arguments[1:]]  # the rest is ignored
        refused(c_function(*arguments))
        call()
        c_times, python_times = [], []
        for _ in range(self.rounds):
            c_times.append(per_call(lambda: c_function(*arguments)) - per_call(lambda: empty(*same)))
            python_times.append(per_call(call))
        more = [python - c for python, c in zip(python_times, c_times, strict=True)]
        print(
            f"| {what} | {statistics.median(c_times):.2f} | {statistics.median(python_times):.2f} |"
            f" {statistics.median(more):.2f} | ({min(more):.2f}-{max(more):.2f}) |"
        )


def bound(library: ctypes.CDLL, name: str, tokens: int, heads: int, tensors: list[np.ndarray]) -> ctypes.c_void_p:
    class Shape(ctypes.Structure):
        _fields_ = (
            ("struct_size", ctypes.c_size_t),
            *((f"n{i}", ctypes.c_int64) for i in range(6)),
            ("element", ctypes.c_int),
            ("value_element", ctypes.c_int),
        )

    blocks, block_tokens = (1, tokens) if name == "ragged" else (tokens // PAGE, PAGE)
    shape = Shape(ctypes.sizeof(Shape), blocks, block_tokens, heads, SIZE, 0, 1, FP16, 0)
    layout, cache = ctypes.c_void_p(), ctypes.c_void_p()
    refused(library.kvs_layout_named(name.encode(), ctypes.byref(shape), ctypes.byref(layout)))
    pointers = (ctypes.c_void_p * len(tensors))(*(each.ctypes.data for each in tensors))
    refused(library.kvs_cache_bind(layout, pointers, None, ctypes.c_size_t(len(tensors)), ctypes.byref(cache)))
    return cache


def pruning(rows: Rows, batch: int, length: int, window: int) -> None:
    """Each head of each sequence keeps the last ``window`` tokens of ``length``."""
    lengths, windows = np.full(batch, length, np.int32), np.full(batch * HEADS, window, np.int32)
    slots = np.arange(batch * HEADS, dtype=np.int64) * window
    count, made = batch * HEADS * window, ctypes.c_size_t()
    room = np.zeros((count, 3), np.int64)
    arguments = [ctypes.c_int(0), ctypes.c_int64(HEADS), address(lengths), ctypes.c_size_t(batch), address(windows)]
    arguments += [ctypes.c_void_p(None), address(slots), address(room), ctypes.c_size_t(count), ctypes.byref(made)]

    def plan() -> KeptRows:
        return kvstore.plan_keep_rows("last", head_count=HEADS, seq_lens=lengths, windows=windows, first_slots=slots)

    rows.show(f"`plan_keep_rows`, {count} rows", rows.library.kvs_plan_keep_rows, arguments, plan)
    kept = plan()
    new = [np.ones((batch * length, HEADS, SIZE), np.float16) for _ in range(2)]
    pages = [
        np.zeros((count // PAGE, PAGE, n), t) for n, t in ((SIZE, np.float16), (SIZE, np.float16), (1, np.float32))
    ]
    source = Layout.of_parts([Part(t, "thf", (r,)) for t, r in zip(new, ("key", "value"), strict=True)]).bind(new)
    folded = Layout.named("head_folded", block_count=count // PAGE, block_tokens=PAGE, key_size=SIZE, element="fp16")
    cache = folded.bind(pages)
    c_cache = bound(rows.library, "head_folded", count, 1, pages)
    c_source = bound(rows.library, "ragged", batch * length, HEADS, new)
    rows.show(
        f"`scatter_kept`, {count} rows",
        rows.library.kvs_scatter_kept,
        [c_cache, address(room), ctypes.c_size_t(count), c_source, ctypes.c_void_p(None)],
        lambda: kvstore.scatter_kept(cache, kept, source),
    )


def tables(rows: Rows) -> None:
    lens = np.full(BATCH, 1000, np.int32)
    append_indptr = np.arange(BATCH + 1, dtype=np.int32)
    pages = -(-lens // PAGE)
    indptr = np.concatenate([[0], np.cumsum(pages)]).astype(np.int32)
    indices = np.arange(indptr[-1], dtype=np.int32)
    batch_indices, positions = kvstore.append_positions(append_indptr, lens)
    slots = np.zeros(BATCH, np.int64)
    size = ctypes.c_size_t
    rows.show(
        f"`append_positions`, {BATCH} requests",
        rows.library.kvs_append_positions,
        [address(append_indptr), size(BATCH), address(lens), address(batch_indices), address(positions), size(BATCH)],
        lambda: kvstore.append_positions(append_indptr, lens),
    )
    arguments = [address(indptr), size(BATCH + 1), address(indices), size(len(indices)), ctypes.c_int64(PAGE)]
    arguments += [address(batch_indices), address(positions), size(BATCH), address(slots)]
    rows.show(
        f"`slots_of_csr`, {BATCH} tokens",
        rows.library.kvs_slots_of_csr,
        arguments,
        lambda: kvstore.slots_of_csr(indptr, indices, PAGE, batch_indices, positions),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    rows = Rows(ctypes.CDLL(str(given.build / "client/libkvstore.so")), given.rounds)
    print("| call | C | Python | more | (least-most) |")
    print("| --- | ---: | ---: | ---: | --- |")
    pruning(rows, BATCH, 1, 1)  # a decoding step
    pruning(rows, 1, 512, 128)  # a prompt
    tables(rows)


if __name__ == "__main__":
    main()
