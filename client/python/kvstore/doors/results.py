"""Results of calls to a set, as doors read them: a block counts only if all of it is what the engine expects."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sets import SetGetResult, SetMatchResult, SetPutResult

#: Values in SetPutResult.states.
_REFUSED, STORED = 0, 1


def held(match: SetMatchResult, block_bytes: Any) -> npt.NDArray[np.bool_]:
    """Which blocks the store has, each of its size."""
    made: npt.NDArray[np.bool_] = (np.asarray(match.held) > 0) & (np.asarray(match.block_bytes) == block_bytes)
    return made


def landed(got: SetGetResult, block_bytes: Any) -> npt.NDArray[np.bool_]:
    """Which blocks have come, each of its size."""
    made: npt.NDArray[np.bool_] = np.asarray(got.landed) & (np.asarray(got.block_bytes) == block_bytes)
    return made


def stored(put: SetPutResult) -> npt.NDArray[np.bool_]:
    """Which blocks the store has now. Other bytes under the same name are as good: another engine may have split its sums differently."""
    made: npt.NDArray[np.bool_] = np.asarray(put.states) != _REFUSED
    return made


def leading(flags: Iterable[Any]) -> int:
    """How many of the first flags are set."""
    return sum(1 for _ in takewhile(bool, flags))
