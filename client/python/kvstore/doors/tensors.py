"""Digests of a model's tensors in memory: loaded weights, and tables of rotations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ..errors import Unsupported
from .identity import digest, thread_count

#: _CHUNK_BYTES of a tensor make one sum. The host works in small steps, so that torch starts no threads of its own.
_CHUNK_BYTES = 8 << 20
_HOST_BYTES = (1 << 18) - 64
_ODD = 0x9E3779B97F4A7C15


def loaded_digest(named: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    """Digests torch tensors on the host or a GPU: all bytes, names, shapes and types. Equal on every device.

    Each word's bits are mixed one to one and multiplied by an odd number of its place; the products are summed, all modulo 2^64. A change
    of one word always changes the sum, a change of several fails to with a chance of about 2^-64. Takes 16 MiB of memory on each device.
    Raises Unsupported for a tensor without bytes (``meta``).
    """
    given = named.items() if isinstance(named, Mapping) else named
    tensors = sorted((pair for name, each in given for pair in _plain(name, each)), key=lambda pair: pair[0])
    sums: dict[Any, list[Any]] = {}
    odd: dict[Any, Any] = {}
    heads = []
    with torch.no_grad(), ThreadPoolExecutor(thread_count()) as threads:
        for name, each in tensors:
            if each.device.type == "meta":
                raise Unsupported(f"weights: {name} has no bytes here (device meta)")
            order = list(range(each.ndim))
            if not each.is_contiguous():
                order.sort(key=each.stride, reverse=True)
            flat = each.detach().permute(order)
            if not flat.is_contiguous():  # with gaps: rare among loaded tensors
                order, flat = [], each.detach().cpu().contiguous()
            device = flat.device
            if device not in odd:
                odd[device] = _odd_numbers(device)
            of_device = sums.setdefault(device, [])
            heads.append((f"{name} {tuple(each.shape)} {order} {each.dtype}", device, len(of_device)))
            of_device.append(_sum(flat.reshape(-1).view(torch.uint8), odd[device], threads))
        values = {device: torch.stack(each).cpu().tolist() for device, each in sums.items()}
    return digest([[head, values[device][i]] for head, device, i in heads])


def rotation_digest(tables: Mapping[str, Any] | Iterable[Any]) -> str:
    """Digests rotation tables in memory (``inv_freq``, cosines, sines): values, shapes, types, and names or order."""
    return loaded_digest(
        tables if isinstance(tables, Mapping) else ((f"{i:08}", each) for i, each in enumerate(tables))
    )


def _plain(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    """The tensor, or its inner tensors: a quantised tensor or one sharded over ranks wraps others."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, how = tensor.__tensor_flatten__()
        for inner in names:
            yield from _plain(f"{name}.{inner} {how}", getattr(tensor, inner))
        return
    yield name, tensor


def _odd_numbers(device: Any) -> Any:
    """One odd number for each word of a chunk."""
    odd = torch.arange(1, _CHUNK_BYTES // 8 + 1, dtype=torch.int64, device=device)
    for _ in range(2):
        odd.mul_(_signed(_ODD)).bitwise_xor_(odd >> 29)
    return odd.bitwise_or_(1)


def _sum(data: Any, odd: Any, threads: ThreadPoolExecutor) -> Any:
    chunks = [data[start : start + _CHUNK_BYTES] for start in range(0, data.numel(), _CHUNK_BYTES)]
    # Device calls return at once, so threads would only contend.
    sums = (threads.map if data.device.type == "cpu" else map)(lambda chunk: _sum_of_chunk(chunk, odd), chunks)
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    for i, each in enumerate(sums):
        total += each * _signed((i * 0xD1342543DE82EF95 * 2 + 1) % 2**64)
    return total


def _sum_of_chunk(chunk: Any, odd: Any) -> Any:
    step = _HOST_BYTES if chunk.device.type == "cpu" else _CHUNK_BYTES
    memory = torch.zeros(min(step, (chunk.numel() + 7) // 8 * 8), dtype=torch.uint8, device=chunk.device)
    total = torch.zeros((), dtype=torch.int64, device=chunk.device)
    for start in range(0, chunk.numel(), step):
        part = chunk[start : start + step]
        words = (part.numel() + 7) // 8
        memory[words * 8 - 8 : words * 8].zero_()
        memory[: part.numel()].copy_(part)
        mixed = memory[: words * 8].view(torch.int64)
        # One to one: otherwise the products would lose a change of high bits alone.
        mixed.bitwise_xor_((mixed >> 32).bitwise_and_(0xFFFFFFFF)).mul_(_signed(_ODD))
        mixed.bitwise_xor_((mixed >> 32).bitwise_and_(0xFFFFFFFF)).mul_(odd[start // 8 : start // 8 + words])
        total += mixed.sum()
    return total


def _signed(word: int) -> int:
    return (word + 2**63) % 2**64 - 2**63
