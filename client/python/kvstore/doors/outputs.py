"""Stored form of an encoder's output, the same for every engine: a header, then its bytes.

mark "KVEC" | version | axes | element type, 16 bytes | five sizes, 0 behind the last axis | the elements, row by row
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

_HEADER = struct.Struct("<4sHH16s5Q")
_MARK, _VERSION, _AXES_MAX = b"KVEC", 1, 5
_DTYPES = {str(each).removeprefix("torch."): each for each in (torch.float32, torch.float16, torch.bfloat16)}

HEADER_BYTES = _HEADER.size


def header(dtype: torch.dtype, sizes: Sequence[int]) -> bytes | None:
    """The header of such an output; None for an unsupported type or shape."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES or not 1 <= len(sizes) <= _AXES_MAX or math.prod(sizes) <= 0:
        return None
    return _HEADER.pack(_MARK, _VERSION, len(sizes), name.encode(), *sizes, *([0] * (_AXES_MAX - len(sizes))))


def encoded(output: torch.Tensor) -> npt.NDArray[np.uint8] | None:
    """An output in its stored form; None for an unsupported one."""
    first = header(output.dtype, output.shape)
    if first is None:
        return None
    made = np.empty(HEADER_BYTES + output.numel() * output.element_size(), np.uint8)
    made[:HEADER_BYTES] = np.frombuffer(first, np.uint8)
    made[HEADER_BYTES:] = output.detach().cpu().contiguous().view(torch.uint8).reshape(-1).numpy()
    return made


def decoded(data: npt.NDArray[np.uint8]) -> torch.Tensor | None:
    """The output in such bytes, over the same memory; None if they are invalid."""
    if len(data) < HEADER_BYTES:
        return None
    mark, version, axes, name, *sizes = _HEADER.unpack(data[:HEADER_BYTES].tobytes())
    dtype = _DTYPES.get(name.rstrip(b"\0").decode("ascii", "replace"))
    if mark != _MARK or version != _VERSION or dtype is None or not 1 <= axes <= _AXES_MAX:
        return None
    count = math.prod(sizes[:axes])
    if count == 0 or any(sizes[axes:]) or count * dtype.itemsize != len(data) - HEADER_BYTES:
        return None
    return torch.from_numpy(data[HEADER_BYTES:]).view(dtype).reshape(sizes[:axes])
