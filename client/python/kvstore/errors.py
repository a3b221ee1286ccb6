"""Errors, one class for each status of the C interface (``client/kvstore.h``).

A dead, slow or full node raises no exception in match, get and put: the result is smaller, and its ``why`` is one of these objects, not
raised. A lookup without a hit is also a result.
"""

from __future__ import annotations

import re

__all__ = [
    "BadFrame",
    "BadRequest",
    "Busy",
    "Cancelled",
    "CorruptBlock",
    "DiskFailed",
    "Draining",
    "Error",
    "Forked",
    "Internal",
    "Mismatch",
    "NoNamespace",
    "NoRegion",
    "NotAdmitted",
    "NotFound",
    "OutOfMemory",
    "OverQuota",
    "PermissionDenied",
    "Quarantined",
    "StaleLease",
    "System",
    "TimedOut",
    "TooLarge",
    "Unavailable",
    "Unsupported",
]


class Error(Exception):
    """The base class. ``status`` is the C interface's number, ``status_name`` its name, such as KVS_BUSY."""

    status: int = 0
    status_name: str = "KVS_OK"

    def __init_subclass__(cls, status: int | None = None) -> None:
        if status is not None:
            cls.status, cls.status_name = status, "KVS" + re.sub("(?=[A-Z])", "_", cls.__name__).upper()


class OutOfMemory(Error, status=1):
    """The node has no evictable memory left."""


class StaleLease(Error, status=2):
    """The lease has ended: look the blocks up again."""


class CorruptBlock(Error, status=3):
    """A checksum did not match."""


class BadFrame(Error, status=4):
    """The node sent invalid bytes; the client reconnects."""


class BadRequest(Error, ValueError, status=5):
    """An argument breaks the rules: a bug in the caller. The text names the argument."""


class Unsupported(Error, status=6):
    """This library or the node does not support it."""


class NoNamespace(Error, status=7):
    """Unknown namespace."""


class Mismatch(Error, status=8):
    """Two sides describe one thing differently."""


class TooLarge(Error, status=9):
    """Over a limit of the node: split the request."""


class Busy(Error, status=10):
    """A limit is reached: back off."""


class Unavailable(Error, status=11):
    """The node cannot be reached."""


class NoRegion(Error, status=12):
    """Memory cannot be lent."""


class Quarantined(Error, status=13):
    """A timed-out get may still write this memory, or it is being taken back."""


class Draining(Error, status=14):
    """The node is shutting down."""


class Cancelled(Error, status=15):
    """Given up."""


class NotFound(Error, status=16):
    """The disk tier lacks the key."""


class DiskFailed(Error, status=17):
    """The disk tier failed."""


class NotAdmitted(Error, status=18):
    """The blocks to evict for this one are worth more to the cache. Do not retry."""


class PermissionDenied(Error, PermissionError, status=19):
    """The node's policy denies this client the right. Continue without; a person has to fix it."""


class OverQuota(Error, status=20):
    """A limit of the client's tenant is reached. Recompute; ask again later."""


class TimedOut(Error, TimeoutError, status=1000):
    """The deadline has passed."""


class System(Error, status=1001):
    """An error of the operating system; the text names it."""


class Internal(Error, status=1002):
    """A bug in this library; the client is disabled, the process goes on."""


class Forked(Error, status=1003):
    """The client is the parent's, and this is a child of fork(): make one of its own."""


BY_STATUS: dict[int, type[Error]] = {each.status: each for each in Error.__subclasses__()}


def error_of(status: int, text: str) -> Error:
    """The exception for a status, not raised. The extension module calls this."""
    made = BY_STATUS.get(status, Internal)(text)
    if status not in BY_STATUS:
        made.status = status
    return made
