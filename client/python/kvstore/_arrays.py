"""Types of the calls' arguments, for people and type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: Anything with memory: NumPy arrays, torch tensors on the host, bytes, bytearray, memoryview, ``Memory``.
Buffer: TypeAlias = Any
#: Block hashes: an array of uint8 ``[n, 32]``, or ``bytes`` of any length, one for each block.
Hashes: TypeAlias = "npt.NDArray[np.uint8] | Sequence[bytes]"
#: Whole numbers: an array of any integer type, or a list.
Numbers: TypeAlias = "npt.NDArray[Any] | Sequence[int] | Any"
Seconds: TypeAlias = "float | timedelta"


def seconds(time: Seconds) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else float(time)
