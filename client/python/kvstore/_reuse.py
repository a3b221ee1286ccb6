"""A caller's hint on a request's reuse, as on the wire (index/reuse_hint.h)."""

from __future__ import annotations

from typing import Literal

from .errors import BadRequest

#: When the blocks will be asked for again: "never", within so many seconds, "later" than in ten minutes. None: unknown.
Reuse = Literal["never", "later"] | float | None

_WITHIN_SECONDS = (15, 60, 240, 600)


def reuse_number(reuse: Reuse) -> int:
    if reuse is None:
        return 0
    if reuse == "never":
        return 1
    if reuse == "later":
        return 2 + len(_WITHIN_SECONDS)
    if isinstance(reuse, bool) or not isinstance(reuse, (int, float)) or not reuse >= 0:
        raise BadRequest(f"reuse is {reuse!r}, allowed are 'never', 'later', seconds from 0 and None")
    return 2 + sum(reuse > each for each in _WITHIN_SECONDS)
